"""What is said to those who ask for etcd, which Holdfast does not speak yet; torch's names for it can be imported."""

from __future__ import annotations

from typing import NoReturn

from .api import RendezvousError


class EtcdUnsupported(RendezvousError, NotImplementedError):
    """An etcd backend was asked for."""


def refuse(what: str) -> NoReturn:
    """Say what to use instead."""
    raise EtcdUnsupported(
        f"{what} is not supported yet. Use --rdzv-backend c10d (or static), or start the job with `holdfast run`, "
        "whose own rendezvous needs no outside service."
    )
