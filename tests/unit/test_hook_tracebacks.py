"""An error in a function that our hooks watch shows the script's frames and the function's, and none of ours."""

from __future__ import annotations

import errno
import traceback
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from holdfast.client import hooks


def save(path: str) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", path)


def frames(call: Any, *args: Any) -> list[str]:
    with pytest.raises(OSError, match="No space left") as raised:
        call(*args)
    return [frame.name for frame in traceback.extract_tb(raised.value.__traceback__)]


def test_a_save_that_fails_looks_as_without_us() -> None:
    writer: Any = SimpleNamespace(named=lambda name: nullcontext())
    watched = hooks._within("checkpoint", save, writer)
    assert frames(watched, "model.pt") == frames(save, "model.pt")


def test_so_does_a_call_that_is_noted() -> None:
    module: Any = ModuleType("saves")
    module.save = save
    hooks._around(module, "save", lambda *_: None, lambda begun: None)
    assert frames(module.save, "model.pt") == frames(save, "model.pt")


def test_an_error_of_a_function_in_c_has_no_frame_at_all() -> None:
    writer: Any = SimpleNamespace(named=lambda name: nullcontext())
    with pytest.raises(ValueError) as raised:
        hooks._within("checkpoint", int, writer)("x")
    assert len(traceback.extract_tb(raised.value.__traceback__)) == 1
