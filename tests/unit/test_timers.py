"""Whose timer has run out, and is the agent's loop alive? Without a pipe, a clock or a port."""

from __future__ import annotations

import json

import pytest

from holdfast.agent.workers.file_timer import Timers
from holdfast.core.machine import NEVER
from holdfast.telemetry.health_http import HealthHttpServer


def line(pid: object = 7, scope: object = "s", expires: object = 100.0, signum: object = 9) -> bytes:
    """As torch's client writes it, without the end of line."""
    said = {"version": 1, "pid": pid, "scope_id": scope, "expiration_time": expires, "signal": signum}
    return json.dumps(said).encode()


@pytest.fixture
def timers() -> Timers:
    return Timers()


def told(timers: Timers, now: float) -> list[tuple[int, str, int]]:
    return [(seen.pid, seen.scope, seen.signum) for seen in timers.expired(now)]


def test_without_a_timer_there_is_nothing_to_wait_for(timers):
    assert timers.next_unix() == NEVER
    assert told(timers, 1e12) == []


def test_a_timer_that_has_run_out_is_told_once_with_how_late_it_is(timers):
    timers.take(line(expires=100.0))
    assert timers.next_unix() == 100.0
    assert told(timers, 99.9) == []
    (seen,) = timers.expired(100.5)
    assert (seen.pid, seen.scope, seen.signum, seen.late_s) == (7, "s", 9, 0.5)
    assert told(timers, 101.0) == []


def test_a_scope_that_was_left_is_forgotten(timers):
    timers.take(line(expires=100.0))
    timers.take(line(expires=-1, signum=0))
    assert told(timers, 200.0) == []


def test_leaving_a_scope_that_nobody_entered_is_no_harm(timers):
    timers.take(line(expires=-1, signum=0))
    assert timers.next_unix() == NEVER


def test_entering_a_scope_again_moves_its_timer(timers):
    timers.take(line(expires=100.0))
    timers.take(line(expires=300.0, signum=15))
    assert told(timers, 200.0) == []
    assert told(timers, 300.0) == [(7, "s", 15)]


def test_scopes_and_workers_are_kept_apart_and_told_in_order(timers):
    for pid, scope, expires in ((8, "a", 30.0), (7, "b", 10.0), (7, "a", 20.0)):
        timers.take(line(pid=pid, scope=scope, expires=expires))
    assert timers.next_unix() == 10.0
    assert told(timers, 25.0) == [(7, "b", 9), (7, "a", 9)]
    assert told(timers, 35.0) == [(8, "a", 9)]


def test_the_timers_of_workers_that_have_gone_are_forgotten(timers):
    timers.take(line())
    timers.armed.clear()
    assert (timers.next_unix(), told(timers, 1e9)) == (NEVER, [])


@pytest.mark.parametrize("signum", [0, -1])
def test_a_timer_may_ask_for_no_signal(timers, signum):
    timers.take(line(signum=signum))
    assert told(timers, 100.0) == [(7, "s", signum)]


@pytest.mark.parametrize(
    "rubbish",
    [
        *(b"", b"x", b"\xff\xfe", b"[]", b"null", b"3", b"{}", b"[" * 4096),
        *(line(pid="x"), line(pid=float("inf")), line(pid=None), line(expires="soon"), line(expires=float("nan"))),
        *(line(signum=4711), line(signum="SIGKILL"), line(signum=1e400)),
    ],
)
def test_what_is_no_request_is_refused(timers, rubbish):
    with pytest.raises(ValueError):
        timers.take(rubbish)
    assert timers.next_unix() == NEVER


# --- the agent's own health -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("age_s", "status"), [(0.0, 200), (59.0, 200), (61.0, 503), (-5.0, 200)])
def test_a_loop_that_is_stuck_is_unhealthy(age_s, status):
    code, said = HealthHttpServer(lambda: 1000.0 - age_s, 0, clock=lambda: 1000.0).answer()
    assert (code, said["status"]) == (status, "healthy" if status == 200 else "unhealthy")


def test_an_agent_that_cannot_say_is_unhealthy():
    def broken() -> float:
        raise RuntimeError("no loop")

    code, said = HealthHttpServer(broken, 0).answer()
    assert code == 503 and "no loop" in str(said["reason"])
