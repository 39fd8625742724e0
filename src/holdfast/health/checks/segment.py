"""Is this node's Slurm allocation marked as unhealthy? Reads a file in a shared folder; does not ask Slurm.

    segment_health_check.JOB.TASK   $SLURM_ARRAY_JOB_ID and $SLURM_ARRAY_TASK_ID; without an array, $SLURM_JOB_ID twice
    not empty                       unfit; its first line is the reason
    empty or missing                fit
    anything else                   degraded: an unreadable folder is not the node's fault

ft_launcher (0.7) does the same, but there the first process of an allocation looks and exits, and srun ends the others. Here
each node looks for itself and stays out.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from holdfast.health.check import Look
from holdfast.health.verdict import Verdict, degraded, fit, unfit

MOST = 4096  # Bytes of a file that are read.

AGAIN = "once that file is empty or gone, the node takes part again"
FOREIGN = "it is not acted on; who writes it? see --ft-segment-health-check-dir"


def segment(look: Look) -> Verdict:
    """This node's file."""
    name = file_name(os.environ)
    if not name:
        return fit("does not apply: Slurm has not started this")
    path = os.path.join(look.path(look.argument), name)
    try:
        found = os.stat(path)
        if not stat.S_ISREG(found.st_mode):
            return degraded(f"{path} is no regular file", FOREIGN)
        if not found.st_size:
            return fit(f"{path} is empty")
        with open(path, errors="replace") as file:
            first = file.read(MOST).strip().partition("\n")[0]
    except FileNotFoundError:
        return fit(f"there is no {path}")
    except OSError as error:
        return degraded(f"{path}: {error.strerror}", FOREIGN)
    return unfit(f"its allocation is marked as unhealthy by {path}: {first}", AGAIN)


def file_name(environ: Mapping[str, str]) -> str:
    """Of the file about the allocation that we are in. Empty: we are in none."""
    job = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID")
    return f"segment_health_check.{job}.{environ.get('SLURM_ARRAY_TASK_ID') or job}" if job else ""
