"""A node is not heard any more: its job has gone on without it, has not, or says that it hears it."""

from __future__ import annotations

import pytest

from holdfast.core.job.injection import Fault, Injection
from holdfast.core.machine import Action, Tick
from holdfast.core.wire.fleet import Deed, Did, FleetMessage, RankSaid, Standing, Trouble
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Asked, Call, Called, Reply, Said, Tell, Unlinked, Wish
from holdfast.supervisor.fleet.policies import policy

LEASE_S = 5.0


class Stage:
    """A job of nodes a and b in round 1, for which c waits; a has its coordinator. All agents answer at once."""

    def __init__(self) -> None:
        self.fleet = Fleet(policy("default"), generation=1, lease_s=LEASE_S, now=0.0, now_unix=1000.0)
        self.now, self.numbers, self.heard = 0.5, 0, ["a", "b", "c"]
        self.orders: list[tuple[str, str, str]] = []
        """To whom, what, about whom."""
        self.deaf = set[str]()
        """Who answers no order, though it is heard."""
        self.replies: list[Reply] = []
        self.round(1, "a", "b")

    def stands(self, node: str, round: int, ranks: int = 0) -> Standing:
        self.numbers += 1
        return Standing(
            node=f"{node}-1",
            number=self.numbers,
            name=node,
            job="train",
            life="1",
            state="running" if ranks else "joining",
            round=round,
            ranks=(RankSaid(rank=0, local_rank=0, state="running"),) * ranks,
            spare_because="" if ranks or node != "c" else "there are enough",
            least=2,
            members=tuple(self.heard) if node == "a" else None,
        )

    def round(self, number: int, *nodes: str) -> None:
        """Those that are heard say how they stand; on these run ranks."""
        for node in self.heard:
            self.say(self.stands(node, number, int(node in nodes)))

    def say(self, message: FleetMessage) -> None:
        self.perform(self.fleet.observe(Said(message=message), self.now))

    def inject(self, node: str, wanted: Injection, job: str = "") -> None:
        """An operator asks for it."""
        self.perform(self.fleet.observe(Asked(ask=7, wish=Wish.INJECT, node=node, job=job, injection=wanted), self.now))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Reply():
                    self.replies.append(action)
                case Call(task=task):
                    self.perform(self.fleet.observe(Called(task=task, ok=True, text="done"), self.now))
                case Tell(node=node, message=order) if type(order).__name__ == "Order":
                    self.orders.append((node, order.verb, order.target))
                    if node[0] in self.heard and node[0] not in self.deaf:
                        self.say(Did(node=node, order=order.order, ok=True, text="done"))

    def wait(self, seconds: float) -> None:
        """The others go on saying how they are, each second."""
        for _ in range(int(seconds)):
            self.now += 1.0
            for node in self.heard:
                self.say(self.stands(node, self.fleet.state.jobs["train"].round, int(self.has_ranks(node))))
            while self.fleet.deadline() <= self.now:
                self.perform(self.fleet.observe(Tick(), self.now))

    def has_ranks(self, node: str) -> bool:
        return any(report.ranks for report in self.fleet.state.nodes[node].reports.values())

    def deeds(self) -> list[Deed]:
        return list(self.fleet.state.action_log.deeds.values())


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.wait(6)  # it knows who is there
    return stage


def test_a_spare_that_took_over_by_the_job_s_own_word_is_the_outcome_and_the_node_is_drained(stage):
    stage.heard.remove("b")
    stage.wait(3)  # the job's own lease
    stage.round(2, "a", "c")
    stage.wait(3)
    (deed,) = stage.deeds()
    assert (deed.node, deed.trouble, deed.act, deed.outcome) == ("b", "lost", "swap", "the job goes on with 2 nodes in round 2")
    assert "its job goes on without it already" in deed.reason
    assert ("a-1", "exclude", "b") in stage.orders and any(step.startswith("drain: ") for step in deed.done)
    assert stage.fleet.state.nodes["b"].standing == "unfit"


def test_a_node_that_has_no_ranks_is_drained_and_its_job_is_not_waited_for(stage):
    what = "GPU 0: Xid 79, the GPU has fallen off the bus"
    stage.say(Trouble(node="c-1", number=99, kind="device", what=what, device="0", xid=79))
    (deed,) = stage.deeds()
    assert (deed.node, deed.act, deed.outcome) == ("c", "swap", "the job goes on with 2 nodes in round 1")
    assert stage.fleet.state.nodes["c"].state == "unfit" and ("a-1", "exclude", "c") in stage.orders


def test_a_node_is_not_out_of_its_job_while_a_round_runs_with_it(stage):
    what = "GPU 0: Xid 79, the GPU has fallen off the bus"
    stage.say(Trouble(node="b-1", number=99, kind="device", what=what, device="0", xid=79))
    stage.round(2, "a", "b")  # its coordinator had none to put in its place yet
    stage.wait(8)
    (deed,) = stage.deeds()
    assert (deed.node, deed.act, deed.outcome) == ("b", "swap", "")
    stage.round(3, "a", "c")
    (deed,) = stage.deeds()
    assert deed.outcome == "c has taken over in round 3"


def test_for_a_job_that_cannot_be_smaller_another_node_is_asked_for(stage):
    stage.heard.remove("c")
    stage.wait(8)
    stage.heard.remove("b")
    stage.wait(3)
    stage.say(stage.stands("a", 1))
    stage.wait(4)
    assert {(deed.node, deed.act) for deed in stage.deeds()} == {("b", "replace")}


def test_a_node_that_its_job_hears_is_left_alone(stage):
    stage.heard.remove("b")
    members, stage.stands_of = tuple("abc"), stage.stands
    stage.stands = lambda node, round, ranks=0: with_members(stage.stands_of(node, round, ranks), members)
    stage.wait(40)
    assert stage.deeds() == [] and stage.fleet.state.nodes["b"].state == "lost"


def with_members(said: Standing, members: tuple[str, ...]) -> Standing:
    from holdfast.core.value import replace

    return replace(said, members=members if said.members is not None else None)


def test_without_a_coordinator_s_word_it_is_acted_on_after_a_while(stage):
    stage.heard.remove("a")  # the coordinator was there
    stage.wait(20)
    assert stage.deeds() == []
    stage.wait(20)
    (deed,) = stage.deeds()
    assert (deed.node, deed.trouble) == ("a", "lost")


def test_a_supervisor_that_is_too_busy_to_look_in_time_still_finds_who_is_lost(stage):
    stage.heard.remove("b")
    for _ in range(16):  # what others say keeps it from looking
        stage.now += 0.5
        stage.say(stage.stands("a", 1, 1))
    stage.perform(stage.fleet.observe(Tick(), stage.now))
    assert stage.fleet.state.nodes["b"].state == "lost"


def test_one_that_was_stopped_finds_nobody_lost_for_that(stage):
    stage.now += 8.0
    stage.perform(stage.fleet.observe(Tick(), stage.now))
    assert {node.state for node in stage.fleet.state.nodes.values()} == {"fit", "spare"}


def test_a_fault_for_practice_is_a_deed_and_whoever_asked_is_told(stage):
    stage.inject("b", Injection(fault=Fault.KILL, by="you"))
    (deed,) = stage.deeds()
    assert (deed.act, deed.outcome, deed.seen) == ("inject", "done", "kill, for practice, as you asked for")
    assert stage.orders == [("b-1", "inject", "b")] and stage.replies == [Reply(ask=7, ok=True, text="done")]


def test_a_fault_that_nobody_answers_is_told_too(stage):
    stage.heard.remove("c")
    stage.inject("c", Injection(fault=Fault.KILL))
    stage.wait(12)
    assert [(reply.ok, reply.text) for reply in stage.replies] == [(False, "its agent has not answered")]
    assert stage.deeds()[0].outcome == "refused: its agent has not answered"


def test_a_restart_that_one_agent_does_not_answer_is_ordered_of_another_one(stage):
    stage.deaf.add("a")
    stage.say(Trouble(node="b-1", number=99, kind="worker", what="rank 0 was killed by SIGKILL", handled=False))
    stage.wait(12)
    (deed,) = stage.deeds()
    assert [to for to, verb, _ in stage.orders if verb == "restart"] == ["a-1", "b-1"], stage.orders
    assert deed.done[0] == "restart: a has not answered" and not deed.outcome


def test_a_restart_that_no_agent_answers_is_followed_by_the_next_choice(stage):
    stage.deaf |= {"a", "b", "c"}
    stage.say(Trouble(node="b-1", number=99, kind="worker", what="rank 0 was killed by SIGKILL", handled=False))
    stage.wait(42)
    assert stage.deeds()[0].outcome == "in vain: no agent of the job has answered", stage.deeds()


def test_a_node_that_is_not_heard_or_works_for_several_is_named(stage):
    wanted = Injection(fault=Fault.KILL)
    stage.inject("nobody", wanted)
    stage.inject("b", wanted, job="other")
    assert [(reply.ok, reply.text) for reply in stage.replies] == [
        (False, "no agent is heard on nobody"),
        (False, "no agent of job other is heard on b"),
    ]


def test_the_one_spare_is_promised_to_one_node_though_two_come_to_need_it_at_once() -> None:
    """What was restarted in vain was considered before, when the spare was nobody's."""
    stage = Stage()
    stage.wait(2 * LEASE_S)
    for node in "ab":
        stage.numbers += 1
        what = f"a rank failed on {node}"
        stage.say(Trouble(node=f"{node}-1", number=stage.numbers, kind="worker", round=1, rank=0, what=what))
    stage.wait(400)
    acts = [deed.act for deed in stage.fleet.state.action_log.deeds.values()]
    assert acts.count("restart-job") >= 1 and acts.count("swap") == 1, acts
    assert len([order for order in stage.orders if order[1] == "exclude"]) == 1


ENDS = "its host dies", "its daemon is started again", "its daemon does not come back", "its other link is heard last"


@pytest.mark.parametrize("end", ENDS)
def test_a_host_whose_daemon_closed_its_link_is_waited_for_and_one_that_falls_silent_is_not(end: str) -> None:
    fleet = Fleet(policy("default"), generation=1, lease_s=LEASE_S, now=0.0, now_unix=1000.0)
    ranks = (RankSaid(rank=0, local_rank=0, state="running"),)
    numbers = iter(range(1, 1000))

    def stands(node: str, life: int, job: str, now: float) -> None:
        said = Standing(
            node=f"{node}-{life}", number=next(numbers), name=node, job=job, is_watcher=True,
            state="running" if job else "joining", round=1, ranks=ranks if job else (),
        )  # fmt: skip
        fleet.observe(Said(message=said), now)

    for now in range(60):
        if now == 8 and end != "its host dies":
            fleet.observe(Unlinked(node="a-1"), float(now))
            if end == "its other link is heard last":
                stands("a", 0, "", now + 0.01)
                fleet.observe(Unlinked(node="a-0"), now + 0.02)
        if now < 8 or (now >= 36 and end == "its daemon is started again"):
            stands("a", 1 if now < 8 else 2, "stock", float(now))
        stands("b", 1, "", float(now))
        fleet.observe(Tick(), float(now))
        deeds = [(deed.node, deed.trouble) for deed in fleet.state.action_log.deeds.values()]
        acts_at = {"its host dies": 12, "its daemon does not come back": 42, "its other link is heard last": 44}.get(end, 60)
        assert deeds == ([("a", "lost")] if now >= acts_at else []), now
