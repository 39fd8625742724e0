"""What may a script ask of its job? That its node is left out, that the job stops, that it begins again.

The agent hears of it at once; what becomes of it is the job's to decide, and comes as a signal like any other end. So each
function returns, and the script goes on until then, or ends by itself. Without an agent there is nobody to ask: a
RuntimeWarning says so, and the script goes on.
"""

from __future__ import annotations

from holdfast.client.worker import this_worker

__all__ = ["exclude_this_node", "restart_job", "stop_job"]


def exclude_this_node(reason: str) -> None:
    """Ask that the job goes on without this node: another takes its place, or the job gets smaller."""
    _ask("exclude", reason, "that this node be left out")


def stop_job(reason: str) -> None:
    """Ask that the whole job ends, and is not restarted."""
    _ask("stop", reason, "that the job stop")


def restart_job(reason: str) -> None:
    """Ask that all ranks of the job are started again."""
    _ask("restart", reason, "that the job be restarted")


def _ask(kind: str, reason: str, what: str) -> None:
    if not isinstance(reason, str) or not reason.strip():
        raise ValueError(f"say why, in words: whoever looks after the job reads it; not {reason!r}")
    if not this_worker.ask(kind, reason):
        import warnings  # only where nobody can be asked

        warnings.warn(f"nobody to ask {what} ({reason}): this process is no worker of a Holdfast agent", RuntimeWarning, 3)
