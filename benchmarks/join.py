"""How long do N agents take to agree on their ranks, from the first one's join to the last one's rank?"""

from __future__ import annotations

import subprocess
import sys

from harness import HOLDFAST, TORCHRUN, Bench, Row, clean_environment, worker
from table import say

SIZES = (8, 32, 128, 256)
PART = 30
"""At 128 agents torchrun takes so many times as long, at least."""
PATIENCE_S = 90.0
"""How long torchrun is given; then what is shown is that it took longer."""


def measure(contender: str, count: int) -> float:
    """Milliseconds."""
    argv = [sys.executable, worker("agents"), contender, str(count), str(PATIENCE_S)]
    env = clean_environment() | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=PATIENCE_S + 200)
    if done.returncode:
        raise RuntimeError(f"{contender}, {count} agents: {done.stderr[-3000:]}")
    return 1000 * float(done.stdout)


def run(bench: Bench) -> list[Row]:
    """A row for each size. torchrun once where that takes a minute."""
    rows: list[Row] = []
    for count in SIZES[:1] if bench.quick else SIZES:
        samples: dict[str, list[float]] = {HOLDFAST: [], TORCHRUN: []}
        for time in range(bench.times(3)):
            samples[HOLDFAST].append(measure(HOLDFAST, count))
            if TORCHRUN in bench.contenders and (not time or count < 100):
                samples[TORCHRUN].append(measure(TORCHRUN, count))
                say(f"join, {count} agents: torchrun took {samples[TORCHRUN][-1] / 1000:.1f} s")
        row = Row(f"first of {count} agents joins → the last has its rank", "ms", samples)
        note = "torchrun had not finished by then" if (row.mid(TORCHRUN) or 0.0) >= 1000 * PATIENCE_S else ""
        grown = rows and row.ratio and rows[-1].ratio and (note or row.ratio < rows[-1].ratio)
        met = None if row.ratio is None or count < 128 else row.ratio <= 1 / PART and (count == 128 or bool(grown))
        reach = "" if count < 128 else f"≤ 1/{PART} of torchrun" + (", and less than at 128" if count > 128 else "")
        rows.append(Row(row.what, row.unit, samples, reach, met, note))
    return rows
