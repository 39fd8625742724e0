"""A node that was taken out is repaired as far as the operator allows it, and comes back on probation, or is reported."""

from __future__ import annotations

from typing import Any

from holdfast.core.machine import Action, Tick
from holdfast.core.wire.fleet import (
    Act,
    Alive,
    Bye,
    Deed,
    Did,
    FleetMessage,
    NodeKept,
    Order,
    RankSaid,
    Repaired,
    RepairStep,
    Standing,
    Trouble,
    TroubleKind,
)
from holdfast.supervisor.fleet.machine import Fleet
from holdfast.supervisor.fleet.messages import Asked, Call, Called, CallVerb, Reply, Said, Tell, Unlinked, Wish
from holdfast.supervisor.fleet.policies import policy
from holdfast.supervisor.fleet.repairs import AGAIN_S, CHECKS_S, HOUR_S
from holdfast.supervisor.fleet.state import Kept, RepairRules

LEASE_S, DAY_S = 5.0, 86400.0
ALL: dict[str, str] = {"check": "", "reset-gpu": "", "reboot": ""}
OFFERS = ("check", "reset-gpu", "reboot")


class Stage:
    """Hosts without jobs, each with a daemon that can repair it. The scheduler does what it is asked for."""

    def __init__(self, labels: dict[str, str] | None = None, per_hour: int = 2, hosts: str = "a") -> None:
        self.rules = RepairRules(labels=ALL if labels is None else labels, per_hour=per_hour, probation_s=DAY_S)
        self.now, self.numbers, self.generation = 0.0, 0, 0
        self.tables: dict[str, dict[str, Any]] = {"nodes": {}, "jobs": {}, "swaps": {}, "deeds": {}, "hours": {}}
        self.orders: dict[str, Order] = {}
        """Node → the newest order to its daemon."""
        self.calls: list[tuple[str, str, str]] = []
        self.reasons: list[tuple[str, str]] = []
        """Of each of them: for what, and why."""
        self.refuses: dict[str, str] = {}
        """What the scheduler is asked for → why it does not do it."""
        self.unanswered: set[str] = set()
        """What the scheduler hangs at."""
        self.lives = dict.fromkeys(hosts, 1)
        self.boots: dict[str, str] = {}
        """Host → which boot it is; the others are in their first."""
        self.replies: list[str] = []
        self.start()

    def start(self) -> None:
        """The first life of the supervisor, or another, of what the last has kept."""
        self.generation += 1
        kept = Kept(**{table: tuple(rows.values()) for table, rows in self.tables.items()})
        now = {"now": self.now, "now_unix": self.now + 1000.0}
        self.fleet = Fleet(policy("default"), generation=self.generation, lease_s=LEASE_S, kept=kept, repair=self.rules, **now)
        self.perform(self.fleet.begin(self.now))
        for name in self.lives:
            self.host(name)
        self.wait(LEASE_S + 1.0)

    def host(self, name: str, **how: Any) -> None:
        """Its daemon says how it stands."""
        self.numbers += 1
        said = {"node": f"{name}-{self.lives[name]}", "number": self.numbers, "name": name, "job": "", "state": "joining"}
        self.say(Standing(**said | {"is_watcher": True, "offers": OFFERS, "boot": self.boots.get(name, "first")} | how))

    def works(self, name: str, **how: Any) -> None:
        """A rank of stock torchrun's runs there."""
        self.numbers += 1
        said = {"name": name, "job": "one", "life": "1", "round": 1, "is_watcher": True, "state": "running"}
        said |= {"ranks": (RankSaid(rank=0, local_rank=0, state="running"),)}
        self.say(Standing(node="watcher", number=self.numbers, **said | how))

    def ends(self, name: str = "a", text: str = "done", **how: Any) -> None:
        """What came of the last order, as its daemon says."""
        self.host(name, repaired=Repaired(order=self.orders[name].order, text=text, **{"ok": True} | how))

    def breaks(self, name: str = "a", xid: int = 0, kind: str = TroubleKind.DEVICE) -> None:
        self.numbers += 1
        what = f"Xid {xid}" if xid else "it does not look well"
        of = {"xid": xid, "device": "0000:9b:00" if xid else ""}
        self.say(Trouble(node=f"{name}-{self.lives[name]}", number=self.numbers, kind=kind, what=what, **of))

    def say(self, message: FleetMessage) -> None:
        self.perform(self.fleet.observe(Said(message=message), self.now))

    def asks(self, wish: Wish, name: str = "a") -> None:
        self.perform(self.fleet.observe(Asked(ask=1, wish=wish, node=name, reason="I say so"), self.now))

    def perform(self, actions: list[Action]) -> None:
        for action in actions:
            match action:
                case Reply(text=text):
                    self.replies.append(text)
                case Call(task=task, verb=verb, target=target, need=need):
                    self.calls.append((verb, target, need.label))
                    self.reasons.append((verb, need.reason))
                    if verb in self.unanswered:
                        continue
                    ok, text = verb not in self.refuses, self.refuses.get(verb, "done")
                    self.perform(self.fleet.observe(Called(task=task, ok=ok, text=text), self.now))
                case Tell(node=node, message=Order() as order):
                    self.orders[order.target] = order
                    self.say(Did(node=node, order=order.order, ok=True, text="it has begun"))
                case _ if type(action).__name__ == "Keep":
                    rows: Any = self.tables[action.table]  # type: ignore[attr-defined]
                    rows.pop(action.key, None)  # type: ignore[attr-defined]
                    if action.value is not None:  # type: ignore[attr-defined]
                        rows[action.key] = action.value  # type: ignore[attr-defined]

    def wait(self, seconds: float, *, heard: bool = True) -> None:
        """Time passes, in which daemons are heard."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + 2.0 if seconds < 7200.0 else self.now + 600.0)
            for name in self.lives if heard else ():
                self.say(Alive(node=f"{name}-{self.lives[name]}"))
            if self.fleet.deadline() <= self.now:
                self.perform(self.fleet.observe(Tick(), self.now))

    def node(self, name: str = "a") -> NodeKept:
        """As it is kept."""
        node: NodeKept = self.tables["nodes"][name]
        return node

    def verb(self, name: str = "a") -> str:
        """Of the last order; empty: there was none."""
        return self.orders[name].verb if name in self.orders else ""

    def repair(self, name: str = "a") -> tuple[str, str]:
        repair = self.node(name).repair
        return (repair.act, repair.step) if repair is not None else ("", "")

    def deeds(self, name: str = "a") -> list[tuple[str, str]]:
        """Those after it was taken out: what, and what came of it."""
        deeds: list[Deed] = [deed for deed in self.tables["deeds"].values() if deed.node == name]
        return [(deed.act, deed.outcome) for deed in deeds if deed.act != Act.SWAP]

    def on_probation(self, name: str = "a") -> None:
        """It was broken, and has been repaired."""
        self.breaks(name, xid=119)
        self.ends(name)
        self.ends(name)
        assert self.repair(name) == (Act.PROBATION, RepairStep.PROBATION)


def test_a_gpu_that_needs_a_reset_gets_one_then_the_deep_checks_then_a_day_of_probation() -> None:
    stage = Stage()
    stage.breaks(xid=119)
    assert stage.verb() == "reset-gpu" and stage.repair() == (Act.RESET_GPU, RepairStep.RUN)
    assert [call[:2] for call in stage.calls] == [("drain", "a"), ("replace", "a"), ("vacant", "a")]
    stage.ends()
    assert stage.verb() == "check" and stage.node().state == "unfit"
    stage.ends(text="fit by dcgm")
    assert stage.node().state == "spare" and stage.node().devices[0].state == "fit" and stage.calls[-1][0] == "uncordon"
    assert stage.deeds() == [("reset-gpu", "its checks find it fit"), ("probation", "")]
    stage.wait(DAY_S - 600.0)
    assert stage.node().repair is not None
    stage.wait(1300.0)
    assert stage.node().repair is None and stage.deeds()[-1] == ("probation", "it is fit")


def test_nothing_is_done_where_the_operator_allows_nothing_nor_to_a_node_that_a_person_has_drained() -> None:
    for stage, broken in ((Stage(labels={}), True), (Stage(), False)):
        if broken:
            stage.breaks(xid=119)
        else:
            stage.asks(Wish.DRAIN)
        stage.wait(100.0)
        assert stage.node().state == "unfit" and stage.node().repair is None and not stage.orders and not stage.deeds()


def test_the_xid_says_where_to_begin_and_a_lost_or_unfit_node_is_only_checked_first() -> None:
    for xid, kind, first in ((119, "device", "reset-gpu"), (79, "device", "reboot"), (0, "unfit", "check")):
        stage = Stage()
        stage.breaks(xid=xid, kind=kind)
        assert stage.verb() == first
    stage = Stage()
    stage.works("a")
    stage.say(Standing(node="other", number=1, name="b", job="one", life="1", state="running", round=1, is_watcher=True))
    stage.wait(60.0, heard=False)
    assert stage.node().standing == "unfit" and not stage.orders, "there is nobody to order it"
    stage.works("a", state="ended", ranks=())
    stage.host("a")
    assert stage.verb() == "check"
    stage = Stage()
    stage.breaks(xid=54)
    assert not stage.orders and stage.deeds()[0][0] == "report" and "looked at" in stage.node().reason


def test_what_is_in_vain_is_followed_by_the_next_rung_and_then_by_a_report() -> None:
    stage = Stage()
    stage.breaks(kind=TroubleKind.UNFIT)
    stage.ends(ok=False, text="gpu: 3 uncorrectable errors")
    assert stage.verb() == "reset-gpu"
    stage.ends(ok=False, text="nvidia-smi: exit code 3")
    assert stage.verb() == "reboot"
    stage.ends()
    stage.ends(ok=False, text="gpu: 3 uncorrectable errors")
    outcomes = ["in vain: gpu: 3 uncorrectable errors", "in vain: nvidia-smi: exit code 3"]
    assert [outcome for _, outcome in stage.deeds()] == [*outcomes, outcomes[0], "it stays out until `holdfast uncordon a`"]
    assert stage.node().repair is None and "a person has to repair it: no repair that is allowed is left" in stage.node().reason
    stage.asks(Wish.UNCORDON)
    assert stage.node().state == "spare"


def test_a_node_that_fails_again_within_its_probation_stays_out_and_is_reported() -> None:
    stage = Stage()
    stage.on_probation()
    stage.orders.clear()
    stage.breaks(xid=119)
    assert stage.deeds()[-2:] == [("probation", "in vain: Xid 119"), ("report", "it stays out until `holdfast uncordon a`")]
    stage.wait(DAY_S)
    assert stage.node().state == "unfit" and not stage.orders and "failed again within its probation" in stage.node().reason


def test_what_a_program_does_wrong_on_probation_is_no_failure_of_the_node() -> None:
    stage = Stage()
    stage.on_probation()
    stage.breaks(xid=31)
    assert stage.repair() == (Act.PROBATION, RepairStep.PROBATION) and stage.node().state == "spare"


def test_each_rung_has_a_budget_of_its_own() -> None:
    stage = Stage(per_hour=100)
    for _ in range(2):
        stage.on_probation()
        stage.wait(DAY_S + 1300.0)
    stage.breaks(xid=119)
    assert stage.verb() == "reboot", "it had its two resets of the week"
    stage.ends()
    stage.ends()
    stage.wait(7 * DAY_S)
    stage.breaks(xid=119)
    assert stage.verb() == "reset-gpu"


def test_a_fault_of_all_nodes_reboots_no_more_than_may_be_in_an_hour() -> None:
    stage = Stage(hosts="abcde", per_hour=2)
    for name in "abcde":
        stage.breaks(name, xid=79)
    assert sorted(stage.orders) == ["a", "b"] and "2 may be repaired in an hour" in stage.node("c").repair.waits  # type: ignore[union-attr]
    stage.wait(HOUR_S - 100.0)
    assert sorted(stage.orders) == ["a", "b"]
    stage.wait(100.0 + 2 * AGAIN_S)
    assert sorted(stage.orders) == ["a", "b", "c", "d"]


def test_a_host_that_is_not_cordoned_or_not_empty_is_left_alone_until_it_is() -> None:
    stage = Stage()
    stage.refuses["vacant"] = "2 pods are on a: other/train-0, other/train-1"
    stage.breaks(xid=79)
    stage.wait(600.0)
    assert not stage.orders and stage.node().repair.waits == stage.refuses["vacant"]  # type: ignore[union-attr]
    assert stage.deeds() == [], "nothing is spent meanwhile"
    del stage.refuses["vacant"]
    stage.wait(2 * AGAIN_S)
    assert stage.verb() == "reboot"
    first = stage.orders["a"].order
    stage.ends(ok=False, is_busy=True, text="rank 3 of other runs there")
    assert stage.repair() == (Act.REBOOT, RepairStep.READY)
    stage.wait(2 * AGAIN_S)
    assert stage.orders["a"].order != first and stage.deeds() == [("reboot", "")]


def test_ranks_that_the_supervisor_knows_of_keep_a_host_as_it_is() -> None:
    stage = Stage()
    stage.works("a")
    stage.breaks(xid=79)
    stage.wait(400.0)
    assert stage.node().state == "unfit" and not stage.orders
    assert stage.node().repair.waits == "the end of the ranks that run there"  # type: ignore[union-attr]
    stage.works("a", state="ended", ranks=())
    stage.wait(2 * AGAIN_S)
    assert stage.verb() == "reboot"


def test_a_node_that_dies_with_its_ranks_is_repaired_when_it_has_booted() -> None:
    stage = Stage(hosts="ab")
    stage.works("a")
    for reporter in ("a-1", "watcher"):  # its host is not heard, and the kernel closes what nobody answers
        stage.perform(stage.fleet.observe(Unlinked(node=reporter), stage.now))
    del stage.lives["a"]
    stage.wait(100.0)
    assert stage.node().standing == "unfit" and not stage.orders
    stage.lives["a"] = 2
    stage.host("a")
    stage.wait(2 * AGAIN_S)
    assert stage.verb() == "check"


def test_another_life_of_the_supervisor_goes_on_wherever_the_last_one_died() -> None:
    stage = Stage()
    stage.breaks(xid=79)
    order = stage.orders["a"].order
    stage.start()
    assert stage.orders["a"].order == order, "the same order, which the daemon does not carry out twice"
    stage.ends(text="the host was booted")
    check = stage.orders["a"].order
    stage.start()
    assert stage.orders["a"].order == check and stage.verb() == "check"
    stage.ends()
    stage.start()
    assert stage.node().state == "spare" and stage.deeds() == [("reboot", "its checks find it fit"), ("probation", "")]
    stage.wait(DAY_S + 1300.0)
    assert stage.deeds()[-1] == ("probation", "it is fit")


def test_a_host_that_comes_back_with_another_disk_is_checked_and_not_booted_again() -> None:
    stage = Stage()
    stage.breaks(xid=79)
    stage.lives["a"] += 1
    stage.boots["a"] = "second"
    stage.host("a")
    assert stage.verb() == "check" and stage.repair() == (Act.REBOOT, RepairStep.CHECK)


def test_another_life_of_the_daemon_that_knows_nothing_of_the_order_is_given_it_again() -> None:
    for xid, verb in ((79, "reboot"), (119, "reset-gpu")):
        stage = Stage()
        stage.breaks(xid=xid)
        order = stage.orders.pop("a").order
        stage.lives["a"] += 1
        stage.host("a")
        assert (stage.orders["a"].order, stage.verb()) == (order, verb) and stage.repair()[1] == RepairStep.RUN
        stage.start()
        assert stage.orders["a"].order == order


def test_a_host_that_does_not_come_back_in_time_is_reported() -> None:
    stage = Stage()
    stage.breaks(xid=79)
    stage.wait(1800.0 + 2 * AGAIN_S, heard=False)
    assert stage.deeds()[0] == ("reboot", "in vain: the host has not told in time what came of it")
    assert stage.deeds()[1][0] == "report" and stage.node().state == "lost" and stage.node().standing == "unfit"
    stage = Stage()
    stage.breaks(xid=79)
    stage.ends()
    stage.wait(CHECKS_S + 2 * AGAIN_S)
    assert stage.deeds()[1][0] == "report", "its checks hang"


def test_where_a_cloud_acts_on_a_label_the_node_gets_it_once_and_is_checked_when_it_is_back() -> None:
    stage = Stage(labels={"reboot": "cloud/reboot=true", "report": "cloud/fault=GPU"})
    stage.breaks(xid=79)
    assert stage.calls[-1] == (CallVerb.LABEL, "a", "cloud/reboot=true") and not stage.orders
    stage.wait(300.0)
    assert stage.calls.count((CallVerb.LABEL, "a", "cloud/reboot=true")) == 1
    stage.lives["a"] += 1
    stage.host("a")
    assert not stage.orders, "its daemon was started again, and the host was not booted"
    stage.boots["a"] = "second"
    stage.host("a")
    assert stage.verb() == "check"
    stage.ends(ok=False, text="gpu: 7 of 8")
    assert stage.calls[-1] == (CallVerb.LABEL, "a", "cloud/fault=GPU") and stage.deeds()[-1] == ("report", "done")


def test_an_operator_has_the_last_word() -> None:
    stage = Stage()
    stage.breaks(xid=79)
    stage.asks(Wish.DRAIN)
    assert stage.replies == ["a stays out, and is not repaired"] and stage.node().by == "operator"
    stage.ends()
    stage.wait(3600.0)
    assert stage.node().state == "unfit" and stage.verb() == "reboot"
    assert stage.deeds() == [("reboot", "an operator has a left alone: I say so")]
    being_repaired, on_probation = Stage(), Stage()
    being_repaired.breaks(xid=79)
    on_probation.on_probation()
    for stage in (being_repaired, on_probation):
        stage.asks(Wish.UNCORDON)
        assert stage.node().state == "spare" and stage.node().repair is None


def test_a_node_on_probation_takes_over_after_all_other_spares() -> None:
    stage = Stage(hosts="abc")
    stage.on_probation("a")
    stage.works("x")
    state = stage.fleet.state
    assert state.spares(state.jobs["one"]) == ["b", "c", "a"]


def test_a_daemon_beside_agents_does_not_say_that_the_node_lives() -> None:
    stage = Stage()
    agent = {"name": "a", "job": "one", "life": "1", "state": "joining", "spare_because": "it is excluded"}
    stage.say(Standing(node="agent", number=1, **agent))
    stage.host("a", state="running", is_beside=True)
    stage.wait(2 * LEASE_S)
    assert stage.node().state == "lost"


def test_a_scheduler_that_does_not_let_it_back_is_asked_until_it_does() -> None:
    stage = Stage()
    stage.refuses["uncordon"] = "the API server is away"
    stage.on_probation()
    stage.wait(2 * AGAIN_S)
    assert stage.node().repair.waits == "the API server is away"  # type: ignore[union-attr]
    del stage.refuses["uncordon"]
    stage.start()
    stage.wait(2 * AGAIN_S)
    assert stage.node().repair.waits == ""  # type: ignore[union-attr]


def test_what_the_next_life_of_the_supervisor_is_not_allowed_any_more_is_not_done() -> None:
    for labels in ({}, {"report": "cloud/fault=GPU"}, {"check": ""}):
        for before in (0, 1):
            stage = Stage(labels={"reboot": "cloud/reboot=true"} if before else {"reboot": ""})
            if before:
                stage.refuses["vacant"] = "2 pods are on a"
            stage.breaks(xid=79)
            stage.rules = RepairRules(labels=labels)
            stage.orders.clear()
            stage.calls.clear()
            stage.refuses.clear()
            stage.start()
            stage.wait(2 * AGAIN_S)
            assert not stage.orders and stage.node().state == "unfit" and stage.node().repair is None
            assert not any(verb == "label" and "reboot" in label for verb, _, label in stage.calls)
            assert all(outcome for _, outcome in stage.deeds())
            assert bool(labels) == any(act == "report" for act, _ in stage.deeds())


def test_a_second_verdict_of_the_nodes_own_checks_changes_nothing_of_who_holds_it() -> None:
    stage = Stage()
    stage.refuses["vacant"] = "2 pods are on a"
    agent = {"name": "a", "job": "one", "life": "1", "state": "running", "unfit": "GPU 0 is sick"}
    agent |= {"ranks": (RankSaid(rank=0, local_rank=0, state="running"),)}
    stage.say(Standing(node="agent", number=1, **agent))
    for number, what in enumerate(("GPU 0 is sick", "GPU 1 is sick"), start=2):
        stage.say(Trouble(node="agent", number=number, kind=TroubleKind.UNFIT, what=what))
    assert (stage.node().state, stage.node().by) == ("draining", "policy")
    stage.say(Bye(node="agent", reason="done"))
    stage.host("a")
    stage.wait(400.0)
    assert (stage.node().state, stage.node().by) == ("unfit", "policy") and stage.repair() == (Act.CHECK, RepairStep.READY)
    stage = Stage(labels={})
    stage.breaks(kind=TroubleKind.UNFIT)
    stage.breaks(kind=TroubleKind.UNFIT)
    stage.host("a")
    assert (stage.node().state, stage.node().by) == ("unfit", "policy")


def test_a_node_on_probation_that_is_drained_is_not_let_back_in_the_middle_of_it() -> None:
    stage = Stage()
    stage.refuses["uncordon"] = "the API server is away"
    stage.on_probation()
    stage.works("a")
    stage.asks(Wish.DRAIN)
    assert (stage.node().state, stage.node().by) == ("draining", "operator")
    stage.calls.clear()
    stage.wait(3 * AGAIN_S)
    assert stage.node().state == "draining" and "uncordon" not in [verb for verb, _, _ in stage.calls]
    stage.say(Bye(node="watcher", reason="done"))
    stage.wait(2 * AGAIN_S)
    assert stage.node().state == "unfit" and stage.node().repair is None and "uncordon" not in [call[0] for call in stage.calls]


def test_the_scheduler_is_told_each_time_why_a_node_is_let_back() -> None:
    stage = Stage()
    stage.refuses["uncordon"] = "the API server is away"
    stage.on_probation()
    stage.wait(2 * AGAIN_S)
    told = [reason for verb, reason in stage.reasons if verb == "uncordon"]
    assert len(told) > 1 and all("its checks find it fit after reset-gpu" in reason for reason in told)


def test_a_node_on_probation_that_finds_itself_unfit_can_be_drained() -> None:
    stage = Stage(labels={"reset-gpu": ""})
    stage.breaks(xid=119)
    stage.ends()
    check = stage.orders["a"].order
    sick = {"name": "a", "job": "one", "life": "1", "state": "joining", "unfit": "its disk is full"}
    stage.say(Standing(node="agent", number=1, **sick))
    stage.host("a", repaired=Repaired(order=check, ok=True, text="fit by dcgm"))
    assert (stage.node().state, stage.node().by) == ("unfit", "itself") and stage.repair()[1] == RepairStep.PROBATION
    stage.calls.clear()
    stage.asks(Wish.DRAIN)
    assert ("drain", "a", "") in stage.calls and (stage.node().state, stage.node().by) == ("draining", "operator")


def test_an_uncordon_that_is_refused_ends_no_probation() -> None:
    stage = Stage()
    stage.on_probation()
    stage.unanswered.add("drain")
    stage.asks(Wish.DRAIN)
    stage.asks(Wish.UNCORDON)
    assert "wait for the end of it" in stage.replies[-1] and stage.repair() == (Act.PROBATION, RepairStep.PROBATION)
    assert "a" in stage.fleet.state.repairs and stage.fleet.state.nodes["a"].repair is not None


def test_a_daemon_beside_agents_does_not_say_that_the_node_is_fit_again() -> None:
    stage = Stage(labels={})
    agent = {"name": "a", "job": "one", "life": "1", "state": "joining"}
    stage.say(Standing(node="agent", number=1, **agent | {"unfit": "GPU 0 is sick"}))
    stage.start()
    assert (stage.node().state, stage.node().by) == ("unfit", "itself"), "its daemon is heard before its agent"
    stage.say(Standing(node="agent", number=2, **agent))
    assert stage.node().state == "spare"


def test_a_drain_that_failed_is_asked_for_again_before_a_repair() -> None:
    stage = Stage()
    stage.refuses |= {"drain": "the API server is away", "vacant": "a is not cordoned"}
    stage.breaks(xid=79)
    stage.wait(2 * AGAIN_S)
    assert len([call for call in stage.calls if call[0] == "drain"]) > 1 and not stage.orders
    stage.refuses.clear()
    stage.wait(2 * AGAIN_S)
    assert stage.verb() == "reboot"


def test_a_cloud_that_could_not_be_told_is_told_later_by_the_next_life_of_the_supervisor_too() -> None:
    stage = Stage(labels={"reboot": "", "report": "cloud/fault=GPU"})
    stage.refuses["label"] = "the API server is away"
    stage.breaks(xid=54)
    assert stage.repair() == (Act.REPORT, RepairStep.REPORT) and stage.deeds() == [("report", "")]
    stage.wait(2 * AGAIN_S)
    stage.start()
    assert stage.deeds() == [("report", "")]
    del stage.refuses["label"]
    stage.wait(2 * AGAIN_S)
    assert stage.deeds() == [("report", "done")] and stage.repair() == ("", "") and stage.node().state == "unfit"
    told = len(stage.calls)
    stage.wait(2 * AGAIN_S)
    assert len(stage.calls) == told
    stage.refuses["label"] = "the API server is away"
    stage.asks(Wish.UNCORDON)
    stage.breaks(xid=54)
    stage.rules = RepairRules()
    stage.start()
    assert stage.deeds()[-1] == ("report", "it is allowed no more") and stage.repair() == ("", "")
