"""Plays a member that lies through whole rounds: whatever it says in its own name, the others' job goes by its rules.

    python tests/kit/stages/lying_member.py 60        plays until a minute is over; names the seed that broke a rule

The coordinator's machine is the real one. a and b do as agents do; x says any message that a member may say, with rounds, ranks
and names that are near the truth or far from it. It may stop the job or fail in it, as any member may. But nothing that it says
ends the coordinator, makes the job succeed, or makes the coordinator say what a node would not take.
"""

from __future__ import annotations

import random
import sys
import time
import typing
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from types import UnionType
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))

from kit.stages.round_stage import Job

from holdfast.core.errors import ProtocolError
from holdfast.core.value import Value
from holdfast.core.wire.messages import (
    Assigned,
    Failed,
    Finish,
    Join,
    Leave,
    Message,
    Renew,
    Request,
    Stop,
    Stopped,
    StoreAsk,
    Succeeded,
)
from holdfast.core.wire.speakers import SPEAKERS, Speaker
from holdfast.runtime.net.codec import MESSAGES, _hints, decode, encode

LIAR, HONEST = "x", ("a", "b")
SAYS = (Speaker.CALLER, Speaker.EITHER)
KINDS = [kind for kind in MESSAGES.values() if SPEAKERS[kind] in SAYS and kind not in (StoreAsk, Leave, Request)]
"""But for wishes: any member may stop the job, and then there is no round to lie in."""
TURNS = (Join, Failed, Stopped, Succeeded, Renew)
"""What moves a round on."""

STEPS = 60


class Liar:
    """Makes up what x says."""

    def __init__(self, rng: random.Random, job: Job) -> None:
        self.rng, self.job = rng, job

    def word(self) -> Message:
        """A message that would arrive: what cannot is the decoder's matter, and no lie."""
        while True:
            kind = self.rng.choice(TURNS) if self.rng.random() < 0.6 else self.rng.choice(KINDS)
            said = kind(**{field: self._made(hint, field) for field, hint in _hints(kind).items()} | {"node": LIAR})
            try:
                return decode(encode(said))
            except ProtocolError:
                continue

    def _made(self, hint: Any, field: str) -> Any:
        rng = self.rng
        origin, parts = typing.get_origin(hint), typing.get_args(hint)
        if origin in (UnionType, typing.Union):
            return self._made(rng.choice(parts), field)
        if origin is tuple and parts[-1] is not Ellipsis:
            return tuple(self._made(part, "") for part in parts)
        if origin is tuple:
            return tuple(self._made(parts[0], field) for _ in range(rng.randrange(4)))
        if origin is dict:
            keys = [self._made(parts[0], field) for _ in range(rng.randrange(3))]
            return {key: "?" if parts[1] is Any else self._made(parts[1], field) for key in keys}
        if isinstance(hint, type) and issubclass(hint, StrEnum):
            return rng.choice(list(hint))
        if isinstance(hint, type) and issubclass(hint, Value):
            return hint(**{name: self._made(one, name) for name, one in _hints(hint).items()})
        return self._simple(hint, field)

    def _simple(self, hint: Any, field: str) -> Any:
        rng, number = self.rng, self.job.machine.round
        if "round" in field and rng.random() < 0.8:
            return number
        near = (number - 1, number, number + 1) if "round" in field else (0, 1, 2)
        simple: dict[Any, tuple[Any, ...]] = {
            str: ("", "a", "b", LIAR, "\x1b[2J", "?" * 5000, "127.0.0.1:1", self.job.machine.life),
            int: (*near, *near, -1, 1 << 30, (1 << 31) - 1, -(1 << 62), 1 << 62),
            float: (0.0, 0.5, 3.0, -1.0, 1e12, 1e300, -1e300),
            bool: (True, False),
            bytes: (b"", b"?"),
            type(None): (None,),
        }
        return rng.choice(simple[hint])


def play(seed: int) -> None:
    """One job. AssertionError, or whatever the coordinator raises: a rule is broken."""
    rng = random.Random(seed)
    job = Job(rng.choice(("2:2", "2:3", "3:3", "1:3")), max_restarts=rng.choice((0, 3, 1000)), last_call_s=0.5)
    job.join(*HONEST, LIAR)
    liar, now = Liar(rng, job), 0.0
    for _ in range(STEPS):
        now += rng.choice((0.0, 0.01, 0.3, 0.9))
        job.hear(liar.word(), now)
        goes_on(job, now)
        if rng.random() < 0.1:
            job.fail(rng.choice(HONEST), now=now)
            goes_on(job, now)
        if rng.random() < 0.5:  # it takes part, to lie in the next round too
            job.hear(Stopped(node=LIAR, round=job.machine.round), now)
            job.join(LIAR, now=now, round=job.machine.round)
            goes_on(job, now)
        job.tick(max(now, job.machine.deadline()) if rng.random() < 0.1 else now)
        goes_on(job, job.now)
        now = job.now
        if job.machine.report is not None:
            return


def goes_on(job: Job, now: float) -> None:
    """a and b do as they are told, and the rules are looked at."""
    told, job.said[:] = list(job.said), [one for one in job.said if isinstance(one[1], Assigned)]
    for node, message in told:
        assert decode(encode(message)) == message, f"{node} would not take {message}"
        if isinstance(message, Finish):
            assert message.report.outcome != "succeeded", f"{node} is told that the job has succeeded"
            for failure in message.report.failures:
                assert failure.node not in HONEST or failure.exitcode == 1, f"a failure of another node's is told: {failure}"
        elif isinstance(message, Stop) and node in HONEST:
            job.hear(Stopped(node=node, round=message.round), now)
            job.join(node, now=now, round=message.round)
    assert job.machine.round <= 4 * STEPS, f"round {job.machine.round} is out of reach"
    newest = [(m.group_rank, node) for node, m in job.said if isinstance(m, Assigned) and m.round == job.machine.round]
    ranks = [rank for rank, _ in sorted(set(newest))]
    assert ranks == sorted(set(ranks)), f"two nodes have one rank: {newest}"
    job.renew(*(node for node in HONEST if node in job.machine.seats), now=now)


def play_for(seconds: float, play: Callable[[int], object], what: str) -> int:
    """Play jobs with seeds 0, 1, … until the time is over. Exit code 1: a rule was broken."""
    until, seed = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        try:
            play(seed)
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__}: {error}")
            return 1
        seed += 1
    print(f"{seed} jobs {what}: no rule was broken")
    return 0


if __name__ == "__main__":
    sys.exit(play_for(float(sys.argv[1]), play, "with a member that lies"))
