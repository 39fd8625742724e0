"""How soon does the supervisor act, whatever happens to whom, and what does it cost to hear thousands of hosts?

Beside it Google's own sensor, controller, actuator and daemons on loopback, with the timings of its recipes, where
`make google` has put them: once, since a fault takes up to a minute there. Else the figures of an earlier measurement stand
in the notes.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from footprint import cpu_ns, launcher_processes, memory_kb
from harness import HOLDFAST, Bench, Launch, Row, clean_environment, command, free_port, launch, node_name, worker
from host_reports import THEIRS
from lost_node import everything, wait_until_served
from table import say

from holdfast.supervisor.web.serve import missing

LEASE_S = 5.0
"""The supervisor's default."""

POLL_S, TIMEOUT_S, PATIENCE_S = 15, 30, 75.0
"""Of Google's recipes; and the most that any of the three faults takes there is 60 s."""

MEASURED = {"failed": 18.4, "silent": 48.4, "dead": 29.3}
"""Google's seconds in an earlier measurement, on two cores like these, with the same timings."""

MANY, AT_ONCE, BEATING_S = 4096, 64, 10
REACH_PERCENT, REACH_MB = 30, 300

SHOWN, WATCHERS, WATCHED_S = 1000, (0, 1, 10), 10
"""Hosts, dashboards that are open, and for how long."""


class Watched:
    """A supervisor, each of whose lines on stderr is kept with the moment at which it came."""

    def __init__(self, job: Launch, lease_s: float = LEASE_S) -> None:
        self.port, self.state = free_port(), job.folder / "fleet"
        holdfast = command(HOLDFAST)[0]
        argv = [holdfast, "supervisor", "--listen", f"127.0.0.1:{self.port}", "--state", str(self.state)]
        argv += ["--lease", str(lease_s), "--http", "127.0.0.1:0"]
        env = clean_environment() | {"HOLDFAST_STATE_DIR": str(job.folder / "state")}
        self.asks = [holdfast, "nodes", "--json", "--state", str(self.state)]
        self.env, self.lines = env, list[tuple[float, str]]()
        self.process = subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.process.stdout.readline()
        self.ready_at = time.monotonic() + lease_s  # before, it only listens
        threading.Thread(target=self._hear, daemon=True).start()

    def http_port(self) -> int:
        """Of its dashboard, once that is there. Asked for once, where its libraries are installed."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not (found := re.search(r"dashboard at http://127.0.0.1:(\d+)/", line)):
            raise RuntimeError(f"the supervisor has no dashboard: {line}{self.lines}")
        return int(found[1])

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
        for pid in every:  # that its links are closed tells nobody: its lease goes on
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return watched.acted(*(f"node{number}" for number in range(1, nodes)), after=died_at)


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


class Hosts:
    """Many simulated hosts, which one process holds, and the supervisor that hears them."""

    def __init__(self, job: Launch, count: int) -> None:
        self.watched = Watched(job)
        argv = [sys.executable, worker("fleet_crowd"), str(self.watched.port), str(count)]
        self.holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=clean_environment())

    def connect(self) -> None:
        """Until the supervisor knows them, and acts."""
        self.ask("connect")
        self.answer()
        time.sleep(max(0.0, self.watched.ready_at - time.monotonic()))

    def ask(self, what: str) -> None:
        """Have them do it; see `workers/fleet_crowd.py`."""
        assert self.holder.stdin is not None
        self.holder.stdin.write(f"{what}\n")
        self.holder.stdin.flush()

    def answer(self) -> dict[str, float]:
        """What came of it."""
        assert self.holder.stdout is not None
        if not (line := self.holder.stdout.readline()):
            raise RuntimeError(f"the hosts went away: {self.watched.lines[-3:]}")
        found: dict[str, float] = json.loads(line)
        return found

    def cost(self, what: str, seconds: int) -> dict[str, float]:
        """While they do this for so long: processor time in percent of a core, of the supervisor and all that is below it, and
        of that below it alone, which serves the dashboard; and their memory in MB."""
        self.ask(f"{what} {seconds}")
        self.answer()
        processes = launcher_processes(self.watched.process.pid, set())
        before, begun = list(map(cpu_ns, processes)), time.monotonic()
        time.sleep(seconds - 1.0)
        spent = [after - first for after, first in zip(map(cpu_ns, processes), before)]
        percent = 100 / 1e9 / (time.monotonic() - begun)
        rss = sum(memory_kb(pid, "Rss") for pid in processes) / 1024
        if (took_s := self.answer()["took_s"]) > 1.1 * seconds + 1:
            raise RuntimeError(f"the hosts took {took_s:.1f} s for {seconds} s of {what}")
        return {"cpu": percent * sum(spent), "web": percent * sum(spent[1:]), "rss": rss}

    def close(self) -> None:
        """End both."""
        self.holder.kill()
        self.holder.wait()
        self.watched.close()


def crowd(count: int, dying: int, seconds: int) -> dict[str, float]:
    """What the supervisor takes while `count` hosts beat, and milliseconds until `dying` of them, silent at once, are acted
    on."""
    with launch() as job, contextlib.closing(Hosts(job, count)) as hosts:
        hosts.connect()
        cost = hosts.cost("beat", seconds)
        hosts.ask(f"die {dying}")
        died = hosts.answer()
        if died["orders"] != dying:
            raise RuntimeError(f"of {dying} hosts that died {died['orders']:.0f} were acted on")
        return cost | {"died": 1000 * (died["last_at"] - died["died_at"])}


def dashboards(count: int, opened: Sequence[int], seconds: int) -> list[dict[str, float]]:
    """What the supervisor takes while `count` hosts are well and one of them tells a step each second, for each number of
    dashboards that are open; `told`: how many changes each was told of at least."""
    found = []
    with launch() as job, contextlib.closing(Hosts(job, count)) as hosts:
        hosts.connect()
        port = hosts.watched.http_port()
        for number in opened:
            watchers = [Watcher(port) for _ in range(number)]
            found.append(hosts.cost("change", seconds))
            for watcher in watchers:
                watcher.close()
            told = min((watcher.told for watcher in watchers), default=seconds)
            if told < seconds / 2:
                raise RuntimeError(f"a dashboard was told of {told} changes in {seconds} s")
    return found


class Watcher:
    """An open dashboard, as far as the supervisor can tell."""

    def __init__(self, port: int) -> None:
        self.told = 0
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.sock.sendall(f"GET /api/live HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n".encode())
        self.stream = self.sock.makefile("rb")
        while not self.stream.readline().startswith(b"event: fleet"):
            pass
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        for line in self.stream:
            self.told += line.startswith(b"event: change")

    def close(self) -> None:
        """Close it."""
        self.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.sock.close()


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
    """Eleven rows."""
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
    if lacks := missing():
        say(f"no dashboard to watch: {lacks} not installed")
        return rows
    shown = 64 if bench.quick else SHOWN
    for number, cost in zip(WATCHERS, dashboards(shown, WATCHERS, 3 if bench.quick else WATCHED_S)):
        what = f"supervisor's processor time, {shown:,} hosts, a change a second, open dashboards: {number}"
        rows.append(Row(what, "% of a core", {HOLDFAST: [cost["cpu"]]}, note=f"{cost['web']:.2g} of it in its HTTP process"))
    return rows
