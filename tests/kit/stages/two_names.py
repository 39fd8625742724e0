"""Modules of two packages that offer the same: somebody else's, and ours."""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import Any

BESIDE_ELASTIC = ("argparse_util", "launcher", "run", "launch")
"""Packages that torch keeps beside its elastic one, and we inside."""


class Names:
    """Modules by what they are called below the package `root`; without a name the package itself."""

    def __init__(self, root: str) -> None:
        self.root = root

    @property
    def ours(self) -> bool:
        return self.root.startswith("holdfast")

    def path(self, *parts: str) -> str:
        """Dotted name, as `mock.patch` takes it."""
        root = self.root
        if not self.ours and parts[0].split(".")[0] in BESIDE_ELASTIC:
            root = root.rpartition(".")[0]
        return ".".join((root, *parts))

    def __call__(self, module: str = "") -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says on import that there is no numpy
            return import_module(self.path(module) if module else self.root)

    def __repr__(self) -> str:
        return "ours" if self.ours else "nvrx" if self.root.startswith("nvidia") else "torch"
