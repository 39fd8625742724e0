"""Does every rule hold in runs that nobody thought of? Random jobs with random troubles, every rule checked at every step."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from holdfast.sim.__main__ import command, told
from holdfast.sim.scenario import run

SEEDS = 600
"""About five seconds. `make sim` runs more."""
AT_ONCE = 100


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_rule_holds_whatever_happens(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        outcome = run(seed)
        assert not outcome.violation, f"{told(outcome)}\nrepeat it: {command(seed)}"


def test_the_troubles_are_worth_the_name() -> None:
    """Most jobs come through; some are stopped or spend their restarts; in a few nobody is left to say how it ended."""
    ends = [run(seed).ended for seed in range(200)]
    assert {"succeeded", "failed", "stopped", "nobody"} <= set(ends)
    assert ends.count("succeeded") > len(ends) / 2


@pytest.mark.parametrize("seed", [4, 29])
def test_a_seed_is_the_same_run_under_any_hash_seed(seed: int) -> None:
    def digest(hash_seed: str) -> str:
        env = {**os.environ, "PYTHONHASHSEED": hash_seed}
        argv = [sys.executable, "-m", "holdfast", "simulate", "--seed", str(seed), "--digest"]
        return subprocess.run(argv, env=env, capture_output=True, text=True, check=True, timeout=60).stdout.strip()

    assert digest("1") == digest("2") == run(seed).digest
