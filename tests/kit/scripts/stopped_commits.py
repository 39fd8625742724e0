"""stopped_commits.py FOLDER STOPS: ranks that commit without a pause are stopped, and go on beside a newer life.

Nobody kills them, which is harder than any job. Prints how many stops there were, and after how many an older checkpoint had
taken a newer one's place.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import sys
import time
from pathlib import Path

from holdfast import client
from holdfast.core.page import layout

GOES_ON_S = 0.005  # How long the old life has for its worst.

code = sys.modules["holdfast.client.commit"]


def life(target: Path, number: int, words: memoryview, commits: int) -> int:
    """A rank of that round, which commits so often. Returns its pid."""
    pid = os.fork()
    if not pid:
        os.environ.update(HOLDFAST_JOB="job", HOLDFAST_ROUND=str(number))
        code._page = lambda: words  # type: ignore[attr-defined]
        try:
            for step in range(commits):
                client.commit(target, lambda path, step=step: Path(path).write_text(f"{number} {step}"))  # type: ignore[misc]
        except client.NotCommitted:
            pass
        os._exit(0)
    return pid


def round_in(target: Path) -> int:
    try:
        return int(target.read_text().split()[0])
    except FileNotFoundError:
        return 0


def main(folder: Path, stops: int) -> None:
    chance, older = random.Random(0), 0
    for number in range(1, 2 * stops, 2):
        target = folder / f"{number}.pt"
        words = memoryview(mmap.mmap(-1, layout.FIELDS_BYTES)).cast("Q")
        words[layout.LEASE_NS] = time.monotonic_ns() + 10**12
        old = life(target, number, words, 10**9)
        while not round_in(target):
            time.sleep(0.0001)
        time.sleep(chance.uniform(0.0, 0.002))
        os.kill(old, signal.SIGSTOP)
        os.waitpid(old, os.WUNTRACED)
        words[layout.LEASE_NS] = 1
        unleased = memoryview(bytearray(layout.FIELDS_BYTES)).cast("Q")
        os.waitpid(life(target, number + 1, unleased, 2), 0)
        os.kill(old, signal.SIGCONT)
        time.sleep(GOES_ON_S)
        older += round_in(target) != number + 1
        os.kill(old, signal.SIGKILL)
        os.waitpid(old, 0)
    print(f"{stops} stops, {older} times older")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
