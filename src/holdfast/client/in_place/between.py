"""Has a script changed what it keeps outside of an update? A few numbers of each object tell it, at next to no cost for a step.

    update ──── note ──── (the script: validation, forward, backward) ──── the next update: changed?
                                   │ another rank fails: changed?

A validation that puts an EMA's weights into the model, and takes them out again, tears the state as an update does: who is
interrupted in it would go on with the EMA's weights, and with another loss, without a word.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

__all__ = ["Between"]

SAMPLES = 4
"""Parameters of each module of which one number is noted. Whoever swaps or moves weights changes nearly all of them."""


class Between:
    """What those objects were as the last update ended."""

    def __init__(self, those: Sequence[tuple[str, Any]]) -> None:
        self._parameters = [(name, one) for name, kept in those if hasattr(kept, "named_buffers") for one in _some(kept)]
        self._schedules = [(name, kept) for name, kept in those if hasattr(kept, "last_epoch")]
        self.note()

    def note(self) -> None:
        """An update has ended. Nobody waits for the GPU here."""
        self._numbers = [_number(one) for _, one in self._parameters]
        self._epochs = [kept.last_epoch for _, kept in self._schedules]

    def moved_weights(self) -> list[str]:
        """Names of the modules whose weights have changed since. It waits for the GPU."""
        now = [(name, before, _number(one)) for (name, one), before in zip(self._parameters, self._numbers)]
        return list(dict.fromkeys(name for name, before, number in now if not _is_same(before, number)))

    def moved_schedules(self) -> list[str]:
        """Names of the learning rates' schedules that have gone on since."""
        return [name for (name, kept), before in zip(self._schedules, self._epochs) if kept.last_epoch != before]


def _some(module: Any) -> list[Any]:
    """Parameters from all over the module: of those that are trained, if any is."""
    every = [one for one in module.parameters() if one.requires_grad] or list(module.parameters())
    return every[:: max(1, -(-len(every) // SAMPLES))]


def _number(parameter: Any) -> Any:
    """One in the middle of what lies in this rank's memory, copied. None: nothing does."""
    local = getattr(parameter, "_local_tensor", parameter).detach()
    return local[tuple(size // 2 for size in local.shape)].clone() if local.numel() else None


def _is_same(before: Any, now: Any) -> bool:
    return before is None or now is None or bool(((before == now) | (before != before)).item())  # or it is no number
