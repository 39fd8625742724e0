"""The smallest job: each rank says who it is.

    holdfast run --nproc-per-node 4 examples/minimal.py

Holdfast starts this file once per rank and tells each one its place in the environment, in torchrun's words. Nothing
here imports Holdfast, and nothing has to.
"""

import os
import socket

rank = int(os.environ["RANK"])  # 0 … WORLD_SIZE - 1, over all nodes
local_rank = int(os.environ["LOCAL_RANK"])  # 0 … LOCAL_WORLD_SIZE - 1, on this node: usually the GPU to use
world_size = int(os.environ["WORLD_SIZE"])
meet = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"  # where the ranks find each other
life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])  # 0 at first; one more after each restart

print(f"rank {rank} of {world_size} (local {local_rank}) on {socket.gethostname()}, life {life}; the ranks meet at {meet}")
