"""`import light_torch` before torch: what only `torch.compile`, fake tensors and meta tensors need is not imported.

An optimizer's first step would import torch's compiler, and torch itself the Python forms of all operators: two of the three
and a half seconds that such a rank's start costs. Process groups, autograd, DDP, FSDP and optimizers are the real ones.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Unused(ModuleType):
    """A module all of whose names may be asked for and called: a decorator gives the function back."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Unused(f"{self.__name__}.{name}")

    def __call__(self, function: Any = None, *given: Any, **named: Any) -> Any:
        return self if function is None else function


if "torch" not in sys.modules:  # else a warm spare has imported the whole
    for _name in ("torch._meta_registrations", "torch._dynamo"):
        sys.modules[_name] = _Unused(_name)
