"""What does it cost to keep the state where a restart finds it, and what does it save? Against torch.save to a local disk.

1 GB of tensors on the CPU, one rank, in one process in turn: how long the script cannot go on for either, and how long it takes
to have the state again; torch.load's file is in the page cache, as what is stashed is in memory. The same where another node is
to have it too: two agents on this host, which share its processors, and each sends and receives at once. And, in a job of two
ranks of which one is killed again and again, how many steps are to be recreated.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from statistics import mean, median

from harness import HOLDFAST, Bench, Row, command, free_port, launch, node_name, two_nodes, worker

SIZE_MB, SMALL_MB, TWICE_MB = 1000, 50, 500
BLOCKED, RESTORED = 10, 3
KILLS = 5


def times(size_mb: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each thing that `workers/stashing.py` does."""
    with launch() as job, tempfile.TemporaryDirectory(dir=".") as disk:
        what = [worker("stashing"), str(size_mb), str(rounds), disk]
        job.start([*command(HOLDFAST), "--stash-limit", "80%", *what], {"OMP_NUM_THREADS": "2"})
        job.finish()
        seen = json.loads((job.folder / "output-0").read_text().splitlines()[-1])
        return {quantity: [1000 * value for value in values] for quantity, values in seen.items()}


def replicated(size_mb: int, rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each thing that `workers/stashing_twice.py` does."""
    with launch() as job:
        flags = [*two_nodes(free_port(), 1), "--stash-replicate", "--stash-limit", "80%"]
        for number in range(2):
            what = [worker("stashing_twice"), str(size_mb), str(rounds)]
            job.start([*command(HOLDFAST), *flags, *node_name(HOLDFAST, number), *what], {"OMP_NUM_THREADS": "1"})
        job.finish()
        texts = [(job.folder / f"output-{number}").read_text() for number in range(2)]
        seen = json.loads(next(line for text in texts for line in text.splitlines() if line.startswith("{")))
        return {quantity: [1000 * value for value in values] for quantity, values in seen.items()}


def steps_lost(how: str, kills: int) -> list[float]:
    """For each of so many kills: steps that had been made, and had to be made again."""
    with launch() as job:
        options = ["--nproc-per-node", "2", "--max-restarts", str(kills), "--backoff", "0"]
        job.start([*command(HOLDFAST), *options, worker("killed_each"), how, str(kills), str(job.folder / "checkpoint.pt")])
        job.finish()
        lines = (job.folder / "output-0").read_text().splitlines()
        return [float(line.split()[1]) for line in lines if line.startswith("lost ")]


def run(bench: Bench) -> list[Row]:
    """Seven rows; none without torch."""
    if importlib.util.find_spec("torch") is None:
        return []
    seen = times(SMALL_MB if bench.quick else SIZE_MB, bench.times(5))
    blocked, restored = median(seen["save"]) / median(seen["torch_save"]), median(seen["latest"]) / median(seen["torch_load"])
    in_place = median(seen["into"]) / median(seen["torch_load"])
    twice_mb = SMALL_MB if bench.quick else TWICE_MB
    agents = "two agents on this host, each sends and receives"
    twice = replicated(twice_mb, bench.times(5))
    size = f"{SMALL_MB if bench.quick else SIZE_MB} MB of state"
    kills = bench.times(KILLS)
    stashed, saved = steps_lost("stash", kills), steps_lost("checkpoint", kills)
    disk = f"torch.save: {median(seen['torch_save']):.0f} ms; the first time {seen['first'][0]:.0f} ms"
    back = f"torch.load: {median(seen['torch_load']):.0f} ms"
    often = f"a checkpoint each 100: {mean(saved):.0f}"

    def row(what: str, quantity: str, reach: str = "", met: bool | None = None, note: str = back) -> Row:
        return Row(f"{size}: {what}", "ms", {HOLDFAST: seen[quantity]}, reach, met, note)

    return [
        row("the script waits for it to be stashed", "save", "≤ 1/10 of torch.save", blocked <= 1 / BLOCKED, disk),
        row("restored into tensors that are there", "into", "≤ 1/3 of torch.load", in_place <= 1 / RESTORED),
        row("restored as new tensors", "latest", "≤ 1/3 of torch.load", restored <= 1 / RESTORED),
        row("and then each of these is changed", "changed", note=f"torch.load's: {median(seen['torch_load_changed']):.0f} ms"),
        Row(f"{twice_mb} MB, replicated: the script waits for it", "ms", {HOLDFAST: twice["save"]}, note=agents),
        Row(f"{twice_mb} MB, replicated: until the partner has it", "ms", {HOLDFAST: twice["partner"]}, note=agents),
        Row("steps lost per failure, stashed each step", "steps", {HOLDFAST: stashed}, "≤ 1", max(stashed) <= 1, often),
    ]
