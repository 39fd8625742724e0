"""Keeps what an elector must not forget, in a file of the run's directory: `elector-<node>`.

An agent that is started again on the same host looks there which endpoint its earlier life had, and takes it again if it is
free. Only one process can listen at an endpoint, so no two electors are ever the same one: neither two agents of one node
name, nor two hosts whose directory is shared or copied, for the address is part of the endpoint. A file of which the endpoint
is taken, or is another host's, is left alone. Without one the agent is a new elector, which has no say in what was before.

The file is made once, with room for all that may come, readable by its user only, and written in place: that works on a full
disk. Two slots are written in turn, each with its checksum, so an agent that is killed while it writes leaves the older one. A
thread writes: the agent waits for no disk.
"""

from __future__ import annotations

import json
import os
import select
import stat
from binascii import crc32
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from msgspec import MsgspecError

from holdfast.core.config.config import RunConfig
from holdfast.core.machine import Action, Observation
from holdfast.core.value import Value, replace, to_plain
from holdfast.core.wire.messages import Roster
from holdfast.rendezvous.election.elector_memory import ElectorMemory, Remember, Remembered
from holdfast.runtime.host import Host
from holdfast.runtime.net.codec import build
from holdfast.telemetry.record.io_thread import IoThread
from holdfast.telemetry.record.state_dir import JobDir, last_runs, spare_homes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.agent.leader.tie_breaker import Witness

SLOT, SLOTS = 16384, 2
"""Bytes of a slot, and how many there are. A roster names 64 endpoints at most, in its line and in each electorate."""

RUNS_KNOWN = 4  # How many runs back a file is looked for.


class Elector(Value):
    """What one file says."""

    node: str
    endpoint: str
    memory: ElectorMemory
    number: int  # How many times it has been written.
    paths: tuple[str, ...]  # Where it says so.

    def with_file_of(self, other: Elector) -> Elector:
        """What both files say of one elector: the later memory, if they are of one run of the job."""
        ours, theirs = self.memory, other.memory
        is_later = theirs.life == ours.life and theirs.term > ours.term
        kept, number = other if is_later else self, max(self.number, other.number)
        return replace(kept, number=number, paths=tuple(dict.fromkeys((*self.paths, *other.paths))))


def earlier_electors(config: RunConfig, node: str) -> list[Elector]:
    """Those that agents of that node name have left here in runs of this job that are not over, the newest run's first."""
    found: dict[str, Elector] = {}
    for home in (config.state_dir, *spare_homes()):
        for path in last_runs(home, config.rdzv_id, endpoint=config.rdzv_endpoint)[:RUNS_KNOWN]:
            is_over = os.path.exists(os.path.join(path, "report.json"))
            for one in [] if is_over else _in_run(path):
                known = found.setdefault(one.endpoint, one)
                found[one.endpoint] = known.with_file_of(one)
    return [one for one in found.values() if one.node == node]


def _in_run(path: str) -> list[Elector]:
    try:
        names = sorted(os.listdir(path))
    except OSError:
        return []
    files = [os.path.join(path, name) for name in names if name.startswith("elector-")]
    return [one for one in map(_read, files) if one is not None]


def _read(path: str) -> Elector | None:
    """None: it is nobody's, or somebody else's."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        seen = os.fstat(fd)
        if not stat.S_ISREG(seen.st_mode) or seen.st_uid != os.geteuid() or seen.st_mode & 0o022:
            return None
        slots = (_checked(os.pread(fd, SLOT, number * SLOT)) for number in range(SLOTS))
        said = max((slot for slot in slots if slot), key=lambda slot: int(slot["number"]))
        roster = None if said["roster"] is None else build(Roster, said["roster"])
        memory = ElectorMemory(term=int(said["term"]), roster=roster)
        number = int(said["number"])
        return Elector(node=str(said["node"]), endpoint=str(said["endpoint"]), memory=memory, number=number, paths=(path,))
    except (OSError, ValueError, KeyError, TypeError, MsgspecError):
        return None
    finally:
        os.close(fd)


def _checked(slot: bytes) -> dict[str, Any]:
    """What stands in a slot. Empty: nothing, or it was not written to its end."""
    head, _, said = slot.rstrip(b"\0").partition(b" ")
    said = said.partition(b"\n")[0]
    return json.loads(said) if head == b"%08x" % crc32(said) else {}


class ElectorHands:
    """What an elector's machine asks of its host: to remember, and the witness's vote. See `agent.leader.build.Store`."""

    def __init__(self, host: Host, node: str, witness: Witness | None, earlier: Elector | None) -> None:
        """`node`: the agent's own name, whichever it has in the run's directory. `earlier`: whom it goes on as."""
        self.host, self.node, self.witness, self.earlier = host, node, witness, earlier
        self.path, self.fd, self.number = "", -1, 0 if earlier is None else earlier.number
        self.io_thread = IoThread(patience_s=0.0)
        self.answers: list[Remembered] = []
        self.woken = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        host.watch(self.woken, select.EPOLLIN, lambda events: self._answered())

    def open(self, job_dir: JobDir) -> None:
        """Keep it in that run's directory."""
        self.path = os.path.join(job_dir.path, f"elector-{job_dir.node}")

    def perform(self, action: Action) -> list[Observation]:
        """Begin to write, or to ask."""
        if isinstance(action, Remember):
            return self._keep(action.memory, action.endpoint)
        assert self.witness is not None, f"an elector without a witness cannot do {action!r}"
        return self.witness.perform(action)

    def close(self, last: Iterable[Action]) -> None:
        """Give up asking; what is being written is written."""
        if self.witness is not None:
            self.witness.close(last)
        self.io_thread.close()
        self.host.unwatch(self.woken)

    def _keep(self, memory: ElectorMemory, endpoint: str) -> list[Observation]:
        roster = None if memory.roster is None else to_plain(memory.roster)
        self.number += 1
        said = {"number": self.number, "node": self.node, "endpoint": endpoint, "term": memory.term, "roster": roster}
        text = json.dumps(said).encode()
        slot, number = b"%08x %s\n" % (crc32(text), text), self.number % SLOTS

        def write() -> None:
            self.answers.append(Remembered(memory=memory, is_kept=self._write(slot, number)))
            os.eventfd_write(self.woken, 1)

        return [] if self.io_thread.do(write) else [Remembered(memory=memory, is_kept=False)]

    def _write(self, slot: bytes, number: int) -> bool:
        """In the thread. False: it could not be kept."""
        try:
            if self.fd < 0:
                self.fd = self._opened()
            os.pwrite(self.fd, slot, number * SLOT)
            os.fdatasync(self.fd)
            self._forget_earlier()
        except OSError:
            with suppress(OSError):  # what it says is not so any more: better nobody than one who has forgotten
                os.unlink(self.path)
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
            return False
        return True

    def _opened(self) -> int:
        """The file: our earlier life's, or made anew. Nobody else has its name: the lock on the events of that name is ours."""
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        if self.earlier is not None and self.path in self.earlier.paths:
            return os.open(self.path, flags)
        with suppress(FileNotFoundError):
            os.unlink(self.path)
        fd = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(OSError):  # NFS may not be able to
            os.posix_fallocate(fd, 0, SLOTS * SLOT)
        return fd

    def _forget_earlier(self) -> None:
        """What earlier runs' directories say of this elector is old by now."""
        paths = () if self.earlier is None else self.earlier.paths
        self.earlier = None
        for path in paths:
            if path != self.path:
                with suppress(OSError):
                    os.unlink(path)

    def _answered(self) -> list[Observation]:
        os.eventfd_read(self.woken)
        answers = [self.answers.pop(0) for _ in range(len(self.answers))]
        if not all(answer.is_kept for answer in answers):
            self.host.complain(f"cannot write {self.path}: killed and started again, this agent would have no say in who leads")
        return [*answers]
