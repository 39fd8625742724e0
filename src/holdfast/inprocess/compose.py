"""How do several stages become one? `Compose(a, b, c)(x)` is `a(b(c(x)))`. NVRx's name."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from typing import Any


class Compose:
    """The stages `instances`, the last one first; each is given what the one before returned. It is an instance of their
    nearest common class, so that it can stand where one of them could."""

    instances: tuple[Callable[..., Any], ...] = ()

    def __new__(cls, *instances: Callable[..., Any]) -> Any:
        """TypeError: there is nothing to compose."""
        if not instances:
            raise TypeError("Compose needs at least one stage")
        base = next(kind for kind in type(instances[0]).__mro__ if all(isinstance(one, kind) for one in instances))
        kind = type("Composed", (Compose, base), {"instances": instances, "__new__": object.__new__})
        return kind()

    def __init__(self, *instances: Callable[..., Any]) -> None:
        """As `__new__` has made it."""

    def __call__(self, *given: Any) -> Any:
        """UserWarning: a stage has returned nothing, and the next is called with None."""
        for stage in reversed(self.instances):
            result = stage(*given)
            if result is None and given and given != (None,):
                warnings.warn(f"{stage!r} returned nothing: each stage returns what the next is to be given", stacklevel=2)
            takes_any = bool(inspect.signature(stage).parameters)
            given = result if isinstance(result, tuple) else (result,) if takes_any else ()
        return result
