"""May a round go on though it has lost workers? The policy `min-healthy`, one function of how the nodes are.

It is for scripts that carry on by themselves with the ranks that are left. What counts is nodes: one that has lost a worker
is no longer healthy, whatever becomes of its others, which are left alone.
"""

from __future__ import annotations

from holdfast.core.job.policy import Decision, Health, Verdict


def verdict(health: Health, what: str) -> Decision:
    """What becomes of the round, of which `what` has just become known. `restart`: too few nodes are left; then the reason says
    only that."""
    well, needed = health.healthy + health.succeeded, health.needed
    if not health.healthy and health.succeeded >= needed:
        reason = f"{what}; {_nodes(health.succeeded)} succeeded, and that is enough (min-healthy: {needed})"
        return Decision(then=Verdict.FINISH, reason=reason)
    of = f"{well} of {_nodes(health.size)}"
    done = f", {health.succeeded} of them done" if health.succeeded else ""
    if well >= needed:
        reason = f"{what}; the others carry on: {of} healthy{done} (min-healthy: {needed})"
        return Decision(then=Verdict.CARRY_ON, reason=reason)
    return Decision(reason=f"only {of} healthy{done} (min-healthy: {needed})")


def _nodes(count: int) -> str:
    return f"{count} node{'' if count == 1 else 's'}"
