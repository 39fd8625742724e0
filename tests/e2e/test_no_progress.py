"""A job that restarts and restarts without getting any further is ended, on every node with the code for it."""

from __future__ import annotations

from typing import Any

import pytest

CRASHES = """
import os, sys, time
from holdfast.client import progress

way, restarts = sys.argv[1], int(os.environ["TORCHELASTIC_RESTART_COUNT"])
at = {0: 10, 1: 20}.get(restarts, 20)
if way.startswith("/"):
    if os.environ["RANK"] == "1":
        time.sleep(60)  # until it is stopped, once the other has written how far it is
    else:
        open(way + ".tmp", "w").write(f"{at}\\n")
        os.rename(way + ".tmp", way)
else:
    progress(at)
sys.exit(1)
"""
"""Gets on with its first restart, and not with any other; each time it fails."""


def launch(holdfast: Any, port: int, program: Any, name: str, *rest: object, command: str = "run") -> Any:
    meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "crashes")
    line = ("--nnodes", 2, "--nproc-per-node", 1, "--node-name", name, *meet, "--max-restarts", 9, "--backoff", 0)
    options, script_args = rest[:-1], rest[-1:]
    return holdfast.start(command, *line, *options, program, *script_args)


@pytest.mark.parametrize("command", ["run", "ft_launcher"])
def test_by_the_checkpoint_file(holdfast, free_port, script, tmp_path, command):
    file = tmp_path / "latest_checkpointed_iteration.txt"
    options = ("--ft-checkpoint-iteration-file", file, "--ft-max-no-progress-cycles", 2)
    program = script(CRASHES)
    agents = [launch(holdfast, free_port, program, name, *options, file, command=command) for name in "ab"]
    ends = [agent.wait() for agent in agents]
    assert [end.returncode for end in ends] == [93, 93]
    why = f"no progress: 2 restarts in a row brought no iteration (iteration 20 by {file})"
    assert any(event["reason"].startswith(why) for event in holdfast.events("Decided"))
    assert all("no progress: 2 restarts in a row" in " ".join(end.stderr.split()) for end in ends)
    assert "no progress: 2 restarts in a row" in holdfast("why", "crashes").stdout


def test_by_the_steps_that_ranks_tell_with_another_exit_code(holdfast, free_port, script):
    options = ("--ft-max-no-progress-cycles", 2, "--ft-no-restart-exit-code", 75)
    program = script(CRASHES)
    agents = [launch(holdfast, free_port, program, name, *options, "steps") for name in "ab"]
    assert [agent.wait().returncode for agent in agents] == [75, 75]
    last = holdfast.events("Decided")[-1]
    assert last["reason"] == (
        "no progress: 2 restarts in a row brought no iteration (iteration 20); it is not restarted again (exit code 75)"
    )
    assert last["restarts_left"] == 6  # of 9, three were used
    restarts = [event["reason"] for event in holdfast.events("Decided") if event["decision"] == "restart"]
    assert ["if the job has reached iteration 21 (" in reason for reason in restarts] == [False, False, False, True]


def test_a_file_that_cannot_be_read_is_told_of_and_ends_nothing(holdfast, script, tmp_path):
    program = script("import sys; sys.exit(1)")
    options = ("--max-restarts", 2, "--backoff", 0, "--ft-checkpoint-iteration-file", tmp_path / "nowhere")
    end = holdfast("run", *options, "--ft-max-no-progress-cycles", 1, program)
    assert end.returncode == 1
    assert end.stderr.count("restarts ignore progress meanwhile") == 1
