"""What did a check find, and what follows after several answers in a row? Values and one small machine; pure.

    fit ──one bad──▶ degraded ──`bad_in_a_row`──▶ unfit ──`good_in_a_row`──▶ fit

One bad answer need not cost a node its place, nor one good answer bring back a node that flaps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.core.job.events import HealthState
from holdfast.core.job.xid import DeviceFault
from holdfast.core.value import Value, replace

FIT, DEGRADED, UNFIT = STATES = tuple(HealthState)


class Verdict(Value):
    """The answer of one check."""

    state: HealthState
    reason: str  # What was seen, in words, where it is fit too.
    advice: str = ""  # What to do about it.
    devices: tuple[DeviceFault, ...] = ()  # What is wrong with which device, where the check can tell.
    check: str = ""  # Name of the check, with its argument as it was asked for. The examiner fills it in.
    took_s: float = 0.0  # Seconds it took. Likewise.
    keep: dict[str, Any] = {}  # noqa: RUF012
    """What the check wants to be told when it looks again here: plain data, as JSON has it."""


def fit(reason: str, **keep: Any) -> Verdict:
    """All is well, or the check does not apply here; `reason` says which."""
    return Verdict(state=FIT, reason=reason, keep=keep)


def degraded(reason: str, advice: str = "", **keep: Any) -> Verdict:
    """The node can work, and somebody should look after it."""
    return Verdict(state=DEGRADED, reason=reason, advice=advice, keep=keep)


def unfit(reason: str, advice: str = "", **keep: Any) -> Verdict:
    """The node must not work."""
    return Verdict(state=UNFIT, reason=reason, advice=advice, keep=keep)


def worst(states: Iterable[HealthState]) -> HealthState:
    """The worst of them; fit where there are none."""
    return max(states, key=STATES.index, default=FIT)


class Findings:
    """What a check finds, one thing after the other, and the verdict that they add up to."""

    def __init__(self) -> None:
        self._found: list[Verdict] = []

    def unfit(self, what: str, advice: str = "", *, device: str = "", xid: int = 0) -> None:
        """Something because of which the node must not work; `device` and `xid` as in `DeviceFault`."""
        self._found.append(replace(unfit(what, advice), devices=_fault(device, what, xid)))

    def degraded(self, what: str, advice: str = "", *, device: str = "", xid: int = 0) -> None:
        """Something that a person should look after."""
        self._found.append(replace(degraded(what, advice), devices=_fault(device, what, xid)))

    def verdict(self, otherwise: str, **keep: Any) -> Verdict:
        """The worst first, with all reasons of that state. `otherwise`: the reason where nothing was found."""
        state = worst(one.state for one in self._found)
        if state == FIT:
            return fit(otherwise, **keep)
        told = [one for one in self._found if one.state == state]
        advice = "; ".join(dict.fromkeys(one.advice for one in told if one.advice))
        devices = tuple(device for one in told for device in one.devices)
        return Verdict(state=state, reason="; ".join(one.reason for one in told), advice=advice, devices=devices, keep=keep)


def _fault(device: str, what: str, xid: int) -> tuple[DeviceFault, ...]:
    return (DeviceFault(device=device, what=what, xid=xid),) if device else ()


class Standing:
    """What stands of one check, by all of its answers so far."""

    def __init__(self, bad_in_a_row: int = 1, good_in_a_row: int = 1) -> None:
        self.bad_in_a_row, self.good_in_a_row = bad_in_a_row, good_in_a_row
        self.verdict: Verdict | None = None  # None: it has not been asked yet.
        self._bad = self._good = 0

    @property
    def state(self) -> HealthState:
        """fit, before the first answer too."""
        return self.verdict.state if self.verdict is not None else FIT

    def judge(self, answer: Verdict) -> Verdict:
        """Take in an answer; returns what stands now."""
        if answer.state == UNFIT:
            self._bad, self._good = self._bad + 1, 0
            if self._bad < self.bad_in_a_row and self.state != UNFIT:
                of = f"{answer.reason} (seen {self._bad} of {self.bad_in_a_row} times in a row that count)"
                answer = replace(answer, state=DEGRADED, reason=of)
        else:
            self._bad, self._good = 0, self._good + 1
            if self.verdict is not None and self.state == UNFIT and self._good < self.good_in_a_row:
                return self.verdict
        self.verdict = answer
        return answer
