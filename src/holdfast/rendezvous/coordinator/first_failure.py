"""Keeps a round's failures in order, by the coordinator's clock and not by many nodes' timestamps."""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.job.failure import Cause, Failure
from holdfast.core.value import replace


class Failures:
    """Those of the running round, and what is told of older ones meanwhile."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, str, int], tuple[float, Failure]] = {}
        """By (round, node, local rank): since when it must have been so on *our* clock, which orders causes."""
        self.borne: tuple[str, Failure] | None = None
        """The first failure that the running round has carried on without, with its node's name."""

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, round: int, node: str, failures: Iterable[Failure], since: float) -> None:
        """Note them, or what more is known of them by now."""
        for failure in failures:
            key = (round, node, failure.local_rank)
            first, before = self._kept.get(key, (since, failure))
            if before.cause == Cause.HUNG:  # its end is ours, and it may be that only we know of its guilt
                known = {field: getattr(before, field) for field in ("cause", "message", "at_unix", "stacks_path", "undecided")}
                failure = replace(failure, **known)
            self._kept[key] = first, failure

    def put_first(self, round: int, node: str, failure: Failure, *, by_s: float) -> None:
        """It happened `by_s` seconds before all others of that round, though it was heard of later."""
        first = min(since for (number, _, _), (since, _) in self._kept.items() if number == round)
        self._kept[round, node, failure.local_rank] = first - by_s, failure

    def bear(self, name: str, failure: Failure) -> None:
        """The round carries on without that worker of the node `name`."""
        self.borne = self.borne or (name, failure)

    def begin_round(self, number: int) -> None:
        """Nobody asks for those of older rounds any more: their evidence is in each node's record."""
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] >= number}
        self.borne = None

    def in_order(self, round: int) -> tuple[Failure, ...]:
        """Those of a round, the first one first, and those that we stopped ourselves last."""
        kept = [kept for (number, _, _), kept in self._kept.items() if number == round]
        return tuple(failure for _, failure in sorted(kept, key=lambda kept: (kept[1].innocent, kept[0])))
