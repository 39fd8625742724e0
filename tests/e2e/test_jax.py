"""Does JAX find its coordinator and its peers under Holdfast, and find new ones after a failure? With JAX's own CPU backend."""

from __future__ import annotations

import importlib.util
import re

import pytest
from kit import ROOT

pytestmark = pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="JAX is not installed: pip install jax")

CPU = {"JAX_PLATFORMS": "cpu"}

FAILS_ONCE = """
import os, sys, time
import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

jax.distributed.initialize(
    coordinator_address=os.environ["JAX_COORDINATOR_ADDRESS"],
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]),
    process_id=int(os.environ["JAX_PROCESS_ID"]),
)
total, attempt = int(multihost_utils.process_allgather(jnp.ones(1)).sum()), os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, f"rank {jax.process_index()} attempt {attempt} total {total}\\n".encode())
if attempt == "0":
    if jax.process_index() == int(sys.argv[1]):
        os._exit(3)
    time.sleep(300)
"""


def said(done) -> list[str]:
    """What the script itself wrote: JAX's collectives write to stdout too. Ranks share it, and `print` writes a line's end
    apart, so that two lines may come before both ends."""
    parts = re.split(r"(?=(?:rank|process) \d)", done.stdout)
    return sorted(part.splitlines()[0] for part in parts if part.startswith(("rank ", "process ")))


def test_the_example(holdfast):
    done = holdfast("run", "--nproc-per-node", 2, ROOT / "examples" / "jax_hello.py", env=CPU)
    assert done.returncode == 0, done.output
    assert said(done) == [f"process {rank} of 2 sees 2 devices and the processes [0, 1]" for rank in range(2)]


def test_what_the_documentation_shows(holdfast, script):
    (source,) = [part.split("```")[0] for part in (ROOT / "docs/how-to/jax.md").read_text().split("```python\n")[1:]]
    done = holdfast("run", "--nproc-per-node", 2, script(source), env=CPU)
    assert done.returncode == 0, done.output
    assert said(done) == [f"process {rank} of 2, 2 devices" for rank in range(2)]


@pytest.mark.parametrize("victim", [0, 1], ids=["the coordinator's process", "another"])
def test_after_a_failure_all_processes_meet_again(holdfast, script, victim):
    options = ("--nproc-per-node", 2, "--max-restarts", 1, "--shutdown-timeout", 1)
    done = holdfast("run", *options, script(FAILS_ONCE), victim, env=CPU)
    assert done.returncode == 0, done.output
    assert said(done) == [f"rank {rank} attempt {attempt} total 2" for rank in range(2) for attempt in range(2)]
