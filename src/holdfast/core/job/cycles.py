"""What are ft_launcher's cycles called? A cycle is a round, counted from 0; pure."""

from __future__ import annotations

import os
from collections.abc import Mapping

CURRENT_INFO = "NVRX_CURRENT_CYCLE_INFO"  # Tells the workers where the file about their cycle is.


def cycle_of(round: int) -> int:
    """The workers' lives before that round, whatever ended them."""
    return round - 1


def log_path(prefix: str, cycle: int) -> str:
    """`/abs/job.log` → `/abs/job_cycle3.log`."""
    stem, extension = os.path.splitext(prefix)
    return f"{stem}_cycle{cycle}{extension}"


class InfoNames:
    """The files about a job's cycles: `cycle_info.<job>.<life of the job>.<cycle>`, and the link `cycle_info.<job>.current`."""

    def __init__(self, folder: str, job: str, environ: Mapping[str, str]) -> None:
        self.folder = folder
        self.job = environ.get("SLURM_ARRAY_JOB_ID") or environ.get("SLURM_JOB_ID") or job.replace("/", "_")
        self.life = int(environ["SLURM_RESTART_COUNT"]) if environ.get("SLURM_RESTART_COUNT", "").isdecimal() else 0

    @property
    def current(self) -> str:
        """Path of the link to the file about the cycle that runs, or ran last."""
        return os.path.join(self.folder, f"cycle_info.{self.job}.current")

    def of(self, cycle: int) -> str:
        """Path of the file about one cycle."""
        return os.path.join(self.folder, f"cycle_info.{self.job}.{self.life}.{cycle}")
