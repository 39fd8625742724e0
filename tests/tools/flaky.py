"""Do tests pass every time? Runs them again and again, every other time on a busy machine.

    python tests/tools/flaky.py --times 20 -- tests/e2e/test_tee.py -n 4
    python tests/tools/flaky.py --times 20 -- --everyday -n 6

What stands behind `--` is pytest's. A machine is busy while a nice'd loop runs on each of its cores. Each run is a line in
`bench-results/flaky.jsonl`, with the code that was tested; what a red run has printed stands beside it. Runs count as long as
the code is the same, over as many calls as it takes: a call goes on where the one before it stopped. After a red run, or a
change of the code, the count begins again. Exit code 0: so many were green in a row.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
CODE = ("src", "tests", "examples", "benchmarks", "distributions", "deploy", "docs", "Makefile", "pyproject.toml")
"""What tests run or read: a change of anything in it begins the count anew."""
LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent:\n    sum(range(100_000))"
"""Keeps a core busy for as long as its parent lives."""


@contextlib.contextmanager
def busy_machine() -> Iterator[None]:
    """A nice'd loop on each core."""
    loops = [subprocess.Popen(["nice", sys.executable, "-c", LOOP]) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def code() -> str:
    """Names the code as it is in the working tree."""
    git = ("git", "-C", str(ROOT))
    trees = subprocess.run([*git, "rev-parse", *(f"HEAD:{path}" for path in CODE)], capture_output=True, check=True).stdout
    changed = subprocess.run([*git, "diff", "HEAD", "--", *CODE], capture_output=True, check=True).stdout
    new = subprocess.run([*git, "ls-files", "-o", "--exclude-standard", *CODE], capture_output=True, check=True).stdout
    added = b"".join((ROOT / os.fsdecode(path)).read_bytes() for path in new.splitlines())
    return hashlib.sha256(trees + changed + new + added).hexdigest()[:12]


def in_a_row(runs: list[dict[str, Any]], tests: list[str], version: str) -> list[dict[str, Any]]:
    """The green runs of these tests and this code since the last red one, or since something else was tested."""
    row: list[dict[str, Any]] = []
    for run in runs:
        if run["tests"] == tests:
            row = [*row, run] if run["code"] == version and not run["failed"] else []
    return row


def once(tests: list[str], busy: bool) -> dict[str, Any]:
    """One run: which tests failed, and how long it took. What it has printed is under `output`."""
    begun = time.monotonic()
    with busy_machine() if busy else contextlib.nullcontext():
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *tests], cwd=ROOT, capture_output=True, text=True
        )
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode and not failed:
        failed = [f"pytest ended with {done.returncode}"]
    said = done.stdout.rstrip().rpartition("\n")[2]
    return {"failed": failed, "seconds": round(time.monotonic() - begun), "said": said, "output": done.stdout + done.stderr}


def main(argv: list[str]) -> int:
    """Run until there are enough in a row, or one is red."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20, help="how many green runs in a row (default: 20)")
    parser.add_argument("--record", type=Path, default=ROOT / "bench-results/flaky.jsonl", help="where each run is a line")
    parser.add_argument("tests", nargs="+", help="what pytest is to run, and how")
    options = parser.parse_args(argv)
    options.record.parent.mkdir(parents=True, exist_ok=True)
    options.record.touch()
    version = code()
    runs = list(map(json.loads, options.record.read_text().splitlines()))
    while len(row := in_a_row(runs, options.tests, version)) < options.times:
        busy = sum(run["busy"] for run in row) < len(row) / 2
        run = {"code": version, "tests": options.tests, "busy": busy, "at": time.strftime("%F %T"), **once(options.tests, busy)}
        output = run.pop("output")
        if code() != version:
            print("the code has changed meanwhile: this run counts for nothing")
            return 1
        with options.record.open("a") as file:
            file.write(json.dumps(run) + "\n")
        runs.append(run)
        print(f"{len(row) + 1} of {options.times}, {'busy' if busy else 'quiet'}: {run['said']}", flush=True)
        if run["failed"]:
            kept = options.record.with_name(f"flaky-{time.strftime('%Y%m%d-%H%M%S')}.log")
            kept.write_text(output)
            print("\n".join(run["failed"]), f"what was printed: {kept}", sep="\n")
            return 1
    print(f"{len(row)} green in a row, {sum(run['busy'] for run in row)} of them on a busy machine ({version})")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
