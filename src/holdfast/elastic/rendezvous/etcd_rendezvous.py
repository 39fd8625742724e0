"""torch elastic's first etcd rendezvous, backend `etcd`: its names. Using one says what to use instead."""

from __future__ import annotations

from typing import Any

from ._etcd_missing import refuse
from .api import RendezvousHandler, RendezvousInfo, RendezvousParameters


class EtcdRendezvousRetryableFailure(Exception):
    """A step of the rendezvous failed and may be tried again."""


class EtcdRendezvousRetryImmediately(Exception):
    """A step lost against another node's and should be tried again at once."""


class EtcdRendezvous:
    """The protocol over etcd."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        refuse("EtcdRendezvous")


class EtcdRendezvousHandler(RendezvousHandler):
    """The handler over that protocol."""

    def __init__(self, rdzv_impl: EtcdRendezvous, local_addr: str | None = None) -> None:
        refuse("EtcdRendezvousHandler")

    def get_backend(self) -> str:
        return "etcd"

    def next_rendezvous(self) -> RendezvousInfo:
        refuse("EtcdRendezvousHandler")

    def is_closed(self) -> bool:
        refuse("EtcdRendezvousHandler")

    def set_closed(self) -> None:
        refuse("EtcdRendezvousHandler")

    def num_nodes_waiting(self) -> int:
        refuse("EtcdRendezvousHandler")

    def get_run_id(self) -> str:
        refuse("EtcdRendezvousHandler")

    def shutdown(self) -> bool:
        refuse("EtcdRendezvousHandler")


def create_rdzv_handler(params: RendezvousParameters) -> RendezvousHandler:
    """A handler for backend `etcd`."""
    refuse("The rendezvous backend 'etcd'")
