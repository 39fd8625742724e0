"""Would they have us, and are they enough? A candidate's count of those who have come to it, in each electorate with a say."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

    from holdfast.core.wire.messages import Electorate, Roster, Seek


class Ballot:
    """Who has come to the node at `endpoint`. Thousands may come at once: no step looks at all of them unless it may decide."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.seeks: dict[int, Seek] = {}
        """Link → what was last said over it."""
        self.links: dict[str, int] = {}
        """Endpoint of one that is free to vote → its newest link."""
        self.claims: set[int] = set()
        """Electorates in which the witness speaks for us."""
        self.roster: Roster | None = None

    def came(self, seek: Seek, link: int) -> None:
        """One has come, or says something new."""
        self.seeks[link] = seek
        if seek.free and seek.node:  # without an endpoint it has no say
            self.links[seek.node] = link

    def went(self, link: int) -> None:
        """A link is gone."""
        seek = self.seeks.pop(link, None)
        if seek is not None and self.links.get(seek.node) == link:
            del self.links[seek.node]

    def clear(self) -> None:
        """Nobody has come."""
        self.seeks, self.links, self.claims = {}, {}, set()

    @property
    def term(self) -> int:
        """The latest that any of them knows."""
        return max((seek.term for seek in self.seeks.values()), default=0)

    @property
    def willing(self) -> set[str]:
        """Who would vote for us, and we."""
        return {self.endpoint, *self.links}

    def short(self, nodes: Collection[str]) -> list[Electorate]:
        """The electorates in which the votes of `nodes` are no majority."""
        assert self.roster is not None
        return [one for one in self.roster.electorates if self._votes(one, nodes) < one.majority]

    def most_short(self, roster: Roster) -> tuple[int, Electorate]:
        """The electorate of that roster in which those who are here lack most votes, and how many of them have a say in it."""
        self.roster, willing = roster, self.willing
        counted = [(len(self.of(one, willing)), one) for one in roster.electorates]
        return max(counted, key=lambda each: (each[1].majority - each[0] - each[1].witness, each[1].size))

    def lacks_the_witness(self, short: list[Electorate]) -> bool:
        """Whether the witness's vote is all that these lack."""
        willing = self.willing
        return all(one.witness and self._votes(one, willing) + 1 >= one.majority for one in short)

    def of(self, electorate: Electorate, nodes: Collection[str]) -> set[str]:
        """Which of `nodes` have a say in it: who says so, and who stands in the newest one's line."""
        assert self.roster is not None
        line = self.roster.line if electorate.id == self.roster.electorates[0].id else ()
        return {node for node in nodes if node in line or self._says(node, electorate.id)}

    def _votes(self, electorate: Electorate, nodes: Collection[str]) -> int:
        claimed = electorate.id in self.claims
        if len(nodes) + claimed + 1 < electorate.majority:
            return 0  # too few, whoever they are
        return len(self.of(electorate, nodes)) + claimed

    def _says(self, node: str, id: int) -> bool:
        roster = self.roster if node == self.endpoint else self.seeks[self.links[node]].roster if node in self.links else None
        return roster is not None and any(one.id == id and one.mine for one in roster.electorates)
