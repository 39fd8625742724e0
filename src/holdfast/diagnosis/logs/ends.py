"""How did processes end, by what launchers say? torchrun's box, lines of srun, mpirun and others, and Holdfast's own.

Root Cause (first observed failure):
[0]:
  host      : n7
  rank      : 17 (local_rank: 1)
  exitcode  : -9 (pid: 4711)

And which rank is which process, by what Ray Train says as it begins.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping

from holdfast.diagnosis.evidence import End
from holdfast.diagnosis.logs.prefix import Speaker

WORDS = (
    "Root Cause (first observed failure)", "Other Failures:", "host      :", "rank      :", "exitcode  :",
    "failed (exitcode:", "srun: error: ", " was killed by SIG", " exited with code ", " noticed that process rank ",
    " died from signal ", "Process name: [", "Exit code:  ", "Exit Code:  ", " exits with return code = ", ") world_rank=",
    "-- Process ", " status failed ", " with exit code ", " returned non-zero exit status ", " died with <Signals.",
    " terminated with signal SIG",
)  # fmt: skip
"""One of these is in every line that is read here."""

SIGNALS = {"Out Of Memory": 9} | {told: number for number in range(1, 32) if (told := signal.strsignal(number))}
"""Signals by what shells and srun call them."""

_FIELD = re.compile(r"^ +(host|rank|exitcode) +: (\S+)(?: \((?:local_rank|pid): (\d+)\))?")
_NAME = re.compile(r"^ *Process name: \[(?:\[\d+,\d+\]|[\w.-]+@\d+),(\d+)\]")
_CODE = re.compile(r"^ *Exit [cC]ode: +(\d+)$")
_RAY = re.compile(r"\((?:node_id=\w+, )?ip=([\w.:-]+), pid=(\d+)\) world_rank=(\d+), local_rank=(\d+)")
_SPAWNED = re.compile(r"^-- Process (\d+) terminated with the following error:")  # torch.multiprocessing's, above a traceback.
_MPI = re.compile(
    r"(?:mpirun|mpiexec|orterun|prterun|prun) noticed that process rank (?P<rank>\d+) with PID (?P<pid>\d+) "
    r"on node (?P<node>\S+) exited on signal (?P<signal>\d+)"
)
_ENDS = (
    re.compile(
        r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+): (?:Exited with exit code (?P<code>\d+)"
        rf"|(?P<signal>{'|'.join(map(re.escape, SIGNALS))}))"
    ),
    re.compile(r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\)"),
    _MPI,
    re.compile(r"^(?P<node>\S+): rank (?P<rank>\d+) (?:exited with code (?P<status>\d+)|died from signal (?P<signal>\d+))"),
    re.compile(r"\bContainer rank (?P<rank>\d+) status failed .*\bcode (?P<code>-?\d+)"),
    re.compile(r"\b[Rr]ank (?P<rank>\d+) (?:crashed|exited|died|failed|terminated) with exit code (?P<code>-?\d+)"),
    re.compile(r"'--local_rank=(?P<local>\d+)'.* (?:exits with return code = |returned non-zero exit status )(?P<code>-?\d+)"),
    re.compile(r"'--local_rank=(?P<local>\d+)'.* died with <Signals\.(?P<signal>SIG\w+)"),
    re.compile(r"Exception: process (?P<local>\d+) terminated with (?:exit code|signal) (?:(?P<code>\d+)|(?P<signal>\w+))"),
    re.compile(
        r"rank (?P<rank>\d+) \(local (?P<local>\d+)\) on (?P<node>\S+) "
        r"(?:was killed by (?P<signal>SIG\w+)|exited with code (?P<code>\d+))"
    ),
)
"""Of srun, torchrun, mpirun (the first to fail), Hydra, Paddle, DeepSpeed, torch's older launcher, torch.multiprocessing and
Holdfast. `code` is as `Popen.returncode`, `status` as a shell says it; `signal` is a number, a name, or what srun calls it."""


def tells_only(text: str) -> bool:
    """Whether a line tells no more than that a process has ended, with which code."""
    return "failed (exitcode:" in text or ": Exited with exit code" in text


class Box:
    """Reads one file's lines."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._first = False
        self._fields: dict[str, tuple[str, str | None]] = {}
        self.hosts: dict[str, str] = {}  # Hosts by what else their lines call them.
        self.pids: dict[tuple[str, int], int] = {}  # Ranks by node and pid.
        self.spawned: int | None = None  # Whose traceback follows, where its parent shows it.

    def read(self, text: str, speaker: Speaker, line: int) -> End | None:
        """The end that a line tells of, or completes."""
        if "Root Cause (first observed failure)" in text or "Other Failures:" in text:
            self._first, self._fields = "Root Cause" in text, {}
        elif found := _FIELD.match(text):
            return self._field(found, speaker, line)
        elif found := _NAME.match(text):
            self._fields = {"process": (found[1], None)}
        elif found := _CODE.match(text):
            return self._code(int(found[1]), speaker, line)
        elif found := _SPAWNED.match(text):
            self.spawned = int(found[1])
        elif found := _RAY.search(text):
            self.pids[found[1], int(found[2])] = int(found[3])
        else:
            return self._in_a_line(text, speaker, line)
        return None

    def _in_a_line(self, text: str, speaker: Speaker, line: int) -> End | None:
        pattern, found = next(((one, match) for one in _ENDS if (match := one.search(text))), (None, None))
        if found is None:
            return None
        said = found.groupdict()
        rank, local, pid = (int(said[key]) if said.get(key) else None for key in ("rank", "local", "pid"))
        node = said.get("node") or speaker.node
        return self._end(
            line, rank=rank, local=local, node=node, exitcode=_exitcode(said), pid=pid or None, first=pattern is _MPI
        )

    def _field(self, found: re.Match[str], speaker: Speaker, line: int) -> End | None:
        self._fields[found[1]] = found[2], found[3]
        if found[1] == "host" and speaker.node:
            self.hosts[speaker.node] = found[2]
        return self._boxed(line) if found[1] == "exitcode" else None

    def _code(self, code: int, speaker: Speaker, line: int) -> End | None:
        """Of the process that mpirun has just named, or of a pod that is being described."""
        fields, self._fields = self._fields, {}
        if "process" in fields:
            return self._end(line, rank=int(fields["process"][0]), exitcode=_signalled(code), first=True)
        if code and (speaker.rank is not None or speaker.node):
            return self._end(line, rank=speaker.rank, node=speaker.node, exitcode=_signalled(code))
        return None

    def _boxed(self, line: int) -> End | None:
        fields, self._fields = self._fields, {}
        rank, local = fields.get("rank", ("", None))
        code, pid = fields["exitcode"]
        if not rank.isdigit():
            return None
        return self._end(
            line, rank=int(rank), local=int(local) if local else None, node=fields.get("host", ("", None))[0],
            first=self._first,
            exitcode=int(code) if re.fullmatch(r"-?\d+", code) else None, pid=int(pid) if pid else None,
        )  # fmt: skip

    def _end(
        self, line: int, *, rank: int | None = None, local: int | None = None, node: str = "", exitcode: int | None = None,
        pid: int | None = None, first: bool = False,
    ) -> End:  # fmt: skip
        innocent = exitcode == -15 and not first
        return End(
            rank=rank, local=local, node=node, exitcode=exitcode, pid=pid, first=first, innocent=innocent,
            source=self.source, line=line,
        )  # fmt: skip


def _exitcode(said: Mapping[str, str | None]) -> int:
    """As `Popen.returncode`."""
    if name := said.get("signal"):
        return -(int(name) if name.isdigit() else SIGNALS.get(name) or int(getattr(signal, name, 0)))
    if status := said.get("status"):
        return _signalled(int(status))
    return int(said["code"] or 0)


def _signalled(code: int) -> int:
    """As `Popen.returncode`, of what a shell or a container says."""
    return 128 - code if 128 < code < 192 else code
