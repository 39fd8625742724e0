"""Which random numbers come next in this process? Python's, numpy's and torch's generators, taken and put back as plain values.

numpy and torch are those that the script has loaded; neither is imported.
"""

from __future__ import annotations

import random
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["put", "take"]


def take() -> dict[str, Any]:
    """The generators as they are now."""
    taken: dict[str, Any] = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        taken["numpy"] = numpy.random.get_state()
    if (torch := sys.modules.get("torch")) is not None:
        taken["torch"] = torch.get_rng_state()
        if torch.cuda.is_initialized():
            taken["cuda"] = torch.cuda.get_rng_state()
    return taken


def put(taken: dict[str, Any]) -> None:
    """Set the generators to what `take` has returned, here or in another rank."""
    random.setstate(taken["python"])
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    if numpy is not None and "numpy" in taken:
        numpy.random.set_state(taken["numpy"])
    if torch is not None and "torch" in taken:
        torch.set_rng_state(taken["torch"])
        if "cuda" in taken and torch.cuda.is_initialized():
            torch.cuda.set_rng_state(taken["cuda"].cpu())
