"""JAX under Holdfast: the environment already says all that `jax.distributed` needs.

    holdfast run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint node0:29400 examples/jax_hello.py

One process per node or per accelerator, as you like: Holdfast does not care what runs inside.
"""

import os

import jax

jax.distributed.initialize(
    coordinator_address=f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    num_processes=int(os.environ["WORLD_SIZE"]),
    process_id=int(os.environ["RANK"]),
)
print(f"process {jax.process_index()} of {jax.process_count()} sees {jax.device_count()} devices")
