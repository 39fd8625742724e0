"""The bare-bones application: the ranks form a process group and say who they are.

Holdfast gives each rank its place in the environment, in torchrun's words. Nothing here imports Holdfast.
"""

import os
import pprint

import torch.distributed as dist

NAMES = ("LOCAL_RANK", "RANK", "GROUP_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")

print("=" * 54)
print(f"Environment of PID {os.getpid()}:")
print(pprint.pformat({name: os.environ[name] for name in NAMES}))
print("=" * 54, flush=True)

dist.init_process_group(backend="gloo")
print(f"On PID {os.getpid()}, after init process group, rank={dist.get_rank()}, world_size={dist.get_world_size()}")
dist.barrier()
dist.destroy_process_group()
