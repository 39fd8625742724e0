"""How soon is a rank that hangs killed, once its limit is exceeded, and how soon do all run again?"""

from __future__ import annotations

import os
import select
import time
from statistics import median

from harness import HOLDFAST, PATIENCE_S, Bench, Row, command, launch, worker

LIMIT_S = 1.0
FLAGS = ("--nproc-per-node", "2", "--max-restarts", "1", "--ft-rank-heartbeat-timeout", str(LIMIT_S))


def measure() -> tuple[float, float]:
    """Milliseconds from the moment at which the limit is exceeded to the death of the rank, and to the first line of both."""
    with launch() as job:
        job.start([*command(HOLDFAST), *FLAGS, worker("hang")])
        beat = next(note for note in job.wait_for("beat", 2) if note.rank == 1)
        pidfd = os.pidfd_open(beat.pid)
        try:
            if not select.select([pidfd], [], [], PATIENCE_S)[0]:
                raise RuntimeError(f"nobody killed it:\n{job.output()}")
            died_at = time.monotonic()
        finally:
            os.close(pidfd)
        again_at = max(note.at for note in job.wait_for("again", 2))
        job.finish()
        over_at = beat.at + LIMIT_S
        return 1000 * (died_at - over_at), 1000 * (again_at - over_at)


def run(bench: Bench) -> list[Row]:
    """Two rows. torchrun has no such limit; ft_launcher looks every 5 s, by its default."""
    died, again = zip(*[measure() for _ in range(bench.times(11))])
    return [
        Row("limit of a rank that hangs exceeded → it is dead", "ms", {HOLDFAST: list(died)}, "≤ 50 ms", median(died) <= 50),
        Row("the same → first line of all ranks", "ms", {HOLDFAST: list(again)}),
    ]
