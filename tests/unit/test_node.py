"""One node's machines together: with its coordinator in the same process, and as a member of another's."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from kit.stages.made_up import assigned, report
from kit.stages.quick_disk import QuickNode

from holdfast.agent.group.gpu_memory_wait import MemoryWait
from holdfast.agent.group.machine import Group
from holdfast.agent.group.messages import Ended, Exit, LogsTaken, LookAtMemory, Started, StartWorkers, Sweep
from holdfast.agent.group.state import Phase, State
from holdfast.agent.leader.elected_node import FAILURES_KEPT, shortened
from holdfast.agent.node import Node
from holdfast.core.job.events import RoundFormed, WorkersStopped
from holdfast.core.job.failure import Evidence, Failure
from holdfast.core.machine import NEVER, Record, Signalled, Tick
from holdfast.core.value import replace
from holdfast.core.wire.links import Arrived, Connect, HangUp, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import (
    Assigned,
    Finish,
    Join,
    Leave,
    Message,
    Refused,
    Renew,
    Renewed,
    Stop,
    Stopped,
    Succeeded,
)
from holdfast.recovery.policy import RestartOnFailure
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.link_router import SOUGHT_S, LinkRouter
from holdfast.rendezvous.member import Member
from holdfast.rendezvous.rules import Rules


def join(node: str, nproc: int = 1) -> Join:
    return Join(node=node, name=node, addr=node, master_port=1, nproc=nproc, role="default")


def host(nodes: int, *, max_restarts: int = 0, lease_s: float = 3.0) -> Node:
    rules = Rules(job="j", min_nodes=nodes, max_nodes=nodes, lease_s=lease_s, max_restarts=max_restarts)
    server = LinkRouter(Rendezvous(rules, RestartOnFailure(max_restarts=max_restarts), now=0.0, now_unix=0.0))
    return QuickNode(Group(State(join=join("a"), grace_s=5.0, hosting=True)), server=server)


def member() -> Node:
    group = Group(State(join=join("b"), grace_s=5.0, hosting=False))
    return QuickNode(group, member=Member("b", endpoint="a:1", join_timeout_s=60.0, now=0.0))


def ended(exitcode: int) -> Ended:
    return Ended(local_rank=0, pid=1, exitcode=exitcode, gone=True, at_unix=0.0, evidence=Evidence())


def sent(actions: list[Any], link: int) -> list[Message]:
    return [action.message for action in actions if isinstance(action, Transmit) and action.link == link]


def kinds(actions: list[Any]) -> list[str]:
    return [type(action).__name__ for action in actions]


GUEST = 1 << 20


@pytest.fixture
def two() -> Node:
    """A hosting node, and b on the other end of a link; both run in round 1."""
    node = host(2)
    node.begin(0.0)
    node.observe(LinkUp(link=GUEST, ours=False), 0.0)
    node.observe(Arrived(link=GUEST, message=join("b")), 0.0)
    node.observe(Started(local_rank=0, pid=1, argv=(), log_dir=None), 0.0)
    return node


def hear(node: Node, message: Message, link: int = GUEST, now: float = 1.0) -> list[Any]:
    return node.observe(Arrived(link=link, message=message), now)


# --- one node ---------------------------------------------------------------------------------------------------------------


def test_a_job_of_one_node_starts_at_once_and_waits_for_no_time() -> None:
    node = host(1, lease_s=NEVER)
    assert any(isinstance(action, StartWorkers) for action in node.begin(0.0))
    assert node.deadline() == NEVER


def test_a_job_of_one_node_ends_with_its_last_worker() -> None:
    node = host(1, lease_s=NEVER)
    node.begin(0.0)
    node.observe(Started(local_rank=0, pid=1, argv=(), log_dir=None), 0.0)
    actions = node.observe(ended(0), 9.0)
    assert [action.code for action in actions if isinstance(action, Exit)] == [0] and node.done


def test_a_crash_of_a_lone_node_is_a_restart_within_one_observation() -> None:
    node = host(1, max_restarts=1, lease_s=NEVER)
    node.begin(0.0)
    node.observe(Started(local_rank=0, pid=1, argv=(), log_dir=None), 0.0)
    assert any(isinstance(action, StartWorkers) for action in node.observe(ended(1), 9.0))


def test_a_restart_sweeps_behind_the_last_round_before_anything_of_the_next() -> None:
    node = host(1, max_restarts=1, lease_s=NEVER)
    node.group.state = replace(node.group.state, memory=MemoryWait(timeout_s=60.0))
    node.begin(0.0)
    node.observe(Started(local_rank=0, pid=1, argv=(), log_dir=None), 0.0)
    actions = node.observe(ended(1), 9.0)
    told = [type(action.event) if isinstance(action, Record) else type(action) for action in actions]
    order = [kind for kind in told if kind in (Sweep, WorkersStopped, LookAtMemory, RoundFormed)]
    assert order == [Sweep, WorkersStopped, LookAtMemory, RoundFormed]


def test_every_node_is_told_where_the_coordinator_s_own_takes_the_lines_of_all() -> None:
    node = host(2)
    node.observe(LogsTaken(logs_at="10.0.0.1:7"), 0.0)
    node.begin(0.0)
    node.observe(LinkUp(link=GUEST, ours=False), 0.0)
    actions = node.observe(Arrived(link=GUEST, message=replace(join("b"), logs_at="10.0.0.2:8")), 0.0)
    (there,) = [message for message in sent(actions, GUEST) if isinstance(message, Assigned)]
    (here,) = [action.assigned for action in actions if isinstance(action, StartWorkers)]
    assert there.logs_at == here.logs_at == "10.0.0.1:7"


# --- hosting ----------------------------------------------------------------------------------------------------------------


def test_others_are_told_before_the_host_acts_itself() -> None:
    node = host(2)
    node.begin(0.0)
    node.observe(LinkUp(link=GUEST, ours=False), 0.0)
    names = kinds(hear(node, join("b"), now=0.0))
    assert names.index("Transmit") < names.index("StartWorkers")


def test_answers_go_over_the_newest_link(two: Node) -> None:
    two.observe(LinkUp(link=GUEST + 1, ours=False), 1.0)
    renew = Renew(node="b", round=1, sent_at=5.0)
    assert sent(hear(two, renew, GUEST + 1), GUEST + 1) == [Renewed(lease_s=2.75, sent_at=5.0, at_unix=1.0)]
    assert sent(hear(two, renew, GUEST), GUEST + 1) != [], "what the old link still brings is answered over the new one"


def test_the_end_of_an_old_link_is_not_the_end_of_the_member(two: Node) -> None:
    two.observe(LinkUp(link=GUEST + 1, ours=False), 1.0)
    hear(two, Renew(node="b", round=1), GUEST + 1)
    two.observe(LinkDown(link=GUEST, reason="reset"), 1.1)
    assert two.server is not None and two.server.rendezvous.seats["b"].linked


def test_the_host_stays_until_everybody_has_said_that_they_know_the_end(two: Node) -> None:
    hear(two, Succeeded(node="b", round=1))
    assert [type(message) for message in sent(two.observe(ended(0), 2.0), GUEST)] == [Finish]
    assert two.group.phase is Phase.ENDED and not two.done
    hear(two, Leave(node="b", round=1, reason="the job is over"))
    two.observe(LinkDown(link=GUEST, reason="closed by the other side"), 2.1)
    assert two.done


def test_the_host_stays_for_a_member_whose_link_broke_in_the_last_moment(two: Node) -> None:
    hear(two, Succeeded(node="b", round=1))
    two.observe(ended(0), 2.0)
    two.observe(LinkDown(link=GUEST, reason="reset"), 2.0)
    assert not two.done
    two.observe(LinkUp(link=GUEST + 1, ours=False), 2.5)
    assert [type(message) for message in sent(hear(two, Renew(node="b", round=1), GUEST + 1), GUEST + 1)] == [Finish]


def test_links_that_are_silent_for_ever_are_not_waited_for_at_the_end(two: Node) -> None:
    """One that b has replaced, after a partition, and one of c, whose host has lost its power: no FIN comes of either."""
    end = 4.5 + SOUGHT_S
    two.observe(LinkUp(link=GUEST + 1, ours=False), 1.0)
    hear(two, join("c"), GUEST + 1, now=1.0)
    two.observe(LinkUp(link=GUEST + 2, ours=False), 3.5)
    hear(two, Renew(node="b", round=1), GUEST + 2, now=3.5)
    two.observe(Tick(), 4.5)
    hear(two, Succeeded(node="b", round=1), GUEST + 2, now=end)
    two.observe(ended(0), end)
    assert not two.done
    hear(two, Leave(node="b", round=1, reason="the job is over"), GUEST + 2, now=end + 0.1)
    assert not two.done, "b is about to close it"
    two.observe(LinkDown(link=GUEST + 2, reason="closed"), end + 0.2)
    assert two.done


def test_who_was_cut_off_shortly_before_the_end_is_waited_for_until_it_is_told(two: Node) -> None:
    two.observe(LinkUp(link=GUEST + 1, ours=False), 1.0)
    hear(two, join("c"), GUEST + 1, now=1.0)
    hear(two, Succeeded(node="b", round=1), now=4.5)
    two.observe(Tick(), 4.5)
    two.observe(ended(0), 5.0)
    hear(two, Leave(node="b", round=1, reason="the job is over"), now=5.1)
    two.observe(LinkDown(link=GUEST, reason="closed"), 5.2)
    assert two.server is not None and two.server.idle and not two.done
    two.observe(LinkUp(link=GUEST + 2, ours=False), 6.0)
    assert [type(message) for message in sent(hear(two, Renew(node="c", round=0), GUEST + 2), GUEST + 2)] == [Finish]
    hear(two, Leave(node="c", round=0, reason="the job is over"), GUEST + 2)
    two.observe(LinkDown(link=GUEST + 2, reason="closed"), 6.1)
    assert two.done


def test_a_member_that_is_refused_is_hung_up_on() -> None:
    rules = Rules(job="j", min_nodes=2, max_nodes=2, ranks_given=True)
    server = LinkRouter(Rendezvous(rules, RestartOnFailure(max_restarts=0), now=0.0, now_unix=0.0))
    node = Node(Group(State(join=join("a"), grace_s=5.0, hosting=True)), server=server)
    node.observe(LinkUp(link=GUEST, ours=False), 0.0)
    actions = hear(node, join("b"))
    assert [type(message) for message in sent(actions, GUEST)] == [Refused] and HangUp(link=GUEST) in actions


def test_a_host_that_is_refused_ends_the_job_for_those_who_wait() -> None:
    rules = Rules(job="j", min_nodes=2, max_nodes=2, ranks_given=True)
    server = LinkRouter(Rendezvous(rules, RestartOnFailure(max_restarts=0), now=0.0, now_unix=0.0))
    node = Node(Group(State(join=join("a"), grace_s=5.0, hosting=True)), server=server)  # it was given no rank
    node.begin(0.0)
    node.observe(LinkUp(link=GUEST, ours=False), 0.0)
    ranked = Join(node="b", name="b", addr="b", master_port=1, nproc=1, role="default", wanted_rank=1)
    (finish,) = sent(hear(node, ranked), GUEST)
    assert isinstance(finish, Finish) and "the agent that hosts the coordinator ends" in finish.report.reason


def test_a_node_of_a_run_that_is_over_is_told_that_end_and_has_no_seat_in_this_one() -> None:
    over = replace(report("failed", "it was so"), life="L")
    rules = Rules(job="j", min_nodes=2, max_nodes=2)
    rendezvous = Rendezvous(rules, RestartOnFailure(max_restarts=0), now=0.0, now_unix=0.0)
    server = LinkRouter(rendezvous, ended={"L": over})
    node = Node(Group(State(join=join("a"), grace_s=5.0, hosting=True)), server=server)
    node.begin(0.0)
    for link, life in ((GUEST, "L"), (GUEST + 1, "M")):
        node.observe(LinkUp(link=link, ours=False), 0.0)
        told = sent(hear(node, replace(join(f"b of {life}"), life=life), link), link)
        assert told == [Finish(report=over)] if life == "L" else [type(message) for message in told] == [Assigned]


def test_the_hosts_own_workers_need_no_lease(two: Node) -> None:
    assert two.lease_ends is None
    for now in (2.0, 4.0, 6.0):
        hear(two, Renew(node="b", round=1), now=now)
        two.observe(Tick(), now)
    assert two.group.phase is Phase.RUNNING


# --- a member ---------------------------------------------------------------------------------------------------------------


@pytest.fixture
def one() -> Node:
    """A member that runs in round 1, with a lease from 0 s."""
    node = member()
    node.begin(0.0)
    node.observe(LinkUp(link=1, ours=True), 0.0)
    node.observe(Arrived(link=1, message=Renewed(lease_s=3.0, sent_at=0.0)), 0.0)
    node.observe(Arrived(link=1, message=assigned(group_rank=1, of=2, base_rank=1, world_size=2)), 0.0)
    node.observe(Started(local_rank=0, pid=1, argv=(), log_dir=None), 0.0)
    return node


def test_a_member_asks_for_a_link_and_joins_over_it() -> None:
    node = member()
    assert Connect(link=1) in node.begin(0.0)
    assert [type(message) for message in sent(node.observe(LinkUp(link=1, ours=True), 0.1), 1)] == [Join, Renew]


def test_a_member_whose_lease_ends_stops_its_workers(one: Node) -> None:
    assert one.lease_ends == 3.0
    assert "SignalWorkers" in kinds(one.observe(Tick(), 3.0)) and one.deadline() <= 3.5


def test_once_its_workers_are_killed_the_guardian_has_nothing_to_watch(one: Node) -> None:
    one.observe(Tick(), 3.0)
    assert one.lease_ends == 3.0
    one.observe(Tick(), 3.5)
    assert one.lease_ends is None, "or the guardian would end an agent that only looks for its coordinator"


def test_a_member_rejoins_when_it_is_told_to(one: Node) -> None:
    hear(one, Stop(round=1, reason="restart", rejoin=True), link=1)
    assert [type(message) for message in sent(one.observe(ended(-signal.SIGTERM), 1.1), 1)] == [Stopped, Join]


def test_a_member_that_was_told_to_go_says_goodbye_and_is_done(one: Node) -> None:
    assert [type(message) for message in sent(one.observe(Signalled(signum=signal.SIGTERM), 1.0), 1)] == [Leave]
    assert [type(message) for message in sent(one.observe(ended(-signal.SIGTERM), 1.1), 1)] == [Stopped]
    assert one.done


def test_a_member_does_not_listen_to_links_that_others_open(one: Node) -> None:
    assert one.observe(LinkUp(link=GUEST, ours=False), 0.5) == []


def test_what_a_successor_keeps_of_a_report_counts_the_failures_that_it_leaves_out() -> None:
    failures = tuple(Failure(node="a", rank=rank, at_unix=1.0) for rank in range(FAILURES_KEPT + 4))
    kept = shortened(replace(report("failed"), failures=failures, failures_left_out=5))
    assert (kept.failures, kept.failures_left_out) == (failures[:FAILURES_KEPT], 9) and shortened(kept) == kept
