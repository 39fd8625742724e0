"""The dynamic rendezvous over etcd, backend `etcd-v2`: its names. Using one says what to use instead."""

from __future__ import annotations

from typing import Any

from ._etcd_missing import refuse
from .api import RendezvousParameters
from .dynamic_rendezvous import RendezvousBackend, Token


class EtcdRendezvousBackend(RendezvousBackend):
    """The shared state under one key of etcd."""

    def __init__(self, client: Any, run_id: str, key_prefix: str | None = None, ttl: int | None = None) -> None:
        refuse("EtcdRendezvousBackend")

    @property
    def name(self) -> str:
        return "etcd-v2"

    def get_state(self) -> tuple[bytes, Token] | None:
        refuse("EtcdRendezvousBackend")

    def set_state(self, state: bytes, token: Token | None = None) -> tuple[bytes, Token, bool] | None:
        refuse("EtcdRendezvousBackend")


def create_backend(params: RendezvousParameters) -> tuple[EtcdRendezvousBackend, Any]:
    """Backend and store for `etcd-v2`."""
    refuse("The rendezvous backend 'etcd-v2'")
