"""How long does a job take that does nothing?"""

from __future__ import annotations

from harness import Bench, Row, command, launch, worker


def measure(contender: str) -> float:
    """Milliseconds from exec to exit, 2 ranks."""
    with launch() as job:
        job.start([*command(contender), "--nproc-per-node", "2", worker("empty")])
        ended_at = job.wait_for_end()
        job.finish()
        return 1000 * (ended_at - job.started_at)


def run(bench: Bench) -> list[Row]:
    """One row."""
    row = Row("whole run of an empty job, 2 ranks", "ms", bench.interleave(7, measure)[""], "≤ 1/12 of torchrun")
    return [Row(row.what, row.unit, row.samples, row.reach, row.ratio and row.ratio <= 1 / 12)]
