"""How much of its time a job trains, ahead of time: shares add up, agree with what can be calculated, and are the seed's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from holdfast.core.errors import UsageError
from holdfast.core.value import replace
from holdfast.sim.goodput import DAY_S, LLAMA_3, NODES, POLICIES, Costs, outlook, plot, policies, table

ALL = list(POLICIES.values())


@pytest.mark.parametrize("costs", ALL, ids=lambda costs: costs.name)
def test_shares_add_up_and_a_seed_is_a_run(costs: Costs) -> None:
    found = outlook(costs, 4096, LLAMA_3, 10.0, 7)
    assert found.goodput + found.down + found.lost + found.saving == pytest.approx(1.0)
    assert found == outlook(costs, 4096, LLAMA_3, 10.0, 7) != outlook(costs, 4096, LLAMA_3, 10.0, 8)


def test_a_job_that_never_fails_only_waits_for_its_checkpoints() -> None:
    found = outlook(POLICIES["torchrun"], 1, 1e-9, 30.0, 0)
    assert (found.failures, found.down, found.lost) == (0, 0.0, 0.0) and found.goodput > 0.999


def test_it_agrees_with_what_can_be_calculated() -> None:
    costs = replace(POLICIES["holdfast"], hang_s=0.0, node_s=0.04)  # every failure costs the same
    nodes, restart_s, mean_s = 1000, 0.04 + 0.567 / 4.096 + 50 + 60, DAY_S / (LLAMA_3 * 1000)
    found = outlook(costs, nodes, LLAMA_3, 3000.0, 1)
    down = restart_s / (restart_s + mean_s)
    lost = found.save_each_s / 2 / mean_s * (1 - down)
    assert found.down == pytest.approx(down, rel=0.05) and found.lost == pytest.approx(lost, rel=0.06)


def test_a_cheaper_policy_is_better_and_more_nodes_are_worse() -> None:
    found = [outlook(costs, size, LLAMA_3, 60.0, 0) for size in (1024, 16384) for costs in ALL]
    goodput = {(one.policy, one.nodes): one.goodput for one in found}
    order = ["torchrun", "ft_launcher", "holdfast", "holdfast+stash", "holdfast+stash+warm", "holdfast+stash+warm+limit"]
    order.append("holdfast+in-place+limit")
    at_16k = [goodput[name, 16384] for name in order]
    assert at_16k == sorted(at_16k)
    assert all(goodput[name, 1024] > goodput[name, 16384] for name in order)


def test_a_state_in_memory_is_of_no_use_to_a_node_that_is_lost() -> None:
    always = replace(POLICIES["holdfast+stash"], stash_s=0.0001)
    found = outlook(always, 4096, LLAMA_3, 300.0, 2)
    assert found.lost == pytest.approx(found.failures * NODES * found.save_each_s / 2 / (300 * DAY_S), rel=0.2)


def test_who_begins_again_in_place_loses_half_a_step_each_time_unless_it_is_in_vain() -> None:
    never_in_vain = replace(POLICIES["holdfast+in-place"], in_vain=1e-12)
    found = outlook(never_in_vain, 4096, LLAMA_3, 300.0, 2)
    assert found.lost == pytest.approx(found.failures * 6.0 / 2 / (300 * DAY_S), rel=0.05)
    assert found.goodput > outlook(POLICIES["holdfast+in-place"], 4096, LLAMA_3, 300.0, 2).goodput


def test_policies_are_names_or_a_file() -> None:
    assert [one.name for one in policies("holdfast,torchrun", str)] == ["holdfast", "torchrun"] and policies("all", str) == ALL
    mine = '[{"name": "mine", "death_s": 1, "node_s": 2, "per_node_s": 0}]'
    assert policies("mine.json", lambda path: mine) == [Costs(name="mine", death_s=1, node_s=2, per_node_s=0)]
    for text, said in (("slurm", "there are torchrun"), ("bad.json", "a list of objects such as")):
        with pytest.raises(UsageError) as caught:
            policies(text, lambda path: '[{"speed": 1}]')
        assert said in str(caught.value)


def test_the_picture_has_a_bar_for_each() -> None:
    found = [outlook(costs, size, LLAMA_3, 5.0, 0) for size in (1024, 4096) for costs in ALL]
    drawn = ElementTree.fromstring(plot(found, "a < b & c"))
    assert len([part for part in drawn if part.tag.endswith("rect")]) == len(found) + len(ALL)
    assert len(table(found)) == len(found) + 1


def test_the_command_prints_it_and_the_picture_in_the_documents_is_what_it_draws(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast", "simulate", "--policy", "all", "--svg", str(tmp_path / "goodput.svg")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and len(done.stdout.splitlines()) == 1 + 3 * len(ALL), done.stderr
    drawn = Path(__file__).parents[2] / "docs" / "explanation" / "goodput.svg"
    assert drawn.read_text() == (tmp_path / "goodput.svg").read_text(), "run: holdfast simulate --policy all --svg <that file>"
    wrong = subprocess.run([*command[:-4], "--policy", "all", "--nodes", "many"], capture_output=True, text=True, timeout=60)
    assert wrong.returncode == 2 and "not numbers above 0" in wrong.stderr


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--nodes", "12"], "--nodes goes with --policy"),
        (["--svg", "x.svg"], "--svg goes with --policy"),
        (["--policy", "all", "--days", "0"], "--days 0: not a number above 0"),
        (["--sed", "3"], "there is no argument --sed\n  hint: did you mean --seed?"),
        (["--jobs", "-1"], "--jobs"),
        (["--policy", "all", "--days", "1", "--nodes", "64", "--svg", "/nowhere/x.svg"], "/nowhere/x.svg cannot be written"),
    ],
)
def test_what_it_cannot_do_is_said(flags: list[str], said: str) -> None:
    command = [sys.executable, "-m", "holdfast", "simulate", *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
