"""Is the script's torch process group up? torch is never imported here: a script with a group has imported it."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def process_group() -> Any:
    """`torch.distributed` if its default process group is initialised; None: it is not, or the script has no torch."""
    dist: Any = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def get_rank() -> int | str | None:
    """This process's rank, by torch's process group, else as RANK says it, else None."""
    group = process_group()
    return int(group.get_rank()) if group else os.environ.get("RANK")


def largest_of_all(values: list[float]) -> list[float]:
    """For each place the largest value that any rank gives. Collective: every rank must call it. Needs an initialised group."""
    dist, torch = process_group(), sys.modules["torch"]
    # Where the default group can reduce: on the CPU if it can, else on its first kind of device.
    kinds = [pair.split(":")[0] for pair in dist.get_backend_config().split(",")]
    tensor = torch.tensor(values, dtype=torch.float64, device="cpu" if "cpu" in kinds else kinds[0])
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return [float(value) for value in tensor.tolist()]
