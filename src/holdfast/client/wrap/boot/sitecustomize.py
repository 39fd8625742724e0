"""Has a Python process that `holdfast wrap` started look whether it is a launcher (`client.wrap.launchers`).

Then it makes way for the user's own `sitecustomize`, or for none.

This directory is the first entry of PYTHONPATH there, and holds nothing else. It stays there for the processes that this one
starts.
"""

from __future__ import annotations

import os
import sys

_here = os.path.dirname(__file__)
if _here in sys.path:
    sys.path.remove(_here)
sys.path_importer_cache.pop(_here, None)


def _load(name: str, *path: str) -> object:
    """The module in our file at `path`, as `name`, without the package around it, which this interpreter may not have."""
    file = os.path.join(os.path.dirname(os.path.dirname(_here)), *path)
    module = type(sys)(name)
    module.__dict__["__file__"] = file
    source_loader = type(__spec__.loader)  # that of this very file: it knows about .pyc files, and needs no import
    exec(source_loader(name, file).get_code(name), module.__dict__)  # type: ignore
    return module


_load("_holdfast_launchers", "wrap", "launchers.py").begin(_load("_holdfast_hooks", "hooks.py"))  # type: ignore

# `site` handles what comes of this: the user's module, its exceptions, or ImportError if there is none.
sys.modules.pop(__name__, None)
import sitecustomize  # type: ignore # noqa: E402, F401
