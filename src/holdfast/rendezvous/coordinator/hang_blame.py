"""A rank has hung, and the others wait for it: which one is to blame? A question that is put to every node once.

Limits do not tell. In a job of collectives all ranks stop within a step of each other, so all exceed their limits at about the
same time, and the first to do so is mostly one that waits. So every node looks at its ranks (`core.job.failure.Position`), and
the failure that was reported is held until they have answered, or had their time. Then `culprit` narrows down the ranks that
were still, by one sign after the other, as long as some differ in it from the rest:

1. the kernel has stopped them (SIGSTOP, a debugger);
2. they never reached a collective that others wait in, by torch's own record of them, and wait in none themselves;
3. they are behind in steps, where all ranks report steps;
4. they are *not* waiting for others, by their stacks, or sleep in the kernel, deaf to signals; or they alone show no stacks;
5. they wait elsewhere, by their stacks, than most of the others do: in another collective, or called in another place;
6. they are behind in sections, where nobody reports steps but all use sections (last: a rank may have sections of its own).

Of those left it is the one that has been quiet longest. Where nothing tells them apart, nobody is blamed: the failure is told
of the first whose limit was exceeded, with words that say so (`undecided`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from holdfast.core.job.failure import Cause, Failure, Position, Reached, hung
from holdfast.core.value import Value, replace

BY_KERNEL, UNINTERRUPTIBLE = ("T", "t"), ("D",)
"""States of a process in /proc: stopped by a signal or a debugger; uninterruptible in the kernel."""

FEW = 0.25
"""At most this share of the ranks is out of place; one always may be, where most of the others are in one place."""

ANSWER_S = 1.0
"""Extra seconds for the nodes' answers, over a slow network or from a node whose CPUs the hung rank keeps busy. The
coordinator waits that long only if an answer is late. A restart one second later is better than blaming the wrong rank."""

SHOWN = 4  # Places that are named where ranks wait for one another in several.

LEEWAY_S = 1.0
"""A rank whose last sign came up to this much later than that of a hung rank may still be the culprit: others already waited
for it."""


class Blame(Value):
    """Whom to blame."""

    node: str  # Identity of its node's agent.
    position: Position
    why: str  # What tells it from the others, in words. Empty: what it was found to do says so itself.
    others: tuple[int, ...] = ()  # Ranks that nothing tells from it.


class Inquiry:
    """One such question, while it is open."""

    def __init__(self, round: int, nodes: Iterable[str], *, until: float) -> None:
        self.round = round
        self.until = until  # When to judge by what is known then.
        self.silent = set(nodes)  # Those that have not answered.
        self.positions: dict[str, tuple[Position, ...]] = {}
        self.held: list[tuple[str, Failure]] = []
        """(node, failure) of ranks that hung, in the order in which it was heard of them."""

    def hear(self, node: str, positions: tuple[Position, ...]) -> None:
        """That node has looked. Nothing: its ranks are being stopped. If it found one to hang before it was asked, it has said
        where they were, and that counts."""
        self.silent.discard(node)
        self.positions[node] = positions or self.positions.get(node, ())

    def hold(self, node: str, failure: Failure) -> None:
        """A rank of that node has exceeded its limit: nothing is decided about it before all have answered."""
        self.held.append((node, failure))

    def is_over(self, now: float) -> bool:
        """Whether there is something to judge, and nothing to wait for."""
        return now >= self.until or bool(self.held and not self.silent)


def culprit(positions: Mapping[str, tuple[Position, ...]]) -> Blame | None:
    """Whom all others wait for, of the ranks of all nodes (see the module's text). None: nothing tells."""
    seen = [(node, position) for node, those in positions.items() for position in those]
    still = _still(seen)
    left, why = still, list[str]()
    for narrow in (_stopped, _never_came, _behind, _not_waiting, _elsewhere, _behind_in_sections):
        some, words = narrow([position for _, position in left])
        if some and len(some) < len(left):
            left, why = [(node, position) for node, position in left if position.rank in some], [*why, words]
    if len(left) == len(still):
        return None
    node, chosen = min(left, key=lambda one: (-(one[1].quiet_s or 0.0), one[1].rank))
    others = tuple(sorted(position.rank for _, position in left if position is not chosen))
    return Blame(node=node, position=chosen, why=", and ".join(filter(None, why)), others=others)


def all_wait(positions: Mapping[str, tuple[Position, ...]]) -> bool:
    """Whether all ranks that were still wait in a collective."""
    still = [one for _, one in _still([(node, position) for node, those in positions.items() for position in those])]
    return bool(still) and all(one.waits for one in still)


def undecided(positions: Mapping[str, tuple[Position, ...]]) -> str:
    """Why nobody can be blamed, in words, where all ranks that were still wait for one another. Empty: that is not so."""
    still = [one for _, one in _still([(node, position) for node, those in positions.items() for position in those])]
    if len(still) < 2 or not all(one.waits for one in still):
        return ""
    places = _places(still)
    if len(places) == 1:
        same = "wait in the same collective, and nothing shows that one is behind"
        return f"all {len(still)} ranks {same}: this one's limit ran out first, which says nothing of whose fault it is"
    shown = "; ".join(
        f"rank{'s' if len(those) > 1 else ''} {_listed([one.rank for one in those])} in {those[0].where}"
        for those in places[:SHOWN]
    )
    more = f"; and {len(places) - SHOWN} more" if len(places) > SHOWN else ""
    return f"all {len(still)} ranks wait for one another, and nothing tells which is out of place: {shown}{more}"


def blamed(failure: Failure, blame: Blame) -> Failure:
    """`failure`, that of the rank that is to blame, with what tells it from the others."""
    alike = f" (nor can ranks {_listed(blame.others)} be told from it)" if blame.others else ""
    return replace(failure, message="; ".join(filter(None, (failure.message, f"{blame.why}{alike}"))))


def unreported(position: Position, *, node: str, role: str, round: int, attempt: int, now_unix: float) -> Failure:
    """The failure of a rank that hung, and whose own node has not said so: its limit is longer than those of the others."""
    quiet_s = position.quiet_s or 0.0
    return Failure(
        node=node,
        rank=position.rank,
        local_rank=position.local_rank,
        role=role,
        pid=position.pid,
        at_unix=now_unix - quiet_s,
        cause=Cause.HUNG,
        message=hung(position.overdue or f"no sign of life for {quiet_s:.1f} s", position),
        stacks_path=position.stacks_path,
        round=round,
        attempt=attempt,
    )


def _listed(ranks: Collection[int]) -> str:
    shown = ", ".join(map(str, sorted(ranks)[:8]))
    return f"{shown}, …" if len(ranks) > 8 else shown


def _still(seen: list[tuple[str, Position]]) -> list[tuple[str, Position]]:
    """Those that may be to blame: not those that have gone on meanwhile."""
    quiet = [position.quiet_s for _, position in seen if position.overdue and position.quiet_s is not None]
    least = min(quiet, default=0.0) - LEEWAY_S
    return [(node, one) for node, one in seen if one.overdue or one.quiet_s is None or one.quiet_s >= least]


def _stopped(seen: list[Position]) -> tuple[set[int], str]:
    return {one.rank for one in seen if one.state in BY_KERNEL}, ""


def _never_came(seen: list[Position]) -> tuple[set[int], str]:
    groups: dict[str, list[tuple[Position, Reached]]] = {}
    for one in seen:
        for last in one.reached:
            groups.setdefault(last.group, []).append((one, last))
    absent: dict[int, Reached] = {}
    for those in groups.values():
        furthest = max((last for _, last in those if last.waits), key=lambda last: last.seq, default=None)
        absent |= {one.rank: furthest for one, last in those if furthest is not None and last.seq < furthest.seq}
    culprits = {one.rank for one in seen if one.rank in absent and not any(last.waits for last in one.reached)}
    awaited = absent[min(culprits)] if culprits else None
    where = f"{awaited.what}, number {awaited.seq} of its group" if awaited is not None else ""
    return culprits, f"it never reached {where}, in which others wait for it"


def _behind(seen: list[Position]) -> tuple[set[int], str]:
    steps = [one.step for one in seen if one.step is not None]
    if len(steps) < len(seen):
        return set(), ""
    return _least(seen, lambda one: one.step or 0, "it is at step {}, others are at step {}")


def _not_waiting(seen: list[Position]) -> tuple[set[int], str]:
    if not any(one.waits for one in seen):
        return set(), ""
    busy = {one.rank for one in seen if one.waits is False or (one.state in UNINTERRUPTIBLE and not one.waits)}
    if busy:
        return busy, "others wait for it in a collective"
    return {one.rank for one in seen if one.waits is None}, "others wait in a collective, and it does not show its stacks"


def _elsewhere(seen: list[Position]) -> tuple[set[int], str]:
    if not seen or not all(one.waits for one in seen):
        return set(), ""
    most, *others = _places(seen)
    odd = [one for those in others for one in those]
    if not odd or len(most) <= len(seen) / 2 or len(odd) > max(1, FEW * len(seen)):
        return set(), ""
    return {one.rank for one in odd}, f"the others wait for it elsewhere, in {most[0].where}"


def _places(seen: list[Position]) -> list[list[Position]]:
    """Ranks by where they wait, most first. The library's line says nothing, the script's says which collective it is."""
    found: dict[tuple[str, str], list[Position]] = {}
    for one in sorted(seen, key=lambda one: one.rank):
        inner, _, own = one.where.partition(", called in ")
        found.setdefault((inner.rpartition(":")[0] if own else inner, own), []).append(one)
    return sorted(found.values(), key=lambda those: (-len(those), those[0].rank))


def _behind_in_sections(seen: list[Position]) -> tuple[set[int], str]:
    if any(one.step is not None for one in seen) or not all(one.sections or one.section for one in seen):
        return set(), ""
    return _least(seen, lambda one: one.sections, "it has been through {} sections, others through {}")


def _least(seen: list[Position], count: Callable[[Position], int], words: str) -> tuple[set[int], str]:
    counts = [count(one) for one in seen]
    least, most = min(counts, default=0), max(counts, default=0)
    return {one.rank for one in seen if count(one) == least}, words.format(least, most)
