"""How long may a member run workers without word from the coordinator? The numbers that both sides must agree on.

    member       Renew sent ──────────── lease_s ────────────▶ SIGTERM ── KILL_S ──▶ SIGKILL
    coordinator      Renew heard ──────────── lease_s ────────────▶ lost ────── FENCE_S ──────▶ next round may form

The member counts from when it *sent* the Renew that was answered, which is before the coordinator heard it; so its lease
is over first, by its own monotonic clock and with no clock compared to another. What is left of the fence, a second,
is for drift between the two clocks (milliseconds in a lease), for the kernel to kill, and for the guardian of an agent that is
stopped itself (`runtime.guardian`).
"""

from __future__ import annotations

FENCE_S = 1.5
"""From a member's loss to the first moment at which another round may form. As long as a rank needs to die of SIGTERM and
then SIGKILL, and short beside a lease; survivors stop their own workers meanwhile, so it is seldom waited for."""

KILL_S = 0.5
"""From the end of a member's lease to SIGKILL, instead of the user's grace period."""

RENEW_S = 1.0
"""Longest time between two Renews. A lease has room for three (DHCP, etcd's keep-alive)."""
