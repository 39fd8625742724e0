"""The dynamic rendezvous without a backend: the shared state, its JSON, and which step comes next."""

from __future__ import annotations

import json
import pickle
import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta

import pytest

from holdfast.elastic.rendezvous import RendezvousClosedError, RendezvousGracefulExitError, RendezvousStateError
from holdfast.elastic.rendezvous import shared_state as shared
from holdfast.elastic.rendezvous.backend import RendezvousSettings, RendezvousTimeout
from holdfast.elastic.rendezvous.next_step import Done, Fail, Sightings, Situation, Step, Wait, Wish, Write, next_step
from holdfast.elastic.rendezvous.shared_state import Node, Phase, Place, Shared

INTERVAL_S, LEASE_S, LAST_CALL_S = 30.0, 90.0, 30.0
ME = Node("me", 1, 1)
A, B = Node("a", 1, 1), Node("b", 1, 1)


def settings(min_nodes: int = 1, max_nodes: int = 2) -> RendezvousSettings:
    return RendezvousSettings("job", min_nodes, max_nodes, RendezvousTimeout(), timedelta(seconds=INTERVAL_S), 3)


def gathering(*seated: Node, min_nodes: int = 1, max_nodes: int = 9) -> Shared:
    state = Shared()
    for node in seated:
        state = shared.take_seat(state, node, min_nodes, max_nodes)
    return state


def formed(*seated: Node) -> Shared:
    return shared.complete(gathering(*seated))


# What a step does.


def test_nodes_are_ordered_by_address_process_and_number() -> None:
    assert sorted([B, Node("a", 2, 0), Node("a", 1, 3)]) == [Node("a", 1, 3), Node("a", 2, 0), B]
    assert str(Node("host", 12, 3)) == "host_12_3"


def test_the_seat_that_makes_the_minimum_starts_the_last_call() -> None:
    first = gathering(A, min_nodes=2)
    enough = shared.take_seat(first, B, 2, 9)
    assert first.last_call == 0 and enough.last_call == enough.turn and enough.phase is Phase.GATHERING
    assert shared.take_seat(enough, ME, 2, 9).last_call == enough.last_call, "it is not extended"


def test_the_last_seat_completes_the_round_with_ranks_in_order() -> None:
    full = gathering(Node("z", 1, 1), B, ME, max_nodes=3)
    assert full.phase is Phase.COMPLETE and full.world_size == 3
    assert {node.addr: member.rank for node, member in full.members.items()} == {"b": 0, "me": 1, "z": 2}


def test_who_leaves_a_complete_round_changes_nobody_s_rank() -> None:
    left = shared.without(formed(A, B, ME), [A])
    assert left.members[B].rank == 1 and left.world_size == 3 and left.phase is Phase.COMPLETE


def test_the_last_to_leave_opens_the_next_round() -> None:
    left = shared.without(formed(A, B), [A, B])
    assert (left.phase, left.round, left.nodes(Place.SEATED)) == (Phase.GATHERING, 1, [])


def test_below_the_minimum_a_new_last_call_is_needed() -> None:
    before = gathering(A, B, min_nodes=2)
    again = shared.take_seat(shared.without(before, [B]), ME, 2, 9)
    assert again.last_call > before.last_call


def test_a_closed_rendezvous_stays_closed() -> None:
    closed = shared.close(formed(A))
    assert shared.without(closed, [A]).phase is Phase.CLOSED


# The JSON.


def test_a_state_is_read_as_it_was_written() -> None:
    state = shared.placed(shared.placed(formed(A), B, Place.WAITING), ME, Place.SPARE)
    assert shared.decode(shared.encode(state)) == state


def test_the_state_of_a_thousand_nodes_is_small() -> None:
    state = Shared()
    for number in range(1000):
        state = shared.placed(state, Node(f"node{number}.some.long.domain.example.com", 40_000, 0), Place.WAITING)
    assert len(shared.encode(state)) <= 120 * 1024


class RunsCode:
    def __reduce__(self) -> tuple[object, ...]:
        return pytest.fail, ("it ran",)


def forged(**changes: object) -> bytes:
    return json.dumps({**json.loads(shared.encode(formed(A))), **changes}).encode()


PLANTED = {
    "nothing": b"",
    "a pickle": pickle.dumps(RunsCode()),
    "no object": b"[]",
    "another program's": b'{"round": 1}',
    "deeper than any parser goes": b"[" * 100_000,
    "a huge number": forged(round=0).replace(b'"round": 0', b'"round": ' + b"9" * 5000),
    "a phase that is none": forged(phase="open"),
    "a fraction": forged(round=1.5),
    "less than nothing": forged(turn=-1),
    "no list of members": forged(members=7),
    "a member in part": forged(members=[["a", 1]]),
    "an address that is none": forged(members=[[["a"], 1, 1, "seated", 1, 0]]),
    "a place that is none": forged(members=[["a", 1, 1, "above", 1, 0]]),
    "more than anybody writes": b" " * (shared.MOST_BYTES + 1),
}


@pytest.mark.parametrize("data", PLANTED.values(), ids=PLANTED)
def test_what_a_peer_has_planted_is_refused_and_runs_nothing(data: bytes) -> None:
    with pytest.raises(
        RendezvousStateError, match=r"^The rendezvous state is corrupt. See inner exception for details.$"
    ) as refused:
        shared.decode(data)
    assert refused.value.__cause__ is not None


def test_the_agents_of_torch_are_named_as_what_they_are() -> None:
    with pytest.raises(RendezvousStateError) as refused:
        shared.decode(pickle.dumps({"round": 0}))
    assert "agents of torch and of Holdfast cannot meet" in str(refused.value.__cause__)


# Which step comes next. Everything has been seen at 100; the deadline is at 1000.

SEEN_AT, DEADLINE = 100.0, 1000.0


def step(
    wish: Wish, state: Shared, now: float = SEEN_AT, *, min_nodes: int = 1, max_nodes: int = 2, deadline: float = DEADLINE
) -> Step:
    seen = Sightings().after(state, SEEN_AT)
    return next_step(wish, Situation(ME, settings(min_nodes, max_nodes), state, seen), deadline, now)


def what(taken: Step) -> str:
    match taken:
        case Write(what=text):
            return text
        case Fail(error=error):
            return type(error).__name__
    return type(taken).__name__


DUE, FRESH = SEEN_AT + INTERVAL_S, SEEN_AT + INTERVAL_S - 1
LATE, TOO_LATE = DEADLINE + 1, DEADLINE + 6
WAITS, SPARE = shared.placed(formed(A), ME, Place.WAITING), shared.placed(formed(A, B), ME, Place.SPARE)
STEPS: list[tuple[Wish, Shared, float, dict[str, int], str]] = [
    (Wish.LEAVE, Shared(), SEEN_AT, {}, "Done"),
    (Wish.LEAVE, formed(ME), SEEN_AT, {}, "left round 0"),
    (Wish.LEAVE, formed(ME), LATE, {}, "RendezvousTimeoutError"),
    (Wish.CLOSE, Shared(), SEEN_AT, {}, "closed the rendezvous"),
    (Wish.CLOSE, shared.close(Shared()), LATE, {}, "Done"),
    (Wish.CLOSE, Shared(), LATE, {}, "RendezvousTimeoutError"),
    (Wish.STAY, Shared(), DUE, {}, "Done"),
    (Wish.STAY, formed(ME), FRESH, {}, "Done"),
    (Wish.STAY, formed(ME), DUE, {}, "wrote a heartbeat"),
    (Wish.STAY, formed(ME), LATE, {}, "RendezvousTimeoutError"),
    (Wish.JOIN, gathering(A), SEEN_AT, {}, "took a seat in round 0"),
    (Wish.JOIN, formed(A, ME), LATE, {}, "Done"),
    (Wish.JOIN, formed(A), SEEN_AT, {}, "waits for round 1"),
    (Wish.JOIN, formed(A), SEEN_AT, {"max_nodes": 1}, "waits for a free seat"),
    (Wish.JOIN, WAITS, FRESH, {}, "Wait"),
    (Wish.JOIN, WAITS, DUE, {}, "wrote a heartbeat"),
    (Wish.JOIN, WAITS, FRESH, {"max_nodes": 1}, "waits for a free seat"),
    (Wish.JOIN, SPARE, FRESH, {}, "Wait"),
    (Wish.JOIN, SPARE, TOO_LATE, {}, "wrote a heartbeat"),
    (Wish.JOIN, shared.without(SPARE, [A]), SEEN_AT, {}, "no longer waits for a free seat"),
    (Wish.JOIN, shared.without(WAITS, [A]), SEEN_AT, {}, "took a seat in round 1"),
    (Wish.JOIN, gathering(A, ME), SEEN_AT + LAST_CALL_S + 1, {"max_nodes": 3}, "completed round 0"),
    (Wish.JOIN, gathering(A, ME), FRESH, {"max_nodes": 3}, "Wait"),
    (Wish.JOIN, gathering(A, ME, min_nodes=3), FRESH, {"min_nodes": 3, "max_nodes": 3}, "Wait"),
    (Wish.JOIN, gathering(A, ME, min_nodes=3), DUE, {"min_nodes": 3, "max_nodes": 3}, "wrote a heartbeat"),
    (Wish.JOIN, Shared(), LATE, {}, "RendezvousTimeoutError"),
    (Wish.JOIN, gathering(ME, min_nodes=2), LATE, {"min_nodes": 2}, "left round 0"),
    (Wish.JOIN, gathering(ME, min_nodes=2), TOO_LATE, {"min_nodes": 2}, "RendezvousTimeoutError"),
    (Wish.JOIN, WAITS, LATE, {}, "left round 0"),
    (Wish.JOIN, WAITS, TOO_LATE, {}, "RendezvousTimeoutError"),
    (Wish.JOIN, shared.close(formed(A)), SEEN_AT, {}, "RendezvousClosedError"),
    (Wish.JOIN, shared.close(SPARE), SEEN_AT, {}, "RendezvousGracefulExitError"),
]


@pytest.mark.parametrize(("wish", "state", "now", "told", "expected"), STEPS)
def test_the_next_step(wish: Wish, state: Shared, now: float, told: dict[str, int], expected: str) -> None:
    assert what(step(wish, state, now, **told)) == expected


def test_a_spare_that_gets_a_seat_gets_a_new_deadline() -> None:
    taken = step(Wish.JOIN, shared.without(SPARE, [A]), TOO_LATE)
    assert isinstance(taken, Write) and taken.renews


# Who is dead, by this node's own clock.


def test_a_node_is_silent_when_its_heartbeat_has_not_changed_for_a_lease() -> None:
    state = formed(A, B)
    seen = Sightings().after(state, 0.0)
    beating = shared.beat(state, B)
    seen = seen.after(beating, 60.0)
    assert seen.silent(LEASE_S, 90.0) == [] and seen.silent(LEASE_S, 91.0) == [A] and seen.silent(LEASE_S, 151.0) == [A, B]


def test_a_node_that_left_and_came_back_is_not_taken_for_silent() -> None:
    state = formed(A, B)
    seen = Sightings().after(state, 0.0)
    back = shared.placed(shared.without(state, [B]), B, Place.WAITING)
    assert seen.after(back, 100.0).silent(LEASE_S, 100.0) == [A]


# Many nodes at once, each with a clock of its own, and most of what they know is old.


class Player:
    """One node over a state that all write by compare-and-set."""

    def __init__(self, node: Node, limits: RendezvousSettings, clock_ahead_s: float) -> None:
        self.node, self.limits, self.ahead_s = node, limits, clock_ahead_s
        self.seen, self.known, self.token, self.wish = Sightings(), Shared(), Shared(), Wish.JOIN
        self.rounds: list[tuple[int, int, int]] = []
        """(round, rank, world size) of each round it took part in."""

    def look(self, state: Shared, now: float) -> None:
        now += self.ahead_s
        self.seen = self.seen.after(state, now)
        dead = [node for node in self.seen.silent(LEASE_S, now) if node != self.node]
        self.token, self.known = state, shared.without(state, dead) if dead else state

    def play(self, state: Shared, now: float) -> Shared:
        """One step on what it knows. Returns the state that stands afterwards."""
        taken = next_step(self.wish, Situation(self.node, self.limits, self.known, self.seen), float("inf"), now + self.ahead_s)
        match taken:
            case Done() if self.wish is Wish.JOIN:
                self.rounds.append((self.known.round, self.known.members[self.node].rank, self.known.world_size))
                self.wish = Wish.STAY
            case Done() if self.wish is Wish.LEAVE:
                self.wish = Wish.JOIN
            case Write(shared=wanted) if self.token == state:
                state = wanted
                self.look(state, now)
            case Write():
                self.look(state, now)
        return state


def played(seed: int, nodes: int, limits: RendezvousSettings) -> Iterator[list[Player]]:
    chance = random.Random(seed)
    coming = [Player(Node(f"n{number}", 1, 0), limits, chance.uniform(-9e6, 9e6)) for number in range(nodes)]
    state, now, players = Shared(), 0.0, [coming.pop()]
    while True:
        if coming and chance.random() < 0.002:
            players.append(coming.pop())
        player = chance.choice(players)
        now += chance.uniform(0.0, 2.0 / nodes)
        if chance.random() < 0.7:
            player.look(state, now)
        state = player.play(state, now)
        if player.wish is Wish.STAY and player.known.nodes(Place.WAITING):
            player.wish = Wish.LEAVE
        yield players


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(("nodes", "min_nodes", "max_nodes"), [(4, 4, 4), (9, 2, 9), (12, 1, 8)])
def test_however_nodes_come_all_of_a_round_agree_on_its_ranks(seed: int, nodes: int, min_nodes: int, max_nodes: int) -> None:
    taking_part = min(nodes, max_nodes)
    for turn, players in enumerate(played(seed, nodes, settings(min_nodes, max_nodes))):
        if len(players) == nodes and [player.wish for player in players].count(Wish.STAY) == taking_part:
            break
        assert turn < 100_000, "they do not meet"
    last = max(player.rounds[-1][0] for player in players if player.rounds)
    for number in range(last + 1):
        ranks = [(rank, size) for player in players for one, rank, size in player.rounds if one == number]
        assert len({rank for rank, _ in ranks}) == len(ranks) and len({size for _, size in ranks}) <= 1, (number, ranks)
    final = [rank for player in players for one, rank, size in player.rounds if one == last]
    assert sorted(final) == list(range(taking_part))


def test_a_closed_rendezvous_lets_nobody_in() -> None:
    closed = shared.close(replace(Shared(), round=3))
    refused = step(Wish.JOIN, closed)
    assert isinstance(refused, Fail) and isinstance(refused.error, RendezvousClosedError)
    peaceful = step(Wish.JOIN, shared.close(SPARE))
    assert isinstance(peaceful, Fail) and isinstance(peaceful.error, RendezvousGracefulExitError)
    assert isinstance(step(Wish.JOIN, WAITS, FRESH), Wait)
