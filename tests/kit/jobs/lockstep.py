"""Ranks that stash each step and make their steps together, what they have said, and how their node is lost."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

LOCKSTEP = """
import itertools, os, sys, time
from holdfast.client import stash

folder, rank, round = sys.argv[1], int(os.environ["RANK"]), int(os.environ["HOLDFAST_ROUND"])
others = [f"{folder}/{round}.{other}" for other in range(int(os.environ["WORLD_SIZE"]))]

def step_and_last(path):
    try:
        return tuple(map(int, open(path).read().split()))
    except FileNotFoundError:
        return -1, -1

def meet(step):
    # As a collective: all have come this far. Rank 0 says which step is the last.
    last = step if os.path.exists(f"{folder}/end") else -1
    open(f"{folder}/tmp.{rank}", "w").write(f"{step} {last}")
    os.rename(f"{folder}/tmp.{rank}", others[rank])
    while min(step_and_last(path)[0] for path in others) < step:
        time.sleep(0.001)
    return step_and_last(others[0])[1] == step

done, found = -1, stash.latest()
if found:
    done, state = found
    assert state == {"rank": rank, "marks": bytes([done % 251]) * 2_000_000}
os.write(1, f"{round} {rank} found {done}\\n".encode())
for step in itertools.count(done + 1):
    is_last = meet(step)
    assert stash.save(step, {"rank": rank, "marks": bytes([step % 251]) * 2_000_000})
    os.write(1, f"{round} {rank} saved {step}\\n".encode())
    if is_last:
        break
    time.sleep(0.005)
"""
"""Ranks that make their steps together; the argument is a folder of theirs, in which `end` makes them end."""


class Said:
    """What the ranks of all agents have said: `found` and `saved`, by round and rank."""

    def __init__(self, agents: dict[str, Any], ranks: int = 4) -> None:
        self.agents, self.ranks = agents, ranks

    def of(self, round: int, what: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for agent in self.agents.values():
            for line in agent.stdout.splitlines():
                words = line.split()
                if len(words) == 4 and words[0] == str(round) and words[2] == what:
                    found.setdefault(int(words[1]), []).append(int(words[3]))
        return found

    def steps_of_all(self, round: int) -> int:
        """The newest step that all ranks have saved; -1: none."""
        saved = self.of(round, "saved")
        return min(steps[-1] for steps in saved.values()) if len(saved) == self.ranks else -1


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    below: list[int] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            below += [int(child) for child in (task / "children").read_text().split()]
    return [pid, *(process for child in below for process in tree(child))]


def lose(agent: Any) -> None:
    """As when a node loses its power: all of it at once."""
    pids = tree(agent.pid)
    for signum in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signum)
    agent.process.wait()
