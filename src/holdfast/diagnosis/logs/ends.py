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
from collections.abc import Callable

from holdfast.diagnosis.evidence import End
from holdfast.diagnosis.logs.prefix import Speaker

WORDS = (
    "Root Cause (first observed failure)", "Other Failures:", "host      :", "rank      :", "exitcode  :",
    "failed (exitcode:", "srun: error: ", " was killed by SIG", " exited with code ", " noticed that process rank ",
    " died from signal ", "Process name: [", "Exit code:  ", "Exit Code:  ", " exits with return code = ", ") world_rank=",
)  # fmt: skip
"""One of these is in every line that is read here."""

_FIELD = re.compile(r"^ +(host|rank|exitcode) +: (\S+)(?: \((?:local_rank|pid): (\d+)\))?")
_ELASTIC = re.compile(r"failed \(exitcode: (-?\d+)\) local_rank: (\d+) \(pid: (\d+)\)")
_SRUN = re.compile(
    r"srun: error: ([\w.-]+): tasks? (\d+): "
    r"(Exited with exit code (\d+)|Killed|Segmentation fault|Aborted|Bus error|Out Of Memory)"
)
_OURS = re.compile(r"rank (\d+) \(local (\d+)\) on (\S+) (?:was killed by (SIG\w+)|exited with code (\d+))")
_MPI = re.compile(
    r"(?:mpirun|mpiexec|orterun|prterun|prun) noticed that process rank (\d+) with PID (\d+) on node (\S+) "
    r"exited on signal (\d+)"
)
_NAME = re.compile(r"^ *Process name: \[(?:\[\d+,\d+\]|[\w.-]+@\d+),(\d+)\]")
_CODE = re.compile(r"^ *Exit [cC]ode: +(\d+)$")
_HYDRA = re.compile(r"^(\S+): rank (\d+) (?:exited with code (\d+)|died from signal (\d+))")
_DEEPSPEED = re.compile(r"'--local_rank=(\d+)'.* exits with return code = (-?\d+)")
_RAY = re.compile(r"\((?:node_id=\w+, )?ip=([\w.:-]+), pid=(\d+)\) world_rank=(\d+), local_rank=(\d+)")
_SIGNALS = {"Killed": -9, "Out Of Memory": -9, "Segmentation fault": -11, "Aborted": -6, "Bus error": -7}

_Reader = tuple[Callable[[str], re.Match[str] | None], Callable[[re.Match[str], Speaker, int], End | None]]


class Box:
    """Reads one file's lines."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._first = False
        self._fields: dict[str, tuple[str, str | None]] = {}
        self.hosts: dict[str, str] = {}
        """Hosts by what else their lines call them."""
        self.pids: dict[tuple[str, int], int] = {}
        """Ranks by node and pid."""
        self._readers: tuple[_Reader, ...] = (
            (_FIELD.match, self._field),
            (_SRUN.search, self._srun),
            (_ELASTIC.search, self._elastic),
            (_MPI.search, self._mpi),
            (_NAME.match, self._name),
            (_CODE.match, self._code),
            (_HYDRA.match, self._hydra),
            (_DEEPSPEED.search, self._deepspeed),
            (_RAY.search, self._ray),
            (_OURS.search, self._ours),
        )
        """Lines of an end, how each is looked for, and what reads it; the first that matches counts."""

    def read(self, text: str, speaker: Speaker, line: int) -> End | None:
        """The end that a line tells of, or completes."""
        if "Root Cause (first observed failure)" in text or "Other Failures:" in text:
            self._first, self._fields = "Root Cause" in text, {}
            return None
        for look, take in self._readers:
            if found := look(text):
                return take(found, speaker, line)
        return None

    def _field(self, found: re.Match[str], speaker: Speaker, line: int) -> End | None:
        self._fields[found[1]] = found[2], found[3]
        if found[1] == "host" and speaker.node:
            self.hosts[speaker.node] = found[2]
        return self._boxed(line) if found[1] == "exitcode" else None

    def _srun(self, found: re.Match[str], speaker: Speaker, line: int) -> End:
        code = int(found[4]) if found[4] else _SIGNALS[found[3]]
        return self._end(line, rank=int(found[2]), node=found[1], exitcode=code)

    def _elastic(self, found: re.Match[str], speaker: Speaker, line: int) -> End:
        return self._end(line, local=int(found[2]), node=speaker.node, exitcode=int(found[1]), pid=int(found[3]))

    def _mpi(self, found: re.Match[str], speaker: Speaker, line: int) -> End:
        pid = int(found[2]) or None
        return self._end(line, rank=int(found[1]), node=found[3], exitcode=-int(found[4]), pid=pid, first=True)

    def _name(self, found: re.Match[str], speaker: Speaker, line: int) -> None:
        self._fields = {"process": (found[1], None)}

    def _hydra(self, found: re.Match[str], speaker: Speaker, line: int) -> End:
        code = -int(found[4]) if found[4] else _signalled(int(found[3]))
        return self._end(line, rank=int(found[2]), node=found[1], exitcode=code)

    def _deepspeed(self, found: re.Match[str], speaker: Speaker, line: int) -> End:
        return self._end(line, local=int(found[1]), node=speaker.node, exitcode=int(found[2]))

    def _ray(self, found: re.Match[str], speaker: Speaker, line: int) -> None:
        self.pids[found[1], int(found[2])] = int(found[3])

    def _ours(self, found: re.Match[str], speaker: Speaker, line: int) -> End:
        code = -int(getattr(signal, found[4], 0)) if found[4] else int(found[5])
        return self._end(line, rank=int(found[1]), local=int(found[2]), node=found[3], exitcode=code)

    def _code(self, found: re.Match[str], speaker: Speaker, line: int) -> End | None:
        """Of the process that mpirun has just named, or of a pod that is being described."""
        code = int(found[1])
        fields, self._fields = self._fields, {}
        if "process" in fields:
            return self._end(line, rank=int(fields["process"][0]), exitcode=_signalled(code), first=True)
        if code and speaker.rank is not None:
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


def _signalled(code: int) -> int:
    """As `Popen.returncode`, of what a shell or a container says."""
    return 128 - code if 128 < code < 192 else code
