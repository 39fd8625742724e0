"""Twelve failures, each as torchrun shows it and as we do: docs/explanation/failure-screens.md, made from real runs.

    python tests/tools/failure_screens.py > docs/explanation/failure-screens.md

`FAILURES` are also what tests/e2e/test_failure_screens.py runs.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

BIN = Path(sys.executable).parent
SHOWN, WIDTH = 30, 150
"""Lines of torchrun's that the page shows, half of them from the end; and characters of each line."""


LAUNCHERS = {"torchrun": ["torchrun", "--standalone"], "holdfast run": ["holdfast", "run", "--node-name=node0"]}


class Failure(NamedTuple):
    """One, and what our screen says of it."""

    title: str
    says: str
    script: str
    ranks: int = 2
    flags: tuple[str, ...] = ()
    name: str = "train.py"


BY_RANK = "import os, sys, time\nrank = int(os.environ['RANK'])\n"
ALONE = BY_RANK + "if rank != 1:\n    time.sleep(60)\n"
FAILURES = (
    Failure("A KeyError on one of four ranks", "rank 1", ALONE + "batch = {'input': 1}\nloss = batch['labels']\n", 4),
    Failure(
        "A file that is missing on all of eight ranks",
        "a file is not there",
        BY_RANK + "def load():\n    return open(f'/data/shard-{rank}.bin')\nload()\n",
        8,
    ),
    Failure("A segmentation fault in a library", "SIGSEGV", ALONE + "import ctypes\nctypes.string_at(0)\n"),
    Failure("A rank that the kernel kills", "SIGKILL", ALONE + "import signal\nos.kill(os.getpid(), signal.SIGKILL)\n"),
    Failure("A rank that leaves without a word", "exit code 3", ALONE + "sys.exit(3)\n"),
    Failure(
        "A GPU without memory",
        "its GPU ran out of memory",
        ALONE + "raise RuntimeError('CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has 79.15 GiB')\n",
    ),
    Failure(
        "One rank fails, and the others lose their connection to it",
        "rank 1",
        """\
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for step in range(3):
    if step == 2 and dist.get_rank() == 1:
        raise ValueError("loss is nan")
    dist.all_reduce(torch.ones(1))
""",
        4,
    ),
    Failure("A package that is not installed", "frobnicate", BY_RANK + "import frobnicate\n"),
    Failure("A full disk", "disk", ALONE + "with open('/dev/full', 'w') as file:\n    file.write('x' * 100_000)\n"),
    Failure("A library that aborts", "SIGABRT", ALONE + "print('terminate called', file=sys.stderr, flush=True)\nos.abort()\n"),
    Failure("A script that is not there", "did you mean train.py?", "", name="trian.py"),
    Failure("A failure that comes again", "rank 1", ALONE + "raise ValueError('bad shard')\n", flags=("--max-restarts=1",)),
)


def words(failure: Failure) -> list[str]:
    """What follows `torchrun --standalone` or `holdfast run`."""
    return [f"--nproc-per-node={failure.ranks}", *failure.flags, failure.name]


def _said(launcher: list[str], failure: Failure) -> list[str]:
    """What a person sees, in a folder that has the script."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(failure.script)
        environ = {**os.environ, "OMP_NUM_THREADS": "1", "XDG_STATE_HOME": folder}
        done = subprocess.run(
            [BIN / launcher[0], *launcher[1:], *words(failure)], cwd=folder, env=environ, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=120,
        )  # fmt: skip
        text = done.stdout.replace(folder, "/job").replace(str(BIN.parent), "/venv")
    return [re.sub(r"\bvm\b", "node0", line)[:WIDTH] for line in text.rstrip().splitlines()]


def page() -> Iterator[str]:
    """The page, line by line."""
    yield "# Twelve failures, beside torchrun"
    yield ""
    yield "What each launcher prints of the same script, on one node without GPUs, stdout and stderr together. Of what torchrun"
    yield "prints the middle is left out. Made by `python tests/tools/failure_screens.py`."
    said = {failure.title: {name: _said(launcher, failure) for name, launcher in LAUNCHERS.items()} for failure in FAILURES}
    yield from ("", "| lines that are printed | torchrun | holdfast run |", "|---|--:|--:|")
    yield from (f"| {title} | {' | '.join(str(len(lines)) for lines in both.values())} |" for title, both in said.items())
    for number, failure in enumerate(FAILURES, 1):
        yield from ("", f"## {number}. {failure.title}", "")
        if failure.script:
            yield from ("```python", *failure.script.rstrip().splitlines(), "```", "")
        for name, lines in said[failure.title].items():
            yield from (f"`{name} {' '.join(words(failure))}`:", "", "```text")
            half = SHOWN // 2
            yield from lines if len(lines) <= SHOWN else (*lines[:half], f"… {len(lines) - SHOWN} lines …", *lines[-half:])
            yield from ("```", *([""] if name == "torchrun" else []))


if __name__ == "__main__":
    print("\n".join(page()).rstrip())
