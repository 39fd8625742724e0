"""The timeline: lives, failures, decisions, time lost and the job's state, folded from records."""

from __future__ import annotations

from holdfast.core.job.events import (
    AgentStarted,
    CoordinatorFound,
    Decided,
    Degraded,
    Event,
    FailureSeen,
    JobEnded,
    JoinRequested,
    NodeExcluded,
    NodeLost,
    NodeReadmitted,
    RankHung,
    RanksBegun,
    RanksEnded,
    RoundFormed,
    StragglerOver,
    StragglerSeen,
    WorkerDying,
    WorkerExited,
    WorkerStarted,
)
from holdfast.core.job.failure import Cause, Failure
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.collect import of_failures
from holdfast.diagnosis.rule import load
from holdfast.telemetry.record.reader import Record, merge
from holdfast.telemetry.report.timeline import Life, Timeline, timeline


class Story:
    """A job on nodes a and b with one rank each, told in the order in which it happened."""

    def __init__(self) -> None:
        self.records: dict[str, list[Record]] = {}
        self.now = 0.0
        self.round = self.attempt = 0

    def then(self, node: str, event: Event, after_s: float = 1.0) -> None:
        self.now += after_s
        records = self.records.setdefault(node, [])
        records.append(
            Record(
                seq=len(records) + 1,
                at_unix=self.now,
                node=node,
                round=getattr(event, "round", self.round),
                attempt=self.attempt,
                name=type(event).__name__,
                event=event,
                fields={},
            )
        )

    def agents(self, *nodes: str) -> None:
        for node in nodes:
            started = AgentStarted(
                pid=10, host=node, version="1", argv=(), min_nodes=1, max_nodes=2, nproc=1, max_restarts=3, backend="embedded"
            )
            self.then(node, started)

    def life(self, number: int, attempt: int, *nodes: str, reason: str = "all are here") -> None:
        """Forms a round and starts its workers, 1 s apart. Worker `rank` of round `number` has pid 10 * number + rank."""
        self.round, self.attempt = number, attempt
        for rank, node in enumerate(nodes):
            formed = RoundFormed(
                round=number,
                nodes=nodes if rank == 0 else (),
                group_rank=rank,
                world_size=len(nodes),
                master_addr="a",
                master_port=29500,
                waited_s=0.0,
                reason=reason,
            )
            self.then(node, formed, 0.0)
        for rank, node in enumerate(nodes):
            self.then(node, WorkerStarted(rank=rank, local_rank=0, pid=10 * number + rank, argv=(), log_dir=None))

    def exit(self, node: str, rank: int, code: int, after_s: float = 1.0) -> None:
        self.then(node, WorkerExited(rank=rank, local_rank=0, pid=10 * self.round + rank, exitcode=code), after_s)

    def failure(self, node: str, rank: int, cause: str = "signal", after_s: float = 1.0) -> None:
        at = self.now + after_s
        failure = Failure(node=node, rank=rank, pid=10 * self.round + rank, at_unix=at, exitcode=-9, cause=cause)
        self.then(node, FailureSeen(failure=failure), after_s)

    def told(self, *running: str) -> Timeline:
        return timeline("train", merge(self.records.values()), running)


def two_lives() -> Story:
    """Formed at 2, started at 3 and 4, rank 1 killed at 7, decided at 8, formed again at 8, started at 9 and 10."""
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a", "b")
    story.failure("b", 1, after_s=3.0)
    story.then("a", Decided(decision="restart", reason="rank 1 was killed by SIGKILL", restarts_left=2))
    story.exit("b", 1, -9, 0.0)
    story.exit("a", 0, -15, 0.0)
    story.failure("a", 0, "stopped", 0.0)
    story.life(2, 1, "a", "b", reason="rank 1 was killed by SIGKILL")
    return story


def test_lives_are_told_apart_and_say_what_they_were() -> None:
    first, second = two_lives().told("a", "b").lives
    assert (first.round, first.attempt, first.nodes, first.world_size) == (1, 0, ("a", "b"), 2)
    assert (second.round, second.attempt, second.reason) == (2, 1, "rank 1 was killed by SIGKILL")
    assert (first.formed_at, first.started_at, first.disturbed_at, first.ended_at) == (2.0, 4.0, 7.0, 8.0)


def test_time_is_lost_from_the_failure_to_the_last_worker_of_the_next_life() -> None:
    told = two_lives().told("a", "b")
    assert [life.lost_s for life in told.lives] == [3.0, None] and told.lost_s == 3.0


def test_the_first_failure_comes_first_and_those_we_stopped_last() -> None:
    assert [(failure.rank, failure.cause) for failure in two_lives().told("a", "b").lives[0].failures] == [
        (1, "signal"),
        (0, "stopped"),
    ]


def test_a_life_tells_its_first_failure_and_how_many_followed_but_not_whom_we_stopped() -> None:
    told = []
    for more in range(3):
        failed = [Failure(node="a", rank=rank, local_rank=rank, exitcode=1, at_unix=float(rank)) for rank in range(more + 1)]
        stopped = Failure(node="a", rank=9, exitcode=-15, at_unix=0.0, cause=Cause.STOPPED)
        told.append(Life(round=1, attempt=0, formed_at=0.0, failures=(*failed, stopped)).what_failed())
    first = "rank 0 (local 0) on a exited with code 1"
    assert told == [first, f"{first} (and 1 more)", f"{first} (and 2 more)"]


def test_a_failure_that_two_nodes_recorded_counts_once() -> None:
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a", "b")
    failure = Failure(node="b", rank=1, pid=11, at_unix=5.0, exitcode=1)
    for node in ("b", "a"):
        story.then(node, FailureSeen(failure=failure))
    assert len(story.told("a", "b").failures) == 1


def test_a_rank_that_hung_was_lost_when_it_fell_silent() -> None:
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a", "b")
    story.then("b", RankHung(rank=1, local_rank=0, pid=11, reason="no heartbeat for 12 s", quiet_s=12.0), 20.0)
    story.then("a", Decided(decision="restart", reason="rank 1 hung", restarts_left=2))
    story.exit("b", 1, -9, 0.0)
    story.exit("a", 0, -15, 0.0)
    story.life(2, 1, "a", "b")
    assert [life.lost_s for life in story.told("a", "b").lives] == [12.0 + 1.0 + 2.0, None]


def test_of_a_rank_that_hung_the_coordinator_knows_most() -> None:
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a", "b")
    blamed = Failure(node="b", rank=1, pid=11, at_unix=4.5, cause="hung", message="hung: x; others wait for it in a collective")
    story.then("a", FailureSeen(failure=blamed))
    own = Failure(node="b", rank=1, pid=11, at_unix=6.0, exitcode=-9, cause="stopped")
    story.then("b", FailureSeen(failure=own))
    (failure,) = story.told("a", "b").failures
    assert (failure.cause, failure.message, failure.at_unix) == ("hung", blamed.message, 4.5)
    story.then("a", FailureSeen(failure=Failure(node="a", rank=0, pid=10, at_unix=5.0, cause="hung", message="hung: x")))
    story.then("a", FailureSeen(failure=Failure(node="a", rank=0, pid=10, at_unix=4.8, cause="hung", message="hung: x; y")))
    assert [(one.rank, one.at_unix, one.message) for one in story.told("a", "b").failures[:2]] == [
        (1, 4.5, blamed.message),
        (0, 4.8, "hung: x; y"),
    ]


def test_workers_are_as_last_seen() -> None:
    story = two_lives()
    story.then("b", WorkerDying(rank=1, local_rank=0, pid=21, exitcode=-9))
    told = story.told("a", "b")
    assert told.life and [(worker.rank, worker.pid, worker.state) for worker in told.life.workers] == [
        (0, 20, "running"),
        (1, 21, "dying"),
    ]


def test_a_job_whose_ranks_have_ended_and_shall_run_again_is_between_rounds() -> None:
    story = two_lives()
    seen = [story.told("a", "b").is_between_rounds]
    story.then("a", Decided(decision="rejoin", reason="b left", restarts_left=2))
    seen.append(story.told("a", "b").is_between_rounds)
    story.exit("a", 0, -15)
    seen += [story.told(*nodes).is_between_rounds for nodes in (("a", "b"), ("a",), ())]
    story.life(3, 1, "a")
    assert [*seen, story.told("a").is_between_rounds] == [False, False, False, True, False, False]


def test_no_time_is_lost_while_a_life_carries_on_without_some() -> None:
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a", "b")
    story.failure("b", 1)
    story.then("a", Decided(decision="carry-on", reason="1 of 2 nodes healthy"), 0.0)
    story.exit("b", 1, -9, after_s=0.1)
    story.failure("a", 0, after_s=3600.0)
    story.then("a", Decided(decision="restart", reason="too few"), 0.0)
    story.exit("a", 0, -9)
    story.life(2, 1, "a", "b")
    assert story.told().lives[0].lost_s == 3.0


def test_a_lost_node_is_a_disturbance_and_the_rest_goes_on() -> None:
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a", "b")
    story.then("a", NodeLost(name="b", reason="not heard from for 3.0 s"))
    story.then("a", Decided(decision="rejoin", reason="node b was lost"))
    story.exit("a", 0, -15)
    story.life(2, 0, "a")
    told = story.told("a")
    assert [life.nodes for life in told.lives] == [("a", "b"), ("a",)]
    assert told.lives[0].lost_s == 3.0 and told.lives[0].decision and told.lives[0].decision.decision == "rejoin"
    assert [(worker.node, worker.state) for worker in told.lives[0].workers] == [("a", "exited"), ("b", "unknown")]
    assert [(node.name, node.is_running) for node in told.nodes] == [("a", True), ("b", False)]


def test_a_rank_that_died_of_a_lost_node_is_not_what_failed() -> None:
    """Its connection to the node broke; that is told, and not blamed."""
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a", "b")
    failure = Failure(node="a", rank=0, local_rank=0, pid=10, exitcode=1, at_unix=story.now, cause=Cause.EXCEPTION)
    story.then("a", FailureSeen(failure=failure))
    story.then("a", Decided(decision="rejoin", reason="the link to b broke, which is why rank 0 exited"))
    assert story.told("a").lives[0].what_failed().startswith("the link to b broke")


def test_time_is_lost_from_when_the_ranks_were_stopped_though_another_coordinator_decides_later() -> None:
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a", "b")
    story.exit("b", 1, -15)  # its lease is over; a, which hosted the coordinator, is heard of no more
    story.then("b", Decided(decision="rejoin", reason="the coordinator at a was lost"), 2.0)
    story.life(2, 0, "b")
    told = story.told("b")
    assert told.lives[0].disturbed_at == 5.0 and told.lives[0].lost_s == 3.0


def test_a_finished_job_has_lost_nothing() -> None:
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a", "b")
    story.exit("a", 0, 0)
    story.exit("b", 1, 0)
    story.then("a", Decided(decision="finish", reason="every worker exited with 0"))
    for node in ("a", "b"):
        story.then(node, JobEnded(outcome="succeeded", exit_code=0, reason="every worker exited with 0"))
    told = story.told()
    assert (told.state, told.outcome, told.exit_code, told.lost_s) == ("ended", "succeeded", 0, 0.0)
    assert told.lives[0].disturbed_at is None and told.ended_at == 9.0


def test_a_job_whose_agents_are_gone_without_a_word_is_lost() -> None:
    told = two_lives().told()
    assert (told.state, told.outcome, told.ended_at) == ("lost", None, 10.0)
    assert told.life and {worker.state for worker in told.life.workers} == {"unknown"}


def test_a_job_in_which_no_round_was_formed_is_starting() -> None:
    story = Story()
    story.agents("a")
    assert story.told("a").state == "starting" and Story().told("a").state == "starting"


def test_one_nodes_stop_does_not_hide_that_the_job_failed() -> None:
    story = two_lives()
    story.then("a", JobEnded(outcome="failed", exit_code=1, reason="no restarts left"))
    story.then("b", JobEnded(outcome="stopped", exit_code=1, reason="SIGTERM"))
    assert (story.told().outcome, story.told().reason) == ("failed", "no restarts left")


def test_an_end_is_no_end_while_an_agent_lives() -> None:
    story = two_lives()
    story.then("b", JobEnded(outcome="stopped", exit_code=1, reason="SIGTERM"))
    assert (story.told("a").state, story.told("a").outcome, story.told("a").ended_at) == ("running", None, None)


def test_a_replaced_agent_is_one_node_with_two_agents() -> None:
    story = Story()
    story.agents("a", "a")
    [node] = story.told("a").nodes
    assert (node.agents, node.started_at) == (2, 2.0)


def test_what_the_job_had_to_do_without_is_said_once() -> None:
    story = Story()
    for _ in range(2):
        story.then("a", Degraded(what="no pidfd", instead="a thread per worker"))
    assert story.told("a").degraded == ("no pidfd: a thread per worker",)


def test_the_story_of_nothing_is_empty() -> None:
    told = timeline("train", [])
    assert (told.state, told.lives, told.started_at, told.life) == ("lost", (), None, None)


# --- nodes that must not take part --------------------------------------------------------------------------------------------


def test_who_is_excluded_and_why_is_known_until_it_is_readmitted() -> None:
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a", "b")
    for name in "bc":
        story.then("a", NodeExcluded(name=name, reason="its fan is broken", by="operator"))
    story.then("a", NodeReadmitted(name="c", reason="repaired"))
    told = story.told("a", "b")
    assert [(one.name, one.reason, one.by) for one in told.excluded] == [("b", "its fan is broken", "operator")]
    assert [(one.decision, one.reason) for one in told.decisions][-1] == ("readmit", "c: repaired")
    assert told.life is not None and told.life.decision is None


def test_what_a_coordinator_took_over_is_known_since_it_was_decided_and_is_no_decision_of_its_own() -> None:
    story = Story()
    story.agents("b")
    story.life(2, 0, "b")
    story.then("b", NodeExcluded(name="c", reason="its fan is broken", by="operator", age_s=100.0))
    told = story.told("b")
    assert [(one.name, one.since_unix) for one in told.excluded] == [("c", story.now - 100.0)] and not told.decisions


def test_who_is_slow_is_known_until_it_is_over_or_a_new_round_begins() -> None:
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a", "b")
    slow = {"name": "a", "series": "step", "against": "the node's other ranks"}
    for rank in (0, -1):
        story.then("a", StragglerSeen(rank=rank, took_s=2.0, typical_s=1.0, **slow))
    node, rank = "a: step takes 2 s, the node's other ranks 1 s", "rank 0 on a: step takes 2 s, the node's other ranks 1 s"
    assert story.told("a", "b").stragglers == (rank, node)
    story.then("a", StragglerOver(rank=-1, **slow))
    assert story.told("a", "b").stragglers == (rank,)
    story.life(2, 1, "a", "b")
    assert story.told("a", "b").stragglers == ()


def test_where_the_coordinator_is_as_this_node_last_knew_it() -> None:
    story = Story()
    story.agents("b")
    assert story.told("b").coordinator == ""
    story.then("b", JoinRequested(round=1, backend="embedded", endpoint="node0:29400"))
    assert story.told("b").coordinator == "node0:29400"
    story.then("b", CoordinatorFound(endpoint="10.0.0.2:4000"))
    story.then("b", JoinRequested(round=3, backend="embedded", endpoint="node0:29400"))
    assert story.told("b").coordinator == "10.0.0.2:4000"


def test_a_node_that_was_lost_comes_before_the_ranks_that_ended_of_it() -> None:
    story = Story()
    story.agents("a", "b", "spare")
    story.life(1, 0, "a", "b")
    failure = Failure(node="a", rank=0, local_rank=0, pid=10, exitcode=1, at_unix=story.now, cause=Cause.EXCEPTION)
    story.then("a", FailureSeen(failure=failure))
    story.then("a", Decided(decision="rejoin", reason="the link to b broke, which is why rank 0 exited"))
    for name in ("b", "spare"):
        story.then("a", NodeLost(name=name, reason="not heard from for 3.0 s", silent_s=3.0))
    life = story.told("a").lives[0]
    assert life.what_failed() == "node b was lost: not heard from for 3.0 s (and 1 more)"
    assert [(one.node, one.rank, one.follows) for one in life.failures] == [("b", -1, False), ("a", 0, True)]
    assert attribute(of_failures(life.failures, load())).sentence == "b: was lost: not heard from for 3.0 s; see that node"


def test_the_time_that_was_lost_is_until_the_steps_are_made_again_that_the_life_before_had_made() -> None:
    story = Story()
    story.agents("a")
    story.life(1, 0, "a")
    started = story.now
    beginning = {"booted_s": 0.5, "joining_s": None, "joined_s": None, "restored_s": None, "restore_s": 0.0}
    story.then("a", RanksBegun(**beginning, stepped_s=1.0, first_step=0), 1.0)
    story.now = started + 11.0
    story.exit("a", 0, -9)
    story.then("a", RanksEnded(last_step=20, last_step_s=11.0, saved_s=None))
    story.then("a", Decided(decision="restart", reason="rank 0 was killed"))
    story.life(2, 1, "a")
    story.then("a", RanksBegun(**beginning, stepped_s=2.0, first_step=10), 2.0)
    told = story.told("a")
    (found,) = told.restarts
    assert found.phases["again"] == 6.5, "of 21 steps, half a second each, ten have stayed; it died half a second after them"
    assert told.lost_s == told.lives[0].lost_s == found.total_s == sum(took or 0.0 for took in found.phases.values())
