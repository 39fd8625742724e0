"""When is a spare worker made, used, kept or ended? A machine; who carries it out is `agent.spares.pool`.

    none ──make──▶ importing ──ready──▶ waiting ──chosen──▶ none
     ▲                │ failed              │ too old · grown · memory is short · its environment is no longer the right one
     └────────────────┴─────────────────────┘

Spares are made once the ranks train: before, they would take from them what they need to get there, and nobody would know
what to import. The ranks train when each has shown a heartbeat, or, where a script shows none, when for a while no module
has been loaded any more. The first spare shows how much memory one needs; the others follow if that leaves enough.

Where one is lacking while ranks are slow to end, it is made meanwhile; and the next round's wait for those that are under way,
each of which has begun sooner than a cold start would.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from holdfast.agent.spares.messages import (
    EndSpare,
    Lost,
    MakeSpare,
    Ready,
    RoundBegan,
    RoundEnds,
    RoundOver,
    StandingBy,
    Survey,
    Surveyed,
)
from holdfast.core.job.events import SpareLost, SpareReady
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Tick
from holdfast.core.value import Value, replace

Changes = dict[str, tuple[str | None, str | None]]
"""Variable → its old and its new value; None: not set."""

MiB = 1024**2

SURVEY_S = 0.25
"""Between two looks whether the ranks train yet."""

QUIET_S = 3.0
"""Without heartbeats: the ranks train when no module has been loaded for so long. A large library takes less for one module."""

WATCH_S = 30.0
"""Between two looks at memory while spares wait."""

LONGEST_AGE_S = 86400.0
"""A spare holds the files of libraries as they were when it was made: an update of them would never be noticed."""

GUESS_BYTES = 512 * MiB
"""What the first spare is expected to need. torch for CPUs: 170 MiB."""

LEAST_ROOM, LEAST_ROOM_BYTES = 0.1, 1024 * MiB
"""`auto` leaves this part of the memory free, and at least so many bytes."""

GROWN = 2.0, 64 * MiB
"""A spare that has so many times as much, and so many bytes more, than when it was ready, is made anew."""

PATIENCE = 3.0
"""So many times as long as the last one took to import, one is waited for: on a busy host a cold start would be slower, too."""

MOST_FAILURES = 3
"""So many that could not be made are enough: it is not tried again."""

READ_AT_LOAD = tuple("OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ BLIS_ VECLIB_ NUMEXPR_ TORCH_ PYTORCH_ XLA_ TF_ HF_ TRITON".split())
"""How the names of variables begin that compiled code reads as it is loaded, which nobody can watch."""

READ_BY_LIBRARIES = (
    *READ_AT_LOAD,
    *"CUDA NVIDIA_ NCCL_ GLOO_ UCX_ HIP_ ROC HSA_ ZE_ LD_ MALLOC_ GLIBC_ PYTHON LANG LC_ TZ".split(),
)
"""And of those that it reads sooner, or when a device or a port is first used, which no spare does."""


class SlotState(Enum):
    """Where a place's spare is."""

    NONE = "none"
    IMPORTING = "importing"
    WAITING = "waiting"


class Slot(Value):
    """The place of one spare, and what is known of the spare."""

    number: int
    local_rank: int
    state: SlotState = SlotState.NONE
    pid: int = -1
    since: float = -NEVER
    reads: Collection[str] = ()
    size_bytes: int = 0
    stale: str = ""
    """Why it cannot be used any more. Empty: it can."""
    trouble: str = "none had been made yet"
    """Why there is none."""
    guessed: bool = False
    """It was made while the node waited: with the environment of a place that is not known yet."""
    vain: bool = False
    """The last one found its environment contradicted: the next one might as well."""


class Spares:
    """The machine of one node."""

    def __init__(self, nproc: int, wanted: int | None, *, fork: bool = False) -> None:
        """`wanted` None: one for each worker, if there is memory for it. `fork`: one for all."""
        count = 1 if fork else nproc if wanted is None else wanted
        self.slots = [Slot(number=number, local_rank=number % nproc) for number in range(count)]
        self.thrifty, self.fork = wanted is None, fork
        self.look_at = NEVER
        self.settling, self.began_at, self.quiet_since, self.modules = False, 0.0, 0.0, -1
        self.failures = 0
        self.training = self.standing_by = False
        self.proven = False
        """Ranks have trained here that had all run our bootstrap."""
        self.import_s = 0.0
        """How long the last one's imports took. 0: none has been ready yet."""
        self.said: set[str] = set()

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        return self.look_at

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`."""
        match seen:
            case RoundBegan():
                self.standing_by = False
                self.settling, self.training, self.began_at, self.quiet_since, self.modules = True, False, now, now, -1
                self.look_at = now + SURVEY_S
                return []
            case StandingBy():
                self.training, self.standing_by, self.look_at = True, True, now
                return []
            case RoundEnds():
                self.look_at = min(self.look_at, now + SURVEY_S)
                return []
            case RoundOver():
                self.settling = self.training = False
                return []
            case Surveyed():
                return self._surveyed(seen, now)
            case Ready():
                return self._ready(seen, now)
            case Lost(pid=pid, reason=reason):
                return self._lost(pid, reason, now)
            case Tick():
                self.look_at = NEVER
                return [Survey()] if self.settling or self.training or self._in(SlotState.WAITING) else []
        raise AssertionError(f"spares are never shown {seen!r}")

    def awaited_until(self) -> float:
        """Until when those that are importing are worth waiting for; in the past: none is."""
        under_way = [slot.since for slot in self._in(SlotState.IMPORTING) if not slot.vain]
        return max(under_way) + PATIENCE * self.import_s if under_way and self.import_s else -NEVER

    # --- making and keeping ---------------------------------------------------------------------------------------------

    def made(self, slot: int, pid: int, now: float) -> None:
        """What `MakeSpare` has started."""
        why = "it was still importing"
        self._change(
            self.slots[slot], state=SlotState.IMPORTING, pid=pid, since=now, trouble=why, guessed=self.standing_by
        )

    def not_made(self, slot: int, why: str) -> None:
        """`MakeSpare` could not be carried out."""
        self.failures += 1
        self._clear(self.slots[slot], why)

    def _change(self, slot: Slot, **changes: Any) -> None:
        self.slots[slot.number] = replace(slot, **changes)

    def _clear(self, slot: Slot, why: str) -> None:
        """It is gone."""
        self._change(slot, state=SlotState.NONE, pid=-1, trouble=why, stale="")

    def _of(self, pid: int) -> Slot | None:
        return next((slot for slot in self.slots if slot.pid == pid), None)

    def _in(self, state: SlotState) -> list[Slot]:
        return [slot for slot in self.slots if slot.state is state]

    def _surveyed(self, seen: Surveyed, now: float) -> list[Action]:
        if seen.between:
            self.settling = self.training = False
        if self.settling:
            if seen.modules != self.modules:
                self.modules, self.quiet_since = seen.modules, now
            self.training = seen.beating or now - self.quiet_since >= QUIET_S
            self.settling = not self.training
        actions = self._weed(seen, now)
        self.proven = self.proven or (self.training and seen.reached)
        if self.training or (seen.between and self.proven):
            actions += self._make(seen)
        self.look_at = now + (SURVEY_S if self.settling else WATCH_S)
        return actions

    def _weed(self, seen: Surveyed, now: float) -> list[Action]:
        actions: list[Action] = []
        for slot in self._in(SlotState.WAITING):
            size = seen.sizes.get(slot.pid, 0)
            if slot.stale:
                actions += self._end(slot, slot.stale)
            elif now - slot.since > LONGEST_AGE_S:
                actions += self._end(slot, f"it is {(now - slot.since) / 3600:.0f} hours old")
            elif size > max(slot.size_bytes * GROWN[0], slot.size_bytes + GROWN[1]):
                actions += self._end(slot, f"it has grown from {slot.size_bytes // MiB} to {size // MiB} MiB")
        short = self.thrifty and seen.total_bytes > 0 and seen.room_bytes < self._reserve(seen) / 2
        if short and (waiting := self._in(SlotState.WAITING)):
            actions += self._end(waiting[-1], f"memory is short: {seen.room_bytes // MiB} MiB are left on this host")
        return actions

    def _make(self, seen: Surveyed) -> list[Action]:
        """As many as may be made now."""
        if not seen.reached or self.failures >= MOST_FAILURES:
            return []
        known = max((slot.size_bytes for slot in self.slots), default=0)
        importing, each = len(self._in(SlotState.IMPORTING)), known or GUESS_BYTES
        room = seen.room_bytes - self._reserve(seen) - importing * each
        wanted = [slot for slot in self._in(SlotState.NONE) if not (seen.between and slot.vain)]
        if not known:  # the first shows how much one needs
            wanted = wanted[: 0 if importing else 1]
        fitting = len(wanted)
        if self.thrifty and seen.total_bytes:
            fitting = min(fitting, max(0, int(room // each)))
        if fitting < len(wanted):
            self._change(wanted[fitting], trouble=f"memory is short: {seen.room_bytes // MiB} MiB are left on this host")
        return [MakeSpare(slot=slot.number, local_rank=slot.local_rank) for slot in wanted[:fitting]]

    @staticmethod
    def _reserve(seen: Surveyed) -> float:
        return max(LEAST_ROOM * seen.total_bytes, LEAST_ROOM_BYTES)

    def _ready(self, seen: Ready, now: float) -> list[Action]:
        if (slot := self._of(seen.pid)) is None:
            return []
        self._change(slot, state=SlotState.WAITING, reads=seen.reads, size_bytes=seen.size_bytes)
        self.import_s, self.look_at = seen.import_s, now
        mb = round(seen.size_bytes / MiB, 1)
        ready = SpareReady(local_rank=slot.local_rank, pid=slot.pid, import_s=seen.import_s, mb=mb)
        return [Record(event=ready), *self._tell_until(seen.until)]

    def _tell_until(self, variable: str) -> list[Action]:
        if not variable or variable in self.said:
            return []
        self.said.add(variable)
        what = f"the script changes {variable}, so warm spares import only what comes before: set it for the whole job instead"
        return [Say(text=what, level="warning")]

    def _lost(self, pid: int, reason: str, now: float) -> list[Action]:
        if (slot := self._of(pid)) is None:
            return []
        self.failures += slot.state is SlotState.IMPORTING
        self.look_at = min(self.look_at, now + SURVEY_S)
        return self._gone(slot, reason)

    def _end(self, slot: Slot, why: str) -> list[Action]:
        ended = EndSpare(pid=slot.pid)
        return [ended, *self._gone(slot, why)]

    def _gone(self, slot: Slot, why: str) -> list[Action]:
        actions: list[Action] = [Record(event=SpareLost(local_rank=slot.local_rank, pid=slot.pid, reason=why))]
        if self.failures and why not in self.said:
            self.said.add(why)
            actions.append(Say(text=f"no warm spare for local rank {slot.local_rank}: {why}", level="warning"))
        self._clear(slot, why)
        return actions

    # --- using ----------------------------------------------------------------------------------------------------------

    def choose(self, local_rank: int, changed: Mapping[int, Changes]) -> tuple[int, str]:
        """Which spare becomes this worker: its pid, or -1 and why none does. `changed`: of each, the variables that are no
        longer what it was started with."""
        places = [slot for slot in self.slots if self.fork or slot.local_rank == local_rank]
        trouble = places[0].trouble if places else "there are fewer spares than workers"
        for slot in places:
            if slot.state is not SlotState.WAITING or slot.stale:
                continue
            why = contradiction(changed[slot.pid], slot.reads)
            if not why:
                self._change(slot, vain=False)
                return slot.pid, ""
            why += "; this node did not know its place yet" * slot.guessed
            self._change(slot, vain=True, stale=why, trouble=why)
            trouble = why if slot is places[0] else trouble
        return -1, trouble

    def used(self, pid: int, trouble: str = "") -> None:
        """It has become a worker; or has refused to, as `trouble` says, and is gone."""
        if (slot := self._of(pid)) is not None and (trouble or not self.fork):
            self._clear(slot, trouble or "the last one has become a worker, and no other was ready yet")


def contradiction(changed: Changes, reads: Collection[str]) -> str:
    """Which change has come too late for what is imported already, in words; empty: none."""
    for name in sorted(changed):
        if name in reads or name.startswith(READ_BY_LIBRARIES):
            old, new = ("not set" if value is None else repr(value) for value in changed[name])
            return f"{name}, which its imports have read, was {old} and is {new} now"
    return ""


def differences(before: Mapping[str, str], after: Mapping[str, str], *, but: Iterable[str]) -> Changes:
    """Variables that differ between two environments, except some."""
    names = [*before, *(name for name in after if name not in before)]
    skipped = set(but)
    pairs = {name: (before.get(name), after.get(name)) for name in names if name not in skipped}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


# --- what is imported -------------------------------------------------------------------------------------------------------


def merged(lines: list[str], more: Sequence[str]) -> list[str]:
    """`lines`, and those of `more` that are not there: each right behind the one that it follows there, so that a change comes
    no later than it did for anybody. One that is there with another value in it is there."""
    places = {line: at for at, line in enumerate(lines)}
    told = {line.partition(" ")[0] for line in lines}
    last, behind = -1, dict[int, list[str]]()
    for line in more:
        if line in places:
            last = places[line]
        elif line.partition(" ")[0] not in told:
            behind.setdefault(last, []).append(line)
    if not behind:
        return lines
    return [line for at in range(-1, len(lines)) for line in (*lines[max(at, 0) : at + 1], *behind.get(at, ()))]


def is_line(text: str) -> bool:
    """A module's name, or what had been changed (`core.page.layout`): what another node may have us import."""
    if text.startswith("="):
        return "\n" not in text
    return all(part.isidentifier() for part in text.removeprefix("?").split("."))


def at_load(line: str) -> str:
    """Marked, if it tells of a change of a variable that compiled code reads as it is loaded."""
    return "!" + line[1:] if line[0] == "=" and line[1:].startswith(READ_AT_LOAD) else line
