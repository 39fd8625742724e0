"""The entry point of Holdfast's rendezvous, for agents of torchrun and of `holdfast.elastic`.

`torchrun --rdzv-backend=holdfast` finds `get_handler` in the entry-point group `torchrun.handlers`.
"""

from __future__ import annotations

from typing import Any

from .api import RendezvousHandler, RendezvousParameters


def create_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler from torch's or our parameters; its settings stand in the plug-in's documentation. Backend `memory`: for one
    node, and nobody else can come."""
    from . import holdfast_handler  # torch loads this module at its own import, and needs no agent for another backend

    return holdfast_handler.create_handler(params)


def get_handler() -> Any:
    """The entry point's name for `create_handler`."""
    return create_handler
