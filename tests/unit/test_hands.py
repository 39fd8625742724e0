"""What an agent's hands make of a process's end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from holdfast.agent.components import Hands
from holdfast.core.processes import ProcessGone


def test_a_stack_is_kept_of_this_round_s_ranks_only() -> None:
    """One that was given up, stuck in the kernel, may end when others have its place."""
    kept: list[tuple[int, int, str]] = []
    hands: Any = SimpleNamespace(
        beginnings=None,
        node=SimpleNamespace(group=SimpleNamespace(assigned=SimpleNamespace(base_rank=4))),
        workers=SimpleNamespace(local_ranks={101: 1}),
        telling=SimpleNamespace(showed=lambda *told: kept.append(told)),
    )
    for pid, stack in ((100, "of the round before"), (101, "of this one"), (101, "")):
        Hands.saw(hands, ProcessGone(pid=pid, exitcode=-15, stack=stack))
    assert kept == [(5, 1, "of this one")]
