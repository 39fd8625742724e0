"""How fast are logs read, how well are causes and culprits found, and what does a finding cost a restart?

Speed: an ordinary training log (the same lines with other numbers), one that is full of failures, one in which no two lines are
alike; and text that is no log at all (Python's own library, each line once), of many words that messages have, too: the worst
there is. Score: the labelled logs of `tests/unit/test_diagnosis_corpus.py`, by their parts.
"""

from __future__ import annotations

import os
import random
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from harness import HOLDFAST, Bench, Row

sys.path[:0] = [str(Path(__file__).parents[1] / "tests" / room) for room in ("unit", "")]  # the corpus, made of the kit

MEGABYTES = 100
WORDS = "loss grad_norm iteration Error checkpoint tokens samples learning failed memory shard the of and step cache".split()


def ordinary(rng: random.Random, lines: int) -> str:
    """A training log's lines."""
    told = "[rank{0}]: iteration {1:8d}/ 500000 | time per iteration (ms): {2:.1f} | lm loss: {3:.6E} | grad norm: {4:.3f} |"
    numbers = ((n % 8, n, rng.uniform(900, 1200), rng.uniform(1, 3), rng.random()) for n in range(lines))
    return "\n".join(told.format(*those) for those in numbers) + "\n"


def failing(rng: random.Random, lines: int) -> str:
    """Three ordinary lines, and one of a rank that complains."""
    complaint = "[rank{0}]:[W1121 12:00:00.{1:09d} TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd={1}): Broken pipe"
    kinds = ordinary(rng, lines).splitlines()
    return "\n".join(complaint.format(n % 64, n) if n % 4 == 0 else line for n, line in enumerate(kinds)) + "\n"


def unlike(rng: random.Random, lines: int) -> str:
    """Lines of words that happen to be in many messages, no two alike."""
    return "\n".join(" ".join(rng.choices(WORDS, k=12)) for _ in range(lines)) + "\n"


def library(megabytes: int) -> str:
    """Lines of Python's library, none twice."""
    seen: dict[str, None] = {}
    size = 0
    for path in sorted(Path(os.__file__).parent.rglob("*.py")):
        for line in path.read_text(errors="replace").splitlines():
            if line not in seen:
                seen[line] = None
                size += len(line) + 1
        if size > megabytes * 1_000_000:
            break
    return "\n".join(seen) + "\n"


def speed(text: str, megabytes: int = 0) -> float:
    """MB/s of reading that text, as often as it takes to make so much of it."""
    from holdfast.diagnosis.logs.prefix import Speaker
    from holdfast.diagnosis.logs.scan import Scanner
    from holdfast.diagnosis.rule import load

    data = text.encode()
    with tempfile.NamedTemporaryFile(suffix=".log") as file:
        size = file.write(data)
        while size < megabytes * 1_000_000:
            size += file.write(data)
        file.flush()
        scanner = Scanner(load())
        begun = time.perf_counter()
        scanner.file(file.name, Speaker())
        return size / 1e6 / (time.perf_counter() - begun)


def finding_ms() -> tuple[float, float]:
    """Milliseconds of the first finding about a failure's own words in a process, and of a later one."""
    import subprocess

    program = (
        "import time\nfrom holdfast.core.job.failure import Failure\n"
        "f = Failure(node='n', rank=0, local_rank=0, at_unix=0.0, cause='exception', message='NameError: name x is not',\n"
        "  log_tail=tuple(f'line {i}' for i in range(20)))\n"
        "t = time.perf_counter()\nfrom holdfast.diagnosis.collect import diagnose\ndiagnose([f])\n"
        "u = time.perf_counter()\ndiagnose([f])\nprint(1000 * (u - t), 1000 * (time.perf_counter() - u))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, later = map(float, done.stdout.split())
    return first, later


def run(bench: Bench) -> list[Row]:
    """Speeds, scores, and what a finding takes."""
    from test_diagnosis_corpus import GOAL, PARTS, SEEDS, cases, score

    megabytes = 3 if bench.quick else MEGABYTES
    rows, few = [], max(1, megabytes // 3)
    for name, text, size in (
        ("an ordinary log", ordinary(random.Random(1), 20_000), megabytes),
        ("a log of which every fourth line is a failure's", failing(random.Random(1), 20_000), megabytes),
        ("a log without two lines alike", unlike(random.Random(2), few * 13_000), 0),
        ("what is no log: Python's library, each line once", library(few), 0),
    ):
        taken = [speed(text, size) for _ in range(bench.times(3))]
        goal = ("≥ 50", median(taken) >= 50) if "no log" not in name else ()
        rows.append(Row(f"diagnosis: reading {name}", "MB/s", {HOLDFAST: taken}, *goal))
    first, later = zip(*(finding_ms() for _ in range(bench.times(5))))
    rows.append(Row("diagnosis: a failure's own words, first time", "ms", {HOLDFAST: list(first)}))
    rows.append(Row("diagnosis: a failure's own words, later", "ms", {HOLDFAST: list(later)}))
    for part in PARTS:
        with tempfile.TemporaryDirectory() as folder:
            found = [case for turn in range(bench.times(SEEDS)) for case in cases(part, turn, Path(folder))]
        kinds, ranks, _ = score(found)
        note = f"{len(found)} logs"
        for what, share in (("classes", kinds), ("culprits", ranks)):
            goal = f"≥ {100 * GOAL:.0f}"
            rows.append(Row(f"diagnosis: {what} right, {part}", "%", {HOLDFAST: [100 * share]}, goal, share >= GOAL, note))
    return rows
