"""What is run by the Python that has google-cloud-resiliency-supervisor, and answers lines with lines."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from kit import KIT

GOOGLE = Path(sys.prefix) / "google" / "bin" / "python"
"""Where `make google` puts it."""


class Talking:
    """A process that answers each line with a line."""

    def __init__(self, script: str, *args: object, env: dict[str, str] | None = None) -> None:
        command = [str(GOOGLE), str(KIT / script), *map(str, args)]
        full = {**os.environ, "GLOG_logtostderr": "1", **(env or {})}
        self.process = subprocess.Popen(
            command, env=full, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.hear() == "ready", self.process.communicate()[1]

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def say(self, line: str) -> str:
        """The answer to it."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        return self.hear()

    def end(self) -> str:
        """What it has said on stderr."""
        return self.process.communicate(timeout=60)[1]
