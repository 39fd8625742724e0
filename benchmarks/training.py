"""What does it cost a training step to be watched (`--monitor auto`)? A small model on the CPU.

In one process: the same step differs by several percent from one process to the next, whoever starts them. The hook is timed
where it runs, after the step has had the caches to itself; and steps with it are compared to the steps beside them without it.
"""

from __future__ import annotations

import importlib.util
import json
from statistics import median

from harness import HOLDFAST, PLAIN, Bench, Row, command, launch, worker

STEPS, QUICK_STEPS = 2000, 200


def step_ms(steps: int) -> tuple[float, float, float]:
    """Milliseconds of a step, what of them are the hook's, and how many more they are than without it; medians of so many."""
    with launch() as job:
        job.start([*command(HOLDFAST), "--monitor", "auto", worker("steps"), str(steps)])
        job.finish()
        step_s, hook_s, more_s = json.loads((job.folder / "output-0").read_text().splitlines()[-1])
        return 1000 * step_s, 1000 * hook_s, 1000 * more_s


def run(bench: Bench) -> list[Row]:
    """Two rows; none without torch."""
    if importlib.util.find_spec("torch") is None:
        return []
    runs = [step_ms(QUICK_STEPS if bench.quick else STEPS) for _ in range(bench.times(7))]
    added = median(hook / (step - hook) for step, hook, _ in runs)
    paired = [100 * more / (step - hook) for step, hook, more in runs]
    samples = {HOLDFAST: [step for step, _, _ in runs], PLAIN: [step - hook for step, hook, _ in runs]}
    return [
        Row("a training step, watched", "ms", samples, "≤ 0.5 % more than unwatched", added <= 0.005, f"{added:.2%}"),
        Row("the same, less the step beside it that is not", "%", {HOLDFAST: paired}, "≤ 0.5 %", median(paired) <= 0.5),
    ]
