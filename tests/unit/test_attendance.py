"""What does another launcher's agent say to the coordinator, and what does it make of the answers?"""

from __future__ import annotations

from kit.stages.made_up import assigned, report

from holdfast.agent.group.messages import Exit, LeaseOver, Send, Told
from holdfast.core.machine import NEVER, Say, Tick
from holdfast.core.wire.messages import Finish, Join, Leave, Message, Refused, Request, Stop, Stopped, Succeeded, Waiting
from holdfast.elastic.rendezvous.attendance import Attendance, Close, Depart, EndWorkers, Enter, Finished


def said(actions):
    return [action.message for action in actions if isinstance(action, Send)]


def told(attendance: Attendance, message: Message) -> list[Message]:
    return said(attendance.observe(Told(message=message), 0.0))


def seated(number: int = 1) -> Attendance:
    """One that has a seat in that round."""
    attendance = Attendance(Join(node="n", name="a", addr="a", master_port=0, nproc=1, role="default"))
    attendance.observe(Enter(port=4), 0.0)
    told(attendance, assigned(number))
    assert attendance.state == "in"
    return attendance


def test_it_joins_with_the_port_of_its_store_and_the_round_it_comes_from():
    (join,) = said(seated(3).observe(Enter(port=5), 0.0))
    assert (join.master_port, join.round, join.group_rank) == (5, 3, 0)


def test_a_spare_says_of_which_round_it_knows():
    attendance = Attendance(Join(node="n", name="a", addr="a", master_port=0, nproc=1, role="default"))
    attendance.observe(Enter(port=4), 0.0)
    waiting = Waiting(round=2, reason="the job has its 2 nodes")
    assert [join.known_round for join in told(attendance, waiting)] == [2]
    assert told(attendance, waiting) == []


def test_a_spare_says_why_it_waits_and_again_only_where_that_changes():
    attendance = Attendance(Join(node="n", name="a", addr="a", master_port=0, nproc=1, role="default"))
    attendance.observe(Enter(port=4), 0.0)
    reasons = ("the job has its 2 nodes", "the job has its 2 nodes", "it is excluded")
    words = [attendance.observe(Told(message=Waiting(round=n, reason=why)), 0.0) for n, why in enumerate(reasons, 1)]
    assert [[one.text for one in said if isinstance(one, Say)] for said in words] == [
        ["waiting as a spare: the job has its 2 nodes"],
        [],
        ["waiting as a spare: it is excluded"],
    ]


def test_a_stop_calls_it_and_the_agent_s_return_is_its_word_that_no_worker_lives():
    attendance = seated()
    assert told(attendance, Stop(round=1, reason="b joined", rejoin=True)) == []
    assert (attendance.state, attendance.why) == ("called", "b joined")
    assert [type(message) for message in said(attendance.observe(Enter(port=5), 1.0))] == [Join]


def test_a_stop_of_an_older_round_is_late_news():
    attendance = seated(2)
    told(attendance, Stop(round=1, reason="old", rejoin=True))
    assert attendance.state == "in"


def test_a_coordinator_that_does_not_know_it_is_told_again():
    attendance = seated()
    attendance.observe(Enter(port=5), 0.0)
    assert [type(message) for message in told(attendance, Stop(round=1, reason="who?", rejoin=True))] == [Join]


def test_success_is_said_once_and_the_job_s_end_is_kept():
    attendance = seated()
    assert [type(message) for message in said(attendance.observe(Finished(), 0.0))] == [Succeeded]
    assert attendance.observe(Finished(), 0.0) == []
    told(attendance, Finish(report=report()))
    assert attendance.state == "ended" and attendance.succeeded and attendance.closing


def test_one_that_has_succeeded_leaves_rather_than_to_be_waited_for_in_another_round():
    attendance = seated()
    attendance.observe(Finished(), 0.0)
    assert [type(message) for message in told(attendance, Stop(round=1, reason="b lost", rejoin=True))] == [Leave, Stopped]
    called = seated()
    told(called, Stop(round=1, reason="b lost", rejoin=True))
    assert [type(message) for message in said(called.observe(Finished(), 0.0))] == [Leave, Stopped]


def test_a_closed_job_forms_no_round_and_is_told_that_the_workers_are_gone():
    attendance = seated()
    told(attendance, Stop(round=1, reason="b ended", rejoin=False))
    assert attendance.state == "called" and attendance.closing
    assert [type(message) for message in said(attendance.observe(Enter(port=5), 0.0))] == [Stopped]


def test_closing_stops_the_job_and_departing_only_this_node():
    assert [type(message) for message in said(seated().observe(Close(reason="failed"), 0.0))] == [Request, Stopped]
    actions = seated().observe(Depart(reason="SIGTERM"), 0.0)
    assert [type(message) for message in said(actions)] == [Leave, Stopped] and isinstance(actions[0], Exit)


def test_after_its_lease_it_is_called_and_workers_that_are_not_stopped_in_time_are_ended():
    attendance = seated()
    attendance.observe(LeaseOver(reason="silence", until=7.5), 7.0)
    assert (attendance.state, attendance.deadline()) == ("called", 7.5)
    assert attendance.observe(Tick(), 7.4) == []
    assert attendance.observe(Tick(), 7.5) == [EndWorkers()]
    assert attendance.deadline() == NEVER


def test_workers_that_were_stopped_in_time_are_not_ended():
    attendance = seated()
    attendance.observe(LeaseOver(reason="silence", until=7.5), 7.0)
    attendance.observe(Enter(port=5), 7.2)
    assert attendance.observe(Tick(), 8.0) == []


def test_a_refusal_ends_it():
    attendance = seated()
    told(attendance, Refused(reason="wrong token", hint="look"))
    assert attendance.state == "ended" and attendance.refused is not None and attendance.why == "wrong token"
