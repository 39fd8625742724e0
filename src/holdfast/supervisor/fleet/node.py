"""How is one node, as far as the supervisor can tell? Its state, its devices', and how it came to be so.

    spare ⇄ fit ⇄ suspect ──▶ draining ──▶ unfit ──uncordon──▶ spare
      └───────┴──────┴── silent for a lease: lost, and back ──────┘

What is held against a node (`standing`) and whether it is heard are two things: a node that was unfit is so when it comes back.
"""

from __future__ import annotations

from holdfast.core.job.xid import NONE, RESTART, WATCH, xid
from holdfast.core.machine import NEVER
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Change, DeviceKept, NodeKept

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.core.wire.fleet import Standing

FIT, SUSPECT, UNFIT, DRAINING, SPARE, LOST = "fit", "suspect", "unfit", "draining", "spare", "lost"

BADNESS = (FIT, SUSPECT, UNFIT)
"""States of a device, from the best on."""

HISTORY = 100
"""Changes that are remembered of a node."""

DEVICES, DEVICE_HISTORY = 64, 10
"""Devices that are remembered of a node, and what was said of each."""

LIVES = 16
"""Reporters of a node whose troubles' numbers are remembered: its host's daemon, and its agents of the last few jobs."""


class FleetNode:
    """One node."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.standing, self.reason, self.by, self.domain = FIT, "", "", ""
        self.devices: dict[str, DeviceKept] = {}
        self.history: list[Change] = []
        self.heard: dict[str, int] = {}
        """As in `NodeKept`."""
        self.reports: dict[str, Standing] = {}
        """By reporter: what it said last."""
        self.linked: set[str] = set()
        """Reporters whose links stand."""
        self.until = NEVER
        """When its lease ends; NEVER: it is not waited for (it was never heard, is lost, or has said goodbye)."""
        self.is_lost = False
        self.reported_at_unix = 0.0
        """When a reporter of it said last how things are; 0: not in this life of the supervisor."""
        self._noted: tuple[object, ...] = ()
        """As it was when `changed` was asked last."""

    @property
    def state(self) -> str:
        """One of the six."""
        if self.is_lost:
            return LOST
        if self.standing in (UNFIT, DRAINING, SUSPECT):
            return self.standing
        return FIT if self.has_ranks else SPARE

    @property
    def has_ranks(self) -> bool:
        """Whether ranks run there, as its reporters said last."""
        return any(report.ranks and report.state != "ended" for report in self.reports.values())

    @property
    def may_work(self) -> bool:
        """Whether it could take over: it waits, is heard, and nothing is held against it."""
        return self.state == SPARE and bool(self.linked)

    def spares_for(self, job: str, *, is_watched: bool = False) -> bool:
        """Whether it waits for a place in that job. Who has just lost its ranks, and waits for the others, does not.
        `is_watched`: any host whose daemon sees no ranks will do."""

        def waits(report: Standing) -> bool:
            if report.job == job:
                return bool(report.spare_because)
            return is_watched and report.is_watcher and not report.job and report.state == "joining"

        return self.may_work and any(map(waits, self.reports.values()))

    # --- what happens to it ---------------------------------------------------------------------------------------------

    def hear(self, report: Standing, at_unix: float) -> None:
        """What a reporter says of it."""
        self.reported_at_unix, self.domain = at_unix, report.domain or self.domain
        if report.state == "ended":
            self.reports.pop(report.node, None)
        else:
            self.reports[report.node] = report
        if report.unfit and self.standing in (FIT, SUSPECT):
            self.hold(UNFIT, report.unfit, "itself")
        elif not report.unfit and self.by == "itself":
            self.pardon("its node says that it is fit again", at_unix)

    def alive(self, until: float) -> None:
        """It has been heard, and counts as here until then."""
        self.until, self.is_lost = until, False

    def silent(self) -> None:
        """Its lease is over. For which job it worked is not forgotten: what it says first when it is back is about that."""
        self.until, self.is_lost = NEVER, True

    def bye(self, reporter: str) -> None:
        """A reporter has gone in good order. A node that none is left of is not waited for."""
        self.reports.pop(reporter, None)
        self.linked.discard(reporter)
        if not self.linked:
            self.until = NEVER

    def hold(self, standing: str, reason: str, by: str) -> None:
        """From now on this is held against it."""
        self.standing, self.reason, self.by = standing, reason, by

    def pardon(self, why: str, at_unix: float) -> None:
        """Nothing is held against it, nor against its devices; but what finds itself unfit is so until it says otherwise."""
        heard = [report for reporter, report in self.reports.items() if reporter in self.linked and not self.is_lost]
        if own := next((report.unfit for report in heard if report.unfit), ""):
            return self.hold(UNFIT, own, "itself")
        self.standing, self.reason, self.by = FIT, "", ""
        for device in [device for device in self.devices.values() if device.state != FIT]:
            self._note(DeviceKept(name=device.name, state=FIT, reason=why, at_unix=at_unix), why)

    def device(self, name: str, number: int, what: str, at_unix: float) -> str:
        """A GPU has said something: its state now. What a program did wrong costs neither the GPU nor the node."""
        action = xid(number, what).action
        state = FIT if action in (NONE, RESTART) else SUSPECT if action == WATCH else UNFIT
        before = self.devices.get(name)
        if before is not None and BADNESS.index(before.state) > BADNESS.index(state):
            self._note(before, what, at_unix)
            return before.state
        self._note(DeviceKept(name=name, state=state, reason=what, xid=number, at_unix=at_unix), what)
        if state == SUSPECT and self.standing == FIT:
            self.hold(SUSPECT, what, "device")
        return state

    def _note(self, device: DeviceKept, what: str, at_unix: float | None = None) -> None:
        """A device is so from now on, since this was said of it. None: when it has come to be so."""
        before = self.devices.pop(device.name, None)
        change = Change(state=device.state, reason=what, at_unix=device.at_unix if at_unix is None else at_unix)
        past = before.history[1 - DEVICE_HISTORY :] if before is not None else ()
        self.devices[device.name] = replace(device, history=(*past, change))
        if len(self.devices) > DEVICES:  # of the best of them the one of which nothing was heard for the longest time goes
            del self.devices[min(self.devices.values(), key=lambda one: BADNESS.index(one.state)).name]

    def is_new(self, reporter: str, number: int) -> bool:
        """Whether that trouble has not been dealt with; from now on it has."""
        before = self.heard.pop(reporter, 0)
        self.heard[reporter] = max(number, before)
        if len(self.heard) > LIVES:
            del self.heard[next(iter(self.heard))]  # which has said nothing for the longest time
        return number > before

    def changed(self, at_unix: float, why: str = "") -> bool:
        """Whether it is another than when this was asked last. Another state, or another reason for it, is in its history."""
        state, last = self.state, self.history[-1] if self.history else None
        told = self._noted[2] if self._noted else self.reason
        if last is None or state != last.state or (self.reason != told and state == self.standing):
            self.history = [*self.history[1 - HISTORY :], Change(state=state, reason=why or self.reason, at_unix=at_unix)]
        now = state, self.standing, self.reason, self.by, self.domain, tuple(self.devices.values()), self.history[-1]
        was, self._noted = self._noted, now
        return now != was

    # --- what is kept ---------------------------------------------------------------------------------------------------

    def kept(self) -> NodeKept:
        """What another life of the supervisor must know of it."""
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
        )

    @classmethod
    def of(cls, kept: NodeKept) -> FleetNode:
        """As it was kept. It is not known whether it is still there."""
        node = cls(kept.name)
        node.standing, node.reason, node.by, node.domain = kept.standing, kept.reason, kept.by, kept.domain
        node.devices = {device.name: device for device in kept.devices}
        node.heard, node.history = dict(kept.heard), list(kept.history)
        node.is_lost = kept.state == LOST
        return node
