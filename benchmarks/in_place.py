"""How soon does a rank train on when another was killed, and it need not start over? Against NVRx's wrapper.

Two or four ranks, DDP over gloo. Ours: `client.run_in_place` with its state in memory, and a spare that is forked takes the
killed one's place. NVRx's `inprocess.Wrapper`, and ours by its names: processes that no launcher watches, and those that are
left go on with one fewer, which spares them the wait for another. Each with its defaults.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from harness import HOLDFAST, PATIENCE_S, Bench, Launch, Row, command, free_port, launch, worker
from warm import wait_for_spares

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from tools.in_place import play

KILLS = 10
WAY_KILLS = 40
WAYS = {"python": "Python", "sleep": "time.sleep", "gloo": "a collective of gloo", "loader": "a data loader"}
OTHERS = 5  # Jobs of those whose killed rank is not replaced.
NVRX = "nvrx"
SETTLED_S = 0.5
"""How long ranks train before one is killed."""
MUCH_MB = 2000
PEERS_S = 20.0
"""How long those without a launcher are given to go on."""
WHAT = "SIGKILL → a survivor's next optimizer step"


def kill(job: Launch, life: int, ranks: int, left: int, patience_s: float = PATIENCE_S) -> float:
    """SIGKILL the last rank in `life`; milliseconds until the first one has made a step in the next, of `left` ranks."""
    victim = max(job.wait_for(f"step{life}", ranks), key=lambda note: note.rank)
    time.sleep(SETTLED_S)
    killed_at = time.monotonic()
    os.kill(victim.pid, signal.SIGKILL)
    back = job.wait_for(f"step{life + 1}", left, after=killed_at, patience_s=patience_s)
    return 1000 * (next(note.at for note in back if note.rank == 0) - killed_at)


def beside_an_agent(kills: int, ranks: int, *more_mb: int) -> tuple[list[float], list[float]]:
    """So many kills in one job, once a spare waits; and how the newcomers' `more_mb` come, as a share of gloo's own speed."""
    with launch() as job:
        spares = ["--warm-mode", "fork", "--warm-spares", "1"]  # one process, of which a worker is forked when it is needed
        options = ["--nproc-per-node", str(ranks), "--max-restarts", str(kills), "--backoff", "0", *spares]
        job.start([*command(HOLDFAST), *options, worker("in_place"), "agent", *map(str, more_mb)])
        found = []
        for life in range(kills):
            job.wait_for(f"step{life}", ranks)
            wait_for_spares(job, 1)
            found.append(kill(job, life, ranks, left=ranks))
        job.announce("over")
        return found, [took(job, 0) / took(job, life + 1) for life in range(kills) if more_mb]


def took(job: Launch, life: int) -> float:
    """Seconds until rank 1 had been given the state in that life; in the first, as many bytes by gloo's own send."""
    return job.wait_for(f"given{life}", 1)[0].at - job.wait_for(f"asks{life}", 1)[0].at


def among_peers(package: str, ranks: int) -> float:
    """One kill in a job of its own."""
    with launch() as job:
        at = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "PYTHONWARNINGS": "ignore"}
        meeting = at | {"WORLD_SIZE": str(ranks)}
        for rank in range(ranks):
            job.start([*command(""), worker("in_place"), package], meeting | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
        found = kill(job, 0, ranks, left=ranks - 1, patience_s=PEERS_S)
        job.announce("over")  # NVRx's do not always end then
        return found


def run(bench: Bench) -> Iterator[Row]:
    """Two rows for two ranks and for four, one for each way in which a survivor may be held up, and two for much state; none
    without torch."""
    if importlib.util.find_spec("torch") is None:
        return
    for ranks, words in ((2, "two"), (4, "four"))[: bench.times(2)]:
        ours, _ = beside_an_agent(bench.times(KILLS), ranks)
        seen = {HOLDFAST: [among_peers("holdfast", ranks) for _ in range(bench.times(OTHERS))]}
        if importlib.util.find_spec("nvidia_resiliency_ext") is not None:
            seen[NVRX] = []
            for _ in range(bench.times(OTHERS)):
                with suppress(RuntimeError):  # three that are left of four have not met again in 60 s
                    seen[NVRX].append(among_peers("nvidia_resiliency_ext", ranks))
        theirs = median(seen[NVRX]) if seen.get(NVRX) else None
        vain = f"did not go on within {PEERS_S:g} s" if NVRX in seen else "is not installed"
        note = f"NVRx {vain}" if theirs is None else f"NVRx, with one rank fewer: {theirs:.0f} ms"
        met = None if theirs is None else median(ours) <= min(theirs / 5, 100)
        what = f"{WHAT}, DDP of {words}"
        yield Row(f"{what}: in place", "ms", {HOLDFAST: ours}, "≤ 1/5 of NVRx, ≤ 100 ms", met, note)
        yield Row(f"{what}: `holdfast.inprocess`, no launcher", "ms", seen, note=note)
    for where, words in [*WAYS.items()][: bench.times(len(WAYS))]:
        with TemporaryDirectory() as folder:
            found = play(where, bench.times(WAY_KILLS), 1, Path(folder) / "job")
        out, lost = found["each_out_ms"], len(found["replaced"])
        reach, met = "≤ 50 ms, and 99 % keep their process", median(out) <= 50 and lost <= 0.01 * 2 * len(out)
        note = f"99 %: {found['out_ms']['p99']} ms; {lost} of {2 * len(out)} survivors lost their process"
        yield Row(f"SIGKILL → a survivor is out of {words}", "ms", {HOLDFAST: out}, reach, met, note)
    much_mb = MUCH_MB // 10 if bench.quick else MUCH_MB
    much, shares = beside_an_agent(bench.times(KILLS), 2, much_mb)
    what = f"{WHAT}, DDP of two, in place, and the newcomer is given {much_mb} MB"
    yield Row(what, "ms", {HOLDFAST: much}, note="most of it the script's own: it makes as many random numbers first")
    reach, met = "≥ 1/2 of the link's speed", median(shares) >= 1 / 2
    yield Row("these MB come at: speed, gloo's own send = 1", "×", {HOLDFAST: shares}, reach, met)
