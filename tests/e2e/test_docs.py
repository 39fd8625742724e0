"""Does every command in the documents do what they say?

The documents are README.md and docs/**/*.md. In each, a fenced block of language `console` is a terminal: its `$ ` lines are
typed, in order, in an empty directory with a HOME of its own, and the other lines are what must be seen:

- every line shown must come, in any order (ranks print as they please); `…` in a line stands for any text, and a line
  that is only `…` for any lines. Without such a line nothing else may come.
- times, pids, ports and the like may differ, and so may the width of columns.

A comment before a block, which readers do not see, says more:

    <!-- file: train.py -->           the next block, of any language, is put into this file
    <!-- example: train.py -->        examples/train.py is copied there
    <!-- run: exit=1 -->              the last command ends with 1
    <!-- run: terminal=two -->        another terminal: what it shows is looked at only at the end of the document
    <!-- run: after="rank 3" -->      not before this has been seen in some terminal
    <!-- run: after="rank 3" times=2 -->  nor before it has been seen twice
    <!-- run: after="rank 2 & rank 3" -->  nor before both have
    <!-- run: job=long -->            not before that job's agent can be asked
    <!-- run: listens=29400 -->       not before somebody listens on this port
    <!-- run: ctrl_c=two -->          first, somebody types Ctrl-C in that terminal
    <!-- run: terminal=two ctrl_c=end -->      at the end of the document, in this one
    <!-- run: nodes="fit fit spare" -->     not before the supervisor's nodes are in these states
    <!-- run: deeds="beta round 2 runs" --> nor before this stands in an outcome of what was done about that node

Ports 29400 and 29800, which the documents use throughout, are replaced by ones that are free, in files too.

What one machine cannot run stands in NOT_RUN, with the reason.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from kit import ROOT
from kit.ports import another_port
from kit.servers import slurm as slurm_infra

PATIENCE_S = 60.0
PORTS = ("29400", "29800")
LISTENERS = ("/proc/net/tcp", "/proc/net/tcp6")

NOT_RUN: dict[tuple[str, str], str] = {
    ("README.md", "pip install"): "needs a package index; tests/e2e/test_wheel.py installs the wheel",
    ("docs/how-to/from-torchrun.md", "holdfast run --nnodes 2"): "needs two hosts",
    ("docs/how-to/diagnose.md", "HOLDFAST_ASK_KEY"): "needs a model; tests/e2e/test_second_opinion.py has a server",
    ("docs/how-to/frameworks.md", "pip install"): "needs a package index; tests/e2e/test_wrap.py runs the script",
    ("docs/how-to/frameworks.md", "holdfast wrap"): "needs the tools; test_wrap.py and test_deepspeed.py run two",
    ("docs/how-to/frameworks.md", "NGPU=8"): "needs GPUs; tests/e2e/test_torchtitan.py runs its lines on CPUs",
    ("docs/how-to/frameworks.md", "holdfast run"): "needs GPUs; tests/e2e/test_torchtitan.py runs its trainer on CPUs",
    ("docs/how-to/ray.md", "pip install"): "needs a package index and a Ray cluster; tests/e2e/test_ray.py has one",
    ("docs/how-to/ray.md", "holdfast diagnose"): "tests/e2e/test_ray.py has such a log",
    ("docs/how-to/from-ft-launcher.md", "pip install"): "needs a package index; tests/e2e/test_wheel.py installs the extra",
    ("docs/how-to/several-nodes.md", "holdfast run --nnodes 4"): "needs four hosts",
    ("docs/how-to/several-nodes.md", "holdfast run --nnodes 2:4"): "needs several hosts",
    ("docs/how-to/spares.md", "holdfast run --nnodes 4"): "needs five hosts",
    ("docs/how-to/spares.md", "holdfast exclude"): "needs several hosts; tests/e2e/test_several_nodes.py does it on one",
    ("docs/how-to/spares.md", "holdfast readmit"): "needs several hosts; tests/e2e/test_several_nodes.py does it on one",
    ("docs/how-to/health.md", "holdfast check --pairs"): "needs 32 hosts; tests/e2e/test_pairs_of_nodes.py has four nodes",
    ("docs/how-to/health.md", "holdfast health-service"): "runs until it is stopped; tests/e2e/test_health_service.py",
    ("docs/how-to/in-place.md", "pip install"): "needs a package index; tests/e2e/test_in_place_trainers.py runs the script",
    ("docs/how-to/callbacks.md", "pip install"): "needs a package index; tests/e2e/test_callbacks.py runs the scripts",
    ("docs/how-to/placement.md", "NVRX_GPUS_PER_NUMA=4"): "needs numactl; tests/e2e/test_placed_workers.py has one",
    ("docs/how-to/kubernetes.md", "kubectl"): "needs Kubernetes; tests/unit/test_kubernetes_examples.py checks the manifests",
    ("docs/how-to/kubernetes.md", "read="): "for kubectl; tests/unit/test_deploy.py compares it with the manifests",
    ("docs/how-to/carry-on.md", "holdfast run"): "needs eight hosts; tests/e2e/test_min_healthy.py does it on one",
    ("docs/how-to/from-google-supervisor.md", "GCP_HOST_DAEMON_PORT=60010 holdfast run"): "tests/e2e/test_host_daemon.py",
    ("docs/how-to/from-google-supervisor.md", "GCP_HOST_DAEMON_PORT=60010"): "tests/e2e/test_torchrun_reports.py runs both",
    ("docs/how-to/from-google-supervisor.md", "python3.11"): "needs a package index; tests/e2e/test_older_python.py runs it",
    ("docs/how-to/from-google-supervisor.md", "python3.10"): "needs a package index; tests/e2e/test_client_wheel.py",
    ("docs/how-to/from-google-supervisor.md", "holdfast supervisor --listen 10"): "tests/e2e/test_google_sensor.py",
    ("docs/how-to/from-google-supervisor.md", "holdfast daemon"): "runs until it is stopped; tests/e2e/test_host_daemon.py",
    ("docs/how-to/dashboard.md", "ssh"): "needs two hosts; tests/e2e/test_dashboard.py opens the page",
    ("docs/how-to/dashboard.md", "holdfast supervisor"): "runs until it is stopped; tests/security/test_https.py",
    ("docs/how-to/repair-nodes.md", "holdfast"): "needs hosts to repair; tests/e2e/test_repairs.py has one",
    ("docs/how-to/systemd.md", "python3 -m venv"): "needs systemd and root; tests/unit/test_deploy.py looks at the units",
    ("docs/how-to/systemd.md", "cp deploy/systemd/holdfast-agent@.service"): "needs systemd and root; likewise",
    ("docs/how-to/etcd.md", "pip install"): "needs a package index",
    ("docs/how-to/etcd.md", "holdfast run"): "needs etcd; tests/e2e/test_etcd.py has one",
    ("docs/how-to/etcd.md", "make example-etcd"): "tests/e2e/test_etcd.py runs it",
    ("docs/how-to/etcd.md", "etcdctl"): "needs etcd; tests/e2e/test_etcd.py has one",
    ("docs/how-to/stores.md", "holdfast run"): "needs two hosts; tests/e2e/test_plugged_in.py has such a package",
    ("docs/how-to/slurm.md", "holdfast token --write fleet.token"): "tests/e2e/test_slurm_supervisor.py does it",
    ("docs/how-to/slurm.md", "sbatch spare.sbatch"): "tests/e2e/test_slurm_supervisor.py does it, with that file",
    ("docs/how-to/jax.md", "holdfast run"): "needs two hosts; tests/e2e/test_jax.py runs its script",
    (
        "docs/how-to/torchrun-plugin.md",
        "torchrun --nnodes 2:4",
    ): "needs several hosts; tests/e2e/test_torchrun_plugin.py has one",
    ("docs/explanation/security.md", "openssl"): "needs OpenSSL's command; tests/security makes its own certificates",
    ("docs/how-to/metrics-and-alerts.md", "curl"): "needs a supervisor that runs; tests/e2e/test_http_api.py asks it",
    ("docs/how-to/metrics-and-alerts.md", "holdfast report"): "needs a collector; tests/e2e/test_otlp.py has one",
    ("docs/how-to/webhooks.md", "holdfast supervisor"): "runs until it is stopped; tests/e2e/test_webhooks.py",
    ("docs/tutorial/first-job.md", "pip install"): "needs a package index",
}
"""(document, how the command begins) → why it is not run here."""

DOCUMENTS = sorted(str(path.relative_to(ROOT)) for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"((?:^<!-- [^\n]* -->\n)*)^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
VOLATILE = (
    (r"\x1b\[[0-9;]*m", ""),
    (r"\d{4}-\d\d-\d\d[ _]\d\d:\d\d:\d\d(\.\d+)?( UTC)?", "TIME"),
    (r"(\d+ min )?\d+(\.\d+)?(e-\d+)? (s|ms|min)\b", "SPAN"),
    (r"\b\d+\.\d%", "PART"),
    (r"\b\d{3,}\b", "NUMBER"),
    (r"[-=]{4,}", "----"),
    (r"\s+", " "),
)


class Block(NamedTuple):
    """One terminal's worth of commands, and what must be seen of them."""

    line: int
    commands: list[str]
    shown: list[str]
    wishes: dict[str, str]

    def __str__(self) -> str:
        return f"line {self.line}: {self.commands[0]}"


class Document(NamedTuple):
    """What stands in the fenced blocks of one document."""

    name: str
    files: dict[str, str]
    blocks: list[Block]


def read(name: str) -> Document:
    """The blocks of a document, by what they are for."""
    text, document = (ROOT / name).read_text(), Document(name, {}, [])
    for found in BLOCK.finditer(text):
        comments, language, body = found.groups()
        line = text.count("\n", 0, found.start(2)) + 1
        for example in re.findall(r"<!-- example: (\S+) -->", comments):
            document.files[example] = (ROOT / "examples" / example).read_text()
        for file in re.findall(r"<!-- file: (\S+) -->", comments):
            document.files[file] = body
        if language == "console":
            wishes = {key: quoted or plain for key, quoted, plain in re.findall(r'(\w+)=(?:"([^"]*)"|(\w+))', comments)}
            document.blocks.append(Block(line, *_typed(body), wishes))
    return document


def _typed(body: str) -> tuple[list[str], list[str]]:
    commands: list[str] = []
    shown: list[str] = []
    for line in body.splitlines():
        if commands and commands[-1].endswith("\\") and not shown:
            commands[-1] += "\n" + line
        elif line.startswith("$ "):
            commands.append(line[2:])
        elif line.strip():
            shown.append(line)
    return commands, shown


def why_not(document: str, block: Block) -> str | None:
    """The reason for which a block is not run. None: it is."""
    return next(
        (why for (name, start), why in NOT_RUN.items() if name == document and block.commands[0].startswith(start)), None
    )


class Terminal:
    """A shell that commands are typed into."""

    def __init__(self, folder: Path, env: dict[str, str], name: str, ports: dict[str, str]) -> None:
        self.seen = folder.parent / f"terminal-{name}"
        with self.seen.open("wb") as out:
            self.shell = subprocess.Popen(
                ["bash"], cwd=folder, env=env, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, text=True
            )
        self.typed: list[Block] = []
        self.folder = folder
        self.ports = ports
        self.checked = 0

    def type(self, block: Block) -> None:
        """Type the block's commands; each is followed by a line that tells its exit code."""
        assert self.shell.stdin is not None
        for command in block.commands:
            self.shell.stdin.write(f"{{ {with_ports(command, self.ports)}\n}} </dev/null\nprintf '\\n<<%s>>\\n' $?\n")
        self.shell.stdin.flush()
        self.typed.append(block)

    def interrupt(self) -> None:
        """Ctrl-C."""
        children = Path(f"/proc/{self.shell.pid}/task/{self.shell.pid}/children").read_text().split()
        os.kill(int(children[-1]), signal.SIGINT)

    def check(self) -> None:
        """Wait for the end of all that was typed, and compare."""
        total = sum(len(block.commands) for block in self.typed)
        deadline = time.monotonic() + PATIENCE_S
        while len(pieces := re.split(r"^<<(\d+)>>$", self.text, flags=re.MULTILINE)) // 2 < total:
            assert time.monotonic() < deadline, f"still waiting for {self.typed[-1]}\n{self.text}"
            assert self.shell.poll() is None, self.text
            time.sleep(0.02)
        outputs, codes = pieces[:-1:2], [int(code) for code in pieces[1::2]]
        at = 0
        for number, block in enumerate(self.typed):
            if number >= self.checked:
                compare(block, "".join(outputs[at : at + len(block.commands)]), codes[at : at + len(block.commands)])
            at += len(block.commands)
        self.checked = len(self.typed)

    @property
    def text(self) -> str:
        """What has been seen so far, as if on the host `node0` in the home `/home/you`."""
        text = with_ports(self.seen.read_text(errors="replace"), {free: shown for shown, free in self.ports.items()})
        text = text.replace(str(self.folder), "/home/you")
        return re.sub(rf"\b{re.escape(socket.gethostname())}\b", "node0", text)

    def close(self) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.close()
        self.shell.terminate()
        self.shell.wait()


def with_ports(text: str, ports: dict[str, str]) -> str:
    """`text` with each port replaced."""
    for port, other in ports.items():
        text = text.replace(port, other)
    return text


def compare(block: Block, output: str, codes: list[int]) -> None:
    """Fail where what came is not what the document shows."""
    wanted = [0] * (len(codes) - 1) + [int(block.wishes.get("exit", "0"))]
    assert codes == wanted, f"{block} ended with {codes}, not {wanted}\n{output}"
    shown = [line for line in block.shown if line.strip() != "…"]
    came = [part for line in output.splitlines() if line.strip() for part in apart(steady(line), shown)]
    patterns = [_pattern(line) for line in shown]
    for pattern, line in zip(patterns, shown):
        assert any(pattern.fullmatch(seen) for seen in came), f"{block}: this did not come: {line}\n---\n{output}"
    if "…" not in [line.strip() for line in block.shown]:
        more = [seen for seen in came if not any(pattern.fullmatch(seen) for pattern in patterns)]
        assert not more, f"{block}: the document does not show {more}"


def steady(line: str) -> str:
    """A line without what differs from run to run."""
    for volatile, instead in VOLATILE:
        line = re.sub(volatile, instead, line)
    return line.strip()


def apart(came: str, shown: list[str]) -> list[str]:
    """The lines in one line of a terminal that several ranks share.

    Workers run under `python -u`, as torchrun's do: a line and its end are two writes, and another rank's may come between.
    """
    whole = "|".join(re.escape(steady(line)) for line in shown if "…" not in line)
    return re.findall(whole, came) if whole and re.fullmatch(f"(?:{whole})+", came) else [came]


def _pattern(line: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in steady(line).split("…")))


@pytest.fixture
def terminals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Terminal]]:
    opened: dict[str, Terminal] = {}
    yield opened
    for terminal in opened.values():
        terminal.close()


@pytest.fixture
def free_ports(free_port: int) -> dict[str, str]:
    """For each port of the documents."""
    return dict(zip(PORTS, map(str, (free_port, another_port(free_port)))))


@pytest.fixture
def environment(tmp_path: Path, test_mark: str) -> dict[str, str]:
    """A newcomer's: a home of their own, `holdfast` and `python` on the path, nothing else set."""
    bin_dir = tmp_path / "bin"
    bin_dir.mkdir()
    for name, words in {"holdfast": "-m holdfast", "python": ""}.items():
        (bin_dir / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        (bin_dir / name).chmod(0o755)
    path = f"{bin_dir}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "LANG": "C.UTF-8", "HOLDFAST_TEST_MARK": test_mark, "USER": "you"}


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """What commands need in their environment to find a Slurm of the tests' own."""
    if reason := slurm_infra.why_not():
        pytest.skip(reason)
    # Six nodes, so that no command waits for those of the one before, which Slurm frees a moment after its end.
    started = slurm_infra.Slurm(tmp_path_factory.mktemp("slurm") / "cluster", size=6)
    yield {"SLURM_CONF": started.env["SLURM_CONF"]}
    started.stop()


@pytest.mark.parametrize("name", [name for name in DOCUMENTS if read(name).blocks])
def test_the_commands_do_what_the_document_says(name, tmp_path, environment, terminals, free_ports, request):
    document = read(name)
    if any(command.startswith(("srun", "sbatch")) for block in document.blocks for command in block.commands):
        environment |= request.getfixturevalue("slurm")
    folder = tmp_path / "home"
    folder.mkdir()
    for file, text in document.files.items():
        (folder / file).write_text(with_ports(text, free_ports))
    if any("import torch" in text for text in document.files.values()):
        pytest.importorskip("torch")
    blocks = [block for block in document.blocks if why_not(name, block) is None]
    for block in blocks:
        label = block.wishes.get("terminal", "main")
        if label not in terminals:
            terminals[label] = Terminal(folder, environment | {"HOME": str(folder)}, label, free_ports)
        if (interrupted := block.wishes.get("ctrl_c", "end")) != "end":
            terminals[interrupted].interrupt()
        if port := block.wishes.get("listens"):
            _await_listener(int(free_ports[port]))
        if job := block.wishes.get("job"):
            _await_agent(folder, job)
        for text in filter(None, block.wishes.get("after", "").split(" & ")):
            _await(text, int(block.wishes.get("times", "1")), terminals)
        _await_supervisor(block.wishes, environment | {"HOME": str(folder)})
        terminals[label].type(block)
        if label == "main":
            terminals[label].check()
    for label, terminal in terminals.items():
        if label != "main":
            if terminal.typed[-1].wishes.get("ctrl_c") == "end":
                terminal.interrupt()
            terminal.check()


def _await(text: str, times: int, terminals: dict[str, Terminal]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while sum(terminal.text.count(text) for terminal in terminals.values()) < times:
        assert time.monotonic() < deadline, f"nobody says {text!r}:\n" + "\n".join(t.text for t in terminals.values())
        time.sleep(0.02)


def _await_agent(home: Path, job: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not list((home / ".local/state/holdfast/jobs").glob(f"{job}/agent-*.sock")):
        assert time.monotonic() < deadline, f"no agent of job {job}"
        time.sleep(0.02)


def _await_supervisor(wishes: dict[str, str], env: dict[str, str]) -> None:
    """Until its nodes are as they shall be, and what was done about one has come to that."""

    def told(*words: str) -> Any:
        done = subprocess.run(["holdfast", *words, "--json"], env=env, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    deadline = time.monotonic() + PATIENCE_S
    states = wishes.get("nodes", "").split()
    node, _, outcome = wishes.get("deeds", "").partition(" ")
    while states and sorted(one["state"] for one in told("nodes")) != sorted(states):
        assert time.monotonic() < deadline, told("nodes")
    while node and not any(outcome in one["outcome"] for one in told("why", node)["deeds"]):
        assert time.monotonic() < deadline, told("why", node)


def _await_listener(port: int) -> None:
    wanted = f":{port:04X} "
    deadline = time.monotonic() + PATIENCE_S
    while not any(
        wanted in line and line.split()[3] == "0A" for table in LISTENERS for line in Path(table).read_text().splitlines()
    ):
        assert time.monotonic() < deadline, f"nobody listens on port {port}"
        time.sleep(0.02)


@pytest.mark.parametrize(("document", "command"), NOT_RUN, ids=[": ".join(key) for key in NOT_RUN])
def test_what_is_not_run_is_still_there(document, command):
    """Skipped, so that the reason is seen at the end of every run of the tests."""
    assert any(block.commands[0].startswith(command) for block in read(document).blocks), "take it off NOT_RUN"
    pytest.skip(f"not run here: {NOT_RUN[document, command]}")


@pytest.mark.parametrize("name", DOCUMENTS)
def test_commands_stand_in_console_blocks_only(name):
    """Otherwise nobody would try them."""
    text = (ROOT / name).read_text()
    for found in BLOCK.finditer(text):
        comments, language, body = found.groups()
        assert language, f"{name}: a block without a language: {body[:60]!r}"
        if language != "console" and "<!-- file:" not in comments:
            assert not re.search(r"^\$ ", body, re.MULTILINE), f"{name}: a command in a {language} block: {body[:60]!r}"


def test_a_document_that_is_wrong_is_seen():
    block = Block(1, ["holdfast why"], ["rank 1 … exited with code 1", "took 0.3 s"], {})
    compare(block, "rank 1 (local 1) on vm exited with code 1\ntook 12 s\n", [0])
    for output, codes in (("took 1 s\n", [0]), ("rank 1 on vm exited with code 1\ntook 1 s\nmore\n", [0]), ("", [1])):
        with pytest.raises(AssertionError):
            compare(block, output, codes)


def test_lines_of_two_ranks_in_one_are_two():
    shown = ["rank 2 starts", "rank 3 starts", "…"]
    block = Block(1, ["true"], shown, {})
    compare(block, "rank 3 starts" + "rank 2 starts\n\n", [0])
    for output in ("rank 3 starts, rank 2 starts\n", "rank 3 starts" * 2 + "\n"):
        with pytest.raises(AssertionError, match="did not come"):
            compare(block, output, [0])
