"""Which node keeps what another one's ranks have saved? Pure arithmetic over the nodes of a round, in the order of their ranks.

All nodes look the same number of places ahead. So each keeps the states of one other, wherever failure domains begin and end,
and the memory that it takes is bounded.
"""

from __future__ import annotations

from itertools import groupby

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

TRIED = 64
"""At most so many distances are compared: with thousands of nodes the lengths of their domains are few."""


def partners(nodes: Sequence[tuple[str, str | None]]) -> list[str]:
    """For each node the address of its partner. Given: its own address, and the failure domain that it is in (None: not known).

    The next one, unless more of them are in another domain than their partner when all look further. Empty: a node has no
    partner, since it is alone, or since some have no address."""
    addresses, domains = [address for address, _ in nodes], [domain for _, domain in nodes]
    if len(nodes) < 2 or not all(addresses):
        return [""] * len(nodes)
    lengths = sorted({1, *(len(list(run)) for _, run in groupby(domains))} - {len(nodes)})[:TRIED]

    def apart(ahead: int) -> int:
        others = domains[ahead:] + domains[:ahead]
        return sum(one is not None and other is not None and one != other for one, other in zip(domains, others))

    ahead = max(lengths, key=lambda ahead: (apart(ahead), -ahead))
    return addresses[ahead:] + addresses[:ahead]
