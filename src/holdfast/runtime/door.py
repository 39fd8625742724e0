"""Who can come in, and which connections were bad? Each complaint about those once, the rest counted, however many knock."""

from __future__ import annotations

from holdfast.core.grammar import shown_endpoint
from holdfast.core.machine import NEVER
from holdfast.runtime.addresses import is_loopback
from holdfast.runtime.frames import TOKEN_BYTES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.runtime.net import Network

PER_PEER, IN_ALL = 4, 24
"""Lines about one address, and about all: a scanner with many addresses and words must not fill the log."""

AGAIN_S, LONGEST_S = 60.0, 3600.0
"""How long after a line that was not said the count is; it doubles up to an hour."""


def open_doors(network: Network, max_nodes: int, *, token_by: str) -> str:
    """What a person should know about who can join, said by the node that others come to; empty: nothing. `token_by`: how a
    token is given to a node."""
    token = network.identity.token
    if not network.listeners or max_nodes < 2 or is_loopback(network.endpoint[0]) or len(token) >= TOKEN_BYTES:
        return ""
    if not token:
        who = "holds a certificate of the CA" if network.shelter else f"reaches {shown_endpoint(*network.endpoint)}"
        return (
            f"no job token: whoever {who} and knows the run id can join the job, or stop it "
            f"(make one with `holdfast token --write FILE`, and give each node {token_by})"
        )
    return f"the job's token has only {len(token)} characters and can be guessed: `holdfast token` makes a better one"


class Door:
    """Remembers what has been said about whom. `complain` tells a person."""

    def __init__(self, complain: Callable[[str], None]) -> None:
        self.complain = complain
        self.said: dict[str, set[str]] = {}
        """peer → what was said about it"""
        self.lines = 0
        self.unsaid = 0
        self.last = ""
        self.tell_at = NEVER
        self.pause_s = AGAIN_S

    def note(self, peer: str, line: str, now: float) -> None:
        """`line` is what happened with `peer`: say it, or count it."""
        known = self.said.get(peer, set())
        if line not in known and len(known) < PER_PEER and self.lines < IN_ALL:
            self.said.setdefault(peer, set()).add(line)
            self.lines += 1
            self.complain(line)
            return
        self.unsaid += 1
        self.last = line
        if self.tell_at == NEVER:
            self.tell_at = now + self.pause_s

    def due(self, now: float) -> None:
        """Tell the count, when it is time for that."""
        if now >= self.tell_at:
            self.tell()
            self.pause_s = min(LONGEST_S, 2 * self.pause_s)

    def tell(self) -> None:
        """Tell how often nothing was said."""
        if self.unsaid:
            again = "once more" if self.unsaid == 1 else f"{self.unsaid} times more"
            self.complain(f"such connections came {again}; the last: {self.last}")
        self.unsaid, self.tell_at = 0, NEVER
