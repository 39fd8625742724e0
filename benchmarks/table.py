"""How are results shown and kept? A table for people, JSON for machines, and docs/benchmarks.md with how it was measured."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from harness import HOLDFAST, PLAIN, TORCHRUN, Row

MARKS = {True: "✓", False: "falls short", None: ""}


def shown(value: float | None) -> str:
    """Three digits that matter."""
    if value is None:
        return "–"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def part(ratio: float | None) -> str:
    """A ratio as people say it: 1/12 rather than 0.083."""
    if ratio is None:
        return "–"
    return "0" if ratio == 0 else f"1/{1 / ratio:.1f}" if ratio < 1 else f"{ratio:.1f}"


def table(rows: list[Row]) -> str:
    """Markdown."""
    lines = ["| what | Holdfast | torchrun | ratio | plain Python | reach | |", "|---|--:|--:|--:|--:|---|---|"]
    for row in rows:
        ours, theirs, plain = (shown(row.mid(name)) for name in (HOLDFAST, TORCHRUN, PLAIN))
        reach = f"{row.reach} ({row.note})".strip() if row.note else row.reach
        cells = (row.what, f"{ours} {row.unit}", theirs, part(row.ratio), plain, reach, MARKS[row.met])
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def as_json(rows: list[Row], quick: bool) -> dict[str, object]:
    """Everything measured, every sample."""
    return {
        "at_unix": time.time(),
        "quick": quick,
        "machine": machine(),
        "rows": [
            {
                "what": row.what,
                "unit": row.unit,
                "samples": dict(row.samples),
                "medians": {name: row.mid(name) for name in row.samples},
                "ratio": row.ratio,
                "reach": row.reach,
                "met": row.met,
                "note": row.note,
            }
            for row in rows
        ],
    }


def machine() -> dict[str, str]:
    """Where this ran."""
    models = [line.split(":")[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")]
    memory = next((int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), 0)
    return {
        "processor": f"{len(os.sched_getaffinity(0))} × {models[0] if models else platform.machine()}",
        "memory": f"{memory / 2**20:.0f} GB",
        "kernel": platform.release(),
        "python": platform.python_version(),
        "holdfast": f"{metadata.version('holdfast')} {_commit()}".strip(),
        "torch": _version("torch"),
        "load before": f"{os.getloadavg()[0]:.1f}",
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if os.path.exists(path) else []


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    here = Path(__file__).parent
    done = subprocess.run(["git", "-C", here, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return done.stdout.strip() if done.returncode == 0 else ""


def page(rows: list[Row], where: dict[str, str], method: str) -> str:
    """docs/benchmarks.md."""
    described = ", ".join(f"{name} {value}" for name, value in where.items())
    return f"""# Benchmarks

`make bench` measures Holdfast and torchrun side by side and writes this page. Medians; every sample is in `bench-results/`.

{table(rows)}

Machine: {described}.

{method}"""


def say(text: str) -> None:
    """Progress, for whoever waits."""
    print(text, file=sys.stderr, flush=True)
