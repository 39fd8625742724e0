"""The demo: a training job loses a rank, then a whole node, and ends as if nothing had happened; then another loses a rank, and
who has not failed keeps its process.

    make demo          (or: python examples/demo.py)

Two nodes are played by two agents on this machine, each with two ranks of examples/train.py (without PyTorch:
examples/train_plain.py). The job runs twice: once undisturbed, and once with a rank and then a node killed. Both must end
with the same loss. With PyTorch, examples/in_place_ddp.py follows: it keeps its processes, and ends with the same loss, too.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import IO

HERE = Path(__file__).parent
PATIENCE_S = 90.0
"""How long to wait for any one thing to happen before the demo counts as failed."""


class Broken(Exception):
    """The demo did not go as promised."""


class Job:
    """One job: its agents, each started as a user would start it on a node of its own."""

    def __init__(self, name: str, folder: Path, script: list[str]) -> None:
        self.name, self.folder, self.script = name, folder, script
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.agents: dict[str, subprocess.Popen[str]] = {}
        self.lines: list[str] = []
        """What the ranks have printed so far."""
        self.begun = time.monotonic()

    def start_agent(self, node: str) -> None:
        """`holdfast run` on `node`."""
        flags = ["--nnodes", "2", "--nproc-per-node", "2", "--max-restarts", "3", "--node-name", node, "--rdzv-id", self.name]
        flags += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self.port}", "--redirects", "2"]
        command = [sys.executable, "-m", "holdfast", "run", *flags, *self.script]
        env = os.environ | {"HOLDFAST_STATE_DIR": str(self.folder), "OMP_NUM_THREADS": "1"}
        if not self.agents:
            shown = [word.removeprefix(f"{HERE.parent}/") for word in command[3:]]
            tell(f"     $ holdfast {' '.join(shown)}\n       (and the same for the other node)\n")
        pipe = subprocess.PIPE
        agent = subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True)
        self.agents[node] = agent
        threading.Thread(target=self._listen, args=(node, agent.stdout, self.lines), daemon=True).start()
        threading.Thread(target=self._listen, args=(node, agent.stderr, []), daemon=True).start()

    def start(self) -> None:
        """Both nodes; the first hosts the rendezvous, so that the second can be killed."""
        self.start_agent("node0")
        wait_until(self._is_hosted, "the first node to listen")
        self.start_agent("node1")

    def _is_hosted(self) -> bool:
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                return True
        return False

    def _listen(self, node: str, stream: IO[str], heard: list[str]) -> None:
        for line in stream:
            tell(f"     {node} │ {line.rstrip()}")
            heard.append(line.rstrip())

    def wait_for(self, pattern: str, after: int = 0) -> re.Match[str]:
        """Until a rank prints something that matches, later than line `after`."""

        def found() -> re.Match[str] | None:
            return next((match for line in self.lines[after:] if (match := re.search(pattern, line))), None)

        return wait_until(found, f"{pattern!r} in the ranks' output", self)

    def pid_of(self, rank: int) -> tuple[int, str]:
        """Where `rank` runs now, and its pid: from Holdfast's own record."""
        starts = [event for event in self.events("WorkerStarted") if event["rank"] == rank]
        newest = max(starts, key=lambda event: event["at_unix"])
        return newest["pid"], newest["node"]

    def events(self, name: str) -> list[dict]:
        """What Holdfast has recorded on all nodes so far, of one kind."""
        files = (self.folder / "jobs" / self.name).glob("events-*.jsonl")
        lines = [line for file in files for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def end(self) -> str:
        """Wait for the agents that are left; returns the final loss."""
        for node, agent in self.agents.items():
            try:
                code = agent.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                raise Broken(f"{node}'s agent is still running") from None
            if code != 0:
                raise Broken(f"{node}'s agent ended with {code}")
        return self.wait_for(r"finished: final loss (\S+)")[1]

    def clear(self) -> None:
        """Stop whatever is left. Each agent takes its workers with it."""
        for agent in self.agents.values():
            if agent.poll() is None:
                agent.terminate()
        for agent in self.agents.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                agent.wait(10)
            agent.kill()


def wait_until(predicate, what: str, job: Job | None = None):
    """The first true value of `predicate()`."""
    deadline = time.monotonic() + PATIENCE_S
    while not (seen := predicate()):
        if job and all(agent.poll() is not None for agent in job.agents.values()):
            raise Broken(f"the job ended while waiting for {what}")
        if time.monotonic() > deadline:
            raise Broken(f"waited {PATIENCE_S:.0f} s for {what}")
        time.sleep(0.02)
    return seen


def tell(text: str) -> None:
    print(text, flush=True)


def undisturbed(job: Job) -> str:
    """Run to the end; returns the final loss."""
    job.start()
    loss = job.end()
    tell(f"\n     → final loss {loss}, in {time.monotonic() - job.begun:.0f} s\n")
    return loss


def disturbed(job: Job, save_every: int) -> str:
    """Kill a rank, then a node; returns the final loss."""
    job.start()
    job.wait_for(rf"^step {save_every} loss")

    pid, node = job.pid_of(rank=1)
    heard = len(job.lines)
    tell(f"\n  ✂  kill -9 {pid}: rank 1, on {node}, with steps since the last checkpoint not saved\n")
    os.kill(pid, signal.SIGKILL)
    resumed = job.wait_for(r"starting at step (\d+)", after=heard)[1]
    tell(f"\n  →  Holdfast has started all ranks again; they go on from step {resumed}\n")

    job.wait_for(rf"^step {int(resumed) + save_every} loss", after=heard)
    heard = len(job.lines)
    lost = job.agents.pop("node1")
    agent = max(event["pid"] for event in job.events("AgentStarted") if event["node"] == "node1")
    tell(f"\n  ✂  kill -9 {lost.pid} {agent}: node1's agent and its guardian, as if the node had lost power\n")
    for pid in (lost.pid, agent):
        os.kill(pid, signal.SIGKILL)
    tell("  →  node2 is started in its place\n")
    job.start_agent("node2")
    resumed = job.wait_for(r"starting at step (\d+)", after=heard)[1]
    tell(f"\n  →  node2 has joined; all ranks go on from step {resumed}\n")
    lost.wait()

    loss = job.end()
    tell(f"\n     → final loss {loss}, in {time.monotonic() - job.begun:.0f} s\n")
    return loss


def in_place(folder: Path) -> None:
    """Two ranks, undisturbed and with one killed: the other keeps its process, and the loss is the same."""
    script = "in_place_ddp.py"
    tell(f"\n  4. In place: who has not failed keeps its process and its model: examples/{script}\n")
    said = {}
    for flags in ([], ["--fail-at", "10"]):
        words = ["run", "--nproc-per-node", "2", "--max-restarts", "1"]
        tell(f"     $ holdfast {' '.join([*words, f'examples/{script}', *flags])}\n")
        command = [sys.executable, "-m", "holdfast", *words, str(HERE / script), *flags]
        env, null = os.environ | {"HOLDFAST_STATE_DIR": str(folder), "OMP_NUM_THREADS": "1"}, subprocess.DEVNULL
        pipe, out = subprocess.PIPE, subprocess.STDOUT
        done = subprocess.run(command, env=env, stdin=null, stdout=pipe, stderr=out, text=True, timeout=PATIENCE_S)
        tell("".join(f"     {line}\n" for line in done.stdout.splitlines()))
        if done.returncode != 0:
            raise Broken(f"{script} ended with {done.returncode}")
        said[len(flags)] = done.stdout
    first, second = (set(re.findall(rf"life {life} of process (\d+)", said[2])) for life in (0, 1))
    if not (kept := first & second):
        raise Broken("no process was kept")
    if len({re.search(r"finished: .*", one)[0] for one in said.values()}) > 1:
        raise Broken("the losses differ")
    tell(f"  →  process {kept.pop()} is rank 0 before the failure and after it; the loss is the same")


def show_timeline(job: Job) -> None:
    """`holdfast report`, as a user sees it."""
    command = [sys.executable, "-m", "holdfast", "report", job.name]
    done = subprocess.run(command, env=os.environ | {"HOLDFAST_STATE_DIR": str(job.folder)}, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise Broken(f"holdfast report ended with {done.returncode}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plain", action="store_true", help="the framework-free training, even where PyTorch is installed")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--step-s", type=float, default=0.05, help="seconds that each step takes at least")
    parser.add_argument("--keep", action="store_true", help="keep the folder with checkpoints, logs and events")
    options = parser.parse_args()

    plain = options.plain
    if not plain and not importlib.util.find_spec("torch"):
        tell("PyTorch is not installed here, and could not be had: running the framework-free example instead.\n")
        plain = True
    script = "train_plain.py" if plain else "train.py"
    save_every = max(1, options.steps // 10)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    begun = time.monotonic()
    jobs = []

    def job(name: str) -> Job:
        what = [str(HERE / script), "--checkpoint", str(folder / f"{name}.checkpoint")]
        jobs.append(Job(name, folder, [*what, "--steps", str(options.steps), "--save-every", str(save_every), "--step-s"]))
        jobs[-1].script.append(str(options.step_s))
        return jobs[-1]

    try:
        tell(f"  Two nodes × two ranks, played on this machine, train together: examples/{script}\n")
        tell("  1. Undisturbed, for comparison\n")
        wanted = undisturbed(job("undisturbed"))
        tell("  2. The same again; this time a rank is killed, and then a whole node\n")
        got = disturbed(job("disturbed"), save_every)
        tell("  3. What happened, from Holdfast's own record: holdfast report\n")
        show_timeline(jobs[-1])
        if abs(float(got) - float(wanted)) > 1e-9:
            raise Broken(f"the final loss is {got}, but undisturbed it is {wanted}")
        if not plain:
            in_place(folder)
        took_s = time.monotonic() - begun
        tell(f"\n  Done in {took_s:.0f} s. One rank and one node were lost; the final loss is the same: {got}.")
        return 0
    except Broken as broken:
        tell(f"\n  The demo failed: {broken}. Logs and events are in {folder}")
        options.keep = True
        return 1
    finally:
        for started in jobs:
            started.clear()
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    raise SystemExit(main())
