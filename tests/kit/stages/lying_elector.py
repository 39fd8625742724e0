"""Plays somebody who knows the token, is no elector, and lies while others elect: no agent fails, and two never lead at a time.

    python tests/kit/stages/lying_elector.py 60        plays until a minute is over; names the seed that broke a rule

a to d are simulated agents; the first that leads loses its power, and so may its successor. x calls each of them again and
again, says what callers may say, in its own name and in theirs, and answers who calls it as one who leads does. It says what it
has heard anew, and rosters that are near the truth: newer, of a later term, with another line. A node that has lost its leader
may follow x, and end by its word: as yet it believes who says to lead.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from kit.stages.lying_member import Liar, play_for
from kit.stages.succession_stage import begin, leaders

from holdfast.core.errors import ProtocolError
from holdfast.core.machine import Observation
from holdfast.core.value import replace
from holdfast.core.wire.links import Arrived, LinkDown, LinkUp
from holdfast.core.wire.messages import Finish, Leads, Message, Propose, Renew, Renewed, Roster, Seek, Vote
from holdfast.core.wire.speakers import objection
from holdfast.runtime.net.codec import _hints, decode, encode
from holdfast.sim.checks import Violation
from holdfast.sim.cluster import Cluster
from holdfast.sim.network import ENDPOINT, SimLinks

HONEST, AT = "abcd", "x:1"
CALLERS, CALLED = (Seek, Vote, Renew), (Leads, Propose, Seek, Renewed, Finish)
LIES_UNTIL_S, EVERY_S = 90.0, (0.01, 0.6)


class Elector(Liar):
    """x, at its links."""

    def __init__(self, rng: random.Random, cluster: Cluster) -> None:
        super().__init__(rng, job=None)  # type: ignore[arg-type]
        self.cluster, self.timeline = cluster, cluster.timeline
        self.links = SimLinks(cluster.ether, self, "x", lambda: False)  # type: ignore[arg-type]
        self.links.listen(AT)
        self.ours: dict[int, bool] = {}  # Link → whether x has made it.
        self.heard: list[Message] = []
        self.next_link = 1
        self._lie()

    def see(self, seen: Observation) -> None:
        """What its world tells it."""
        match seen:
            case LinkUp(link=link, ours=ours):
                self.ours[link] = ours
            case LinkDown(link=link):
                self.ours.pop(link, None)
            case Arrived(message=message):
                self.heard = [*self.heard[-50:], message]

    def _lie(self) -> None:
        if self.timeline.now > LIES_UNTIL_S:
            return self.links.close()
        if len(self.ours) < 8:
            self.links.connect(self.next_link, self.rng.choice([ENDPOINT, *self._endpoints()]))
            self.next_link += 1
        for link, ours in list(self.ours.items()):
            if (said := self._word(ours)) is not None:
                self.links.transmit(link, said)
        self.timeline.after(self.rng.uniform(*EVERY_S), self._lie)

    def _word(self, ours: bool) -> Message | None:
        """What would arrive: of the side of the link that it has."""
        if self.heard and self.rng.random() < 0.2:
            said = self.rng.choice(self.heard)
        else:
            kind = self.rng.choice(CALLERS if ours else CALLED)
            said = kind(**{field: self._made(hint, field) for field, hint in _hints(kind).items()})
        try:
            return None if objection(said, to_caller=not ours) else decode(encode(said))
        except ProtocolError:
            return None

    def _endpoints(self) -> list[str]:
        return list(self.cluster.ether.serving)

    def _rosters(self) -> list[Roster]:
        held = (agent.node.election.roster for agent in self.cluster.agents.values())  # type: ignore[union-attr]
        return [one for one in held if one is not None]

    def _made(self, hint: Any, field: str) -> Any:
        return self._roster() if hint is Roster else super()._made(hint, field)

    def _roster(self) -> Roster:
        rng = self.rng
        held = rng.choice(self._rosters())
        if rng.random() < 0.4:
            return held
        line = tuple(rng.sample(held.line, rng.randint(1, len(held.line))))
        newest = replace(held.electorates[0], line=line, size=rng.choice((1, len(line), 5)), mine=rng.random() < 0.5)
        version, term = held.version + rng.choice((0, 1, 1000)), held.term + rng.choice((0, 0, 1, 7))
        electorates = rng.choice((held.electorates, (newest,), (newest, *held.electorates)))
        return replace(held, version=version, term=term, line=rng.choice((held.line, line)), electorates=electorates)

    def _simple(self, hint: Any, field: str) -> Any:
        rosters, rng = self._rosters(), self.rng
        lives = [one.past.life for one in rosters]
        marks = [message.mark for message in self.heard if isinstance(message, Propose)]
        if field in ("node", "endpoint", "elder"):
            return rng.choice([AT, "", "x", *self._endpoints()])
        if field == "life":
            return rng.choice(["", "another", *lives])
        if field == "term":
            return rng.choice([one.term for one in rosters]) + rng.choice((0, 0, 1, 2, 1000))
        if field == "mark" and marks:
            return rng.choice(marks)
        simple: dict[Any, tuple[Any, ...]] = {
            str: ("", "a", "x", "\x1b[2J"),
            int: (0, 1, 2, 1 << 30, -1),
            float: (0.0, 0.5, self.timeline.now, 1e12, -1.0),
            bool: (True, False),
            bytes: (b"",),
            type(None): (None,),
        }
        return rng.choice(simple[hint])


def play(seed: int) -> int:
    """One job: how many have led it after the first. Violation, or whatever an agent raises: a rule is broken."""
    rng = random.Random(seed)
    cluster = begin(HONEST, min_nodes=2, max_nodes=4, runs_s=40.0, max_restarts=1000, lease_s=3.0)
    Elector(rng, cluster)
    cluster.run(rng.uniform(4.0, 12.0))
    cluster.power_off("a")
    if rng.random() < 0.5 and (led := [place for place in leaders(cluster) if place != "a"]):
        cluster.run_for(rng.uniform(8.0, 30.0))
        cluster.power_off(led[-1])
    try:
        cluster.finish()
    except Violation as broken:
        if "prints another report" not in str(broken):  # which x may have made up
            raise
    return len(leaders(cluster))


if __name__ == "__main__":
    sys.exit(play_for(float(sys.argv[1]), play, "in which somebody lies while others elect"))
