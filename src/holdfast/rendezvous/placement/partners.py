"""Which nodes keep what another one's ranks have saved? Pure arithmetic over the nodes of a round, in the order of their ranks.

All nodes look the same numbers of places ahead. So each keeps the states of as many others as keep its own, wherever failure
domains begin and end, and the memory that it takes is bounded.
"""

from __future__ import annotations

from _blake2 import blake2b  # hashlib would take 2 ms of a start
from collections.abc import Sequence
from itertools import groupby

TRIED = 64
"""At most so many distances are compared: with thousands of nodes the lengths of their domains are few."""


def partners(nodes: Sequence[tuple[str, str | None]], copies: int = 1) -> list[tuple[str, ...]]:
    """For each node the addresses of its partners. Given: its own address, and the failure domain that it is in (None: not
    known), and how many partners each is to have.

    The next ones, unless more of them are in another domain than their partners when all look further. The partners of a node
    are in different domains too, where there are so many. Empty: a node is alone, or some have no address."""
    addresses, domains = [address for address, _ in nodes], [domain for _, domain in nodes]
    size = len(nodes)
    if not all(addresses):
        return [()] * size
    lengths = sorted({1, *(len(list(run)) for _, run in groupby(domains))})[:TRIED]
    holders = [0]  # How far ahead of a node the states of its ranks are; its own memory has them, too.
    apart: dict[int, int] = {}

    def apart_at(ahead: int) -> int:
        """How many nodes have another domain so far ahead of them."""
        if ahead not in apart:
            others = domains[ahead:] + domains[:ahead]
            apart[ahead] = sum(one is not None and other is not None and one != other for one, other in zip(domains, others))
        return apart[ahead]

    for _ in range(min(copies, size - 1)):
        tried = {(holder + length) % size for holder in holders for length in lengths} - {*holders}
        choices = tried or {*range(1, size)} - {*holders}
        best = max(choices, key=lambda ahead: (sum(apart_at((ahead - holder) % size) for holder in holders), -ahead))
        holders.append(best)
    return [tuple(addresses[(at + ahead) % size] for ahead in holders[1:]) for at in range(size)]


def ticket(holder: str, round: int, base_rank: int, ranks: int) -> str:
    """Shows a holder that in that round these ranks are the bearer's, as the coordinator says: it alone knows the ids of other
    nodes, of which `holder` is one."""
    key = blake2b(holder.encode("utf-8", "replace"), digest_size=32).digest()
    return blake2b(f"{round} {base_rank} {ranks}".encode(), key=key, digest_size=16).hexdigest()
