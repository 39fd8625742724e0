"""How far has this rank come in its collectives? A thread answers when the agent asks, whatever the script is stuck in.

torch keeps the last 2000 collectives of each process (`TORCH_FR_BUFFER_SIZE`; 0: none). This reads gloo's record, where torch
has `_dump_fr_trace` (2.13); NCCL's own is asked for by a pipe (`agent.workers.flight_recorder`). The answer is in the page: for
each group the last collective that this rank came to, as JSON, then the whole record as torch writes it. The thread sleeps in
futex(2) without the GIL, but needs it to answer: a rank whose C code holds it does not answer.

Loaded once the script has a process group, and so has torch, which has imported all of this. Standard library only, nothing
newer than Python 3.8, and nothing of Holdfast by name: the bootstrap loads this file.
"""

from __future__ import annotations

import gc
import json
import pickle
import signal
from _thread import start_new_thread
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

MOST_GROUPS = 64  # A rank in more says nothing of those that it used least recently.
MOST_CHARACTERS = 200  # Of a collective's name and sizes.


def offer(layout: ModuleType, words: Callable[[], memoryview | None], sleep: Callable[[int], None]) -> None:
    """Begin to answer. `words()`: the page, if it is ours still; `sleep(count)` returns once REQUEST_COUNT is another, or
    sooner. AttributeError: this torch cannot tell."""
    dump = import_module("torch._C._distributed_c10d")._dump_fr_trace

    page = words()
    if page is None or page[layout.HEARS]:
        return
    start_new_thread(_answer, (layout, words, sleep, lambda: dump(True, False, False)))  # frames take a second
    page[layout.HEARS] = 1


def _answer(
    layout: ModuleType, words: Callable[[], memoryview | None], sleep: Callable[[int], None], dump: Callable[[], bytes]
) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the script's threads
    while (page := words()) is not None:
        count = page[layout.REQUEST_COUNT]
        if count == page[layout.REQUEST_SEEN]:
            sleep(count)
            continue
        try:
            _write(layout, page, dump())
        except Exception:
            page[layout.REACHED_BYTES] = page[layout.RECORD_BYTES] = 0
        page[layout.REQUEST_SEEN] = count


def _write(layout: ModuleType, page: memoryview, record: bytes) -> None:
    collects = gc.isenabled()
    gc.disable()  # so many new objects would have all of torch's looked through, which takes ten times as long as the rest
    try:
        reached = json.dumps(last_of_each_group(pickle.loads(record)["entries"])).encode()
    finally:
        if collects:
            gc.enable()
    at, room = layout.RECORD * 8, layout.RECORD_ROOM
    if len(reached) > room:
        reached = b""
    if len(reached) + len(record) > room:
        record = b""
    page.cast("B")[at : at + len(reached) + len(record)] = reached + record
    page[layout.REACHED_BYTES], page[layout.RECORD_BYTES] = len(reached), len(record)


def last_of_each_group(entries: list[dict[str, Any]]) -> list[tuple[str, int, str, bool]]:
    """Of a record's entries: (group, number in it, what was called, whether any in that group has not ended); the one used
    last comes first."""
    found: dict[str, tuple[str, int, str, bool]] = {}
    for one in entries:
        if one.get("is_p2p"):
            continue
        group, seq = str(one["process_group"][0]), int(one["collective_seq_id"])
        _, last, what, waits = found.pop(group, ("", -1, "", False))
        if seq >= last:
            kind = " " + one["input_dtypes"][0] if one["input_dtypes"] else ""
            what = "{} {}{}".format(one["profiling_name"].rpartition(":")[2], one["input_sizes"], kind)
        waits = waits or not (one["retired"] or one["state"] == "completed")
        found[group] = group, max(seq, last), what[:MOST_CHARACTERS], waits
    return list(found.values())[: -MOST_GROUPS - 1 : -1]
