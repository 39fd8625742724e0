"""Who may take a Lease of Kubernetes (coordination.k8s.io/v1)? By what changes in it, as client-go decides, and by no other's
clock. Pure.

A holder renews its Lease, and each renewal gives it another version. One that has the same version for as long as it says it
holds is over: its holder has counted from before its last request, and a part of that time only.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.value import Value

MARGIN = 0.9  # How much of its lease a holder uses: clocks differ.


class Lease(Value):
    """A Lease, as it was read."""

    version: str
    """Another with each change."""
    holder: str
    """Empty: nobody's."""
    duration_s: float
    transitions: int
    """How often it has passed from one to another."""


def lease_of(thing: dict[str, Any]) -> Lease:
    """What the API server has told. What somebody else has written there may lack anything."""
    spec = thing.get("spec") or {}
    return Lease(
        version=str(thing["metadata"]["resourceVersion"]),
        holder=str(spec.get("holderIdentity") or ""),
        duration_s=float(spec.get("leaseDurationSeconds") or 0.0),
        transitions=int(spec.get("leaseTransitions") or 0),
    )


class Turn:
    """Whether it is our turn."""

    def __init__(self, us: str) -> None:
        self.us = us
        self.version = ""
        self.since = 0.0
        """When the Lease was first seen with that version."""

    def wait_for(self, lease: Lease | None, now: float) -> str:
        """Who holds it. Empty: we do, or may take it. None: there is none."""
        if lease is None or lease.holder in ("", self.us):
            return ""
        if lease.version != self.version:
            self.version, self.since = lease.version, now
        return lease.holder if now < self.since + lease.duration_s else ""
