"""Which of our modules answers to a name of NVRx's, in an environment without NVRx?

The distribution `holdfast-nvrx` (distributions/nvrx) puts a finder at the end of `sys.meta_path`, and that asks here. A package
shows what ours has, and its modules are ours themselves, by another name. What NVRx has and we have not is not found, as in an
environment without NVRx.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from importlib.util import find_spec as find_module
from types import CodeType, ModuleType
from typing import Any

ROOT = "nvidia_resiliency_ext"
VERSION = "0.6.0"
"""Of NVRx, whose names these are: what its users compare `__version__` with."""

OURS = {
    "fault_tolerance": "holdfast.fault_tolerance",
    "ptl_resiliency": "holdfast.ptl_resiliency",
    "checkpointing": "holdfast.checkpointing",
    "inprocess": "holdfast.inprocess",
    "shared_utils.inject_fault": "holdfast.inprocess.tools.inject_fault",  # its place since NVRx 0.6
    "straggler": "holdfast.straggler",  # its place before NVRx 0.5
    "attribution.straggler": "holdfast.straggler",
}
"""Packages and modules by their names in NVRx, without the first part. What is in them has the same name in both."""


def find_spec(name: str) -> ModuleSpec | None:
    """For `importlib`: how `name` is loaded. None: NVRx is there itself, or we have nothing by that name."""
    if name != ROOT and not _is_ours(sys.modules[ROOT]):
        return None
    below = name[len(ROOT) + 1 :]
    if not below or any(package.startswith(below + ".") for package in OURS):
        return ModuleSpec(name, _Package(""), is_package=True)
    at = next((package for package in OURS if f"{below}.".startswith(package + ".")), None)
    if at is None:
        return None
    ours = find_module(OURS[at] + below[len(at) :])
    if ours is None:
        return None
    is_package = ours.submodule_search_locations is not None
    return ModuleSpec(name, (_Package if is_package else _Module)(ours.name), origin=ours.origin, is_package=is_package)


def _is_ours(root: ModuleType) -> bool:
    """Is it ours, or folders that NVRx's removal has left behind?"""
    if isinstance(getattr(root.__spec__, "loader", None), _Package):
        return True
    if getattr(root, "__file__", None):
        return False
    files = (file for folder in root.__path__ for _, _, names in os.walk(folder) for file in names)
    return not any(file.endswith((".py", ".so")) for file in files)


class _Package(Loader):
    """Makes a package that shows what `ours` shows. Its `__path__` is empty, else our files would be loaded once more."""

    def __init__(self, ours: str) -> None:
        self.ours = ours

    def exec_module(self, module: ModuleType) -> None:
        ours = import_module(self.ours or __name__)
        shown: dict[str, Any] = {"__doc__": f"Holdfast's, by NVRx's name {module.__name__}.", "__file__": ours.__file__}
        if self.ours:
            shown |= {name: value for name, value in vars(ours).items() if not name.startswith("__")}
        elif module.__name__ == ROOT:
            shown["__version__"] = VERSION
        vars(module).update(shown)


class _Module(Loader):
    """Puts `ours` itself in the place of the module."""

    def __init__(self, ours: str) -> None:
        self.ours = ours

    def exec_module(self, module: ModuleType) -> None:
        sys.modules[module.__name__] = import_module(self.ours)

    def get_code(self, name: str) -> CodeType | None:
        """For `python -m`."""
        spec = find_module(self.ours)
        code: CodeType | None = spec.loader.get_code(self.ours) if spec is not None else None  # type: ignore[union-attr]
        return code
