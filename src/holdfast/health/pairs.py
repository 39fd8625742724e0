"""Which of many nodes cannot work with others, or slows them down? Two rounds of pairs tell, or three, for any number of nodes.

    round 1    neighbours; of an odd number the last one waits
    round 2    the fastest with the slowest: a node that failed, or was not tried, meets one that has passed
    round 3    only nodes not known yet, each with one that has passed, or that it has not met

A pair passes if both nodes are well. So a node that has passed once is well; a node that failed with a well one is bad; the
rest is not known: of two nodes that fail together nobody can tell which. Pure: the machine is told what was measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.outliers import too_slow
from holdfast.core.value import Value, replace
from holdfast.health.verdict import Verdict, degraded, fit, unfit

Pair = tuple[str, str]

ROUNDS = 3
SLOW = 2.0
"""So many times the median of all nodes is slow, where those are enough to compare: what a shared switch costs is less."""

LEAST_S = 0.02  # And by so many seconds at least: below that it is the host's other work.


class Measured(Value):
    """What one node says of its part in a pair."""

    node: str
    partner: str
    passed: bool
    compute_s: float = 0.0  # Its own matrix products: alone, the same with any partner.
    gather_s: float = 0.0  # The all-gather with its partner: as slow as the slower of the two.
    why: str = ""  # Of a failure.


class PairTest:
    """The machine: `plan`, `hear`, and again, until there is nothing more to plan."""

    def __init__(self, nodes: Sequence[str]) -> None:
        self.nodes = tuple(nodes)
        self.round = 0
        self.met: dict[str, list[Measured]] = {node: [] for node in self.nodes}

    def plan(self) -> tuple[Pair, ...]:
        """Who meets whom in the next round. Nobody: there is nothing left to find out."""
        if self.round >= ROUNDS or len(self.nodes) < 2:
            return ()
        if self.round == 0:
            pairs = tuple(zip(self.nodes[::2], self.nodes[1::2]))
        elif self.round == 1:
            pairs = self._fastest_with_slowest()
        else:
            pairs = self._ambiguous_only()
        self.round += bool(pairs)
        return pairs

    def hear(self, results: Iterable[Measured]) -> None:
        """What came of the round; a pair passed only where both say so. A node that says nothing did not pass."""
        told = {one.node: one for one in results}
        for one in told.values():
            other = told.get(one.partner)
            passed = one.passed and other is not None and other.passed
            why = one.why or (other.why if other is not None else f"{one.partner} said nothing")
            self.met[one.node].append(replace(one, passed=passed, why="" if passed else why))

    # --- what is known ----------------------------------------------------------------------------------------------------

    @property
    def good(self) -> list[str]:
        """Who has passed, the fastest first."""
        return sorted((node for node in self.nodes if any(one.passed for one in self.met[node])), key=self._time)

    @property
    def bad(self) -> dict[str, str]:
        """Who failed with one that is well → why."""
        well = set(self.good)
        failed = ((node, one) for node in self.nodes if node not in well for one in self.met[node] if one.partner in well)
        return {node: f"with {one.partner}, which is well: {one.why}" for node, one in failed}

    @property
    def unclear(self) -> list[str]:
        """Of whom neither is known."""
        known = {*self.good, *self.bad}
        return [node for node in self.nodes if node not in known]

    def verdicts(self) -> dict[str, Verdict]:
        """What it means for each node."""
        found: dict[str, Verdict] = {}
        bad, unclear, well = self.bad, self.unclear, self.good
        for node, why in bad.items():
            found[node] = unfit(f"it fails {why}", "look at its network and GPUs: `holdfast check`")
        for node in unclear:
            if not self.met[node]:
                found[node] = degraded("not known: no other node was there to be tested with", "start the test on more nodes")
                continue
            others = ", ".join(sorted({one.partner for one in self.met[node]}))
            told = f"it failed, but only with nodes that failed too ({others}): {self.met[node][0].why}"
            found[node] = degraded(told, "test it with one that is well")
        slow = self._slow(well)
        for node in well:
            found[node] = slow.get(node) or fit(f"it passed, in {1000 * self._time(node):.0f} ms")
        return found

    def _slow(self, well: list[str]) -> dict[str, Verdict]:
        found: dict[str, Verdict] = {}
        for what, series in (("compute", "matrix products"), ("gather", "all-gather")):
            best = {node: min(getattr(one, f"{what}_s") for one in self.met[node] if one.passed) for node in well}
            typical, slow = too_slow(best)
            for node in slow:
                if best[node] > max(SLOW * typical, typical + LEAST_S):
                    text = f"it is slow: {series} take {1000 * best[node]:.0f} ms, and {1000 * typical:.0f} on the others"
                    found.setdefault(node, degraded(text, "clocks, throttling, NIC, PCI link: `holdfast check gpu nic`"))
        return found

    def _time(self, node: str) -> float:
        return min((one.compute_s + one.gather_s for one in self.met[node] if one.passed), default=float("inf"))

    # --- who meets whom ---------------------------------------------------------------------------------------------------

    def _fastest_with_slowest(self) -> tuple[Pair, ...]:
        well = self.good
        order = [*well, *(node for node in self.nodes if node not in well)]
        if len(order) % 2:
            del order[0]  # the fastest has shown all that it can; where nobody has passed, somebody has to wait
        half = len(order) // 2
        partners = order[: half - 1 : -1] if half else []
        return self._rematched(list(zip(order[:half], partners)))

    def _ambiguous_only(self) -> tuple[Pair, ...]:
        waiting, free = self.unclear, [node for node in self.good if node not in self.bad]
        pairs = []
        while waiting:
            node = waiting.pop(0)
            met = {one.partner for one in self.met[node]}
            partner = next((other for other in (*free, *waiting) if other not in met), None)
            if partner is None:
                continue
            (free if partner in free else waiting).remove(partner)
            pairs.append((node, partner))
        return tuple(pairs)

    def _rematched(self, pairs: list[Pair]) -> tuple[Pair, ...]:
        """The same again tells nothing: two pairs that have met already change partners with the pair beside them."""
        for i, (a, b) in enumerate(pairs):
            if any(one.partner == b for one in self.met[a]) and len(pairs) > 1:
                j = (i + 1) % len(pairs)
                c, d = pairs[j]
                pairs[i], pairs[j] = (a, d), (c, b)
        return tuple(pairs)
