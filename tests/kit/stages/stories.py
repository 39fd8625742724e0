"""Words for stories: a job in which one thing goes wrong, and what its nodes then recorded.

Where the order of everything matters the whole transcript is compared; it is what an operator would read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from textwrap import dedent
from typing import Any

from holdfast.core.job.events import Decided, RoundFormed
from holdfast.sim.cluster import Cluster
from holdfast.sim.world import Life

FAILS = Life(runs_s=5.0, exitcode=1)
STUBBORN = Life(runs_s=float("inf"), on_sigterm=None)
HANGS = Life(runs_s=float("inf"))


class Acts:
    """A script by rank and restart: `{(1, 0): Life(...)}` for rank 1 before the first restart; the rest run 20 s."""

    def __init__(self, acts: Mapping[tuple[int, int], Life], usual: Life) -> None:
        self.acts = acts
        self.usual = usual

    def __call__(self, place: str, env: Mapping[str, str]) -> Life:
        return self.acts.get((int(env["RANK"]), int(env["TORCHELASTIC_RESTART_COUNT"])), self.usual)


Start = Callable[..., Cluster]


def recorded(cluster: Cluster, kind: type, place: str = "") -> list[Any]:
    """The events of a kind, of all nodes or of one."""
    return [what for _, at, what in cluster.transcript.entries if isinstance(what, kind) and place in ("", at)]


def rounds(cluster: Cluster, place: str = "a") -> list[str]:
    """The nodes of each round by group rank, as a place recorded them; most often the host."""
    return ["".join(formed.nodes) for formed in recorded(cluster, RoundFormed, place)]


def decisions(cluster: Cluster) -> list[str]:
    return [decided.decision for decided in recorded(cluster, Decided)]


def formed_at(cluster: Cluster, place: str = "a") -> list[float]:
    return [at for at, where, what in cluster.transcript.entries if isinstance(what, RoundFormed) and where == place]


def told(cluster: Cluster) -> str:
    return "\n" + cluster.transcript.story() + "\n"


def story(text: str) -> str:
    return dedent(text)
