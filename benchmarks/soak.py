"""A worker is killed a thousand times over in one job: what has been left behind, and has the agent grown?"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from footprint import children_of, memory_kb
from harness import HOLDFAST, PATIENCE_S, Bench, Launch, Row, command, launch, worker

KILLS = 1000
EARLY = 50
"""Lives after which what is kept per job is there, and compared with from then on."""


class Left(dict[str, int]):
    """What a job has at one moment."""


def left(guardian: int, agent: int) -> Left:
    """Processes of the job, descriptors of its agent, files in /dev/shm, and kB of the agent's own memory."""
    below = [guardian]
    for pid in below:
        below += children_of(pid)
    memory = memory_kb(agent, "Private_Dirty")
    return Left(
        processes=len(below), descriptors=len(os.listdir(f"/proc/{agent}/fd")), shm=len(os.listdir("/dev/shm")), kb=memory
    )


def ready(job: Launch, seen: dict[str, int]) -> int:
    """How many spares have been ready so far; reads only what is new in the record."""
    for path in job.folder.glob("state/jobs/*/events-*.jsonl"):
        with path.open("rb") as file:
            file.seek(seen["at"])
            text = file.read()
        seen["at"] += text.rfind(b"\n") + 1
        seen["count"] += text[: text.rfind(b"\n") + 1].count(b'"SpareReady"')
    return seen["count"]


def until(done: object, what: str, job: Launch) -> None:
    """Wait."""
    deadline = time.monotonic() + PATIENCE_S
    while not done():  # type: ignore[operator]
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what}:\n{job.output()}")
        time.sleep(0.002)


def measure(kills: int) -> dict[str, float]:
    """Growth of each from life EARLY to the last, and how many lives began cold."""
    with launch() as job:
        flags = ["--max-restarts", str(2 * kills), "--backoff", "0", "--log-dir", "/dev/null"]
        guardian = job.start([*command(HOLDFAST), *flags, worker("beat_and_stay")])
        seen, early = {"at": 0, "count": 0}, Left()
        for life in range(1, kills + 1):
            (victim,) = job.wait_for("first", 1)
            until(lambda: ready(job, seen) >= life, f"no spare in life {life}", job)  # noqa: B023
            agent = children_of(guardian)[0]
            if life == min(EARLY, kills // 2):
                early = left(guardian, agent)
            (job.notes_dir / f"first.{victim.rank}.{victim.pid}").unlink()
            os.kill(victim.pid, signal.SIGKILL)
        job.wait_for("first", 1)
        until(lambda: ready(job, seen) > kills, "no last spare", job)
        late = left(guardian, agent)
        record = "".join(path.read_text() for path in Path(job.folder).glob("state/jobs/*/events-*.jsonl"))
        cold = kills - record.count('"spare":true') - record.count('"spare": true')
        return {"cold": cold} | {name: max(0, late[name] - early[name]) for name in early}


def run(bench: Bench) -> list[Row]:
    """Nothing grows."""
    kills = 20 if bench.quick else KILLS
    grown = measure(kills)
    lines = (
        ("lives that did not begin on a spare", "cold", "", 0),
        ("processes", "processes", "", 0),
        ("descriptors of the agent", "descriptors", "", 0),
        ("files in /dev/shm", "shm", "", 0),
        ("memory of the agent", "kb", "kB", 1024),
    )
    rows = []
    for what, name, unit, most in lines:
        samples, met = {HOLDFAST: [grown[name]]}, grown[name] <= most
        rows.append(Row(f"{kills} kills in one job, {what}: more than at first", unit, samples, f"≤ {most}", met))
    return rows
