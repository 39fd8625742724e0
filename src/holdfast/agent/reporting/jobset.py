"""How does this pod's JobSet learn of its restarts in place? A program beside the agent tells it
(`integrations.kubernetes.jobset_in_place`). This module keeps that program running. No rank waits for it.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping

from holdfast.agent.component import Component
from holdfast.agent.reporting.child_program import program
from holdfast.core.errors import UsageError
from holdfast.core.machine import NEVER, Observation
from holdfast.core.signals import signal
from holdfast.runtime.host import Host

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess

NEEDED = {"JOBSET_NAME": "metadata.labels['jobset.sigs.k8s.io/jobset-name']", "POD_NAME": "metadata.name"}
"""Variable → the field of the pod that the manifest hands down as it."""

FIRST_S, LONGEST_S = 1.0, 60.0
"""The pause before the program is started again: it doubles, up to the second. A program that ran for longer did well."""


class InPlace(Component):
    """One agent's. `say`: a line and its level, for people."""

    def __init__(self, host: Host, environ: Mapping[str, str], say: Callable[[str, str], None]) -> None:
        """UsageError where this agent is not in a pod, or it is not known which."""
        if "KUBERNETES_SERVICE_HOST" not in environ:
            raise UsageError("--in-place-restart: this agent is not in a pod", hint="it is for agents of a Kubernetes JobSet")
        if missing := [name for name in NEEDED if not environ.get(name)]:
            fields = " and ".join(f"{name} from fieldPath {NEEDED[name]}" for name in missing)
            raise UsageError(
                f"--in-place-restart needs {' and '.join(missing)} in the environment",
                hint=f"let the container's env in the manifest hand down {fields}",
            )
        self.host, self.say = host, say
        self.jobset, self.pod = environ["JOBSET_NAME"], environ["POD_NAME"]
        self.attempt = ""  # That of our pod, as JobSet knows it. Empty: it has not been told yet.
        self.child: subprocess.Popen[bytes] | None = None
        self.heard = b""  # The beginning of a line.
        self.due_at, self.began, self.pause_s = NEVER, 0.0, FIRST_S
        self.haste = 0.5 + os.urandom(1)[0] / 510
        """Of the pauses: different for each pod, so that thousands do not come back at once."""

    def settle(self) -> list[Observation]:
        self.due_at = self.host.now()
        return []

    def due(self) -> list[Observation]:
        import subprocess  # heavy: not before the first worker

        self.due_at, self.began = NEVER, self.host.now()
        argv, pipe = [*program("kubernetes.jobset_in_place"), self.jobset, self.pod, self.attempt], subprocess.PIPE
        try:
            self.child = subprocess.Popen(argv, stdin=pipe, stdout=pipe, start_new_session=True)
        except OSError as error:  # no process or descriptor is left: there may be one later
            self._complain(f"its program cannot be started: {error.strerror}")
            self._start_later()
            return []
        self.host.others.add(self.child.pid)
        assert self.child.stdout is not None
        self.host.watch(self.child.stdout.fileno(), select.EPOLLIN, self._readable)
        return []

    def _readable(self, events: int) -> list[Observation]:
        assert self.child is not None and self.child.stdout is not None
        said = os.read(self.child.stdout.fileno(), 4096)
        *lines, self.heard = (self.heard + said).split(b"\n")
        for line in lines:
            self._understand(*line.decode(errors="replace").partition(" ")[::2])
        if not said:
            self.close()
            self._start_later()
        return []

    def _understand(self, kind: str, what: str) -> None:
        match kind:
            case "attempt" if what != self.attempt:
                self.attempt = what
                self.say(f"JobSet {self.jobset} counts this pod as in-place restart attempt {what}", "info")
            case "bypass":
                self.say(f"JobSet {self.jobset} gets no reports of restarts in place: {what}", "info")
            case "trouble":
                self._complain(what)

    def _complain(self, why: str) -> None:
        self.host.complain(f"--in-place-restart: JobSet {self.jobset} is not told of this pod for now: {why}")

    def _start_later(self) -> None:
        now = self.host.now()
        if now > self.began + LONGEST_S:
            self.pause_s = FIRST_S
        self.due_at, self.pause_s = now + self.haste * self.pause_s, min(2 * self.pause_s, LONGEST_S)

    def close(self) -> None:
        child, self.child, self.heard = self.child, None, b""
        if child is None:
            return
        assert child.stdin is not None and child.stdout is not None
        self.host.unwatch(child.stdout.fileno())
        child.stdin.close()
        child.stdout.close()
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        self.host.others.discard(child.pid)
