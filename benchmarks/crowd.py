"""One real coordinator and thousands of members: an agent that hosts it, and processes that hold the members' connections."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator

from harness import HOLDFAST, Launch, clean_environment, command, free_port, launch, worker

TOKEN = {"HOLDFAST_TOKEN": "0123456789abcdef0123456789abcdef"}
PROCESSES = 2
"""That hold members. They share two processors with the coordinator here, so more would gain nothing."""


class Crowd:
    """The members, and the agent whose coordinator they talk to: node 0, with one worker."""

    def __init__(self, job: Launch, count: int, lease: tuple[str, ...]) -> None:
        self.job, self.count, port = job, count, free_port()
        flags = ["--nnodes", str(count + 1), "--nproc-per-node", "1", "--rdzv-id", "bench", "--rdzv-backend", "c10d"]
        flags += ["--rdzv-endpoint", f"127.0.0.1:{port}", "--node-name", "host", "--max-restarts", "1000", "--backoff", "0"]
        self.agent = job.start([*command(HOLDFAST), *flags, *lease, worker("stay")], TOKEN)
        self.holders = []
        for share in range(PROCESSES):
            first, last = count * share // PROCESSES, count * (share + 1) // PROCESSES
            argv = [sys.executable, worker("crowd"), str(port), str(first), str(last - first)]
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": clean_environment() | TOKEN}
            self.holders.append(subprocess.Popen(argv, **pipes))

    def close(self) -> None:
        """Hang up."""
        for holder in self.holders:
            holder.kill()
            holder.communicate()

    def ask(self, what: str) -> None:
        """Have every holder do something."""
        for holder in self.holders:
            assert holder.stdin is not None
            holder.stdin.write(what + "\n")
            holder.stdin.flush()

    def answers(self) -> list[dict[str, float]]:
        """What the holders answer, one each."""
        said = []
        for holder in self.holders:
            assert holder.stdout is not None
            if not (line := holder.stdout.readline()):
                raise RuntimeError(f"the members went away:\n{self.job.output()}")
            said.append(json.loads(line))
        return said

    def connect(self) -> float:
        """All members connected and proven; how many seconds that took."""
        self.ask("connect")
        return max(answer["took_s"] for answer in self.answers())

    def timed(self, what: str) -> dict[str, float]:
        """Milliseconds from the first word to the last answer, and the bytes of both directions."""
        self.ask(what)
        self.answers()  # all are ready
        self.ask("go")
        said = self.answers()
        took_s = max(answer["last_at"] for answer in said) - min(answer["first_at"] for answer in said)
        return {"ms": 1000 * took_s, "bytes": sum(answer["in"] + answer["out"] for answer in said)}


@contextlib.contextmanager
def crowd(count: int, lease: tuple[str, ...] = ("--lease", "30")) -> Iterator[Crowd]:
    """`count` members, connected and proven, and a coordinator that waits for them. Where other things than leases are
    measured, those who hold the members may be late."""
    with launch() as job:
        those = Crowd(job, count, lease)
        try:
            those.took = those.connect()
            yield those
        finally:
            those.close()
