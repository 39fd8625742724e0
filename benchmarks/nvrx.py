"""What does NVRx's Python API cost a rank, and how late is a hang acted on: over ours, and over NVRx's own?

Each with a standalone server of its own and nothing else running, since that is what both have.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median

from harness import HOLDFAST, Bench, Row, clean_environment, worker

NVRX = "nvrx"
PACKAGES = {HOLDFAST: "holdfast.fault_tolerance", NVRX: "nvidia_resiliency_ext.fault_tolerance"}
LIMIT_S = 1.0


def measure(contender: str, what: str) -> dict[str, float]:
    """What `workers/nvrx_rank.py` has measured over this package."""
    env = clean_environment() | {
        "PYTHONPATH": os.pathsep.join(_folder(name) for name in ("holdfast", "nvidia_resiliency_ext")),
        "RANK": "0",
        "LOCAL_RANK": "0",
    }
    command = [sys.executable, worker("nvrx_rank"), PACKAGES[contender], what, str(LIMIT_S)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True, timeout=120)
    return json.loads(done.stdout.splitlines()[-1])


def _folder(package: str) -> str:
    """Where it is installed; empty: nowhere."""
    spec = importlib.util.find_spec(package)
    return str(Path(spec.submodule_search_locations[0]).parent) if spec and spec.submodule_search_locations else ""


def run(bench: Bench) -> list[Row]:
    """Four rows; without NVRx only ours."""
    contenders = [HOLDFAST] + [NVRX] * bool(_folder("nvidia_resiliency_ext"))
    seen: dict[str, dict[str, list[float]]] = {}
    for what, times in (("calls", 5), ("hang", 5)):
        for _ in range(bench.times(times)):
            for contender in contenders:
                for quantity, value in measure(contender, what).items():
                    seen.setdefault(quantity, {}).setdefault(contender, []).append(value)

    def row(quantity: str, said: str, unit: str, reach: float) -> Row:
        samples = seen[quantity]
        theirs = f"NVRx: {median(samples[NVRX]):.3g} {unit}" if NVRX in samples else "NVRx is not installed"
        return Row(said, unit, samples, f"≤ {reach:g} {unit}", median(samples[HOLDFAST]) <= reach, theirs)

    return [
        row("heartbeat_us", "`RankMonitorClient.send_heartbeat()`", "µs", 1.5),
        row("section_us", "`start_section()` and `end_section()`", "µs", 5),
        row("late_ms", "a hang beside a standalone server: limit exceeded → killed", "ms", 50),
        row("server_mb", "a standalone server: its own memory (USS)", "MB", 12),
    ]
