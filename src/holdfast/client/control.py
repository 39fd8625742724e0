"""What may a script ask of its job? To leave its node out, to stop, or to begin again.

The agent hears of it at once, and the job decides. Each function returns, and the script goes on until a signal ends it.
Without an agent a RuntimeWarning says that the request is not made.
"""

from __future__ import annotations

from _warnings import warn  # built in; `warnings` is not

from holdfast.client.worker import this_worker

__all__ = ["exclude_this_node", "restart_job", "stop_job"]


def exclude_this_node(reason: str) -> None:
    """Ask that the job goes on without this node: another takes its place, or the job gets smaller."""
    _ask("exclude", reason)


def stop_job(reason: str) -> None:
    """Ask that the whole job ends, and is not restarted."""
    _ask("stop", reason)


def restart_job(reason: str) -> None:
    """Ask that all ranks of the job are started again."""
    _ask("restart", reason)


def _ask(kind: str, reason: str) -> None:
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"reason: give the reason as text, for the job's record; not {reason!r}")
    if not this_worker.ask(kind, reason):
        warn(f"the request to {kind} is not made ({reason}): no Holdfast agent started this process", RuntimeWarning, 3)
