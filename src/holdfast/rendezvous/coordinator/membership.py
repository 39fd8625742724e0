"""What is known of each member, and which of them could make a round? One seat per member; here nothing is decided."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum

from holdfast.core.config.own_options import Grow
from holdfast.core.job.policy import Health
from holdfast.core.machine import NEVER
from holdfast.core.page.in_memory import UNKNOWN, Foreseen, foresee
from holdfast.core.page.stash import agreed
from holdfast.core.wire.messages import Assigned, Join, Refused, Stop
from holdfast.rendezvous.coordinator.exclusion import Excluded
from holdfast.rendezvous.placement.placement import Candidate, Place, Placement, PlacementRules, place
from holdfast.rendezvous.rules import Rules


class SeatState(StrEnum):
    """Where a member is."""

    READY = "ready"  # It has no workers, and waits for the next round.
    RUNNING = "running"
    SUCCEEDED = "succeeded"  # All its workers have exited with 0.
    STOPPING = "stopping"
    STOPPED = "stopped"  # Its workers are gone; it has not asked for another round yet.
    LEAVING = "leaving"  # It goes when its workers have stopped.


WITH_WORKERS = (SeatState.RUNNING, SeatState.STOPPING, SeatState.LEAVING)
"""Workers of the last round may be alive there."""


class Tally:
    """How many seats are in which state: kept up, so that nobody has to count thousands after each message."""

    def __init__(self) -> None:
        self.seats: dict[SeatState | None, int] = {}
        self.changes = 0  # How often the seats that are ready have become others.
        self.impaired = 0  # Seats that are running, with a worker that has failed.

    def moved(self, before: SeatState | None, after: SeatState | None) -> None:
        """A seat's state was `before` and is `after`. None: there was, or is, no seat."""
        self.seats[before] = self.seats.get(before, 0) - 1
        self.seats[after] = self.seats.get(after, 0) + 1
        self.changes += (before is SeatState.READY) != (after is SeatState.READY)

    def more_impaired(self, by: int) -> None:
        """So many more; or fewer, if it is negative."""
        self.impaired += by

    def of(self, *states: SeatState) -> int:
        """Seats in any of these states."""
        return sum(self.seats.get(state, 0) for state in states)


class Seat:
    """What is known of one member."""

    __slots__ = (
        "_is_impaired", "_ranks", "_state", "ahead_s", "assigned", "came_at", "heard_at", "here", "join", "linked", "place",
        "stop", "tally",
    )

    def __init__(self, join: Join, now: float, tally: Tally, *, here: bool) -> None:
        self.join = join
        self.came_at = self.heard_at = now
        self.linked = True
        self.here = here  # It shares our process.
        self.ahead_s: float | None = None  # How far its wall clock is ahead of the coordinator's, as it says.
        self.tally = tally
        self._state, self._is_impaired = SeatState.READY, False
        tally.moved(None, SeatState.READY)
        self.place: Place | None = None
        self.assigned: Assigned | None = None
        self._ranks = range(0)  # Those that it was assigned.
        self.stop: Stop | None = None
        """The last answers, to be said again when a link broke and may have swallowed them."""

    @property
    def name(self) -> str:
        return self.join.name

    @property
    def state(self) -> SeatState:
        return self._state

    @property
    def is_impaired(self) -> bool:
        """A worker of it has failed in its last round."""
        return self._is_impaired

    @property
    def has_workers(self) -> bool:
        """Whether workers of its last round may be alive."""
        return self._state in WITH_WORKERS

    @property
    def is_first(self) -> bool:
        """It has group rank 0 in its last round."""
        return self.assigned is not None and self.assigned.group_rank == 0

    # --- what happens to it ---------------------------------------------------------------------------------------------

    def move(self, state: SeatState) -> None:
        self.tally.moved(self._state, state)
        if self._is_impaired:
            self.tally.more_impaired((state is SeatState.RUNNING) - (self._state is SeatState.RUNNING))
        self._state = state

    def impair(self, is_impaired: bool = True) -> None:
        """A worker of it has failed; or none has, in its round."""
        if self._state is SeatState.RUNNING:
            self.tally.more_impaired(is_impaired - self._is_impaired)
        self._is_impaired = is_impaired

    def assign(self, place: Place, assigned: Assigned) -> None:
        """It takes part in a round."""
        self.move(SeatState.RUNNING)
        self.impair(False)
        self.place, self.assigned, self.stop = place, assigned, None
        self._ranks = range(assigned.base_rank, assigned.base_rank + self.join.nproc)

    def ranks_in(self, round: int) -> range:
        """Its ranks in that round. Empty: it had none there, as far as this coordinator knows."""
        return self._ranks if self.assigned is not None and self.assigned.round == round else range(0)

    def must_stop(self, stop: Stop) -> None:
        """It is told to stop its workers, unless they are gone already."""
        self.stop = stop
        if self._state is not SeatState.STOPPED:
            self.move(SeatState.STOPPING)

    def is_ready(self) -> None:
        """It has no workers, and waits for the next round."""
        self.move(SeatState.READY)
        self.impair(False)

    def says(self, join: Join) -> None:
        self.join = join

    def heard(self, now: float) -> bool:
        """It has spoken: whether its link had been broken."""
        was_linked, self.linked, self.heard_at = self.linked, True, now
        return not was_linked

    def share_process(self) -> None:
        """Its agent is ours."""
        self.here = True

    def unlink(self) -> None:
        """Its link has broken."""
        self.linked = False

    def know_clock(self, ahead_s: float) -> None:
        """How far its wall clock is ahead, as it says."""
        self.ahead_s = ahead_s

    def candidate(self, last_round: int, excluded: str) -> Candidate:
        """As placement sees it. A rank in an older round than the last is nobody's any more."""
        number, rank = self.join.round, self.join.group_rank  # where we did not assign it, another coordinator did
        if self.assigned is not None and self.assigned.round >= number:
            number, rank = self.assigned.round, self.assigned.group_rank
        return Candidate(
            node=self.join.node,
            name=self.name,
            nproc=self.join.nproc,
            role=self.join.role,
            wanted_rank=self.join.wanted_rank,
            previous_rank=rank if number == last_round else None,
            domain=self.join.domain,
            switches=self.join.switches,
            group=self.join.group,
            group_size=self.join.group_size,
            excluded=excluded,
        )


class Seats(dict[str, Seat]):
    """All of them, by node."""

    def __init__(self, rules: Rules, excluded: Excluded) -> None:
        self.rules, self.excluded = rules, excluded
        self.tally = Tally()
        self.of_rank: dict[int | None, dict[str, Seat]] = {}
        """Where ranks are given: who brought which. Two have one only while the first one's link is broken."""
        self.at_endpoint: dict[str, Seat] = {}  # Who can be reached where, and has its say by that name.
        self.given: dict[str, int] = {}  # Node → group rank, in the last round that this coordinator has formed.
        self.look_at = NEVER
        """No lease is over before then. They are only ever renewed, so it is enough to look at them all at that time."""
        self.arrivals = 0
        self.largest = 0  # Nodes of the largest round so far; 0: there was none, as far as we know.
        self.known: set[str] = set()  # Nodes that have had one.
        self.lost: list[str] = []  # Names of those that were given up.
        self.cut_off: dict[str, float] = {}
        """Those of them whose links had not broken, and when: their agents may live, and come back. By node."""
        self.size = 0  # Nodes that the last round had when it formed.
        self.done_and_gone = 0  # Those of them that had succeeded, and then left.
        self.link_changes = 0  # How often a member's link has broken, or another has taken its place.

    # --- coming and going -----------------------------------------------------------------------------------------------

    def add(self, join: Join, *, here: bool, now: float) -> Seat:
        """A seat for a node that has none."""
        seat = self[join.node] = Seat(join, now, self.tally, here=here)
        self.arrivals += 1
        self.known.add(join.node)
        self.cut_off.pop(join.node, None)
        self.heard(seat, now)
        self.know(seat, join)
        return seat

    def share_process(self, node: str) -> None:
        """That node's agent is ours: if it is gone, so are we."""
        if (seat := self.get(node)) is not None:
            seat.share_process()

    def heard(self, seat: Seat, now: float) -> None:
        """Its lease begins anew."""
        self.link_changes += seat.heard(now)
        if not seat.here:
            self.look_at = min(self.look_at, now + self.rules.lease_s)

    def unlinked(self, node: str) -> None:
        """A link has broken. If it was a member's, that may come back within its lease."""
        if (seat := self.get(node)) is not None:
            seat.unlink()
            self.link_changes += 1

    def know(self, seat: Seat, join: Join) -> None:
        """Keep what a node said of itself."""
        if self.rules.ranks_given:
            self.of_rank.get(seat.join.wanted_rank, {}).pop(join.node, None)
            self.of_rank.setdefault(join.wanted_rank, {})[join.node] = seat
        if seat.join.endpoint != join.endpoint and self.at_endpoint.get(seat.join.endpoint) is seat:
            del self.at_endpoint[seat.join.endpoint]
        if join.endpoint:
            self.at_endpoint[join.endpoint] = seat
        seat.says(join)

    def endpoint_of(self, join: Join) -> str:
        """Where that node can be reached, as far as it is believed. Empty: another is there, whose link stands: one endpoint is
        one process."""
        other = self.at_endpoint.get(join.endpoint)
        return "" if other is not None and other.linked and other.join.node != join.node else join.endpoint

    def stop(self, seat: Seat, stop: Stop) -> None:
        """A node is told to stop: from now on its lease counts, though one that had succeeded needed none."""
        seat.must_stop(stop)
        self.look_at = min(self.look_at, self.lease_ends(seat))

    def begin_round(self, places: tuple[Place, ...]) -> None:
        size = len(places)
        self.size, self.done_and_gone = size, 0
        self.given = {given.node: given.group_rank for given in places}
        self.largest = max(self.largest, size)

    def resume(self, largest: int) -> None:
        """Take over from a coordinator whose largest round had so many nodes."""
        self.largest = largest

    def overdue(self, now: float) -> Iterator[Seat]:
        """Those whose leases are over, one by one: where one is lost, those that had succeeded count again."""
        for seat in list(self.values()):
            if now >= self.lease_ends(seat):
                yield seat

    def look_again(self) -> None:
        """Those that were overdue have been dealt with."""
        self.look_at = min(map(self.lease_ends, self.values()), default=NEVER)

    def lose(self, seat: Seat, now: float) -> None:
        """It was given up, and is a member no longer."""
        self.remove(seat)
        self.lost.append(seat.name)
        if seat.linked:  # else its agent is gone, as far as its host knows
            self.cut_off[seat.join.node] = now

    def found(self, node: str) -> None:
        """One that was cut off has been told how the job ended."""
        self.cut_off.pop(node, None)

    def remove(self, seat: Seat) -> None:
        """It is a member no longer."""
        del self[seat.join.node]
        self.done_and_gone += seat.state is SeatState.SUCCEEDED
        seat.impair(False)
        self.tally.moved(seat.state, None)
        if self.at_endpoint.get(seat.join.endpoint) is seat:
            del self.at_endpoint[seat.join.endpoint]
        self.of_rank.get(seat.join.wanted_rank, {}).pop(seat.join.node, None)

    def refusal(self, join: Join) -> Refused | None:
        """What a node hears that brings a rank which it cannot have."""
        if not self.rules.ranks_given:
            return None
        rank, hint = join.wanted_rank, "give each node its own --node-rank"
        if rank is None or not 0 <= rank < self.rules.max_nodes:
            return Refused(reason=f"node rank {rank} is not within 0 to {self.rules.max_nodes - 1}", hint=hint)
        for other in self.of_rank.get(rank, {}).values():
            # One whose link is broken may be gone, and this one its successor: it waits for the other's lease.
            if other.join.node != join.node and other.linked:
                return Refused(reason=f"node rank {rank} is already taken by {other.name}", hint=hint)
        return None

    def lease_ends(self, seat: Seat) -> float:
        """NEVER: one that shares our process, or has done its part and has nothing left to lose."""
        return NEVER if seat.here or seat.state is SeatState.SUCCEEDED else seat.heard_at + self.rules.lease_s

    def stash(
        self, places: Iterable[Place], world_size: int, life: str, round: int
    ) -> tuple[tuple[int, int], dict[int, str], dict[int, tuple[str, int, int]]] | None:
        """Round and step of the newest state that all ranks can restore at these places; and for the base rank of each node
        that does not have it in memory where else it is: at another node, or on its disk. None: there is none. `round`: the
        last that there was."""
        joins = [(self[given.node].join, given.base_rank) for given in places]
        if not any(join.stash or join.stash_on_disk for join, _ in joins):
            return None  # as in most jobs
        kept = [(seat.join.stash_at, seat.join.kept) for seat in self.values() if seat.join.kept]
        if not all(join.stash_at for join, _ in joins):
            kept = []  # somebody has no part in it, or could not fetch what it was to have
        held = [(join.stash, join.stash_on_disk, base, join.nproc) for join, base in joins]
        return agreed(held, world_size, kept, life, round)

    def in_memory(self, places: Iterable[Place], world_size: int, *, has_stash: bool) -> Foreseen:
        """What all ranks at these places go on from."""
        joins = [(self[given.node].join, given.base_rank) for given in places]
        if not any(join.in_memory for join, _ in joins):
            return UNKNOWN  # as in most jobs
        return foresee([(join.in_memory, base, join.nproc) for join, base in joins], world_size, has_stash=has_stash)

    # --- who they are ---------------------------------------------------------------------------------------------------

    @property
    def has_workers(self) -> bool:
        """Whether workers of the last round may be alive anywhere."""
        return bool(self.tally.of(*WITH_WORKERS))

    @property
    def changes(self) -> int:
        """Grows whenever others are ready, or may take part, than before."""
        return self.tally.changes + self.excluded.changes

    @property
    def all_ready(self) -> bool:
        """Nobody has workers, or has not said yet that it wants another round."""
        return self.tally.of(SeatState.READY) == len(self)

    @property
    def members(self) -> list[Seat]:
        """Those of the round that runs."""
        return [seat for seat in self.values() if seat.state is not SeatState.READY]

    @property
    def health(self) -> Health:
        """How the nodes of the round that runs are."""
        healthy = self.tally.of(SeatState.RUNNING) - self.tally.impaired
        done = self.tally.of(SeatState.SUCCEEDED) + self.done_and_gone
        return Health(needed=self.rules.min_nodes, healthy=healthy, succeeded=done, size=self.size)

    @property
    def ready(self) -> list[Seat]:
        """Those of the next round, if all have a place; one of each rank where ranks are given."""
        ready = [seat for seat in self.values() if seat.state is SeatState.READY]
        if not self.rules.ranks_given:
            return ready
        by_rank: dict[int | None, Seat] = {}
        for seat in ready:
            by_rank.setdefault(seat.join.wanted_rank, seat)
        return list(by_rank.values())

    def fit(self, seats: list[Seat]) -> list[Seat]:
        """Those of them that may take part."""
        return [seat for seat in seats if not self.excluded.why(seat.name)] if self.excluded else seats

    @property
    def fit_count(self) -> int:
        """How many are ready and may take part. They are looked at one by one only if they may be enough, and where that
        matters: two may have brought the same rank, or some are excluded."""
        count = self.tally.of(SeatState.READY)
        if count < self.rules.min_nodes or not (self.rules.ranks_given or self.excluded):
            return count
        return len(self.fit(self.ready))

    @property
    def in_order(self) -> list[Seat]:
        """Those with a place in the last round by group rank, then the others by arrival."""
        return sorted(self.values(), key=lambda seat: seat.place.group_rank if seat.place else NEVER)

    def table(self, most: int) -> list[dict[str, object]]:
        """The first `most` of all seats: names, states and ranks."""
        return [
            {
                "name": seat.name,
                "state": seat.state,
                "group_rank": seat.place.group_rank if seat.place else None,
                "base_rank": seat.place.base_rank if seat.place else None,
                "nproc": seat.join.nproc,
            }
            for seat in self.in_order[:most]
        ]

    # --- who could make a round -----------------------------------------------------------------------------------------

    @property
    def most(self) -> int:
        """Nodes that a round may have."""
        return self.largest if self.rules.grow == Grow.NEVER and self.largest else self.rules.max_nodes

    def newest_round(self, seats: list[Seat], ours: int) -> int:
        """The newest that we or these have known: members may remember an earlier life of the coordinator."""
        return max(ours, *(max(seat.join.round, seat.join.known_round) for seat in seats), 0)

    def place(self, seats: list[Seat], last_round: int, *, without: str = "") -> Placement:
        """Who of these would take part, now; if one of them could not."""
        why = {seat.join.node: self.excluded.why(seat.name) for seat in seats} if self.excluded else {}
        grouped = [(seat.join.group, seat) for seat in seats if seat.join.group is not None]
        ill = {group for group, seat in grouped if seat.name == without or why.get(seat.join.node)}
        rules = PlacementRules(
            min_nodes=self.rules.min_nodes,
            max_nodes=min(self.rules.max_nodes, self.most),
            segment=self.rules.segment,
            unit=self.rules.node_unit,
            group_size=self.rules.replacement_group_size,
            unhealthy_groups=frozenset(ill if len({group for group, _ in grouped}) > 1 else ()),
        )
        there = [seat for seat in seats if seat.name != without]
        last = self.newest_round(seats, last_round)
        return place([seat.candidate(last, why.get(seat.join.node, "")) for seat in there], rules)

    def place_without(self, name: str, last_round: int) -> Placement:
        """Who would take part of those that stay, were it not for that one."""
        return self.place([seat for seat in self.values() if seat.state is not SeatState.LEAVING], last_round, without=name)

    def lacking(self, name: str, last_round: int) -> str:
        """Why no round could be made without that node. Empty: one could."""
        left = self.place_without(name, last_round)
        return "" if left.active else left.reason

    def is_replaceable(self, name: str, last_round: int) -> bool:
        """Whether the job would be as large without that node as it is now."""
        return len(self.place_without(name, last_round).active) >= len(self.members)

    def no_place_yet(self, seat: Seat, last_round: int, *, saved: bool = False) -> str:
        """Why the running round goes on without it. Empty: it would gain from that node, now. `saved`: a checkpoint was just
        written."""
        members = self.members
        if why := self.excluded.why(seat.name):
            return f"excluded: {why}"
        if len(members) >= self.most:
            return f"the job has its {self.most} nodes"
        if not saved and (why := self.rules.why_later()):
            return why
        if any(member.state is SeatState.SUCCEEDED for member in members):
            return "some nodes have finished their part already"
        together = self.place(list(self.values()), last_round)
        if len(together.active) > len(members):
            return ""
        # To restart for it would gain nothing.
        return {spare.node: spare.why for spare in together.spares}.get(seat.join.node, "it completes no segment or unit")
