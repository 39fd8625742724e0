"""What does a node tell of a restart? Measured by its own record, once its ranks have made a step again."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.agent.reporting.recoveries import Recoveries
from holdfast.core.job.events import (
    Event,
    FailureSeen,
    NodeLost,
    RanksBegun,
    RanksEnded,
    RoundFormed,
    WorkerExited,
    WorkersStopped,
    WorkerStarted,
)
from holdfast.core.job.failure import Failure
from holdfast.core.wire.fleet import Recovery


def formed(round: int) -> Event:
    where: dict[str, Any] = {"master_addr": "n0", "master_port": 1, "waited_s": 0.0, "reason": ""}
    return RoundFormed(round=round, nodes=("a",), group_rank=0, world_size=1, **where)


def begun(stepped_s: float | None, first_step: int | None = None) -> Event:
    none: dict[str, Any] = {"joining_s": None, "joined_s": None, "restored_s": None, "restore_s": 0.0}
    return RanksBegun(booted_s=0.5, stepped_s=stepped_s, first_step=first_step, **none)


STARTED = WorkerStarted(rank=0, local_rank=0, pid=1, argv=(), log_dir=None)
EXITED = WorkerExited(rank=0, local_rank=0, pid=1, exitcode=-9)
STOPPED = WorkersStopped(took_s=0.1, killed=())
ENDED = RanksEnded(last_step=9, last_step_s=10.0, saved_s=None)


def failed(at: float) -> Event:
    return FailureSeen(failure=Failure(node="a", rank=0, at_unix=at))


def told(*events: tuple[float, Event]) -> Recovery | None:
    recoveries = Recoveries("a")
    for at, event in events:
        recoveries.recorded(event, at)
    return recoveries.last


FIRST = ((0.0, formed(1)), (1.0, STARTED), (2.0, begun(1.0, 0)))
"""A round whose first step ends at 2 s, and whose others take a second each."""

DIED = ((12.5, ENDED), (12.5, EXITED), (12.75, failed(12.5)), (13.0, STOPPED))


def test_a_restart_is_told_once_ranks_have_made_a_step_again() -> None:
    ended = (*FIRST, *DIED, (14.0, formed(2)), (15.0, STARTED))
    assert told(*ended) is None
    measured = told(*ended, (20.0, begun(3.0, 7)))
    assert measured is not None
    assert (measured.round, measured.detect_s, measured.act_s) == (1, 0.25, 2.75)
    assert measured.train_s == 5.5, "from its death until the first step, which ends three seconds after the start"
    assert measured.lost_s == pytest.approx(5.5 + 4.5), "steps 7 to 9 were made again, and what there was of the tenth"


def test_one_that_fails_before_its_first_step_goes_on_until_another_has_made_one() -> None:
    again = (*FIRST, *DIED, (14.0, formed(2)), (15.0, STARTED), (16.0, begun(None)), (16.0, EXITED), (16.0, failed(16.0)))
    assert told(*again) is None
    measured = told(*again, (17.0, formed(3)), (18.0, STARTED), (30.0, begun(2.0)))
    assert measured is not None and (measured.round, measured.train_s) == (2, 7.5), "since the first death"


def test_of_a_lost_node_the_time_in_which_nobody_heard_it_counts() -> None:
    lost = NodeLost(name="b", reason="it was not heard", silent_s=3.0)
    measured = told(*FIRST, (13.0, lost), (13.5, STOPPED), (14.0, formed(2)), (15.0, STARTED), (20.0, begun(1.0)))
    assert measured is not None and (measured.detect_s, measured.train_s) == (3.0, 6.0)


def test_ranks_that_tell_of_no_step_have_come_back_when_they_run() -> None:
    first = ((0.0, formed(1)), (1.0, STARTED), (12.5, begun(None)))
    measured = told(*first, *DIED[1:], (14.0, formed(2)), (15.0, STARTED), (60.0, begun(None)))
    assert measured is not None and measured.train_s == measured.detect_s + measured.act_s == 3.0


def test_a_job_that_nothing_disturbs_tells_nothing() -> None:
    assert told(*FIRST, (13.0, STOPPED), (14.0, formed(2)), (15.0, STARTED), (20.0, begun(1.0))) is None
