"""Rendezvous: how the nodes of a job find each other and agree on who takes part, with which rank, in which round.

`torch.distributed.elastic.rendezvous` under our name. Importing it registers torch's backends, and those that installed
packages offer under the entry-point group `torchrun.handlers`.
"""

from __future__ import annotations

from .api import *  # noqa: F403 (its `__all__` is the list)
from .api import __all__ as __all__
from .registry import _register_default_handlers, _register_out_of_tree_handlers

_register_default_handlers()
_register_out_of_tree_handlers()
