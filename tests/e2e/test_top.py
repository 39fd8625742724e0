"""`holdfast top` in a real terminal: it draws, follows what changes, and leaves the terminal as it was."""

from __future__ import annotations

import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest
from kit.fleet.told_fleet import ToldFleet


class Terminal:
    """A pseudo-terminal of 30 lines with a command in it."""

    def __init__(self, *command: object, **env: str) -> None:
        self.master, self.slave = pty.openpty()
        ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", 30, 140, 0, 0))
        self.before = termios.tcgetattr(self.slave)
        full = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "", **env}
        full = {name: value for name, value in full.items() if name not in ("COLUMNS", "LINES")}
        argv = [sys.executable, "-m", "holdfast", *map(str, command)]
        self.process = subprocess.Popen(argv, stdin=self.slave, stdout=self.slave, stderr=self.slave, env=full)
        self.seen = ""

    def read(self) -> str:
        """What has been drawn so far, without colours and movements."""
        while select.select([self.master], [], [], 0)[0]:
            self.seen += os.read(self.master, 65536).decode(errors="replace")
        return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", self.seen)

    def ended(self) -> int | None:
        """Its exit code. None: it runs. What it writes is read, as any terminal does: else it would wait for that."""
        self.read()
        return self.process.poll()

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)
        os.close(self.slave)


@pytest.fixture
def told(tmp_path: Path) -> Iterator[ToldFleet]:
    made = ToldFleet(tmp_path / "fleet")
    rank = {"rank": 0, "local_rank": 0, "state": "running", "pid": 4711, "step": 41, "step_s": 0.25, "beat_age_s": 0.1}
    here = [{"job": "train", "round": 1, "state": "running", "ranks": [rank]}]
    nodes: list[dict[str, Any]] = [
        {"name": f"n{number:03}", "state": "spare", "reason": "", "devices": [], "jobs": []} for number in range(99)
    ]
    nodes[7] |= {"state": "fit", "jobs": here}
    nodes[8] |= {"state": "unfit", "reason": "its fan is loud\x1b]0;gotcha\x07"}
    job = {"name": "train", "state": "running", "round": 1, "attempt": 0, "nodes": ["n007"], "spares": [], "ranks": 1}
    made.change(nodes=nodes, jobs=[job])
    yield made
    made.close()


@pytest.fixture
def terminal(told: ToldFleet) -> Iterator[Terminal]:
    made = Terminal("top", "--state", told.folder)
    yield made
    made.close()


def test_it_draws_what_is_worst_first_follows_what_changes_and_ends_with_q(told, terminal, wait_until):
    last = ("ranks of train", "0.25 s", "4711")  # a terminal takes a frame in pieces
    wait_until(lambda: all(word in terminal.read() for word in last))
    drawn = terminal.read()
    assert "99 nodes (1 unfit, 1 fit, 97 spare), 1 running job" in drawn
    assert drawn.index("n008") < drawn.index("n007") < drawn.index("n000"), "what is worst comes first"
    assert re.search(r"nodes, \d+ more", drawn), "what there is no room for is counted"
    assert re.search(r"\b41 +0\.25 s .* 4711\b", drawn)
    assert "\x1b]0;" not in terminal.seen, "a reporter does not write to the terminal"
    told.deed("1", "c has taken over in round 2")
    wait_until(lambda: "c has taken over in round 2" in terminal.read())
    terminal.press(b"q")
    wait_until(lambda: terminal.ended() is not None)
    assert terminal.ended() == 0
    terminal.read()
    assert terminal.seen.rstrip().endswith(("\x1b[?1049l", "\x1b[?25h")), "the screen is as it was"
    assert termios.tcgetattr(terminal.slave) == terminal.before


def test_a_supervisor_that_goes_is_said_and_ctrl_c_ends_it(told, terminal, wait_until):
    wait_until(lambda: "ranks of train" in terminal.read())
    told.close()
    wait_until(lambda: "it does not answer now" in terminal.read())
    terminal.process.send_signal(2)
    wait_until(lambda: terminal.ended() is not None)
    assert terminal.ended() == 0
    assert termios.tcgetattr(terminal.slave) == terminal.before
    told.control = type(told.control)(told.control.path)  # for its fixture to close


def test_without_a_supervisor_it_shows_the_jobs_of_this_host(holdfast, script, wait_until):
    running = holdfast.start(
        "run", "--rdzv-id", "mine", "--nproc-per-node", "2", script("import time; print('here', flush=True); time.sleep(60)")
    )
    wait_until(lambda: running.stdout.count("here") == 2)
    # Its agent answers a little later than its ranks run.
    frame = wait_until(lambda: "1 node (1 fit)" in (shown := holdfast.run("top", "--once").stdout) and shown, what="the job")
    assert "this host · 1 node (1 fit), 1 running job" in frame and "ranks of mine" in frame
    assert re.search(r"^mine +running +1 +0 +1 +0 +2 ", frame, re.MULTILINE)
    named = holdfast.run("top", "mine", "--once").stdout
    assert [line.split()[0] for line in named.split("ranks of mine")[1].splitlines()[2:4]] == ["0", "1"]
    unknown = holdfast.run("top", "yours", "--once")
    assert unknown.returncode == 2 and "there is no job 'yours'" in unknown.stderr


def test_a_job_that_the_supervisor_does_not_know_is_an_error(holdfast, told):
    refused = holdfast.run("top", "other", "--once", "--state", told.folder)
    assert refused.returncode == 2 and "the supervisor knows no job 'other'" in refused.stderr
    nobody = holdfast.run("top", "--once", "--state", told.folder / "elsewhere")
    assert nobody.returncode == 1 and "no supervisor answers" in nobody.stderr


def test_a_fleet_of_ten_thousand_nodes_is_shown(holdfast, told):
    """Its answer has some 30 MB; here fewer nodes say more."""
    large = [{"name": f"n{number}", "state": "unfit", "reason": "x" * 100_000} for number in range(200)]
    told.change(nodes=large, jobs=[])
    shown = holdfast.run("top", "--once", "--state", told.folder)
    assert shown.returncode == 0 and "200 nodes (200 unfit)" in shown.stdout, shown.stderr
