"""Does every rule hold in runs that nobody thought of? Random jobs with random troubles, every rule checked at every step."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from functools import cache
from typing import Any, NamedTuple

import pytest

from holdfast.cli.main import main
from holdfast.core.job.events import Decided, NodeExcluded, NodeReadmitted, SpareLost, WorkerStarted
from holdfast.core.wire.messages import Assigned
from holdfast.rendezvous.coordinator.admission import SAVED
from holdfast.sim.agent import SimAgent
from holdfast.sim.checks import Checks, Violation
from holdfast.sim.scenario import Scenario, run

SEEDS = 10_000
"""Two minutes on two cores; `make test` plays the first. `make sim` plays others: make sim ARGS="--seeds 10000:99999"."""
AT_ONCE = 200
TOGETHER, TOGETHER_AT_ONCE = 600, 20  # Of the play in which agents die together.
FIRST = range(AT_ONCE)
"""Jobs in which every kind of trouble is found."""


def simulate(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`holdfast simulate`, on all CPUs."""
    line = [sys.executable, "-m", "holdfast", "simulate", *argv]
    return subprocess.run(line, env={**os.environ, **env}, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("first", range(AT_ONCE, SEEDS, AT_ONCE))
def test_every_rule_holds_in_more_jobs(first: int) -> None:
    said = simulate("--seeds", f"{first}:{first + AT_ONCE}")
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.startswith(f"{AT_ONCE} runs: ") and said.stdout.endswith("; 0 broke a rule\n")


@pytest.mark.parametrize("first", range(0, TOGETHER, TOGETHER_AT_ONCE))
def test_agents_that_die_together_come_back_and_the_job_trains_on(first: int) -> None:
    said = simulate("--play", "lost-together", "--seeds", f"{first}:{first + TOGETHER_AT_ONCE}")
    assert said.returncode == 0, said.stdout + said.stderr
    assert said.stdout.endswith("; 0 broke a rule\n")


def test_a_broken_rule_is_told_with_the_command_that_repeats_it(monkeypatch, capsys) -> None:
    def grumble(checks: Checks, agent: SimAgent, assigned: Assigned) -> None:
        raise Violation("it starts at all")

    monkeypatch.setattr(Checks, "starting", grumble)
    assert main(["simulate", "--seeds", "0:1", "--jobs", "1"]) == 1
    assert capsys.readouterr().out == (
        "it starts at all\n  repeat it: holdfast simulate --seed 0\n1 runs: 1 nobody; 1 broke a rule\n"
    )


class Played(NamedTuple):
    """What is kept of a job that was played."""

    ended: str
    told: tuple[Any, ...]
    """What stands in its transcript."""


@cache
def played(seed: int) -> Played:
    scenario = Scenario(seed)
    scenario.run()
    reports = [agent.report for agent in scenario.cluster.lives if agent.report is not None]
    told = tuple(what for _, _, what in scenario.cluster.transcript.entries)
    return Played(str(reports[-1].outcome) if reports else "nobody", told)


@pytest.fixture
def told() -> list[Any]:
    """What stands in the transcripts of the first jobs, all of which are played once for all tests here."""
    return [what for seed in FIRST for what in played(seed).told]


def test_every_rule_holds_whatever_happens() -> None:
    """A job in which one is broken ends with a `Violation`."""
    for seed in FIRST:
        played(seed)


def test_the_troubles_are_worth_the_name() -> None:
    """Most jobs come through; some are stopped or spend their restarts; in a few nobody is left to say how it ended."""
    ends = [played(seed).ended for seed in FIRST]
    assert {"succeeded", "failed", "stopped", "nobody"} <= set(ends)
    assert ends.count("succeeded") > len(ends) / 2


def test_who_leads_and_who_takes_part_is_among_the_troubles(told: list[Any]) -> None:
    scenarios = [Scenario(seed) for seed in FIRST]
    assert {scenario.job.elected for scenario in scenarios} == {True, False}
    assert {scenario.job.grow for scenario in scenarios} == {"at-once", "at-checkpoint", "next-failure", "never"}
    assert {what.by for what in told if isinstance(what, NodeExcluded)} >= {"operator", "failures", "script", "itself"}
    assert any(isinstance(what, NodeReadmitted) for what in told)
    grown = [what for what in told if isinstance(what, Decided) and what.reason.endswith(SAVED)]
    assert grown, "which is rare: a spare has to come, and no failure before"


def test_clocks_that_jump_late_words_and_slow_disks_are_among_the_troubles(told: list[Any]) -> None:
    troubles = [what for what in told if isinstance(what, str)]
    for trouble in ("its wall clock jumps by", "what it says goes astray", "a write takes up to"):
        assert any(what.startswith(f"* {trouble}") for what in troubles), trouble


def test_warm_spares_that_fail_and_die_are_among_the_troubles(told: list[Any]) -> None:
    lost = {what.reason for what in told if isinstance(what, SpareLost)}
    assert {"importing torch failed", "it ended with -9"} <= lost
    cold = {what.cold_because for what in told if isinstance(what, WorkerStarted)}
    assert any("memory is short" in why for why in lost | cold)
    assert "it was still importing" in cold and any("RANK, which its imports have read" in why for why in cold)
    assert any(what.spare for what in told if isinstance(what, WorkerStarted))


def test_a_seed_is_the_same_run_under_any_hash_seed_and_in_any_process() -> None:
    line = ("--seeds", "0:5", "--digest", "--jobs")
    told = [simulate(*line, jobs, PYTHONHASHSEED=by).stdout for jobs, by in ("11", "12", "23")]
    digest = hashlib.sha256("".join(run(seed).digest for seed in range(5)).encode()).hexdigest()
    assert told == [digest + "\n"] * 3


@pytest.mark.parametrize("seeds", ["3:1", "3:3", "3", "a:b", "0:-3"])
def test_a_range_of_no_seeds_is_an_error_and_no_success(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", f"--seeds={seeds}"]) == 2
    assert capsys.readouterr().err.startswith(f"holdfast simulate: --seeds: {seeds!r} names none\n  hint: ")
