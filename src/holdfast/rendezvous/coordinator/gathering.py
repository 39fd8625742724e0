"""When does the next round form, and which nodes does everybody wait for?

It forms at once where all members are ready and they suffice. It waits: in the first round for more than `min_nodes` (the
last call); after a loss until the lost node's workers must be gone; under a new coordinator until its predecessor's members
are back; and never longer than the join timeout.

While a round runs, a job that grows after checkpoints takes in nodes when one has just been written (`Checkpoints`).
"""

from __future__ import annotations

from holdfast.core.job.events import ExcludedBy
from holdfast.core.machine import NEVER, Action, Say
from holdfast.core.wire.messages import Notice, Saving
from holdfast.rendezvous.coordinator.membership import Seat, Seats
from holdfast.rendezvous.placement.placement import SHOWN, Placement
from holdfast.rendezvous.rules import Rules, Tell

NOTICE_S, NOTICE_AGAIN_S = 5.0, 60.0
"""When to report missing nodes, first and then again: soon enough for a person, rare enough for a log."""

SETTLE_S = 0.5
"""A checkpoint is over when no rank has written for this long. Ranks may have begun since the last reading (0.2 s), may begin
a little later, or may write another file. It costs the steps of that time."""

FORGIVABLE = (ExcludedBy.FAILURES, ExcludedBy.SLOWNESS)
"""Whose word an exclusion is that is taken back where too few nodes are left."""


class Gathering:
    """The round to come."""

    def __init__(self, rules: Rules, seats: Seats, *, now: float) -> None:
        self.rules, self.seats = rules, seats
        self.not_before = now
        self.unplaced_at = -1
        self.unplaced_why = ""
        """Why no round can be made of the nodes that were ready at that count of `seats.changes`. They are not asked again
        before one comes or goes."""
        self.unsure: list[Seat] = []
        """They would have a place, but their links are broken: they come back, or are lost, before a round forms."""
        self.awaited, self.awaited_until = 0, NEVER
        """So many members of our predecessor's last round are expected back until then."""
        self.back: set[str] = set()
        self.begin(now)

    def begin(self, now: float) -> None:
        """No round runs from now on."""
        self.since, self.notice_at, self.quorum_since = now, now + NOTICE_S, NEVER

    def expect_back(self, members: int, *, until: float = NEVER) -> None:
        """So many members of our predecessor's last round may come back, and are waited for until then."""
        self.awaited, self.awaited_until = members, until

    def came_back(self, node: str) -> None:
        """One of them is here."""
        if self.awaited:
            self.back.add(node)

    def wait_until(self, at: float) -> None:
        """Form no round before then."""
        self.not_before = max(self.not_before, at)

    @property
    def gives_up_at(self) -> float:
        """When there have been too few nodes for too long."""
        return self.since + self.rules.join_timeout_s

    @property
    def is_short(self) -> bool:
        """Too few nodes, or none can be placed."""
        return self.seats.fit_count < self.rules.min_nodes or self.unplaced_at == self.seats.changes

    def opens_at(self, last_round: int) -> float:
        """When the passing of time alone lets a round form or fail."""
        if self.is_short:
            return min(self.gives_up_at, self.notice_at)
        if self.unsure or not self.seats.all_ready:
            return NEVER
        if len(self.back) < self.awaited:
            return max(self.not_before, self.awaited_until)
        return max(self.not_before, self.quorum_since + self.rules.last_call_s if self.is_last_call(last_round) else 0.0)

    def is_last_call(self, last_round: int) -> bool:
        """Enough are here for the first round, and more may come."""
        return last_round == 0 and self.rules.min_nodes <= self.seats.fit_count < self.seats.most

    def look(self, now: float) -> None:
        """See who is here, and who is back."""
        if any(seat.linked or seat.join.node not in self.seats for seat in self.unsure):
            self.unsure = []
        self.quorum_since = min(self.quorum_since, now) if self.seats.fit_count >= self.rules.min_nodes else NEVER

    def placed(self, last_round: int, now: float) -> Placement | None:
        """Who takes part in the next round, now. Nobody: no round can be made of these. None: it is still waited for some."""
        if now < self.opens_at(last_round):
            return None
        placement = self.seats.place(self.seats.ready, last_round)
        # A node that died while it waited would be in a round that cannot work. To be sure costs a lease at most.
        self.unsure = [seat for given in placement.active if not (seat := self.seats[given.node]).linked]
        if self.unsure:
            return None
        if not placement.active:
            self.unplaced_at, self.unplaced_why = self.seats.changes, placement.reason
        return placement

    def forgivable(self, now: float) -> list[str]:
        """Who was excluded for its failures or slowness, and is better than nobody: without these no round could be made."""
        seats = self.seats
        awaited = len(self.back) < self.awaited and now < self.awaited_until
        if awaited or not seats.excluded or not seats.all_ready:
            return []
        ready = seats.ready
        names = [seat.name for seat in ready if seats.excluded.by(seat.name) in FORGIVABLE]
        return names if len(seats.fit(ready)) + len(names) >= self.rules.min_nodes else []

    # --- in words -------------------------------------------------------------------------------------------------------

    def notice(self, last_round: int, now: float) -> list[Action]:
        """From time to time, every node that waits says for whom everybody waits, and until when."""
        if now < self.notice_at:
            return []
        self.notice_at = now + NOTICE_AGAIN_S
        waits_for, until = self._waits(last_round, now)
        text, waiting = f"{waits_for}; {until}", [seat for seat in self.seats.ready if seat.linked]
        if not waiting:
            return [Say(text=text, level="warning")]
        return [Tell(node=seat.join.node, message=Notice(text=text, waits_for=waits_for)) for seat in waiting]

    def _waits(self, last_round: int, now: float) -> tuple[str, str]:
        """(for what, and for how much longer)."""
        here, number = self._here, last_round + 1
        stopping = [seat.name for seat in self.seats.members]
        if self.is_last_call(last_round) and not stopping:
            more = f"round {number} has {len(here)} nodes ({named(here)}), and begins at once when there are {self.seats.most}"
            return more, f"else in {max(0.0, self.opens_at(last_round) - now):.0f} s"
        until = f"giving up in {self.gives_up_at - now:.0f} s"
        if stopping and len(here) + len(stopping) >= self.rules.min_nodes:
            return f"round {number} waits for the workers of {named(stopping)}, which have not ended yet", until
        state = f"{len(here)} of {self.rules.min_nodes} are ready{_in_brackets(here)}{self._others(here)}"
        return f"waiting for nodes: {self.unplaced_why if len(here) >= self.rules.min_nodes else state}", until

    def too_few(self, last_round: int, now: float) -> str:
        """Why no round was formed, and what would help."""
        here, waited = self._here, f"after {now - self.since:.0f} s"
        others, number = self._others(here), last_round + 1
        if len(here) >= self.rules.min_nodes:
            return f"round {number} could not be placed {waited}: {self.unplaced_why}{others}"
        return (
            f"round {number} had {len(here)} of {self.rules.min_nodes} nodes{_in_brackets(here)} {waited}{others}. "
            f"Start the missing nodes, or allow fewer: --nnodes {max(1, len(here))}:{self.rules.max_nodes}"
        )

    @property
    def _here(self) -> list[str]:
        return [seat.name for seat in self.seats.fit(self.seats.ready)]

    def _others(self, here: list[str]) -> str:
        """Who might have been among these, and is not."""
        back = set(here)
        groups = {
            "still stopping": [seat.name for seat in self.seats.members],
            "lost before": [name for name in dict.fromkeys(self.seats.lost) if name not in back],
            "excluded": [f"{seat.name} ({why})" for seat in self.seats.ready if (why := self.seats.excluded.why(seat.name))],
        }
        return "".join(f"; {what}: {named(names)}" for what, names in groups.items() if names)


class Checkpoints:
    """When has the running round just written a checkpoint, so that its ranks may start again for a node that waits?

    Each node says when a rank of it begins to write one, and when none does any more (`agent.workers.checkpoint_writes`).
    """

    def __init__(self) -> None:
        self.writing: set[str] = set()  # Nodes of which a rank writes.
        self.due_at = NEVER
        """When that moment is there. NEVER: nothing has been written since the last, or somebody still writes."""

    def heard(self, saving: Saving, now: float) -> None:
        """A node of the running round has spoken."""
        self.due_at = NEVER
        if saving.open:
            self.writing.add(saving.node)
            return
        self.writing.discard(saving.node)
        if not self.writing:
            self.due_at = now + SETTLE_S

    def is_due(self, now: float) -> bool:
        """The moment is there: once after each checkpoint."""
        if now < self.due_at:
            return False
        self.due_at = NEVER
        return True


def _in_brackets(names: list[str]) -> str:
    return f" ({named(names)})" if names else ""


def named(names: list[str]) -> str:
    """Names for a person, and for messages that go to everybody: the first few, and how many more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
