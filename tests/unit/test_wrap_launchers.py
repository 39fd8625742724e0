"""`holdfast wrap`: which process is a launcher, and the command line that Holdfast gets from it."""

from __future__ import annotations

import argparse
import base64
import json
import sys

import pytest

from holdfast.client.wrap import launchers

TORCHRUN = "torch.distributed.run"


@pytest.mark.parametrize(
    ("line", "asked"),
    [
        ("python train.py a", ("", ["a"])),
        ("python -c code torchrun", ("", [])),
        ("python", ("", [])),
        ("python -", ("", [])),
        ("python -m", ("", [])),
        ("python /opt/env/bin/torchrun --nnodes 1 t.py", (TORCHRUN, ["--nnodes", "1", "t.py"])),
        ("python -u -m torch.distributed.run t.py -m x", (TORCHRUN, ["t.py", "-m", "x"])),
        ("python -um torch.distributed.run t.py", (TORCHRUN, ["t.py"])),
        ("python -X importtime -W ignore -m torch.distributed.launch t.py", ("torch.distributed.launch", ["t.py"])),
        ("python -Xdev --check-hash-based-pycs never -m torch.distributed.run", (TORCHRUN, [])),
        ("python -W ignore train.py -m torch.distributed.run", ("", ["-m", TORCHRUN])),
    ],
)
def test_a_launcher_is_known_by_its_command_line(line, asked):
    assert launchers.asked_of_python(line.split()) == asked


def parsers() -> argparse.ArgumentParser:
    """As torchrun's, in part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nnodes", default="1:1")
    parser.add_argument("--nproc-per-node", "--nproc_per_node", default="1")
    parser.add_argument("--max-restarts", "--max_restarts", type=int, default=0)
    parser.add_argument("-m", "--module", action="store_true")
    parser.add_argument("--node-rank", type=int, default=None)
    parser.add_argument("training_script")
    parser.add_argument("training_script_args", nargs=argparse.REMAINDER)
    return parser


@pytest.mark.parametrize(
    "line",
    [
        "train.py",
        "--nnodes 2 --nproc-per-node 8 --node-rank 0 train.py --lr 0.1 -m",
        "--max-restarts 0 --module pkg.train x",
    ],
)
def test_arguments_of_torchrun_come_back_from_what_it_read(line):
    read = parsers().parse_args(line.split())
    again = parsers().parse_args(launchers.arguments_of(read, parsers()))
    assert again == read


def test_values_that_a_tool_wrote_as_numbers_count_as_those_typed():
    read = parsers().parse_args(["train.py"])
    read.nproc_per_node, read.max_restarts, read.training_script_args = 2, "0", None
    assert launchers.arguments_of(read, parsers()) == ["--nproc-per-node=2", "train.py"]


class Became(Exception):
    pass


@pytest.fixture
def became(monkeypatch):
    def note(program, argv, env):
        raise Became(program, argv, env)

    monkeypatch.setattr("os.execve", note)
    monkeypatch.setenv(launchers.VARIABLE, json.dumps({"python": "/opt/agent/python", "flags": ["--max-restarts", "3"]}))


def deepspeeds(hosts: dict[str, list[int]], *words: str) -> list[str]:
    return [f"--world_info={base64.urlsafe_b64encode(json.dumps(hosts).encode()).decode()}", *words]


def test_the_launcher_of_deepspeed_becomes_ours_with_its_place_its_devices_and_the_local_rank(became):
    words = deepspeeds({"a": [0, 1], "b": [2, 3]}, "--node_rank=1", "--master_addr=a", "--master_port=29500",
                       "--enable_each_rank_log=None", "--module", "pkg.train", "--lr", "1")  # fmt: skip
    with pytest.raises(Became) as told:
        launchers._be_deepspeed(words)
    program, argv, env = told.value.args
    assert program == "/opt/agent/python" and env["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert argv[1:] == [
        "-P", "-m", "holdfast", "run", "--max-restarts", "3", "--nnodes=2", "--nproc-per-node=2", "--node-rank=1",
        "--master-addr=a", "--master-port=29500", "--module", "pkg.train", "--local_rank=${local_rank}", "--lr", "1",
    ]  # fmt: skip
    assert env["PYTHON_EXEC"] == sys.executable and launchers.VARIABLE not in env


def test_hosts_of_deepspeed_that_differ_are_left_to_it_with_the_reason(became, capsys):
    launchers._be_deepspeed(deepspeeds({"a": [0, 1], "b": [0]}, "train.py"))
    assert "different numbers of devices" in capsys.readouterr().err


def test_a_flag_of_deepspeed_that_has_no_counterpart_is_named(became, capsys):
    with pytest.raises(Became):
        launchers._be_deepspeed(deepspeeds({"a": [0]}, "--no_local_rank", "--save_pid=7", "train.py"))
    assert "--save_pid is left out" in capsys.readouterr().err


@pytest.mark.parametrize(("before", "after"), [(None, None), ("/mine", "/mine"), ("/a:/b", "/a:/b")])
def test_what_wrap_put_into_the_environment_is_gone_again(before, after):
    from holdfast.cli.run.wrap import environment

    env = {"HOME": "/h"} if before is None else {"HOME": "/h", "PYTHONPATH": before}
    ours = environment(["--max-restarts", "3"], environment([], env))
    assert ours["PYTHONPATH"].count("boot") == 1 and json.loads(ours[launchers.VARIABLE])["flags"] == ["--max-restarts", "3"]
    assert launchers.unwrapped(ours) == env and env.get("PYTHONPATH") == after
