"""Runs Holdfast's bootstrap in a worker, then makes way for the user's own `sitecustomize`, or for none.

This directory is the first entry of a worker's PYTHONPATH (`agent.workers.launch.bootstrap_env`) and holds nothing else.
Python's `site` imports this module before it runs the script; `client/bootstrap.py` tells what happens, and why here.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType


def _load(name: str, *path: str) -> ModuleType:
    """The module in our file at `path`, as `name`, without the package around it (which this interpreter may not have)."""
    file = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(__file__))), *path)
    module = type(sys)(name)
    module.__file__ = file
    source_loader = type(__spec__.loader)  # that of this very file: it knows about .pyc files, and needs no import
    exec(source_loader(name, file).get_code(name), module.__dict__)  # type: ignore
    return module


try:
    _bootstrap = sys.modules["_holdfast_bootstrap"] = _load("_holdfast_bootstrap", "client", "bootstrap.py")
    _bootstrap.restore(os.path.dirname(__file__))
    _bootstrap.start(_load("_holdfast_page", "core", "page", "layout.py"), _load)
except Exception:
    if "HOLDFAST_SPARE" in os.environ:
        os._exit(1)  # nobody has asked for another worker
    # The worker must run all the same; the agent sees from the page that nobody has taken it.

# `site` handles what comes of this: the user's module, its exceptions, or ImportError if there is none, which it swallows
# and after which sys.modules has no `sitecustomize`, as in plain Python.
sys.modules.pop(__name__, None)
try:
    import sitecustomize  # type: ignore # noqa: F401
finally:
    if "HOLDFAST_SPARE" in os.environ:
        try:
            _bootstrap.spare.park(_bootstrap)  # returns in a worker
        except BaseException:
            os._exit(1)
