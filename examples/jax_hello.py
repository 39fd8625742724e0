"""JAX under Holdfast: the environment already says all that `jax.distributed` needs.

    holdfast run --nproc-per-node 2 examples/jax_hello.py                         # two processes on this host, on CPUs
    holdfast run --nnodes 2 --nproc-per-node 1 --rdzv-backend c10d --rdzv-endpoint node0:29400 examples/jax_hello.py

One process per node or per accelerator, as you like: Holdfast does not care what runs inside.
"""

import os

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize(
    coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
    process_id=int(os.environ["JAX_PROCESS_ID"]),
)
rank, size = jax.process_index(), jax.process_count()
numbers = multihost_utils.process_allgather(jnp.array([rank]))
print(f"process {rank} of {size} sees {jax.device_count()} devices and the processes {sorted(map(int, numbers.ravel()))}")
