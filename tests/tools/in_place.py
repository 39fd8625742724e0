"""Does a job whose ranks begin again in their own processes outlive any number of failures, whenever they come?

    python tests/tools/in_place.py any --failures 1000      a rank is killed at a random moment; never the one that is looked at
    python tests/tools/in_place.py step --failures 200      at so many offsets within a step; --update-s 0.15: a long update
    python tests/tools/in_place.py twice --failures 200     and another rank 0 to 400 ms later
    python tests/tools/in_place.py sleep --failures 100     until a rank that sleeps is out; also the other PLACES

Three ranks train with PyTorch's DDP on gloo (`kit/scripts/in_place_rank.py`). What is kept must end as that of a run of as many
steps that nobody disturbs, bit by bit. Each process that was replaced without having been killed is counted, with the agent's
reason. Exit code 0: nothing was wrong, and none was replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RANK = ROOT / "tests/kit/scripts/in_place_rank.py"
RANKS = 3
KEPT = 1
"""This rank is not killed by `any`."""
PATIENCE_S = 120.0
TWICE_S = 0.4
EARLY = 50
"""Failures after which what grows once has grown."""


class Job:
    """One job, its ranks' notes, and whom we have killed."""

    def __init__(self, folder: Path, place: str, failures: int, env: dict[str, str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self.notes_at, self.killed = 0, dict[int, float]()
        self.trains: dict[int, dict[int, list[str]]] = {}  # By round and rank: what it said when it had made a step, or waits.
        self.newest: dict[int, int] = {}  # By rank: its process.
        self.ended: dict[int, list[str]] = {}
        self.out: list[tuple[int, int, float]] = []  # Round, rank, when.
        self.processes: dict[int, dict[int, int]] = {}  # By round and rank.
        self.trained: set[int] = set()  # Processes that have something to lose.
        many = ["--nproc-per-node", str(RANKS), "--max-restarts", str(4 * failures + 4), "--backoff", "0"]
        options = [*many, "--warm-mode", "fork", "--warm-spares", "1"]
        command = [sys.executable, "-m", "holdfast", "run", *options, str(RANK), str(folder), place]
        full = os.environ | {"HOLDFAST_STATE_DIR": str(folder / "state"), "OMP_NUM_THREADS": "1"} | env
        with (folder / "output").open("wb") as output:
            how = {"env": full, "stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
            self.process = subprocess.Popen(command, **how)  # type: ignore[call-overload]

    def look(self) -> None:
        """Read what is new."""
        path = self.folder / "notes"
        if not path.exists():
            return
        with path.open() as file:
            file.seek(self.notes_at)
            text = file.read()
        text = text[: text.rfind("\n") + 1]
        self.notes_at += len(text)
        for line in text.splitlines():
            word, number, rank, pid, *more = line.split()
            match word:
                case "began":
                    self.newest[int(rank)] = int(pid)
                    self.processes.setdefault(int(number), {})[int(rank)] = int(pid)
                case "trains" | "waits":
                    self.trains.setdefault(int(number), {})[int(rank)] = more
                    self.trained.add(int(pid))
                case "out":
                    self.out.append((int(number), int(rank), float(more[0])))
                case "ended":
                    self.ended[int(rank)] = more

    def until(self, done: Callable[[], Any], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self.look()
            if done():
                return
            if self.process.poll() is not None or time.monotonic() > deadline:
                output = (self.folder / "output").read_text(errors="replace")[-6000:]
                raise AssertionError(f"waited for {what} in round {self.round()}; {self.folder}:\n{output}")
            time.sleep(0.002)

    def round(self) -> int:
        """The newest of which a rank has begun."""
        return max(self.processes, default=0)

    def all_train(self, after: int) -> int:
        """Until all ranks do in a round later than this one; its number."""
        self.until(lambda: len(self.trains.get(self.round(), ())) == RANKS and self.round() > after, f"steps after {after}")
        return self.round()

    def kill(self, rank: int) -> int:
        pid = self.newest[rank]
        self.killed.setdefault(pid, time.monotonic())
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return pid

    def wait_for_spare(self) -> None:
        """Until one waits: what is measured is a job that has run for a while."""
        self.until(lambda: any('"SpareReady"' in path.read_text() for path in self._records()), "a spare")

    def _records(self) -> list[Path]:
        return sorted(self.folder.glob("state/jobs/*/events-*.jsonl"))

    def events(self, name: str) -> list[dict[str, Any]]:
        lines = [line for path in self._records() for line in path.read_text().splitlines() if f'"{name}"' in line]
        return [event for event in map(json.loads, lines) if event["event"] == name]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def replaced(self) -> list[tuple[int, int, int]]:
        """Round, rank and process of each that was replaced, and that nobody had killed, but for those that had just come."""
        found = []
        rounds = sorted(self.processes)
        last: dict[int, int] = {}
        for number in rounds:
            for rank, pid in self.processes[number].items():
                if last.get(rank, pid) != pid and last[rank] not in self.killed and last[rank] in self.trained:
                    found.append((number, rank, last[rank]))
                last[rank] = pid
        return found


def has(pid: int) -> dict[str, int]:
    """kB in memory, descriptors and threads of a process."""
    told = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    descriptors = len(os.listdir(f"/proc/{pid}/fd"))
    return {"kB": int(told["VmRSS"].split()[0]), "descriptors": descriptors, "threads": int(told["Threads"])}


def at_any_moment(job: Job, failures: int, chance: random.Random, found: dict[str, Any]) -> None:
    """One rank after the other, but never the one that is looked at."""
    number = 0
    for failure in range(failures):
        number = job.all_train(number)
        if failure in (min(EARLY, failures // 2), failures - 1) or failure % 100 == 0:
            found.setdefault("grown", []).append({"failures": failure, **has(job.newest[KEPT])})
        time.sleep(chance.random() * 0.05)
        job.kill(chance.choice([rank for rank in range(RANKS) if rank != KEPT]))
    job.all_train(number)


def within_a_step(job: Job, failures: int, chance: random.Random, found: dict[str, Any]) -> None:
    """At each of so many offsets, in any order; the rank is any."""
    number = 0
    for at in chance.sample(range(failures), failures):
        number = job.all_train(number)
        time.sleep(chance.random() * 0.02)
        rank = chance.randrange(RANKS)
        job.killed[job.newest[rank]] = time.monotonic()
        aside = job.folder / "aside"
        aside.write_text(f"{rank} {at / failures}")
        aside.rename(job.folder / f"kill-{number}")
    job.all_train(number)


def twice(job: Job, failures: int, chance: random.Random, found: dict[str, Any]) -> None:
    """And another rank so many milliseconds later, which has gone on meanwhile, or is just the one that came for the first."""
    number = 0
    for at in chance.sample(range(failures), failures):
        number = job.all_train(number)
        first = chance.randrange(RANKS)
        pid = job.kill(first)
        time.sleep(TWICE_S * at / failures)
        job.look()
        job.kill(chance.choice([rank for rank, other in job.newest.items() if other != pid]))
        # Where the second came after a whole round had begun, that round ends too.
        job.until(lambda: not any(pid in job.killed for pid in job.newest.values()), "new processes")
        number = job.round() - 1
    job.all_train(number)


def until_out(job: Job, failures: int, chance: random.Random, found: dict[str, Any]) -> None:
    """How soon is the first rank out of where it is?"""
    number, took = 0, []
    for _ in range(failures):
        number = job.all_train(number)
        time.sleep(0.02 + chance.random() * 0.05)
        job.kill(1)
        killed_at = job.killed[job.newest[1]]
        job.until(lambda: any(one[:2] == (number, 0) for one in job.out), "the first rank to be out")  # noqa: B023
        took.append(1000 * (next(at for of, rank, at in job.out if (of, rank) == (number, 0)) - killed_at))
    job.all_train(number)
    found["each_out_ms"], found["out_ms"] = took, spread(took)


WAYS = {"any": at_any_moment, "step": within_a_step, "twice": twice}
PLACES = ("python", "sleep", "gloo", "gloo-alive", "loader", "loader-stuck")


def undisturbed(folder: Path, steps: int, env: dict[str, str]) -> list[str]:
    """What each rank has in the end of so many steps of which nobody was killed."""
    job = Job(folder, "train", 0, env)
    (folder / "steps").write_text(str(steps))
    try:
        job.until(lambda: len(job.ended) == RANKS, "the undisturbed run's end")
        return [job.ended[rank][2] for rank in range(RANKS)]
    finally:
        job.close()


def play(way: str, failures: int, seed: int, folder: Path, env: dict[str, str] | None = None) -> dict[str, Any]:
    """One job with so many failures; what was found of it. AssertionError: it did not come through."""
    job = Job(folder / "disturbed", "train" if way in WAYS else way, failures, env or {})
    found: dict[str, Any] = {"way": way, "failures": failures, "seed": seed}
    begun = time.monotonic()
    try:
        job.wait_for_spare()
        WAYS.get(way, until_out)(job, failures, random.Random(seed), found)
        (job.folder / "over").touch()
        job.process.wait(PATIENCE_S)
        job.look()
    finally:
        job.close()
    found["seconds"] = round(time.monotonic() - begun)
    found["code"], found["replaced"] = job.process.returncode, job.replaced()
    found["let_go_ms"] = spread([1000 * event["took_s"] for event in job.events("WorkersStopped")])
    output = (job.folder / "output").read_text(errors="replace")
    found["reasons"] = [line for line in output.splitlines() if "did not let go" in line or "no longer begins" in line]
    if way in WAYS:
        sources: dict[str, int] = {}
        for of in job.trains.values():
            for more in of.values():
                sources[more[2].partition("_")[0]] = sources.get(more[2].partition("_")[0], 0) + 1
        found["came_from"] = sources
        steps = {int(more[0]) for more in job.ended.values()}
        found["steps"], digests = max(steps), {more[2] for more in job.ended.values()}
        assert len(steps) == 1 and len(job.ended) == RANKS, job.ended
        plain = undisturbed(folder / "undisturbed", found["steps"], {})
        found["as_undisturbed"] = digests == set(plain) and len(digests) == 1
        found["rounds"] = job.round()
        found["back_ms"] = spread(back_ms(job))
    return found


def back_ms(job: Job) -> list[float]:
    """From each kill to the last rank's first step after it, where no other kill came in between."""
    took = []
    kills = sorted(job.killed.values())
    firsts = sorted(max(float(more[0]) for more in of.values()) for of in job.trains.values() if len(of) == RANKS)
    for at, following in zip(kills, [*kills[1:], float("inf")]):
        back = next((first for first in firsts if first > at), None)
        if back is not None and back < following:
            took.append(1000 * (back - at))
    return took


def spread(took: list[float]) -> dict[str, float]:
    """Of some times in ms."""
    took = sorted(took)
    shares = {"median": 0.5, "p99": 0.99, "max": 1.0}
    return {"count": len(took)} | {name: round(took[int(share * (len(took) - 1))], 1) for name, share in shares.items() if took}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("way", choices=[*WAYS, *PLACES])
    parser.add_argument("--failures", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--update-s", type=float, default=0, help="how long each update is torn, at least")
    parser.add_argument("--keep", type=Path, help="leave the jobs' folders here")
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp(prefix="holdfast-in-place-"))
    found = play(options.way, options.failures, options.seed, folder, {"UPDATE_S": str(options.update_s)})
    print(json.dumps(found, indent=1))
    if options.keep is None:
        shutil.rmtree(folder)
    return 0 if found["code"] == 0 and found.get("as_undisturbed", True) and not found["replaced"] else 1


if __name__ == "__main__":
    sys.exit(main())
