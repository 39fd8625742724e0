"""Which rank never reached which collective, by torch's flight recorder?

Each rank's file holds its last collectives: the group, the number in it, what was called with which sizes, and whether it was
scheduled, started or completed. torch writes pickle, and JSON on request. A pickle can name any function to call, and such a
file may come from anywhere: it is read, and not unpickled.
Formats: torch 2.13, `FlightRecorder.hpp`, version 2.x of the record.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from holdfast.core.job.finding import Class, Finding, Quote
from holdfast.core.value import Value
from holdfast.diagnosis.hangs import plain_pickle
from holdfast.diagnosis.hangs.suspects import BRANCH, KEPT, NETWORK, blame

MOST_BYTES = 256 << 20  # Of one file; 2000 collectives with their stacks are some 2 MB.

_RANK = re.compile(r"(\d+)(?:\.json|\.pkl|\.pickle)?$")


class State(StrEnum):
    """How far a collective has come."""

    SCHEDULED = "scheduled"
    STARTED = "started"
    COMPLETED = "completed"


class Call(Value):
    """One collective of one rank."""

    group: str
    seq: int
    what: str  # `all_reduce [[4]] Float`
    state: str  # One of `State`; torch may know others.
    where: str = ""  # The script's line that called it. Empty: not recorded.


class Record(Value):
    """One rank's file."""

    rank: int
    calls: tuple[Call, ...] = ()
    groups: Mapping[str, tuple[int, ...]]  # Ranks of each group, by its name; empty: not recorded.
    source: str = ""


def read(path: str, rank: int | None = None) -> Record:
    """A flight recorder's file; its rank is in its name, if not given. ValueError: it is none. OSError."""
    if os.path.getsize(path) > MOST_BYTES:
        raise ValueError(f"{path} is too large for a flight recorder's file")
    with open(path, "rb") as file:
        raw = file.read(MOST_BYTES)
    found = _RANK.search(os.path.basename(path))
    if rank is None and found is None:
        raise ValueError(f"{path} has no rank: its name should end with one")
    return parse(raw, int(found[1]) if rank is None and found else rank or 0, path)


def parse(raw: bytes, rank: int, source: str = "") -> Record:
    """What such a file holds. ValueError: it is none."""
    try:
        said = json.loads(raw) if raw.lstrip()[:1] == b"{" else plain_pickle.read(raw)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{source or 'it'} is not a flight recorder file: {error}") from error
    if not isinstance(said, dict) or not isinstance(said.get("entries"), list):
        raise ValueError(f"{source or 'it'} is not a flight recorder file: it has no entries")
    calls = [_call(one) for one in said["entries"] if isinstance(one, dict) and not one.get("is_p2p")]
    return Record(rank=rank, calls=tuple(filter(None, calls)), groups=_groups(said.get("pg_config")), source=source)


def compare(records: Iterable[Record]) -> Finding | None:
    """Who never joined what the others wait in, or called something else. None: nothing is stuck, or nothing tells."""
    by_rank = {record.rank: record for record in records}
    groups = sorted({call.group for record in by_rank.values() for call in record.calls})
    found = [one for group in groups if (one := _stuck(group, by_rank)) is not None]
    return max(found, key=lambda one: one.confidence, default=None)


def _stuck(group: str, records: Mapping[int, Record]) -> Finding | None:
    """The first collective of a group that some of its ranks did not reach; else the first that all reached and none completed:
    then all would stand still at the same one."""
    mine = {rank: {call.seq: call for call in record.calls if call.group == group} for rank, record in records.items()}
    told = {rank for record in records.values() for rank in record.groups.get(group, ())}
    members = sorted(told or {rank for rank, calls in mine.items() if calls})
    calls = {rank: mine[rank] for rank in members if rank in mine}
    silent = [rank for rank in members if rank not in records]
    found = [_of_one(seq, calls, silent) for seq in sorted({seq for those in calls.values() for seq in those})]
    said = [one for one in found if one is not None]
    return next((one for one in said if one.kind != Class.FABRIC), said[0] if said else None)


def _of_one(seq: int, calls: Mapping[int, Mapping[int, Call]], silent: list[int]) -> Finding | None:
    here = {rank: those[seq] for rank, those in calls.items() if seq in those}
    missing = [rank for rank, those in calls.items() if seq > max(those, default=-1)]
    return _at(seq, here, missing, silent)


def _at(seq: int, here: Mapping[int, Call], missing: list[int], silent: list[int]) -> Finding | None:
    """What is wrong at one collective. `here`: the calls of the ranks that came; `missing`: ranks that did not; `silent`: ranks
    that left no record."""
    times = Counter(call.what for call in here.values())
    what = min(times, key=lambda what: (-times[what], what))
    which = f"{what}, number {seq} of its group"
    if len(times) > 1:
        other = sorted(rank for rank, call in here.items() if call.what != what)
        call = here[other[0]]
        line = f" (at {call.where})" if call.where else ""
        says = f"called {call.what} where the others called {what}{line}"
        return _found(Class.USER_CODE, 0.93, other, here, says, BRANCH)
    if missing:
        return _found(Class.UNKNOWN, 0.9, missing, here, f"never reached {which}, where the others wait", KEPT)
    waiting = [rank for rank, call in here.items() if call.state != State.COMPLETED]
    if waiting and silent:
        return _found(Class.UNKNOWN, 0.6, silent, here, f"left no record, while the others wait in {which}", KEPT)
    if len(waiting) == len(here) > 1:
        says = f"all ranks reached {which}, and it never completed: the network, or the library"
        return _found(Class.FABRIC, 0.7, (), here, says, NETWORK)
    return None


def _found(kind: Class, confidence: float, ranks: Sequence[int], here: Mapping[int, Call], says: str, advice: str) -> Finding:
    """`here`: the calls, of which that of the first of `ranks` is shown first."""
    calls = sorted(here.items(), key=lambda item: (item[0] not in ranks[:1], item[0]))
    quotes = (Quote(text=_told(call), source="flight recorder", rank=rank) for rank, call in calls[:6])
    return blame("flight-recorder", kind, confidence, ranks, says, advice, quotes)


def _told(call: Call) -> str:
    at = f" at {call.where}" if call.where else ""
    return f"{call.what}, number {call.seq}, {call.state}{at}"


def _call(one: dict[str, Any]) -> Call | None:
    seq, group = one.get("collective_seq_id"), one.get("process_group")
    if not isinstance(seq, int):
        return None
    name = str(group[0]) if isinstance(group, (list, tuple)) and group else str(group or "")
    types = one.get("input_dtypes")
    kind = f" {types[0]}" if isinstance(types, (list, tuple)) and types else ""
    what = f"{str(one.get('profiling_name', '?')).rpartition(':')[2]} {one.get('input_sizes', '')}{kind}"
    # What is retired has ended: gloo's are never marked in another way.
    state = State.COMPLETED if one.get("retired") else str(one.get("state", ""))
    return Call(group=name, seq=seq, what=what[:200], state=state, where=_where(one.get("frames")))


def _where(frames: Any) -> str:
    """The innermost frame that is not torch's."""
    for frame in frames if isinstance(frames, list) else ():
        if isinstance(frame, dict) and "/torch/" not in str(frame.get("filename", "")):
            return f"{frame.get('name')} ({str(frame.get('filename')).rpartition('/')[2]}:{frame.get('line')})"
    return ""


def _groups(config: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(config, dict):
        return {}
    found = {}
    for key, one in config.items():
        said = one.get("ranks") if isinstance(one, dict) else None
        ranks = tuple(int(number) for number in re.findall(r"\d+", str(said)))
        if ranks:
            # The default group's configuration may be kept under an empty name, while its entries say 0.
            found[str(key) or "0"] = ranks
    return found
