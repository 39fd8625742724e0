"""Where does a node's NVLink domain come from? From `nvidia-smi`, which may say nothing, or hang on broken hardware. Here it is
a script of that name on PATH.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.hardware import nvidia

FABRIC = """
GPU 00000000:{gpu}:00.0
    Fabric
        State                             : Completed
        CliqueId                          : 3
        ClusterUUID                       : {uuid}
"""
Smi = Callable[[str], str]


@pytest.fixture
def smi(tmp_path: Path) -> Smi:
    """`smi("echo hello")` makes that the nvidia-smi of a PATH, which it returns."""

    def make(body: str) -> str:
        folder = tmp_path / f"bin-{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        program = folder / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        return f"{folder}:{os.environ['PATH']}"

    return make


def says(uuid: str) -> str:
    report = "".join(FABRIC.format(gpu=f"0{number}", uuid=uuid) for number in range(2))
    return f'test "$*" = -q || exit 9\ncat <<END\n{report}END'


def test_what_it_prints_is_read(smi, monkeypatch):
    monkeypatch.setenv("PATH", smi(says("abc-1")))
    report, trouble = nvidia.query()
    assert report.count("ClusterUUID                       : abc-1") == 2 and trouble == ""


@pytest.mark.parametrize(
    ("body", "within_s", "trouble"),
    [
        ("exit 9", 60.0, "nvidia-smi ended with 9"),
        ("trap '' TERM; sleep 3600 & wait; sleep 3600", 0.5, "nvidia-smi did not answer within 0.5 s"),
    ],
    ids=["fails", "hangs"],
)
def test_what_went_wrong_is_said_and_nothing_is_left(smi, monkeypatch, body, within_s, trouble):
    monkeypatch.setenv("PATH", smi(body))
    assert nvidia.query(within_s) == ("", trouble)


def test_where_there_is_no_nvidia_smi_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert nvidia.query() == ("", "nvidia-smi cannot be run: No such file or directory")


def test_a_child_that_nothing_ends_is_not_waited_for(smi, monkeypatch):
    killed: list[int] = []
    monkeypatch.setattr(nvidia.os, "killpg", lambda group, signum: killed.append(group))  # as in uninterruptible sleep
    monkeypatch.setenv("PATH", smi("exec sleep 3600"))
    assert nvidia.query(0.1)[1] == "nvidia-smi did not answer within 0.1 s"
    os.kill(killed[0], signal.SIGKILL)  # it is still there
    os.waitpid(killed[0], 0)


def test_segments_are_made_of_nodes_whose_gpus_share_a_domain(holdfast, free_port, script, smi, wait_until):
    """Three nodes, two of them in one domain, in a job of two with segments of two: the third is a spare."""
    program = script("import os; os.write(1, f\"{os.environ['GROUP_RANK']} {os.environ['GROUP_WORLD_SIZE']}\\n\".encode())")
    line = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", "--rdzv-id", "nvl", "--nnodes", 2)
    agents = {
        name: holdfast.start("run", *line, "--ft-segment", 2, "--node-name", name, program, env={"PATH": smi(says(uuid))})
        for name, uuid in (("a", "abc-1"), ("b", "def-2"))
    }
    wait_until(lambda: len(holdfast.events("NodeJoined")) == 2)
    agents["c"] = holdfast.start(
        "run", *line, "--ft-segment", 2, "--node-name", "c", program, env={"PATH": smi(says("abc-1"))}
    )
    assert [agents[name].wait().returncode for name in "abc"] == [0, 0, 0]
    assert {tuple(event["nodes"]) for event in holdfast.events("RoundFormed")} == {("a", "c")}


def test_a_node_whose_domain_nobody_knows_ends_at_once_and_says_what_to_do(holdfast, free_port, script, smi):
    line = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", "--nnodes", 2, "--ft-segment", 2)
    ended = holdfast.run("run", *line, script("print(1)"), env={"PATH": smi("exit 9")})
    assert ended.returncode == 2
    assert "this node's NVLink domain is not known: nvidia-smi ended with 9" in ended.stderr and "--domain" in ended.stderr
