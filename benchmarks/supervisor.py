"""How soon does the supervisor act, whatever happens to whom, and what does it cost to hear thousands of hosts?

Beside it Google's own sensor, controller, actuator and daemons on loopback, with the timings of its recipes, where
`make google` has put them: once, since a fault takes up to a minute there. Else the figures of an earlier measurement stand
in the notes.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from footprint import cpu_ns, launcher_processes, memory_kb
from harness import HOLDFAST, Bench, Launch, Row, clean_environment, command, free_port, launch, node_name, worker
from host_reports import THEIRS
from lost_node import everything, wait_until_served

LEASE_S = 5.0
"""The supervisor's default."""

POLL_S, TIMEOUT_S, PATIENCE_S = 15, 30, 75.0
"""Of Google's recipes; and the most that any of the three faults takes there is 60 s."""

MEASURED = {"failed": 18.4, "silent": 48.4, "dead": 29.3}
"""Google's seconds in an earlier measurement, on two cores like these, with the same timings."""

MANY, AT_ONCE, BEATING_S = 4096, 64, 10
REACH_PERCENT, REACH_MB = 30, 300


class Watched:
    """A supervisor, each of whose lines is kept with the moment at which it came."""

    def __init__(self, job: Launch, lease_s: float = LEASE_S) -> None:
        self.port, self.state = free_port(), job.folder / "fleet"
        holdfast = command(HOLDFAST)[0]
        argv = [holdfast, "supervisor", "--listen", f"127.0.0.1:{self.port}", "--state", str(self.state)]
        argv += ["--lease", str(lease_s)]
        env = clean_environment() | {"HOLDFAST_STATE_DIR": str(job.folder / "state")}
        self.asks = [holdfast, "nodes", "--json", "--state", str(self.state)]
        self.env, self.lines = env, list[tuple[float, str]]()
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.ready_at = time.monotonic() + lease_s  # before, it only listens
        threading.Thread(target=self._hear, daemon=True).start()

    def _hear(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append((time.monotonic(), line))

    def settled(self, **states: str) -> None:
        """Until it knows these nodes as being so, and acts."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            told = subprocess.run(self.asks, env=self.env, capture_output=True, text=True, timeout=30)
            if told.returncode == 0 and {one["name"]: one["state"] for one in json.loads(told.stdout)} == states:
                time.sleep(max(0.3, self.ready_at + 0.3 - time.monotonic()))
                return
            time.sleep(0.05)
        raise RuntimeError(f"the supervisor does not know {states}: {told.stdout}{told.stderr}")

    def acted(self, *names: str, after: float) -> float:
        """Milliseconds from `after` until the last of these nodes has had a decision."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            lines = [(at, line) for at, line in list(self.lines) if at > after]
            first = [next((at for at, line in lines if f"supervisor: {name}: " in line), 0) for name in names]
            if all(first):
                return 1000 * (max(first) - after)
            time.sleep(0.002)
        raise RuntimeError(f"nothing was decided about {names}: {self.lines}")

    def close(self) -> None:
        """End it."""
        self.process.kill()
        self.process.wait()


Supervised = tuple[Launch, Watched, list[int]]


@contextlib.contextmanager
def supervised(nodes: int, *, least: int | None = None, lease_s: float = LEASE_S) -> Iterator[Supervised]:
    """A supervisor and the agents of one job, each with a worker: the job, the supervisor, and the workers' pids by rank."""
    with launch() as job:
        watched, port = Watched(job, lease_s), free_port()
        try:
            for number in range(nodes):
                flags = ["--nnodes", f"{least or nodes}:{nodes}", "--nproc-per-node", "1", "--rdzv-backend", "c10d"]
                flags += ["--rdzv-id", "bench", "--rdzv-endpoint", f"localhost:{port}", *node_name(HOLDFAST, number)]
                flags += ["--max-restarts", "9", "--supervisor", f"127.0.0.1:{watched.port}"]
                job.start([*command(HOLDFAST), *flags, worker("stay")])
                if not number:  # the coordinator is there, and is not among those that die
                    wait_until_served(port)
            watched.settled(**{f"node{number}": "fit" for number in range(nodes)})
            notes = sorted(job.notes("first"), key=lambda note: note.at)
            pids = {note.rank: note.pid for note in notes}
            yield job, watched, [pids[rank] for rank in sorted(pids)]
        finally:
            watched.close()


def worker_dies() -> float:
    """A rank is killed on a node that is well → its trouble has a decision."""
    with supervised(1, lease_s=1.0) as (_, watched, pids):
        died_at = time.monotonic()
        os.kill(pids[0], signal.SIGKILL)
        return watched.acted("node0", after=died_at)


def hosts_die(count: int) -> float:
    """`count` nodes lose their power at once → the last of them has a decision."""
    nodes = count + 1
    with supervised(nodes, least=1) as (job, watched, _):
        victims = [process.pid for process in job.processes[1:]]
        every = [pid for victim in victims for pid in everything(victim)]
        died_at = time.monotonic()
        try:
            for pid in every:
                os.kill(pid, signal.SIGSTOP)
            return watched.acted(*(f"node{number}" for number in range(1, nodes)), after=died_at)
        finally:
            for pid in every:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def worker_dies_beside_a_hung_host() -> float:
    """One host hangs with its links open; a rank of another job dies at once → that has a decision."""
    with supervised(1, lease_s=1.0) as (job, watched, pids):
        where = ["--rdzv-id", "other", "--rdzv-endpoint", f"localhost:{free_port()}", "--rdzv-backend", "c10d", "--nnodes", "1"]
        flags = [*where, "--node-name", "hung", "--supervisor", f"127.0.0.1:{watched.port}"]
        hung = job.start([*command(HOLDFAST), *flags, worker("stay")])
        watched.settled(node0="fit", hung="fit")
        every = everything(hung)
        try:
            for pid in every:
                os.kill(pid, signal.SIGSTOP)
            watched.acted("hung", after=time.monotonic())  # it has been given up, and is being asked in vain
            died_at = time.monotonic()
            os.kill(pids[0], signal.SIGKILL)
            return watched.acted("node0", after=died_at)
        finally:
            for pid in every:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


def crowd(count: int, dying: int, seconds: int) -> dict[str, float]:
    """What the supervisor takes while `count` hosts beat, and milliseconds until `dying` of them, silent at once, are acted
    on."""
    with launch() as job:
        watched = Watched(job)
        argv = [sys.executable, worker("fleet_crowd"), str(watched.port), str(count)]
        holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment())
        assert holder.stdin is not None and holder.stdout is not None

        def ask(what: str) -> None:
            holder.stdin.write(f"{what}\n")
            holder.stdin.flush()

        def answer() -> dict[str, float]:
            if not (line := holder.stdout.readline()):
                raise RuntimeError(f"the hosts went away: {watched.lines[-3:]}")
            return json.loads(line)

        try:
            ask("connect")
            answer()
            time.sleep(max(0.0, watched.ready_at - time.monotonic()))
            ask(f"beat {seconds}")
            answer()
            processes = launcher_processes(watched.process.pid, set())
            before, begun = sum(map(cpu_ns, processes)), time.monotonic()
            time.sleep(seconds - 1.0)
            spent, passed = sum(map(cpu_ns, processes)) - before, time.monotonic() - begun
            rss = sum(memory_kb(pid, "Rss") for pid in processes) / 1024
            if (took_s := answer()["took_s"]) > 1.1 * seconds + 1:
                raise RuntimeError(f"the hosts took {took_s:.1f} s for {seconds} s of beats")
            ask(f"die {dying}")
            died = answer()
            if died["orders"] != dying:
                raise RuntimeError(f"of {dying} hosts that died {died['orders']:.0f} were acted on")
            return {"cpu": 100 * spent / 1e9 / passed, "rss": rss, "died": 1000 * (died["last_at"] - died["died_at"])}
        finally:
            holder.kill()
            holder.wait()
            watched.close()


def theirs(bench: Bench) -> tuple[dict[str, float | None], str]:
    """Google's seconds for each fault, and where they are from."""
    if bench.quick or not THEIRS.exists():
        return dict(MEASURED), "measured before"
    ports = free_port()
    argv = [str(THEIRS), worker("google_stack"), str(POLL_S), str(TIMEOUT_S), str(PATIENCE_S), str(ports)]
    try:
        done = subprocess.run(argv, env=clean_environment(), capture_output=True, text=True, timeout=3 * PATIENCE_S, check=True)
        found: dict[str, float | None] = json.loads(done.stdout)
        return found, "measured here, once"
    except (subprocess.SubprocessError, ValueError):
        return dict(MEASURED), "measured before; it did not start here"


def run(bench: Bench) -> list[Row]:
    """Seven rows."""
    google, origin = theirs(bench)

    def row(what: str, samples: list[float], reach_ms: float, fault: str, more: str = "") -> Row:
        took_s = google.get(fault)
        note = more or f"Google's: {f'{took_s:.1f} s' if took_s else f'not within {PATIENCE_S:g} s'}, {origin}"
        seen = {HOLDFAST: samples} | ({"google": [1000 * took_s]} if took_s and not more else {})
        reach = f"≤ {reach_ms / 1000:g} s" if reach_ms >= 1000 else f"≤ {reach_ms:g} ms"
        return Row(what, "ms", seen, reach, sorted(samples)[len(samples) // 2] <= reach_ms, note)

    dead_ms = 1000 * (LEASE_S + 1)
    died = [worker_dies() for _ in range(bench.times(5))]
    beside = [worker_dies_beside_a_hung_host() for _ in range(bench.times(3))]
    several = 2 if bench.quick else 3
    held = crowd(64, 8, 3) if bench.quick else crowd(MANY, AT_ONCE, BEATING_S)
    count, dying = (64, 8) if bench.quick else (MANY, AT_ONCE)
    each = "Google's: 14 s more for each"
    rows = [
        row("a rank fails on a live host → the supervisor acts", died, 50, "failed"),
        row("a rank is killed and says nothing → the supervisor acts", died, 100, "silent"),
        row("a host dies → the supervisor acts", [hosts_die(1) for _ in range(bench.times(2))], dead_ms, "dead"),
        row(f"{several} hosts die at once → the last is acted on", [hosts_die(several)], dead_ms, "", each),
        row(f"{dying} of {count:,} simulated hosts die at once → the last is acted on", [held["died"]], dead_ms, "", each),
        row("a host hangs, then a rank fails elsewhere → the supervisor acts", beside, 50, "", "Google's: never, in 115 s"),
    ]
    for what, unit, kind, limit in (("processor time", "% of a core", "cpu", REACH_PERCENT), ("memory", "MB", "rss", REACH_MB)):
        what = f"supervisor's {what} while {count:,} hosts of {8} ranks beat each 1.25 s"
        rows.append(Row(what, unit, {HOLDFAST: [held[kind]]}, f"≤ {limit} {unit}", held[kind] <= limit))
    return rows
