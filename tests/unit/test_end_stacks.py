"""What is kept of a rank's stack at its end?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from kit.stages.made_up import assigned, started

from holdfast.agent.workers.rank_lives import RankLives
from holdfast.core.processes import ProcessGone


def test_a_stack_is_kept_of_this_round_s_ranks_only() -> None:
    """One that was given up, stuck in the kernel, may end when others have its place."""
    kept: list[tuple[int, int, str]] = []
    host: Any = SimpleNamespace(now=lambda: 0.0, children={})
    lives = RankLives(host, lambda event: None, lambda *told: kept.append(told))
    lives.begin_round(assigned(base_rank=4), started(99, 101, 102))
    for pid, stack in ((100, "of the round before"), (101, "of this one"), (102, "")):
        lives.saw(ProcessGone(pid=pid, exitcode=-15, stack=stack))
    assert kept == [(5, 1, "of this one")]
