"""What does it cost a training step to be watched (`--monitor auto`)? A small model on the CPU; the hook is timed in each step.

It is timed where it runs, after the step has had the caches to itself. Two processes, with and without it, would not do: the
same step differs by several percent from one to the next, whoever starts them.
"""

from __future__ import annotations

import importlib.util
import json
from statistics import median

from harness import HOLDFAST, PLAIN, Bench, Row, command, launch, worker


def step_ms() -> tuple[float, float]:
    """Milliseconds of a step, and what of them are the hook's."""
    with launch() as job:
        job.start([*command(HOLDFAST), "--monitor", "auto", worker("steps")])
        job.finish()
        step_s, hook_s = json.loads((job.folder / "output-0").read_text().splitlines()[-1])
        return 1000 * step_s, 1000 * hook_s


def run(bench: Bench) -> list[Row]:
    """One row; none without torch."""
    if importlib.util.find_spec("torch") is None:
        return []
    runs = [step_ms() for _ in range(bench.times(7))]
    added = median(hook / (step - hook) for step, hook in runs)
    samples = {HOLDFAST: [step for step, _ in runs], PLAIN: [step - hook for step, hook in runs]}
    return [Row("a training step, watched", "ms", samples, "≤ 0.5 % more than unwatched", added <= 0.005, f"{added:.2%}")]
