"""Are the supporters of a candidate a majority? They are counted in each electorate that has a say."""

from __future__ import annotations

from collections.abc import Collection

from holdfast.core.wire.links import LinkDown, LinkUp
from holdfast.core.wire.messages import Electorate, Roster, Seek

LOOPBACK = ("127.", "::1")
"""How addresses begin from which anything on this host may come: there the kernel tells whose it is."""


class Ballot:
    """Who came to the node at `endpoint`. Thousands come at once: no step looks at all of them unless it may decide."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.seeks: dict[int, Seek] = {}  # Link → what was last said over it.
        self.links: dict[str, int] = {}  # Endpoint of one that is free to vote → its newest link.
        self.peers: dict[int, str] = {}  # Link that others opened → the address that it comes from.
        self.hosts: dict[str, str] = {}  # Such an address → the host for which its links speak.
        self.claims: set[int] = set()  # Electorates in which the witness speaks for us.

    def links_change(self, seen: LinkUp | LinkDown) -> None:
        """Somebody has opened a link, from an address that may not be known; or it is gone."""
        if isinstance(seen, LinkDown):
            self.went(seen.link)
            self.peers.pop(seen.link, None)
        elif not seen.ours and seen.peer and not seen.peer.startswith(LOOPBACK):
            self.peers[seen.link] = seen.peer

    def came(self, seek: Seek, link: int) -> None:
        """One has come, or says something new. A link speaks for one node: for the one that it named last. And the links from
        one address speak for one host: a member may open as many as it likes, and name other members' endpoints."""
        if (peer := self.peers.get(link, "")) and self.hosts.get(peer) != (host := seek.node.rpartition(":")[0]):
            for other in [one for one in self.seeks if one != link and self.peers.get(one) == peer]:
                self.went(other)
            self.hosts[peer] = host
        if (before := self.seeks.get(link)) is not None and before.node != seek.node:
            self.went(link)
        self.seeks[link] = seek
        if seek.free and seek.node:  # without an endpoint it has no say
            self.links[seek.node] = link

    def went(self, link: int) -> None:
        """Who came over that link has no say over it any more."""
        seek = self.seeks.pop(link, None)
        if seek is not None and self.links.get(seek.node) == link:
            del self.links[seek.node]

    def claimed(self, id: int) -> None:
        """The witness speaks for us in that electorate."""
        self.claims.add(id)

    def clear(self) -> None:
        """Forget all who came."""
        self.seeks, self.links, self.hosts, self.claims = {}, {}, {}, set()

    @property
    def term(self) -> int:
        """The latest that any of them knows."""
        return max((seek.term for seek in self.seeks.values()), default=0)

    @property
    def willing(self) -> set[str]:
        """Who would vote for us, and we."""
        return {self.endpoint, *self.links}

    def short(self, roster: Roster, nodes: Collection[str]) -> list[Electorate]:
        """The electorates of that roster in which the votes of `nodes` are no majority."""
        return [one for one in roster.electorates if self._votes(roster, one, nodes) < one.majority]

    def most_short(self, roster: Roster) -> tuple[int, Electorate]:
        """The electorate of that roster that lacks most votes, and how many who are here have a say in it."""
        willing = self.willing
        counted = [(len(self.of(roster, one, willing)), one) for one in roster.electorates]
        return max(counted, key=lambda each: (each[1].majority - each[0] - each[1].witness, each[1].size))

    def lacks_the_witness(self, roster: Roster, short: list[Electorate]) -> bool:
        """Whether the witness's vote is all that these lack."""
        willing = self.willing
        return all(one.witness and self._votes(roster, one, willing) + 1 >= one.majority for one in short)

    def of(self, roster: Roster, electorate: Electorate, nodes: Collection[str]) -> set[str]:
        """Which of `nodes` have a say in it: who says so, and who stands in its line."""
        line = electorate.line or (roster.line if electorate.id == roster.electorates[0].id else ())
        return {node for node in nodes if node in line or self._says(roster, node, electorate.id)}

    def _votes(self, roster: Roster, electorate: Electorate, nodes: Collection[str]) -> int:
        claimed = electorate.id in self.claims
        if len(nodes) + claimed + 1 < electorate.majority:
            return 0  # too few
        return len(self.of(roster, electorate, nodes)) + claimed

    def _says(self, roster: Roster, node: str, id: int) -> bool:
        said = roster if node == self.endpoint else self.seeks[self.links[node]].roster if node in self.links else None
        return said is not None and any(one.id == id and one.mine for one in said.electorates)
