"""Which rendezvous backends are there, and how is one made?"""

from __future__ import annotations

import logging
from importlib.metadata import entry_points

from . import c10d_rendezvous_backend, etcd_rendezvous, etcd_rendezvous_backend, static_tcp_rendezvous
from .api import RendezvousHandler, RendezvousParameters
from .api import rendezvous_handler_registry as handler_registry
from .dynamic_rendezvous import create_handler
from .holdfast_rendezvous import create_handler as create_holdfast_handler
from .stores import torch_is_there

log = logging.getLogger(__name__)


def _create_etcd_v2_handler(params: RendezvousParameters) -> RendezvousHandler:
    backend, store = etcd_rendezvous_backend.create_backend(params)
    return create_handler(store, backend, params)


def _create_c10d_handler(params: RendezvousParameters) -> RendezvousHandler:
    if params.max_nodes > 1 and not torch_is_there() and params.get("store_type", "tcp").strip().lower() == "tcp":
        log.warning("the rendezvous backend c10d is served by Holdfast's own: torch, whose store it needs, is not installed")
        return create_holdfast_handler(params)
    backend, store = c10d_rendezvous_backend.create_backend(params)
    return create_handler(store, backend, params)


def _register_default_handlers() -> None:
    handler_registry.register("etcd", etcd_rendezvous.create_rdzv_handler)
    handler_registry.register("etcd-v2", _create_etcd_v2_handler)
    handler_registry.register("c10d", _create_c10d_handler)
    handler_registry.register("static", static_tcp_rendezvous.create_rdzv_handler)
    for name in ("holdfast", "embedded", "memory"):  # the last two are `holdfast run`'s names
        handler_registry.register(name, create_holdfast_handler)


def _register_out_of_tree_handlers() -> None:
    """Register what installed packages offer. One that cannot be loaded costs a warning, not the job."""
    for found in entry_points(group="torchrun.handlers"):
        try:
            handler_registry.register(found.name, found.load()())
        except Exception:
            log.warning(
                "The rendezvous backend %s of entry point %s could not be registered", found.name, found.value, exc_info=True
            )


def get_rendezvous_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler of the kind that `params.backend` names, from the global registry."""
    return handler_registry.create_handler(params)
