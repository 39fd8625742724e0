"""Writes the cycle-info files when a round begins and ends: which nodes have which cycle of the job, and when?

A cycle is a round (`core.job.cycles`). Each has one small JSON file, for programs that watch jobs from outside. Written where
the coordinator is, each time whole and by a rename, in a thread (`telemetry.record.io_thread`): the folder is often on a file
server. `generation` counts how often a file was written again: 0 when the cycle began, 1 when it had ended. A coordinator that
takes over finds its predecessor's last file by the link `current`, and ends it.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress

from holdfast.agent.component import Component
from holdfast.core.config.config import RunConfig
from holdfast.core.config.grammar import ranges
from holdfast.core.job.cycles import InfoNames, cycle_of, log_path
from holdfast.core.job.events import Event, RoundFormed
from holdfast.core.resolve.hostlist import compress, expand
from holdfast.rendezvous.coordinator.job import Phase
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.coordinator.membership import Seat, SeatState
from holdfast.runtime.peer_user import is_ours
from holdfast.runtime.private_files import make_folder, private
from holdfast.telemetry.record.io_thread import IoThread
from holdfast.telemetry.report.phrasing import iso


class Cycles(Component):
    """What was last seen of the rounds, and the files about them."""

    notes = (RoundFormed,)

    def __init__(
        self,
        config: RunConfig,
        folder: str,
        complain: Callable[[str], None],
        *,
        rendezvous: Callable[[], Rendezvous | None],
        unix: Callable[[], float],
    ) -> None:
        """`rendezvous`: the coordinator's machine. None: it is elsewhere. `unix`: the clock."""
        self.rendezvous, self.unix = rendezvous, unix
        names = InfoNames(folder, config.rdzv_id, os.environ)
        self.info = CycleInfo(names, config.ft.per_cycle_applog_prefix, complain)
        self.seen = 0  # The round that was last written about.

    def recorded(self, event: Event, at_unix: float) -> None:
        """Workers may look for the file of the round that was formed."""
        self.end_turn()

    def end_turn(self) -> None:
        """Write down what has become of the round."""
        if (rendezvous := self.rendezvous()) is None:
            return
        if rendezvous.phase is not Phase.RUNNING:
            self.info.end(self.unix())
        elif rendezvous.round > self.seen:
            self.seen = rendezvous.round
            active = sorted(rendezvous.seats.members, key=_group_rank)
            self.info.begin(
                cycle_of(rendezvous.round),
                self.unix(),
                active=[seat.name for seat in active],
                standby=[seat.name for seat in rendezvous.seats.values() if seat.state is SeatState.READY],
            )

    def close(self) -> None:
        self.info.end(self.unix())
        self.info.close()


def _group_rank(seat: Seat) -> int:
    return seat.place.group_rank if seat.place is not None else 0


class CycleInfo:
    """The files of one job. `complain` hears once that they cannot be written; the job goes on."""

    def __init__(
        self, names: InfoNames, log_prefix: str | None, complain: Callable[[str], None], io_thread: IoThread | None = None
    ) -> None:
        self.names = names
        self.log_prefix = log_prefix
        self._complain = complain
        self._io_thread = io_thread or IoThread()
        self._open: tuple[str, dict[str, object]] | None = None
        self._has_begun = self._has_complained = False

    def begin(self, cycle: int, at_unix: float, *, active: Sequence[str], standby: Sequence[str]) -> None:
        """A cycle begins; the one before has ended, at the latest now. `active` in group-rank order."""
        self.end(at_unix)
        path, nodes = self.names.of(cycle), compress(active)
        about: dict[str, object] = {
            "job_id": self.names.job,
            "attempt_index": self.names.life,
            "cycle_number": cycle,
            "cycle_start_time": iso(at_unix),
            "cycle_end_time": "",
            "cycle_log_file": log_path(self.log_prefix, cycle) if self.log_prefix else "",
            "active_nodes": nodes,
            "standby_nodes": compress(standby),
            "active_ranks": ranges(active.index(node) for node in expand(nodes)),  # group ranks, in the order of the nodes
            "generation": 0,
        }
        self._open = path, about
        first, self._has_begun = not self._has_begun, True

        def write() -> None:
            make_folder(self.names.folder)
            if first:
                _end_what_is_open(self.names.current, at_unix)
            _write(path, about)
            os.symlink(os.path.basename(path), draft := _beside(self.names.current))
            os.replace(draft, self.names.current)

        self._do(write)

    def end(self, at_unix: float) -> None:
        """The cycle that ran has ended, if one did."""
        if self._open is None:
            return
        path, about = self._open
        self._open = None
        self._do(lambda: _write(path, about | {"cycle_end_time": iso(at_unix), "generation": 1}))

    def close(self) -> None:
        """End the thread, as far as the file server lets us."""
        self._io_thread.close()

    def _do(self, task: Callable[[], None]) -> None:
        trouble = self._io_thread.attempt(task)
        if trouble and not self._has_complained:
            self._has_complained = True
            self._complain(f"cannot write about cycles in {self.names.folder}: {trouble}")


def _end_what_is_open(current: str, at_unix: float) -> None:
    """End the cycle of a coordinator that could not. Where others may write to the folder, the link may be theirs: it counts
    only if it leads to a file beside it that is this user's."""
    try:
        path = os.path.join(os.path.dirname(current), os.path.basename(os.readlink(current)))
        seen = os.lstat(path)
        if not stat.S_ISREG(seen.st_mode) or not is_ours(seen.st_uid):
            return
        with open(path, encoding="utf-8") as file:
            about = json.load(file)
    except (OSError, ValueError):
        return  # there was none
    if isinstance(about, dict) and not about.get("cycle_end_time"):
        before = about.get("generation")
        generation = before + 1 if isinstance(before, int) else 1
        _write(path, about | {"cycle_end_time": iso(at_unix), "generation": generation})


def _write(path: str, about: dict[str, object]) -> None:
    draft = _beside(path)
    try:
        with open(draft, "w", encoding="utf-8", opener=private) as file:
            json.dump(about, file, indent=2)
            file.write("\n")
        os.replace(draft, path)
    except OSError:
        with suppress(OSError):
            os.unlink(draft)  # the disk is full
        raise


def _beside(path: str) -> str:
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}")
