"""How long may a member run workers without word from the coordinator? The numbers that both sides must agree on.

    member       Renew sent ────── granted(lease_s) ──────▶ SIGTERM ─ KILL_S ─▶ SIGKILL
                                          └───────────────── FENCE_S ─────────────────▶ none lives
    coordinator      Renew heard ───────────── lease_s ────────────▶ lost ── fence_after_loss_s ──▶ next round may form

The member counts from when it *sent* the Renew that was answered, which is before the coordinator heard it; so its lease
is over first, by its own monotonic clock and with no clock compared to another. The time that its workers need to die begins
before it is counted as lost: a swap of nodes waits for the lease, and hardly for more. What is left of the fence is
for drift between the two clocks (a millisecond in a lease), for the kernel to kill, and for the guardian of an agent
that is stopped itself, which acts `STRIKE_S` after the lease (`runtime.process.guardian`).
"""

from __future__ import annotations

FENCE_S = 0.5
"""Seconds from the end of a member's lease until another round may form. This is twice the time that a rank needs to die from
SIGTERM and then SIGKILL. Survivors stop their own workers during it."""

HEAD_START_S = 0.25
"""Seconds by which a member's lease ends before the coordinator gives the member up, so half of the fence has passed by then.
A larger value would leave less time for network outages: a member with an outage in this time loses its round."""

KILL_S = 0.25
"""Seconds from the end of a member's lease to SIGKILL, instead of the user's grace period. Enough for a few lines of a
handler, not for a checkpoint."""

RENEW_S = 0.75
"""Longest time between two Renews in a job of a few nodes. Never more than a third of the lease, so three fit into a lease
(as in DHCP and etcd's keep-alive)."""

MANY, MANY_RENEW_S = 100, 1.0
"""From so many nodes on, shortest time between two, and never longer than half of the lease: thousands of nodes keep their
coordinator busy."""


def granted(lease_s: float) -> float:
    """How long a member may run workers that is given up after `lease_s`."""
    return lease_s - _head_start_s(lease_s)


def renew_every_s(lease_s: float, nodes: int) -> float:
    """How long after a Renew the next is sent, of one of so many nodes that was granted `lease_s`."""
    return min(lease_s / 3, RENEW_S) if nodes < MANY else min(max(lease_s / 3, MANY_RENEW_S), lease_s / 2)


def fence_after_loss_s(lease_s: float) -> float:
    """What is left of the fence when a member is given up that had leases of `lease_s`."""
    return FENCE_S - _head_start_s(lease_s)


def _head_start_s(lease_s: float) -> float:
    return min(HEAD_START_S, lease_s / 4)
