"""Long messages, with what most tests do not care about made up: a part in a round, started workers, a job's report."""

from __future__ import annotations

from holdfast.agent.group.messages import Started
from holdfast.core.job.report import JobReport
from holdfast.core.wire.messages import Assigned


def assigned(number: int = 1, *, group_rank: int = 0, of: int = 1, base_rank: int = 0, world_size: int = 1) -> Assigned:
    """A part in round `number`, of as many nodes as `of` says; the job has one role, and restarted before each later round."""
    return Assigned(
        round=number,
        restart_count=number - 1,
        group_rank=group_rank,
        group_world_size=of,
        base_rank=base_rank,
        world_size=world_size,
        role_base_rank=base_rank,
        role_world_size=world_size,
        master_addr="127.0.0.1",
        master_port=1,
        nodes=(),
        reason="first",
    )


def started(*pids: int) -> list[Started]:
    """Workers that run, by local rank."""
    return [Started(local_rank=local_rank, pid=pid, argv=(), log_dir=None) for local_rank, pid in enumerate(pids)]


def report(outcome: str = "succeeded", reason: str = "done") -> JobReport:
    """A job that was over after a second."""
    exit_code = int(outcome != "succeeded")
    return JobReport(job="j", outcome=outcome, exit_code=exit_code, started_at_unix=0.0, ended_at_unix=1.0, reason=reason)
