"""What is kept of a rank's stack at its end?"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.agent.workers.end_stacks import EndStacks
from holdfast.core.processes import ProcessGone


def test_a_stack_is_kept_of_this_round_s_ranks_only() -> None:
    """One that was given up, stuck in the kernel, may end when others have its place."""
    kept: list[tuple[int, int, str]] = []
    group: Any = SimpleNamespace(assigned=SimpleNamespace(base_rank=4))
    workers: Any = SimpleNamespace(local_ranks={101: 1})
    stacks = EndStacks(group, workers, lambda *told: kept.append(told))
    for pid, stack in ((100, "of the round before"), (101, "of this one"), (101, "")):
        stacks.saw(ProcessGone(pid=pid, exitcode=-15, stack=stack))
    assert kept == [(5, 1, "of this one")]
