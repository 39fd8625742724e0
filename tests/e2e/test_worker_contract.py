"""What does a worker find? The same as under torchrun: variables, folders, error files, and a port that is its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

import pytest
from kit import LIGHT_TORCH

SHOW_ENV = """
import json, os
import sys
sys.stdout.write(json.dumps(dict(os.environ)) + chr(10))
"""

CONTRACT = (
    "LOCAL_RANK RANK GROUP_RANK ROLE_RANK ROLE_NAME LOCAL_WORLD_SIZE WORLD_SIZE GROUP_WORLD_SIZE ROLE_WORLD_SIZE "
    "TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_RUN_ID TORCH_NCCL_ASYNC_ERROR_HANDLING OMP_NUM_THREADS "
    "TORCHELASTIC_SIGNALS_TO_HANDLE"
).split()

ALLREDUCE = LIGHT_TORCH + """
import os, sys
import torch
import torch.distributed as dist

dist.init_process_group("gloo", init_method="env://")
total = torch.ones(1) * (dist.get_rank() + 1)
dist.all_reduce(total)
# One write, because ranks share stdout.
sys.stdout.write(f"sum {int(total)} attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}" + chr(10))
sys.stdout.flush()
dist.barrier()  # so that every rank has said so before one of them ends them all
if dist.get_rank() == 1 and int(os.environ["TORCHELASTIC_RESTART_COUNT"]) < int(sys.argv[1]):
    os._exit(3)
dist.barrier()
dist.destroy_process_group()
"""


def environments(stdout: str) -> dict[str, dict[str, str]]:
    found = [json.loads(line) for line in stdout.splitlines()]
    return {env["RANK"]: env for env in found}


def torchrun(*args: object, cwd: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *map(str, args)], capture_output=True, text=True, cwd=cwd, timeout=120
    )


@pytest.mark.torch
def test_the_variables_are_torchrun_s(holdfast, script, tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    args = ("--nproc-per-node", 2, "--max-restarts", 3, "--role", "trainer", script(SHOW_ENV))
    ours = environments(holdfast("run", *args).stdout)
    theirs = environments(torchrun(*args, cwd=tmp_path).stdout)
    assert ours.keys() == theirs.keys() == {"0", "1"}
    for rank, env in theirs.items():
        names = [name for name in CONTRACT if name != "TORCHELASTIC_RUN_ID"]
        assert {name: ours[rank][name] for name in names} == {name: env[name] for name in names}
        theirs_alone = {name for name in env if name not in ours[rank] and name not in ("COLUMNS", "LINES")}
        assert not theirs_alone, "every variable that torchrun sets is set"
        assert ours[rank]["TORCHELASTIC_ERROR_FILE"].endswith(f"/attempt_0/{rank}/error.json")
        assert ours[rank]["TORCHELASTIC_USE_AGENT_STORE"] == "False"


def test_jax_finds_its_coordinator_and_its_place(holdfast, script):
    seen = environments(holdfast("run", "--nproc-per-node", 2, script(SHOW_ENV)).stdout)
    assert seen.keys() == {"0", "1"}
    for rank, env in seen.items():
        assert env["JAX_COORDINATOR_ADDRESS"] == f"{env['MASTER_ADDR']}:{env['MASTER_PORT']}"
        assert (env["JAX_PROCESS_ID"], env["JAX_NUM_PROCESSES"]) == (rank, "2")


def test_virtual_local_rank_shows_each_worker_one_device(holdfast, script):
    done = holdfast(
        *("run", "--nproc-per-node", 2, "--virtual-local-rank", script(SHOW_ENV)), env={"CUDA_VISIBLE_DEVICES": "5, 7"}
    )
    seen = {rank: (env["LOCAL_RANK"], env["CUDA_VISIBLE_DEVICES"]) for rank, env in environments(done.stdout).items()}
    assert seen == {"0": ("0", "5"), "1": ("0", "7")}


def test_logs_lie_where_torchrun_puts_them(holdfast, script, tmp_path):
    program = script("import sys; print('out'); print('err', file=sys.stderr)")
    logs = tmp_path / "logs"
    done = holdfast("run", "--nproc-per-node", 2, "--log-dir", logs, "--redirects", 3, "--rdzv-id", "job7", program)
    assert (done.returncode, done.stdout) == (0, "")
    (run,) = logs.iterdir()
    assert run.name.startswith("job7_")
    for rank in ("0", "1"):
        assert (run / "attempt_0" / rank / "stdout.log").read_text() == "out\n"
        assert "err\n" in (run / "attempt_0" / rank / "stderr.log").read_text()


def test_tee_prefixes_lines_with_role_and_local_rank(holdfast, script):
    done = holdfast("run", "--nproc-per-node", 2, "--tee", 1, "--role", "trainer", script("print('hello')"))
    assert sorted(done.stdout.splitlines()) == ["[trainer0]:hello", "[trainer1]:hello"]


@pytest.mark.parametrize("by", ["script", "torch's record"])
@pytest.mark.torch
def test_the_error_record_is_read_whoever_wrote_it(holdfast, script, by):
    record = "from torch.distributed.elastic.multiprocessing.errors import record\n"
    source = {
        "script": "def main():\n    raise ValueError('no such key')\nmain()\n",
        "torch's record": record + "@record\ndef main():\n    raise ValueError('no such key')\nmain()\n",
    }[by]
    done = holdfast("run", script(source))
    assert done.returncode == 1
    report = json.loads((holdfast.jobs()[-1] / "report.json").read_text())
    assert report["failures"][0]["message"] == "ValueError: no such key"
    assert "in main" in report["failures"][0]["traceback"]


def test_our_own_error_file_gets_the_root_cause(holdfast, script, tmp_path):
    path = tmp_path / "root.json"
    holdfast("run", "--nproc-per-node", 2, script("raise ValueError('x')"), env={"TORCHELASTIC_ERROR_FILE": str(path)})
    message = json.loads(path.read_text())["message"]
    assert (message["message"], message["errorCode"]) == ("ValueError: x", 1)


def test_it_is_said_when_our_own_error_file_cannot_be_written(holdfast, script, tmp_path):
    path = tmp_path / "no" / "such" / "root.json"
    env = {"TORCHELASTIC_ERROR_FILE": str(path)}
    done = holdfast("run", script("raise ValueError('x')"), env=env)
    assert f"cannot write the first failure's record to {path}" in done.stderr
    assert str(path) not in holdfast("run", script("raise SystemExit(3)"), env=env).stderr, "it left no record"


@pytest.mark.parametrize("code", [1, 3, 77])
def test_the_exit_code_is_torchrun_s(holdfast, script, code):
    assert holdfast("run", script(f"raise SystemExit({code})")).returncode == 1


def test_a_module_a_binary_and_a_path_are_run(holdfast, script, tmp_path):
    program = script("import sys; print(__name__, sys.argv[1:])", "entry.py")
    env = {"PYTHONPATH": str(tmp_path)}
    assert holdfast("run", "-m", "entry", "a", "--nproc-per-node", env=env).stdout == "__main__ ['a', '--nproc-per-node']\n"
    assert holdfast("run", "--run-path", program, "b").stdout == "__main__ ['b']\n"
    assert holdfast("run", "--no-python", "echo", "${local_rank}", "$$").stdout == "0 $\n"


@pytest.mark.torch
@pytest.mark.parametrize("restarts", [1, 3])
def test_gloo_comes_back_at_every_restart(holdfast, script, restarts):
    done = holdfast("run", "--nproc-per-node", 2, "--max-restarts", restarts, script(ALLREDUCE), restarts, timeout=120)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(f"sum 3 attempt {n}" for n in range(restarts + 1) for _ in range(2))


@pytest.mark.torch
def test_gloo_works_across_two_agents_and_a_restart(holdfast, script, free_port):
    program = script(ALLREDUCE)
    agents = [
        holdfast.start(
            *("run", "--nnodes", 2, "--nproc-per-node", 1, "--node-name", name, "--max-restarts", 1, "--rdzv-id", "gloo"),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{free_port}", program, 1),
        )
        for name in ("a", "b")
    ]
    ends = [agent.wait(120) for agent in agents]
    assert [end.returncode for end in ends] == [0, 0], ends
    assert sorted("".join(end.stdout for end in ends).splitlines()) == ["sum 3 attempt 0"] * 2 + ["sum 3 attempt 1"] * 2


def test_the_master_port_cannot_be_stolen(holdfast, script):
    # Rank 0 waits until rank 1 has tried to get the port, in both ways that a program has, and then listens on it.
    source = """
import os, socket, time
port, rank = int(os.environ["MASTER_PORT"]), int(os.environ["RANK"])
done = os.path.join(os.path.dirname(__file__), "tried")
if rank == 1:
    for address in ("127.0.0.1", "0.0.0.0"):
        try:
            socket.socket().bind((address, port))
            print("stolen")
        except OSError as error:
            print("kept", error.errno)
    ports = set()
    held = [socket.socket() for _ in range(3000)]
    for sock in held:
        sock.bind(("", 0))
        ports.add(sock.getsockname()[1])
    print("given" if port in ports else "not given")
    open(done, "w").close()
else:
    while not os.path.exists(done):
        time.sleep(0.01)
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("", port))
        sock.listen()
        print("listening")
"""
    done = holdfast("run", "--nproc-per-node", 2, script(source))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["kept 98", "kept 98", "listening", "not given"]


def test_a_busy_given_master_port_is_the_worker_s_to_report(holdfast, script, free_port):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", free_port))
        done = holdfast("run", "--master-port", free_port, script("import os; print(os.environ['MASTER_PORT'])"))
    assert (done.returncode, done.stdout.strip()) == (0, str(free_port))


def test_stdin_is_inherited(tmp_path, script):
    program = script("import sys; print(sys.stdin.read().upper())")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast", "run", str(program)],
        input="hello",
        capture_output=True,
        text=True,
        timeout=60,
        env=os.environ | {"HOLDFAST_STATE_DIR": str(tmp_path / "state")},
    )
    assert (done.returncode, done.stdout.strip()) == (0, "HELLO")
