"""Who must not take part, since when, and why? And who may say so?

`Excluded` is what the rendezvous remembers of nodes by name: over rounds, over other lives of a node's agent, and, by `kept`
and `resume`, over coordinators. `Admission` changes it, where an operator, a script, a policy or the node itself wants that and
the job can do without the node; and it takes a newcomer in, or has it wait as a spare.
"""

from __future__ import annotations

from holdfast.core.job.events import NodeExcluded, NodeReadmitted
from holdfast.core.job.policy import Decision, Verdict
from holdfast.core.machine import NEVER, Action, Say
from holdfast.core.wire.messages import Exclude, Exclusion, Noted, Readmit, Stop, Waiting
from holdfast.rendezvous.rules import Tell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from holdfast.core.wire.messages import Join
    from holdfast.rendezvous.coordinator.machine import Rendezvous
    from holdfast.rendezvous.coordinator.membership import Seat

SAVED = "and a checkpoint has been written"
"""Why a node is taken in that has waited for that."""

CHARS = 500
"""Characters of a reason that are kept: a successor is told all of them, and a store's values are small."""


class Excluded:
    """All of them."""

    def __init__(self, *, back_after_s: float = NEVER) -> None:
        self.back_after_s = back_after_s
        """How long one lasts; NEVER: until somebody readmits the node. A node's own word lasts until it says otherwise."""
        self._held: dict[str, tuple[Exclusion, float]] = {}
        """name → what, and since when on our clock"""
        self.changes = 0
        """How often somebody has been added or removed."""

    def __len__(self) -> int:
        return len(self._held)

    @property
    def names(self) -> tuple[str, ...]:
        """Who they are, in order of their exclusion."""
        return tuple(self._held)

    def why(self, name: str) -> str:
        """Why that node must not take part; empty: it may."""
        return self._held[name][0].reason if name in self._held else ""

    def by(self, name: str) -> str:
        """Whose word it is; empty: it is not excluded."""
        return self._held[name][0].by if name in self._held else ""

    def add(self, name: str, reason: str, by: str, now: float) -> None:
        """Leave it out from now on."""
        self._held[name] = Exclusion(name=name, reason=reason[:CHARS], by=by), now
        self.changes += 1

    def remove(self, name: str) -> None:
        """Let it take part again."""
        self._held.pop(name, None)
        self.changes += 1

    def over(self, now: float) -> list[str]:
        """Those whose time is up."""
        return [name for name in self._held if now >= self._ends(name)]

    def deadline(self) -> float:
        """When the first one's time is up."""
        return min((self._ends(name) for name in self._held), default=NEVER)

    def kept(self, now: float) -> tuple[Exclusion, ...]:
        """What a successor must know."""
        return tuple(
            Exclusion(name=one.name, reason=one.reason, by=one.by, age_s=now - since) for one, since in self._held.values()
        )

    def resume(self, kept: Iterable[Exclusion], now: float) -> None:
        """Take over from a predecessor."""
        self._held |= {one.name: (one, now - one.age_s) for one in kept}

    def _ends(self, name: str) -> float:
        one, since = self._held[name]
        return NEVER if one.by == "itself" else since + self.back_after_s


class Admission:
    """Who takes part of those that are here, as far as it does not depend on how they are."""

    def __init__(self, rendezvous: Rendezvous) -> None:
        self.rendezvous = rendezvous
        self.excluded, self.seats = rendezvous.excluded, rendezvous.seats

    def newcomer(self, seat: Seat, now: float) -> list[Action]:
        """While a round runs, a node is ready for another: all restart with it, or it waits as a spare."""
        job = self.rendezvous
        why = self._no_place_yet(seat)
        if not why:
            return job.carry_out(Decision(then=Verdict.REJOIN, reason=f"{seat.name} joined"), now)
        said = Say(text=f"{seat.name} waits as a spare: {why}")
        return [said, Tell(node=seat.join.node, message=Waiting(round=job.round, reason=why, life=job.life))]

    def saved(self, now: float) -> list[Action]:
        """A checkpoint has been written: all restart, if somebody has waited for long enough with whom they would be more."""
        job = self.rendezvous
        since = now - job.rules.grow_after_s
        waiting = (seat for seat in self.seats.values() if seat.state == "ready" and max(seat.came_at, job.formed_at) <= since)
        seat = next((seat for seat in waiting if not self.excluded.why(seat.name)), None)  # they are as many with any of them
        if seat is None or self._no_place_yet(seat, saved=True):
            return []
        return job.carry_out(Decision(then=Verdict.REJOIN, reason=f"{seat.name} joined, {SAVED}"), now)

    def _no_place_yet(self, seat: Seat, *, saved: bool = False) -> str:
        why = self.seats.no_place_yet(seat, self.rendezvous.round, saved=saved)
        return why or ("nobody is restarted for a newcomer (min-healthy)" if self.rendezvous.policy.carries_on else "")

    # --- at whose wish --------------------------------------------------------------------------------------------------

    def asked(self, asked: Exclude | Readmit, now: float) -> list[Action]:
        """What an operator asked for, and the answer to it."""
        name, before = asked.name, self.excluded.why(asked.name)
        actions: list[Action] = []
        if isinstance(asked, Readmit):
            ok, text = bool(before), f"{name} may take part again" if before else f"{name} is not excluded"
            actions = self.readmit(name, asked.reason, now) if before else []
        elif before:
            ok, text = True, f"{name} is excluded already: {before}"
        elif self._runs(name) and (needed := self.lacking(name)):
            ok, text = False, f"{name} is not excluded, since the job cannot go on without it: {needed}"
        else:
            here = any(seat.name == name for seat in self.seats.values())
            actions = self.exclude(name, asked.reason, "itself" if asked.by == "itself" else "operator", now)
            actions += (dismissed := self.dismiss(name, f"{name} is excluded: {asked.reason}", now))
            carries_on = self.rendezvous.phase == "running"
            stays = "the others carry on without it" if carries_on else "the ranks are restarted without it"
            then = stays if dismissed else "it takes part in no later round"
            unseen = f"no node {name} is here now; it is excluded if it comes"
            ok, text = True, f"{name} is excluded: {then}" if here else unseen
        return [*actions, Tell(node=asked.node, message=Noted(ask=asked.ask, ok=ok, text=text))]

    def of_itself(self, join: Join, now: float) -> list[Action]:
        """A node knows best whether it is fit; but what others have against it stands."""
        by, why = self.excluded.by(join.name), self.excluded.why(join.name)
        if join.unhealthy and (not by or (by == "itself" and why != join.unhealthy)):
            return self.exclude(join.name, join.unhealthy, "itself", now)
        return [] if join.unhealthy or by != "itself" else self.readmit(join.name, "it says that it is fit again", now)

    def give_way(self, name: str, why: str, now: float) -> list[Action]:
        """A slow node is left out if a spare can take its place, as long as nobody has done its part."""
        if not self._runs(name) or self.seats.tally.of("succeeded") or not self.is_replaceable(name):
            return []
        excluded = self.exclude(name, why, "slowness", now)
        return excluded + self.dismiss(name, f"{name} is excluded: {why}", now)

    def forgive(self, now: float) -> list[Action]:
        """Those whose time is up may come back."""
        after = f"it was excluded {self.excluded.back_after_s:g} s ago"
        return [action for name in self.excluded.over(now) for action in self.readmit(name, after, now)]

    # --- what is done about a node --------------------------------------------------------------------------------------

    def exclude(self, name: str, reason: str, by: str, now: float) -> list[Action]:
        """Remember it; whoever runs there goes on until it is dismissed."""
        self.excluded.add(name, reason, by, now)
        return [self.rendezvous.record(NodeExcluded(name=name, reason=self.excluded.why(name), by=by))]

    def dismiss(self, name: str, why: str, now: float) -> list[Action]:
        """Stop an excluded node's part in the running round: alone, where the others may carry on, else with all. Where some
        have done their part already, it is left to do its own."""
        job, members = self.rendezvous, self.seats.members
        mine = [seat for seat in members if seat.name == name and seat.state == "running"]
        if job.phase != "running" or not mine or any(seat.state == "succeeded" for seat in members):
            return []
        for seat in mine:
            seat.state, seat.stop = "stopping", Stop(round=job.round, reason=why, rejoin=True)
        without = job.judge.without(why, now)
        alone = [Tell(node=seat.join.node, message=seat.stop) for seat in mine if seat.stop and job.phase == "running"]
        return without + alone

    def readmit(self, name: str, reason: str, now: float) -> list[Action]:
        """It may take part again, and does so at once if it is here and of use."""
        job = self.rendezvous
        self.excluded.remove(name)
        job.policy.pardon(name)
        actions: list[Action] = [job.record(NodeReadmitted(name=name, reason=reason))]
        for seat in list(self.seats.values()):
            if seat.name == name and seat.state == "ready" and job.phase == "running":
                actions += self.newcomer(seat, now)
        return actions

    # --- whether the job can do without it ------------------------------------------------------------------------------

    def lacking(self, name: str) -> str:
        """Why no round could be made without that node. Empty: one could."""
        left = self.seats.place_without(name, self.rendezvous.round)
        return "" if left.active else left.reason

    def is_replaceable(self, name: str) -> bool:
        """Whether the job would be as large without that node as it is now."""
        left = self.seats.place_without(name, self.rendezvous.round)
        return len(left.active) >= len(self.seats.members)

    def _runs(self, name: str) -> bool:
        """Whether it is a member of the running round."""
        return self.rendezvous.phase == "running" and any(member.name == name for member in self.seats.members)
