"""Trains a small model for so many steps. Prints the median seconds of a step, of what is in it of the hook by which Holdfast
watches, and of what it takes more than the step beside it that is not watched."""

import json
import sys
import time
from statistics import median

import torch

STEPS = int(sys.argv[1])

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
batch, labels = torch.randn(64, 256), torch.randint(10, (64,))

hooks = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
((key, ours),) = hooks.items()
within: list[float] = []


def timed(*given: object) -> None:
    """Ours, by the clock."""
    begun = time.perf_counter()
    ours(*given)
    within.append(time.perf_counter() - begun)


def step() -> float:
    """One, and its seconds."""
    begun = time.perf_counter()
    torch.nn.functional.cross_entropy(model(batch), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
    return time.perf_counter() - begun


def pair(watched_first: bool) -> float:
    """Of two steps, how much longer the watched one takes."""
    took = {}
    for watched in (watched_first, not watched_first):
        hooks.clear()
        if watched:
            hooks[key] = ours
        took[watched] = step()
    return took[True] - took[False]


hooks[key] = timed
steps = [step() for _ in range(STEPS)]
more = [(pair(True) + pair(False)) / 2 for _ in range(STEPS // 2)]
print(json.dumps([median(steps), median(within), median(more)]))
