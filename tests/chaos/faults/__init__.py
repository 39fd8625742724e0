"""All kinds of fault, by subject: one module each, found by being here."""

import importlib
import pkgutil

from chaos.fault import FAULTS

for _module in sorted(module.name for module in pkgutil.iter_modules(__path__)):
    importlib.import_module(f"{__name__}.{_module}")

__all__ = ["FAULTS"]
