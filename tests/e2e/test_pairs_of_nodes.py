"""The pair test with real gloo between real processes: four nodes on this host, of which one fails, hangs or is slow."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.timeout(240)]
PATIENCE_S = 150.0


def verdicts_of(holdfast: Any, port: int, fault: str, deadline: int = 30) -> dict[str, tuple[str, str]]:
    """What every node is told of all: state and reason. `fault` is node c's."""
    names = "abcd"
    running = [
        holdfast.start(
            *("check", "--pairs", "--json", "--nnodes", len(names), "--node-name", name, "--deadline", deadline),
            *("--rdzv-endpoint", f"localhost:{port}"),
            env={"HOLDFAST_PAIRS_FAULT": fault if name == "c" else "", "OMP_NUM_THREADS": "1"},
        )
        for name in names
    ]
    ended = [one.wait(PATIENCE_S) for one in running]
    reports = [json.loads(one.stdout) for one in ended]
    assert all(report == reports[0] for report in reports), ended
    assert {one.returncode for one in ended} == {1 if reports[0]["state"] == "unfit" else 0}
    return {name: (verdicts[0]["state"], verdicts[0]["reason"]) for name, verdicts in reports[0]["nodes"].items()}


@pytest.mark.parametrize(("fault", "word"), [("fails", "uncorrectable ECC error"), ("hangs", "no answer within 20 s")])
def test_a_node_that_fails_or_hangs_is_named_on_all_nodes(holdfast, free_port, fault, word):
    found = verdicts_of(holdfast, free_port, fault, 20)
    assert found["c"][0] == "unfit" and word in found["c"][1]
    assert all("it passed" in found[name][1] or "it is slow" in found[name][1] for name in "abd"), found


def test_a_node_that_is_slow_is_degraded(holdfast, free_port):
    found = verdicts_of(holdfast, free_port, "slow")
    assert found["c"][0] == "degraded" and "matrix products" in found["c"][1]


PRINTS = "import os; os.write(1, ('trained ' + os.environ['WORLD_SIZE'] + chr(10)).encode())"


def test_a_job_tests_its_nodes_before_it_begins_and_goes_on_without_the_bad_one(holdfast, free_port, script):
    program, names = script(PRINTS), "abc"
    options = ("--check-before", "pairs", "--check-every", 1000, "--rdzv-backend", "c10d", "--rdzv-id", "paired")
    conf = ("--rdzv-conf", "last_call_timeout=5", "--rdzv-endpoint", f"localhost:{free_port}")
    running = {
        name: holdfast.start(
            *("run", "--nnodes", "2:3", "--node-name", name, *options, *conf, program),
            env={"HOLDFAST_PAIRS_FAULT": "fails" if name == "c" else "", "OMP_NUM_THREADS": "1"},
        )
        for name in names
    }
    ended = {name: one.wait(PATIENCE_S) for name, one in running.items()}
    assert {name: one.returncode for name, one in ended.items()} == dict.fromkeys(names, 0), ended
    assert {name: one.stdout for name, one in ended.items()} == {"a": "trained 2\n", "b": "trained 2\n", "c": ""}
    assert "health: pairs: unfit" in ended["c"].stderr
