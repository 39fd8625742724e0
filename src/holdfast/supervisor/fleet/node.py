"""How is one node, as far as the supervisor can tell? Its state, its devices' states, and their history.

    spare ⇄ fit ⇄ suspect ──▶ draining ──▶ unfit ──uncordon──▶ spare
      └───────┴──────┴── silent for a lease: lost, and back ──────┘

docs/reference/fleet.md has all of it, from a walk of the machine.
What is held against a node (`standing`) and whether it is heard are two things: a node that was unfit is so when it comes back.
"""

from __future__ import annotations

from holdfast.core.job.xid import NONE, RESTART, WATCH, xid
from holdfast.core.value import replace
from holdfast.core.wire.demands import TROUBLES, Demands
from holdfast.core.wire.fleet import (
    Change,
    DeviceKept,
    HeldBy,
    NodeKept,
    NodeState,
    Repair,
    RepairStep,
    ReporterState,
    Standing,
    Trouble,
    TroubleKind,
)

BADNESS = (NodeState.FIT, NodeState.SUSPECT, NodeState.UNFIT)
"""States of a device, from the best on."""

XIDS = {NONE: NodeState.FIT, RESTART: NodeState.FIT, WATCH: NodeState.SUSPECT}
"""What a device is after an Xid that asks for this action; after any other it is unfit."""

HISTORY = 100
"""Changes that are remembered of a node."""

DEVICES, DEVICE_HISTORY = 64, 10
"""Devices that are remembered of a node, and what was said of each."""

LIVES = 16
"""Reporters of a node whose troubles' numbers are remembered: its host's daemon, and its agents of the last few jobs."""


class FleetNode:
    """One node. `standing`, `reason` and `by` say what is held against it, and who holds it."""

    def __init__(self, name: str, kept: NodeKept | None = None) -> None:
        """`kept`: as it was stored; whether it is still present is not known."""
        kept = kept or NodeKept(name=name, state=NodeState.FIT, standing=NodeState.FIT, reason="")
        self.name, self.domain = name, kept.domain
        self.standing, self.reason, self.by = NodeState(kept.standing), kept.reason, kept.by
        self.devices = {device.name: device for device in kept.devices}
        self.history, self.heard = list(kept.history), dict(kept.heard)
        self.reports: dict[str, Standing] = {}
        """By reporter: what it said last."""
        self.linked: set[str] = set()
        """Reporters whose links stand."""
        self.is_lost = kept.state == NodeState.LOST
        self.repair = kept.repair
        self.reported_at_unix = 0.0
        """When a reporter of it said last how things are; 0: not in this life of the supervisor."""
        self._asked = Demands()
        self._noted: tuple[object, ...] = ()
        """As `changed` saw it last."""

    @property
    def state(self) -> NodeState:
        """What people are shown."""
        if self.is_lost:
            return NodeState.LOST
        if self.standing != NodeState.FIT:
            return self.standing
        return NodeState.FIT if self.has_ranks else NodeState.SPARE

    @property
    def has_ranks(self) -> bool:
        """Whether ranks run there, as its reporters said last."""
        return any(report.ranks and report.state != ReporterState.ENDED for report in self.reports.values())

    @property
    def is_in_repair(self) -> bool:
        """Whether it is being repaired: what its agents find meanwhile is no news."""
        return self.repair is not None and self.repair.step != RepairStep.PROBATION

    @property
    def may_work(self) -> bool:
        """Whether it could take over: it waits, is heard, and nothing is held against it."""
        return self.state == NodeState.SPARE and bool(self.linked)

    def spares_for(self, job: str, *, is_watched: bool = False) -> bool:
        """Whether it waits for a place in that job. A node that has just lost its ranks, and waits for the others, does not.
        `is_watched`: any host whose daemon sees no ranks will do."""

        def waits(report: Standing) -> bool:
            if report.job == job:
                return bool(report.spare_because)
            return is_watched and report.is_watcher and not report.job and report.state == ReporterState.JOINING

        return self.may_work and any(map(waits, self.reports.values()))

    def hear(self, report: Standing, at_unix: float) -> None:
        self.reported_at_unix, self.domain = at_unix, report.domain or self.domain
        if report.state == ReporterState.ENDED:
            self.reports.pop(report.node, None)
        else:
            self.reports[report.node] = report
        if report.unfit and self.standing in (NodeState.FIT, NodeState.SUSPECT):
            self.hold(NodeState.UNFIT, report.unfit, HeldBy.ITSELF)
        elif not report.unfit and not report.is_watcher and self.by == HeldBy.ITSELF:  # a host's daemon looks for nothing
            self.pardon("its node says that it is fit again", at_unix)

    def present(self, reporter: str) -> None:
        self.linked.add(reporter)
        self.is_lost = False

    def silent(self) -> None:
        """Its lease is over. Its reports stay: the first thing it says when it is back is about its job."""
        self.is_lost = True

    def unlink(self, reporter: str) -> None:
        self.linked.discard(reporter)

    def bye(self, reporter: str) -> None:
        self.reports.pop(reporter, None)
        self.linked.discard(reporter)

    def suffer(self, trouble: Trouble, at_unix: float) -> None:
        """A trouble of its device, or a verdict of its own checks, is held against it."""
        if trouble.xid or trouble.kind == TroubleKind.DEVICE:
            state = self.device(trouble.device or "?", trouble.xid, trouble.what, at_unix)
            if state == NodeState.UNFIT and self.standing == NodeState.FIT:
                self.hold(NodeState.SUSPECT, trouble.what, HeldBy.DEVICE)
        elif trouble.kind != TroubleKind.UNFIT:
            return
        elif self.by == HeldBy.ITSELF or self.standing in (NodeState.FIT, NodeState.SUSPECT):  # else others have taken it out
            self.hold(NodeState.UNFIT, trouble.what, HeldBy.ITSELF)

    def hold(self, standing: NodeState, reason: str, by: str) -> None:
        self.standing, self.reason, self.by = standing, reason, by

    def set_repair(self, repair: Repair | None) -> None:
        self.repair = repair

    def pardon(self, why: str, at_unix: float) -> None:
        """Nothing is held against it or its devices; but a node that finds itself unfit is so until it says otherwise."""
        heard = [report for reporter, report in self.reports.items() if reporter in self.linked and not self.is_lost]
        if own := next((report.unfit for report in heard if report.unfit), ""):
            return self.hold(NodeState.UNFIT, own, HeldBy.ITSELF)
        self.hold(NodeState.FIT, "", "")
        for device in [device for device in self.devices.values() if device.state != NodeState.FIT]:
            self._note(DeviceKept(name=device.name, state=NodeState.FIT, reason=why, at_unix=at_unix), why)

    def device(self, name: str, number: int, what: str, at_unix: float) -> NodeState:
        """The driver has reported something about a GPU: the GPU's state now. A program's fault costs neither GPU nor node."""
        state = XIDS.get(xid(number, what).action, NodeState.UNFIT)
        before = self.devices.get(name)
        if before is not None and _badness(before) > BADNESS.index(state):
            self._note(before, what, at_unix)
            return NodeState(before.state)
        self._note(DeviceKept(name=name, state=state, reason=what, xid=number, at_unix=at_unix), what)
        if state == NodeState.SUSPECT and self.standing == NodeState.FIT:
            self.hold(NodeState.SUSPECT, what, HeldBy.DEVICE)
        return state

    def _note(self, device: DeviceKept, what: str, at_unix: float | None = None) -> None:
        """Remember a device's state, and what was said about it. `at_unix` None: when it came to be so."""
        before = self.devices.pop(device.name, None)
        change = Change(state=device.state, reason=what, at_unix=device.at_unix if at_unix is None else at_unix)
        past = before.history[1 - DEVICE_HISTORY :] if before is not None else ()
        self.devices[device.name] = replace(device, history=(*past, change))
        if len(self.devices) > DEVICES:  # the longest silent among the best is forgotten
            del self.devices[min(self.devices.values(), key=_badness).name]

    def is_new(self, reporter: str, number: int) -> bool:
        """Whether that trouble has not been dealt with; from now on it has."""
        before = self.heard.pop(reporter, 0)
        self.heard[reporter] = max(number, before)
        if len(self.heard) > LIVES:
            del self.heard[next(iter(self.heard))]  # the longest silent
        return number > before

    def may_report(self, now: float) -> bool:
        """Whether one more trouble of it is decided about, and not one too many within a short time."""
        asked = self._asked.after(TROUBLES, now)
        self._asked = asked or self._asked
        return asked is not None

    def changed(self, at_unix: float, why: str = "") -> bool:
        """Whether it differs from when this was asked last. A new state, or a new reason for it, goes into its history."""
        state, last = self.state, self.history[-1] if self.history else None
        told = self._noted[2] if self._noted else self.reason
        if last is None or state != last.state or (self.reason != told and state == self.standing):
            self.history = [*self.history[1 - HISTORY :], Change(state=state, reason=why or self.reason, at_unix=at_unix)]
        devices = tuple(self.devices.values())
        now = state, self.standing, self.reason, self.by, self.domain, devices, self.history[-1], self.repair
        was, self._noted = self._noted, now
        return now != was

    def kept(self) -> NodeKept:
        return NodeKept(
            name=self.name,
            state=self.state,
            standing=self.standing,
            reason=self.reason,
            by=self.by,
            domain=self.domain,
            devices=tuple(self.devices.values()),
            heard=dict(self.heard),
            history=tuple(self.history),
            repair=self.repair,
        )


def _badness(device: DeviceKept) -> int:
    return BADNESS.index(NodeState(device.state))
