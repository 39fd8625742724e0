"""What does watching 8 ranks cost the launcher: memory, and processor time while they make ten steps a second?

The same job with `--monitor auto` and with `--monitor off`, in turn; what counts is the difference. A limit is given, too, so
that pages are read as often as one of 10 s needs.
"""

from __future__ import annotations

import time

from footprint import RANKS, cpu_ns, launcher_processes, memory_kb
from harness import HOLDFAST, Bench, Row, command, launch, worker

OFF = "not watched"
REACH_MB, REACH_PERCENT = 3, 0.2


def measure(contender: str, watched_s: float) -> dict[str, float]:
    """MB, processes, and percent of one core."""
    monitor = ["--monitor", "off"] if contender == OFF else ["--monitor", "auto", "--ft-rank-heartbeat-timeout", "10"]
    with launch() as job:
        pid = job.start([*command(HOLDFAST), *monitor, "--nproc-per-node", str(RANKS), worker("get_on")])
        workers = {note.pid for note in job.wait_for("first", RANKS)}
        time.sleep(min(watched_s, 5.0))  # until the monitor has learned something
        ours = launcher_processes(pid, workers)
        before, begun = sum(map(cpu_ns, ours)), time.monotonic()
        time.sleep(watched_s)
        spent, passed = sum(map(cpu_ns, ours)) - before, time.monotonic() - begun
        return {
            "rss": sum(memory_kb(pid, "Rss") for pid in ours) / 1024,
            "cpu": 100 * spent / 1e9 / passed,
            "processes": len(ours),
        }


def run(bench: Bench) -> list[Row]:
    """The difference that watching makes."""
    seen: dict[str, dict[str, list[float]]] = {HOLDFAST: {}, OFF: {}}
    for _ in range(bench.times(3)):
        for contender, samples in seen.items():
            for quantity, value in measure(contender, 0.5 if bench.quick else 20.0).items():
                samples.setdefault(quantity, []).append(value)

    def more(quantity: str) -> dict[str, list[float]]:
        return {HOLDFAST: [on - off for on, off in zip(seen[HOLDFAST][quantity], seen[OFF][quantity])]}

    rows = []
    for what, unit, quantity, limit in (
        ("memory of the monitor, RSS", "MB", "rss", REACH_MB),
        ("processor time of the monitor", "% of a core", "cpu", REACH_PERCENT),
        ("processes of the monitor", "", "processes", 0),
    ):
        row = Row(f"{what}, {RANKS} ranks that get on", unit, more(quantity), f"≤ {limit:g} {unit}".rstrip())
        rows.append(Row(row.what, row.unit, row.samples, row.reach, (row.mid(HOLDFAST) or 0.0) <= limit))
    return rows
