"""One try: have a job train, play the fault, let it end, judge, and clear away. Returns one line of the record."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
import traceback
from pathlib import Path
from typing import Any

from chaos import needs
from chaos.fault import Fault, Outcome
from chaos.job import HOLDFAST, TORCHRUN, Interrupted, Job, Lost
from chaos.judge import judge

END_S = 40.0
"""How long a job may take to end once it may."""


def play(
    fault: Fault, seed: int, base: Path, *, launcher: str = HOLDFAST, stop: threading.Event | None = None, mark: str = ""
) -> dict[str, Any]:
    """`base`: a folder of the try's own, which is there and empty."""
    begun = time.monotonic()
    record: dict[str, Any] = {"fault": fault.name, "seed": seed, "launcher": launcher}
    if reason := needs.missing(fault.needs):
        return record | {"outcome": "left out", "problems": [reason]}
    as_root, v2 = os.geteuid() == 0, needs.cgroup2_root()
    cgroups = v2 / base.name if as_root and v2 else None
    shm = Path("/dev/shm") / base.name if as_root else None
    job: Job | None = None
    try:
        job = Job(fault, seed, base, launcher=launcher, cgroups=cgroups, shm=shm, stop=stop, mark=mark)
        record |= _played(job)
    except Interrupted:
        return record | {"outcome": "interrupted"}
    except Lost as lost:
        record |= {"outcome": "lost", "problems": [str(lost)]}
    except Exception:
        record |= {"outcome": "broken", "problems": [traceback.format_exc()[-900:]]}
    finally:
        if job:
            job.close()
        if shm:
            shutil.rmtree(shm, ignore_errors=True)
    return record | {"took_s": round(time.monotonic() - begun, 1)}


def _played(job: Job) -> dict[str, Any]:
    fault = job.fault
    if job.setup.starts:
        job.begin()
    fault.play(job)
    running = [name for name, node in job.nodes.items() if node.runs]
    match fault.outcome:
        case Outcome.TRAINS:
            job.finish()
            job.ended(*[name for name in running if not job.nodes[name].is_lost], patience_s=END_S)
        case Outcome.ENDS:
            job.ended()
        case Outcome.HALTS:
            job.wait(lambda: not job.alive(), "the ranks' end", fault.patience_s)
            for name in running:
                job.nodes[name].launcher.send_signal(signal.SIGTERM)
            job.ended(patience_s=END_S)
    found = judge(job)
    told: dict[str, Any] = {"outcome": "lost" if found.problems else "through", "problems": found.problems}
    told |= {"restarts": found.restarts}
    if found.pause_s is not None:
        told["pause_s"] = round(found.pause_s, 2)
    if fault.back_within_s:
        told["back_s"] = found.back_s
    return told


__all__ = ["HOLDFAST", "TORCHRUN", "play"]
