"""What our supervisor is told of hosts with Google's daemon: no socket, no clock.

What the daemon says here, and when, was recorded of the real one; e2e/test_google_daemon_to_supervisor.py holds it to that.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.core.machine import Action, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Alive, Bye, Heard, Heed, Order, Standing, Trouble
from holdfast.core.wire.google_sensor import (
    WORKER_HB,
    XID,
    EventReport,
    EventReports,
    HostInfo,
    HostNames,
    host_info,
    worker_event,
)
from holdfast.core.wire.google_wire import COMPLETE, FAILED, RUNNING, SPARE, WorkerInfo, WorkloadInfo
from holdfast.core.wire.links import Arrived, Connect, HangUp, LinkUp, Transmit
from holdfast.supervisor.daemon.google_hosts import (
    DEAF_S,
    LOOK_S,
    CallDaemon,
    DaemonCalled,
    ForgetHost,
    GoogleHosts,
    HostTold,
)

EVERY_S = 15.0
TRAIN = WorkloadInfo(workload_name="train", max_workload_restarts=1)
SPARE_HOST = HostInfo(address="10.0.0.1:60010", name="n1", state=SPARE)


def running(*states: int, workload: WorkloadInfo = TRAIN, state: int = RUNNING) -> HostInfo:
    """The host with ranks in these states, as its daemon has them."""
    workers = [
        WorkerInfo(worker_address=f"localhost:{60011 + rank}", worker_id=f"gpu{rank}", worker_name=f"n1-gpu{rank}",
                   local_rank=rank, global_rank=rank, state=each)
        for rank, each in enumerate(states)
    ]  # fmt: skip
    return replace(SPARE_HOST, state=state, workers=tuple(workers), workload=workload)


FAILURE = EventReport(
    kind=WORKER_HB, what="Worker n1-gpu1 running workload train failed to respond to heartbeat.", device="gpu1",
    host=running(RUNNING, FAILED, state=FAILED),
)  # fmt: skip


class Stage:
    """The machine, and a supervisor that heeds every link and hears everything."""

    def __init__(self) -> None:
        self.hosts, self.now = GoogleHosts("life", ("sup:1",), 1.0, EVERY_S), 100.0
        self.said: list[Any] = []
        """By its reporters."""
        self.calls: list[CallDaemon] = []
        self.hung_up: list[int] = []
        self.forgotten: list[str] = []
        self.told_people: list[str] = []
        self.links: dict[str, int] = {}

    def told(self, said: HostInfo, event: EventReport | None = None) -> None:
        self._do(self.hosts.observe(HostTold(said=said, event=event, at=self.now, at_unix=self.now), self.now))

    def passes(self, seconds: float, *, answers: bool = True) -> None:
        """Each call of a daemon is answered, or none."""
        until = self.now + seconds
        while self.now < until:
            self.now += LOOK_S
            self._do(self.hosts.observe(Tick(), self.now))
            if answers:
                self.called(is_there=True)

    def called(self, **how: bool) -> None:
        for call in [one for one in self.calls if not one.method]:
            self.calls.remove(call)
            self._do(self.hosts.observe(DaemonCalled(name=call.name, **how), self.now))

    def ordered(self, order: Order) -> None:
        link = self.links[next(one.node for one in reversed(self.said) if isinstance(one, Standing))]
        self._do(self.hosts.observe(Arrived(link=link, message=order), self.now))

    def take(self, kind: type[Any]) -> list[Any]:
        """What of that kind has been said since this was asked last."""
        found = [one for one in self.said if isinstance(one, kind)]
        self.said = [one for one in self.said if not isinstance(one, kind)]
        return found

    def job(self) -> tuple[str, int, list[int]]:
        """As it was told last: state, round and ranks that run."""
        last = [one for one in self.said if isinstance(one, Standing) and one.job][-1]
        return last.state, last.round, [rank.rank for rank in last.ranks]

    def _do(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Connect):
                self._do(self.hosts.observe(LinkUp(link=action.link, ours=True), self.now))
                heed = Heed(lease_s=5.0, generation=1)
                self._do(self.hosts.observe(Arrived(link=action.link, message=heed), self.now))
            elif isinstance(action, Transmit):
                self.said.append(action.message)
                self.links[getattr(action.message, "node", "")] = action.link
                if isinstance(action.message, (Standing, Trouble)):
                    self._do(self.hosts.observe(Arrived(link=action.link, message=heard(action.message)), self.now))
            elif isinstance(action, HangUp):
                self.hung_up.append(action.link)
            elif isinstance(action, CallDaemon):
                self.calls.append(action)
            elif isinstance(action, ForgetHost):
                self.forgotten.append(action.name)
            elif isinstance(action, Say):
                self.told_people.append(action.text)


def heard(message: Any) -> Any:
    return Heard(number=message.number)


@pytest.fixture
def stage() -> Stage:
    """With one host on which a job has begun."""
    made = Stage()
    made.told(SPARE_HOST)
    made.passes(1.0)
    made.told(running(RUNNING, RUNNING))
    made.passes(2.0)
    assert made.job() == ("running", 1, [0, 1])
    return made


def test_a_host_without_ranks_is_a_spare_and_one_with_ranks_is_its_job_s() -> None:
    stage = Stage()
    stage.told(SPARE_HOST)
    stage.passes(1.0)
    spare = stage.take(Standing)[-1]
    assert (spare.name, spare.job, spare.state, spare.is_watcher) == ("n1", "", "joining", True)
    stage.told(running(RUNNING, state=SPARE))
    stage.passes(2.0)
    told = stage.take(Standing)
    host, job = next(one for one in told if not one.job), told[-1]
    assert (host.job, host.state) == ("", "running")
    assert (job.job, job.limits["max_workload_restarts"], [rank.rank for rank in job.ranks]) == ("train", 1, [0])


def test_a_heartbeat_of_a_failure_s_own_turn_does_not_make_the_rank_run_again_and_a_later_one_does(stage: Stage) -> None:
    stage.passes(EVERY_S)
    stage.told(FAILURE.host, FAILURE)
    stage.told(running(RUNNING, RUNNING))
    (trouble,) = stage.take(Trouble)
    assert (trouble.kind, trouble.rank, trouble.what) == ("worker", 1, "rank 1 (localhost:60012) of train has failed")
    assert stage.job() == ("stopping", 1, [0])
    stage.passes(EVERY_S)
    stage.told(running(RUNNING, FAILED))  # it never takes the state of that rank back
    assert stage.job() == ("running", 2, [0, 1]) and stage.take(Trouble) == []
    stage.told(FAILURE.host, FAILURE)
    assert len(stage.take(Trouble)) == 1, "it has failed again"


def test_a_daemon_that_is_told_of_first_by_a_failure_is_known_with_its_ranks() -> None:
    stage = Stage()
    stage.told(FAILURE.host, FAILURE)
    stage.passes(2.0)
    assert [one.rank for one in stage.take(Trouble)] == [1] and stage.job() == ("stopping", 1, [0])


def test_ranks_of_a_daemon_that_answers_and_beats_no_more_have_ended_well_unless_it_told_of_a_failure(stage: Stage) -> None:
    stage.passes(2 * EVERY_S)
    assert stage.take(Bye) == []
    stage.passes(2 * EVERY_S)
    (bye,) = stage.take(Bye)
    assert bye.reason == "succeeded"
    stage.told(running(RUNNING, RUNNING))
    stage.told(FAILURE.host, FAILURE)
    stage.passes(4 * EVERY_S)
    assert stage.take(Bye) == []


def test_a_host_that_answers_no_more_is_silent_and_one_whose_daemon_has_ended_closes_its_links(stage: Stage) -> None:
    stage.passes(DEAF_S + 1.0, answers=False)
    stage.take(Alive)
    stage.passes(20.0, answers=False)
    assert stage.take(Alive) == [] and stage.hung_up == []
    stage.called(is_there=True)
    stage.passes(2.0)
    assert stage.take(Alive)
    stage.passes(2.0, answers=False)
    stage.called(is_there=False, has_ended=True)
    assert len(stage.hung_up) == 2 and stage.take(Bye) == []
    stage.take(Alive)
    stage.passes(20.0, answers=False)
    assert stage.take(Alive) == []
    stage.told(SPARE_HOST)  # it was started again, and its clients are not heard yet
    stage.passes(1.0)
    assert stage.job() == ("running", 1, [0, 1])
    stage.told(running(RUNNING, RUNNING, workload=WorkloadInfo()))
    assert stage.job() == ("running", 1, [0, 1]), "they do not name their job again"


def test_a_daemon_that_cannot_be_called_is_heard_by_its_heartbeats(stage: Stage) -> None:
    unreachable = Stage()
    unreachable.told(SPARE_HOST)
    for _ in range(4):
        unreachable.passes(EVERY_S, answers=False)
        unreachable.called(is_there=False, has_ended=True)
        unreachable.told(SPARE_HOST)
        assert unreachable.take(Alive)
    unreachable.passes(3 * EVERY_S, answers=False)
    unreachable.take(Alive)
    unreachable.passes(EVERY_S, answers=False)
    assert unreachable.take(Alive) == []


def test_what_the_driver_says_is_told_with_its_number_and_gpu(stage: Stage) -> None:
    xid = EventReport(kind=XID, what="NVRM: Xid (PCI:0000:04:00): 79", xid=79, device="gpu1", host=FAILURE.host)
    stage.told(xid.host, xid)
    (trouble,) = stage.take(Trouble)
    assert (trouble.kind, trouble.xid, trouble.device) == ("device", 79, "gpu1")
    assert stage.job()[2] == [0, 1]
    idle = Stage()
    idle.told(SPARE_HOST, replace(xid, host=SPARE_HOST))
    idle.passes(1.0)
    assert [one.xid for one in idle.take(Trouble)] == [79], "the first that is heard of its host"


def test_an_order_to_exclude_the_host_is_its_daemon_s_command(stage: Stage) -> None:
    stage.ordered(Order(order="1", generation=1, verb="exclude", target="n1", reason="Xid 79"))
    assert [(one.address, one.method) for one in stage.calls if one.method] == [("10.0.0.1:60010", "TriggerCordon")]


def test_another_workload_on_the_host_ends_the_first(stage: Stage) -> None:
    stage.told(running(RUNNING, RUNNING, workload=WorkloadInfo(workload_name="other")))
    stage.passes(2.0)
    assert len(stage.take(Bye)) == 1 and [one.job for one in stage.take(Standing) if one.ranks][-1] == "other"


def test_a_host_at_work_that_names_no_ranks_is_no_spare() -> None:
    stage = Stage()
    stage.told(replace(SPARE_HOST, state=RUNNING, workload=TRAIN))
    stage.passes(1.0)
    assert {(one.job, one.state) for one in stage.take(Standing)} == {("", "running")}


def test_only_so_many_hosts_are_known_and_who_has_been_silent_longest_makes_room() -> None:
    stage, most = Stage(), 3
    stage.hosts.most = most
    for number in range(most):
        stage.told(replace(SPARE_HOST, name=f"n{number}"))
    stage.passes(EVERY_S + 1, answers=False)
    stage.told(replace(SPARE_HOST, name="n0"))
    stage.told(replace(SPARE_HOST, name="invented"))
    assert list(stage.hosts.hosts) == ["n0", "n1", "n2"], "nobody is silent"
    stage.passes(EVERY_S, answers=False)
    stage.told(HostInfo())
    for number in range(10):
        stage.told(replace(SPARE_HOST, name=f"invented{number}"))
    assert list(stage.hosts.hosts) == ["n0", "invented0", "invented1"]
    assert stage.forgotten == ["n1", "n2"] and len(stage.hung_up) == 2
    assert len([said for said in stage.told_people if "hosts are known" in said]) == 1 and len(stage.told_people) == most + 1
    stage.hosts.observe(DaemonCalled(name="n1", is_there=True), stage.now)


def test_a_host_that_was_forgotten_and_comes_back_is_another_reporter(stage: Stage) -> None:
    stage.hosts.most = 1
    stage.told(SPARE_HOST)
    for name in ("n2", "n1"):
        stage.passes(2 * EVERY_S + 1, answers=False)
        stage.told(replace(SPARE_HOST, name=name))
    stage.passes(1.0)
    assert {"n1-1-life-1", "n1-3-life-1"} <= {one.node for one in stage.take(Standing) if one.name == "n1"}


def test_events_of_a_kind_that_we_do_not_know_are_passed_over_in_one_line(stage: Stage) -> None:
    before = len(stage.told_people)
    for kind in range(100, 200):
        stage.told(SPARE_HOST, EventReport(kind=kind, what="?", host=SPARE_HOST))
    assert len(stage.told_people) == before + 1


def test_messages_are_read_as_they_are_written() -> None:
    host = running(RUNNING, COMPLETE)
    data = host_info(HostNames(address=host.address, name="n1"), host.state, host.workers, host.workload)
    assert HostInfo.decode(data) == host
    (event,) = EventReports.decode(worker_event("it failed", "gpu1", data)).reports
    assert event == EventReport(kind=WORKER_HB, what="it failed", device="gpu1", host=host)
    with pytest.raises(ValueError, match="a message belongs"):
        EventReports.decode(b"\x08\x01")


def test_no_bytes_of_a_stranger_are_more_than_a_message_that_cannot_be_read(stage: Stage) -> None:
    chance = random.Random(1)
    data = host_info(HostNames(address="10.0.0.1:60010", name="n1"), RUNNING, running(RUNNING, FAILED).workers, TRAIN)
    were_read = 0
    for kind, said in (*[(HostInfo, data)] * 300, *[(EventReports, worker_event("it failed", "gpu1", data))] * 300):
        changed = bytearray(said)
        for _ in range(chance.randint(1, 4)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        try:
            read = kind.decode(bytes(changed[: chance.choice((len(changed), chance.randint(1, len(changed))))]))
        except ValueError:
            continue
        were_read += 1
        for event in read.reports if isinstance(read, EventReports) else [None]:
            stage.told(event.host if event is not None else read, event)
        stage.passes(LOOK_S)
    assert were_read > 100
