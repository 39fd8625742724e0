"""How long from exec until the last worker runs the first line of its script?"""

from __future__ import annotations

import sys

from harness import HOLDFAST, PLAIN, TORCHRUN, Bench, Launch, Row, command, launch, worker


def measure(contender: str, ranks: int) -> float:
    """Milliseconds. Plain Python: started `ranks` times, one after the other without waiting."""
    with launch() as job:
        if contender == PLAIN:
            began = [started(job, rank) for rank in range(ranks)]
        else:
            job.start([*command(contender), "--nproc-per-node", str(ranks), worker("first_line")])
            began = [job.started_at]
        last = max(note.at for note in job.wait_for("first", ranks))
        job.finish()
    return 1000 * (last - began[0])


def started(job: Launch, rank: int) -> float:
    """Start plain Python as one rank; the moment before its exec."""
    job.start([sys.executable, "-u", worker("first_line")], {"RANK": str(rank)})
    return job.started_at


def run(bench: Bench) -> list[Row]:
    """2 and 4 ranks."""
    rows = []
    for ranks, part in ((2, 12), (4, 10)):
        samples = bench.interleave(9, lambda contender, ranks=ranks: measure(contender, ranks), also=(PLAIN,))[""]
        row = Row(f"exec → first line of the last worker, {ranks} ranks", "ms", samples)
        ours, theirs, plain = row.mid(HOLDFAST), row.mid(TORCHRUN), row.mid(PLAIN)
        reach = f"≤ 1/{part} of torchrun; ≤ 60 ms + 1.5 × plain Python"
        bound = 60 + 1.5 * plain
        met = ours <= bound and (theirs is None or ours <= theirs / part)
        rows.append(Row(row.what, row.unit, samples, reach, met, f"the second bound is {bound:.0f} ms"))
    return rows
