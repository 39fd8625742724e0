"""What the host daemon makes of what it hears: no socket, no clock."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.machine import NEVER, Action, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Heard, Trouble
from holdfast.core.wire.google_wire import COMPLETE, FAILED, RUNNING, SPARE, UNDEFINED, Command, WorkerInfo, WorkloadInfo
from holdfast.core.wire.links import Arrived, Connect, LinkUp, Transmit
from holdfast.supervisor.daemon import host_table
from holdfast.supervisor.daemon.host_reports import HostReports, ShowTable
from holdfast.supervisor.daemon.host_table import (
    Agent,
    AgentGone,
    AgentTold,
    CordonTold,
    HostTable,
    Keep,
    PeerGone,
    RpcHeard,
    TroubleHeard,
    shown,
)


def beat(state: int = RUNNING, local_rank: int = 0, peer: str = "a", name: str = "n", **fields: Any) -> RpcHeard:
    worker = WorkerInfo(
        worker_address=f"localhost:{50_052 + local_rank}",
        worker_name=name,
        local_rank=local_rank,
        global_rank=local_rank,
        state=state,
        **fields,
    )
    return RpcHeard(peer=peer, method="Heartbeat", message=worker, at_unix=100.0)


def belongs(peer: str = "a", name: str = "train") -> RpcHeard:
    return RpcHeard(peer=peer, method="RegisterWorkload", message=WorkloadInfo(workload_name=name), at_unix=100.0)


def leaves(local_rank: int = 0, peer: str = "a") -> RpcHeard:
    return replace(beat(0, local_rank, peer), method="Goodbye")


RESET, CORDON = (RpcHeard(peer="a", method=f"Trigger{what}", message=Command(), at_unix=100.0) for what in ("Reset", "Cordon"))


class Kept:
    """A table with what it wants kept."""

    def __init__(self) -> None:
        self.table = HostTable(silence_s=30.0)
        self.rows: dict[str, Any] = {}
        self.said: list[str] = []

    def see(self, *seen: Any, now: float = 0.0) -> Kept:
        for one in seen:
            self._perform(self.table.observe(one, now))
        return self

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Keep):
                self.rows.pop(action.key, None)
                if action.row is not None:
                    self.rows[action.key] = action.row
            elif isinstance(action, Say):
                self.said.append(action.text)

    def states(self, table: HostTable | None = None) -> dict[str, list[str]]:
        """By workload."""
        found = shown(table or self.table, 0.0)["workloads"]
        return {workload["workload_name"]: [worker["state"] for worker in workload["workers"]] for workload in found}

    def restarted(self, now: float = 0.0) -> HostTable:
        return HostTable.of(self.rows, 30.0, now)


def test_a_worker_goes_through_its_states() -> None:
    kept = Kept().see(belongs())
    for state, word in ((RUNNING, "RUNNING"), (FAILED, "FAILED"), (RUNNING, "RUNNING"), (COMPLETE, "COMPLETE")):
        assert kept.see(beat(state)).states() == {"train": [word]}
    assert len(kept.said) == 4


def test_an_unknown_worker_of_an_unknown_workload_is_welcome() -> None:
    assert Kept().see(beat()).states() == {"": ["RUNNING"]}


def test_a_beat_that_says_nothing_new_is_neither_kept_nor_told() -> None:
    kept = Kept().see(belongs(), beat())
    assert kept.table.observe(beat(), 1.0) == []


def test_two_jobs_whose_ranks_have_the_same_addresses_keep_apart() -> None:
    kept = Kept().see(belongs("a", "one"), belongs("b", "two"), beat(peer="a"), beat(FAILED, peer="b"))
    assert kept.states() == {"one": ["RUNNING"], "two": ["FAILED"]}


def test_after_a_restart_a_beat_finds_its_workload_though_its_client_does_not_register_again() -> None:
    kept = Kept().see(belongs("a", "one"), beat(peer="a", name="n1"), belongs("b", "two"), beat(peer="b", name="n2"))
    table = kept.restarted()
    for seen in (beat(FAILED, peer="c", name="n1"), beat(COMPLETE, peer="d", name="n2")):
        table.observe(seen, 1.0)
    assert kept.states(table) == {"one": ["FAILED"], "two": ["COMPLETE"]}


SEEN = st.one_of(
    st.builds(beat, st.integers(0, 6), st.integers(0, 3), st.sampled_from("abc"), st.sampled_from(["n1", "n2"])),
    st.builds(belongs, st.sampled_from("abc"), st.sampled_from(["one", "two", ""])),
    st.builds(leaves, st.integers(0, 3), st.sampled_from("abc")),
    st.sampled_from([RESET, CORDON]),
    st.builds(CordonTold, on=st.booleans()),
    st.builds(lambda pid: AgentTold(agent=Agent(job="j", node="n", pid=pid, job_dir="/j")), st.integers(1, 3)),
    st.just(AgentGone(job_dir="/j", node="n")),
)


@given(st.lists(SEEN, max_size=40))
def test_whatever_was_heard_the_table_of_the_kept_rows_is_the_same(story: list[Any]) -> None:
    kept = Kept().see(*story)
    again = kept.restarted()
    assert kept.states(again) == kept.states()
    assert (again.agents, again.cordoned) == (kept.table.agents, kept.table.cordoned)


@given(st.lists(st.tuples(SEEN, st.floats(0, 40)), max_size=40))
def test_a_tick_at_the_deadline_moves_it(story: list[tuple[Any, float]]) -> None:
    table, now = HostTable(30.0), 0.0
    for seen, waited_s in story:
        now += waited_s
        table.observe(seen, now)
        if table.deadline() <= now:
            table.observe(Tick(), now)
        assert table.deadline() > now, "else the daemon would spin"


def test_a_worker_that_says_nothing_any_more_is_silent_until_it_is_heard_again() -> None:
    kept = Kept().see(belongs(), beat(), now=5.0)
    assert kept.table.deadline() == 35.0
    kept.see(Tick(), now=35.0)
    assert shown(kept.table, 35.0)["workloads"][0]["workers"][0]["silent"] and "not been heard of for 30 s" in kept.said[-1]
    kept.see(beat(), now=40.0)
    assert not shown(kept.table, 40.0)["workloads"][0]["workers"][0]["silent"] and "heard again" in kept.said[-1]


def test_a_worker_whose_process_ended_without_a_word_is_missed_at_once_and_may_come_back() -> None:
    kept = Kept()
    kept.see(belongs(), beat(), belongs("b"), beat(local_rank=1, peer="b"), beat(COMPLETE, local_rank=2, peer="c"))
    kept.see(PeerGone(peer="b", how="was killed by SIGKILL"), PeerGone(peer="c", how="was killed by SIGKILL"))
    lost = [one for one in kept.table.workers.values() if one.is_dead]
    assert [one.owed for one in lost] == ["the process of rank 1 (localhost:50053) of train was killed by SIGKILL"]
    assert [one.info.global_rank for one in kept.restarted().workers.values() if one.is_dead] == [1]
    kept.see(belongs("d"), beat(local_rank=1, peer="d"), PeerGone(peer="b", how="was killed by SIGKILL"))
    assert not any(one.is_dead or one.is_silent for one in kept.table.workers.values()), "of its process's next life"


def test_a_trouble_that_was_heard_takes_nothing_of_a_newer_one_of_the_same_rank() -> None:
    kept = Kept().see(belongs(), beat(), beat(FAILED))
    (failed,) = kept.table.workers.values()
    reports, heard, told = HostReports("a", "life", ("sup:1",), 0.5), list[TroubleHeard](), list[Trouble]()

    def perform(actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Connect):
                perform(reports.observe(LinkUp(link=action.link, ours=True), 3.0))
            elif isinstance(action, ShowTable) and isinstance(action.seen, TroubleHeard):
                heard.append(action.seen)
            elif isinstance(action, Transmit) and isinstance(action.message, Trouble):
                told.append(action.message)

    perform([*reports.shows(kept.table, 0.0), *reports.observe(Tick(), 3.0)])
    kept.see(beat(), PeerGone(peer="a", how="was killed by SIGKILL"))
    perform(reports.shows(kept.table, 4.0))
    assert [one.what for one in told] == [failed.owed, "the process of rank 0 (localhost:50052) of train was killed by SIGKILL"]
    for one in told:
        owed = kept.table.workers[failed.key].owed
        assert owed == told[-1].what, "nobody has heard of it yet"
        assert kept.restarted().workers[failed.key].owed == owed
        perform(reports.observe(Arrived(link=reports.reporters["train"].uplink.link, message=Heard(number=one.number)), 5.0))
        kept.see(*heard)
        heard.clear()
    assert not kept.table.workers[failed.key].owed


def test_who_has_completed_or_failed_may_be_silent_and_is_forgotten_an_hour_later() -> None:
    kept = Kept().see(belongs(), beat(COMPLETE), beat(FAILED, 1), Tick(), now=0.0)
    kept.see(Tick(), now=1000.0)
    assert kept.states() == {"train": ["COMPLETE", "FAILED"]} and not any("heard" in text for text in kept.said)
    kept.see(Tick(), now=3600.0)
    assert kept.states() == {"train": []} and kept.table.deadline() == NEVER
    assert list(kept.rows) == ["workload/train"]


def test_who_says_goodbye_is_missed_by_nobody() -> None:
    kept = Kept().see(belongs(), beat(), leaves())
    assert kept.states() == {"train": []} and kept.table.deadline() == NEVER


def test_a_reset_forgets_the_workers_and_not_the_workload() -> None:
    kept = Kept().see(belongs(), beat(), beat(local_rank=1), RESET, beat(peer="a"))
    assert kept.states() == {"train": ["RUNNING"]}


def test_a_cordon_is_kept_until_a_person_takes_it_back() -> None:
    kept = Kept().see(CORDON, CORDON)
    assert kept.restarted().cordoned and len(kept.said) == 1
    assert not kept.see(CordonTold(on=False)).restarted().cordoned


def test_the_host_is_as_bad_as_its_worst_worker() -> None:
    kept = Kept().see(belongs())
    assert kept.table.state == SPARE
    for state, so in ((COMPLETE, COMPLETE), (RUNNING, RUNNING), (FAILED, FAILED)):
        assert kept.see(beat(state)).table.state == so
        kept.see(beat(COMPLETE, local_rank=1))


def test_whoever_floods_it_makes_it_forget_the_oldest_and_grow_no_further() -> None:
    kept = Kept().see(*(belongs(f"p{number}", f"w{number}") for number in range(host_table.MOST_PEERS + 10)))
    kept.see(*(beat(peer="none", local_rank=number) for number in range(host_table.MOST_WORKERS + 10)))
    assert len(kept.table.workers) == host_table.MOST_WORKERS and len(kept.table.workloads) == host_table.MOST_WORKLOADS
    assert len(kept.table.peers) == host_table.MOST_PEERS
    assert len(kept.rows) == host_table.MOST_WORKERS + host_table.MOST_WORKLOADS


def test_texts_without_end_are_cut() -> None:
    kept = Kept().see(belongs(name="x" * 100_000), beat(UNDEFINED, worker_id="y" * 100_000))
    assert max(len(str(row)) for row in kept.rows.values()) < 2000


def test_a_row_of_another_version_costs_that_row() -> None:
    rows = {"worker/x/y": {"what": 1}, "workload/w": {"workload_name": "w", "new": 1}, "agent/j/n": {}, "cordoned": {}}
    assert HostTable.of(rows, 30.0, 0.0).cordoned
