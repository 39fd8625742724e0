"""Turns JSON from the record back into events and values.

Tolerant of other versions: unknown fields are left out, unknown words kept.
"""

from __future__ import annotations

from enum import StrEnum
from functools import cache
from typing import Any

from holdfast.core.job.events import ControlKind, ExcludedBy, HealthState
from holdfast.core.job.failure import Cause, Failure
from holdfast.core.job.policy import Verdict
from holdfast.core.job.report import Outcome
from holdfast.core.job.xid import DeviceFault
from holdfast.core.value import Value


def from_plain(kind: type[Value], plain: dict[str, Any]) -> Any:
    """A `kind` from what JSON made of it; None where a field is missing or of another shape. Unknown fields are left out."""
    hints = _hints(kind)
    try:
        return kind(**{field: _typed(hints[field], item) for field, item in plain.items() if field in hints})
    except (TypeError, ValueError):
        return None


@cache
def _hints(kind: type[Value]) -> dict[str, str]:
    """Each field's annotation, as it is written."""
    every: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        every |= vars(base).get("__annotations__", {})
    return {field: every[field] for field in kind.__fields__}


_VALUES: dict[str, type[Value]] = {"Failure": Failure, "DeviceFault": DeviceFault}
_ENUMS: tuple[type[StrEnum], ...] = (Cause, ControlKind, ExcludedBy, HealthState, Outcome, Verdict)
_WORDS = {kind.__name__: kind for kind in _ENUMS}
_SHAPES: dict[str, Any] = {"int": int, "float": (int, float), "str": str, "bool": bool, "tuple": (list, tuple), "dict": dict}
_SHAPES |= dict.fromkeys(_WORDS, str)


def _typed(hint: str, item: Any) -> Any:
    kind, _, rest = hint.partition(" | ")
    shape = kind.partition("[")[0]
    if item is None and rest == "None":
        return None
    if shape in _VALUES:
        value = from_plain(_VALUES[shape], item) if isinstance(item, dict) else None
        if value is None:
            raise ValueError(f"not a {shape}")
        return value
    if shape in _SHAPES and not isinstance(item, _SHAPES[shape]):
        raise TypeError(f"{item!r} is no {hint}")
    if shape in _WORDS:
        return next((word for word in _WORDS[shape] if word == item), item)  # another version's word is kept as it stands
    if shape != "tuple":
        return item
    each = kind[len("tuple[") :].partition(",")[0]
    return tuple(_typed(each, one) for one in item) if each in _VALUES else tuple(item)
