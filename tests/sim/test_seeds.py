"""Does every rule hold in runs that nobody thought of? Random jobs with random troubles, every rule checked at every step."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import pytest

from holdfast.core.job.events import Decided, NodeExcluded, NodeReadmitted, SpareLost, WorkerStarted
from holdfast.core.wire.messages import Assigned
from holdfast.rendezvous.coordinator.admission import SAVED
from holdfast.sim.__main__ import main
from holdfast.sim.agent import SimAgent
from holdfast.sim.checks import Checks, Violation
from holdfast.sim.scenario import Scenario, run

SEEDS = 10_000
"""Two minutes on two cores; `make test` plays the first part. `make sim` plays others: make sim ARGS="--seeds 10000:99999"."""
AT_ONCE = 500
TOGETHER, TOGETHER_AT_ONCE = 600, 20  # Of the play in which agents die together.


def simulate(*argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    """`holdfast simulate`, on all CPUs."""
    line = [sys.executable, "-m", "holdfast", "simulate", *argv]
    return subprocess.run(line, env={**os.environ, **env}, capture_output=True, text=True, timeout=600)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_rule_holds_whatever_happens(first: int) -> None:
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
    assert main(["--seeds", "0:1", "--jobs", "1"]) == 1
    assert capsys.readouterr().out == (
        "it starts at all\n  repeat it: holdfast simulate --seed 0\n1 runs: 1 nobody; 1 broke a rule\n"
    )


def test_the_troubles_are_worth_the_name() -> None:
    """Most jobs come through; some are stopped or spend their restarts; in a few nobody is left to say how it ended."""
    ends = [run(seed).ended for seed in range(400, 600)]
    assert {"succeeded", "failed", "stopped", "nobody"} <= set(ends)
    assert ends.count("succeeded") > len(ends) / 2


def test_who_leads_and_who_takes_part_is_among_the_troubles() -> None:
    scenarios = [Scenario(seed) for seed in range(100)]
    assert {scenario.job.elected for scenario in scenarios} == {True, False}
    assert {scenario.job.grow for scenario in scenarios} == {"at-once", "at-checkpoint", "next-failure", "never"}
    told = [what for seed in range(60) for _, _, what in played(seed).cluster.transcript.entries]
    assert {what.by for what in told if isinstance(what, NodeExcluded)} >= {"operator", "failures", "script"}
    assert any(isinstance(what, NodeReadmitted) for what in told)
    growing = (played(seed) for seed in range(1000) if Scenario(seed).job.grow == "at-checkpoint")
    decided = (what for job in growing for _, _, what in job.cluster.transcript.entries if isinstance(what, Decided))
    assert any(what.reason.endswith(SAVED) for what in decided), "which is rare: a spare has to come, and no failure before"


def test_clocks_that_jump_late_words_and_slow_disks_are_among_the_troubles() -> None:
    told = [what for seed in range(40) for _, _, what in played(seed).cluster.transcript.entries if isinstance(what, str)]
    for trouble in ("its wall clock jumps by", "what it says goes astray", "a write takes up to"):
        assert any(what.startswith(f"* {trouble}") for what in told), trouble


def test_warm_spares_that_fail_and_die_are_among_the_troubles() -> None:
    told = [what for seed in range(150) for _, _, what in played(seed).cluster.transcript.entries]
    lost = {what.reason for what in told if isinstance(what, SpareLost)}
    assert {"importing torch failed", "it ended with -9"} <= lost
    cold = {what.cold_because for what in told if isinstance(what, WorkerStarted)}
    assert any("memory is short" in why for why in lost | cold)
    assert "it was still importing" in cold and any("RANK, which its imports have read" in why for why in cold)
    assert any(what.spare for what in told if isinstance(what, WorkerStarted))


def played(seed: int) -> Scenario:
    scenario = Scenario(seed)
    scenario.run()
    return scenario


def test_a_seed_is_the_same_run_under_any_hash_seed_and_in_any_process() -> None:
    line = ("--seeds", "0:30", "--digest", "--jobs")
    told = [simulate(*line, jobs, PYTHONHASHSEED=by).stdout for jobs, by in ("11", "12", "23")]
    digest = hashlib.sha256("".join(run(seed).digest for seed in range(30)).encode()).hexdigest()
    assert told == [digest + "\n"] * 3


@pytest.mark.parametrize("seeds", ["3:1", "3:3", "3", "a:b", "0:-3"])
def test_a_range_of_no_seeds_is_an_error_and_no_success(seeds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([f"--seeds={seeds}"])
    assert end.value.code == 2 and "names none" in capsys.readouterr().err
