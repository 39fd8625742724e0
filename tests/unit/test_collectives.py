"""How far a rank has come in its collectives: read from torch's record, asked for through the page, heard by the agent."""

from __future__ import annotations

import json
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from holdfast.agent.workers.rank_stacks import MOST_GROUPS, MOST_SEQ, reached
from holdfast.client import collectives
from holdfast.core.job.failure import Reached
from holdfast.core.page import layout
from holdfast.diagnosis.hangs.recorder_file import parse
from holdfast.runtime.shm.pages import Page, _Futex, create_page


def entry(seq: int, group: str = "0", **what: Any) -> dict[str, Any]:
    """As torch 2.13 writes one."""
    return {
        "collective_seq_id": seq,
        "process_group": [group, "default_pg"],
        "profiling_name": "gloo:all_reduce",
        "input_sizes": [[seq]],
        "input_dtypes": ["Float"],
        "is_p2p": False,
        "retired": True,
        "state": "scheduled",
        **what,
    }


def test_of_each_group_the_last_collective_counts_and_whether_any_is_open() -> None:
    said = [entry(1), entry(2, retired=False), entry(1, "own"), entry(3), entry(9, is_p2p=True)]
    assert collectives.last_of_each_group(said) == [
        ("0", 3, "all_reduce [[3]] Float", True),
        ("own", 1, "all_reduce [[1]] Float", False),
    ]


def test_of_very_many_groups_those_used_last_are_told() -> None:
    found = collectives.last_of_each_group([entry(1, str(group)) for group in range(100)])
    assert [group for group, *_ in found] == [str(group) for group in range(99, 99 - collectives.MOST_GROUPS, -1)]
    assert collectives.MOST_GROUPS <= MOST_GROUPS


def test_a_barrier_has_no_sizes() -> None:
    said = entry(1, profiling_name="gloo:barrier", input_sizes=[], input_dtypes=[])
    assert collectives.last_of_each_group([said]) == [("0", 1, "barrier []", False)]


@pytest.mark.parametrize(
    "nonsense", [b"", b"{", b"\xff", b"7", b"[[]]", b'[["0", "x", "", 0]]', b"[" * 100_000, b'[["0", 1e999, "", 0]]', b"{}"]
)
def test_what_makes_no_sense_is_no_position(nonsense: bytes) -> None:
    assert reached(nonsense) == ()


def test_what_a_script_has_scribbled_is_cut_to_size() -> None:
    (found, *_) = reached(json.dumps([["g" * 1000, 10**30, "w" * 1000, True]] * 1000).encode())
    assert (len(found.group), found.seq, len(found.what)) == (200, MOST_SEQ, 200)


@pytest.fixture
def page() -> Iterator[Page]:
    made = create_page()
    yield made
    made.close()


@pytest.fixture
def answering(page: Page) -> Iterator[Callable[[bytes], None]]:
    """Has a thread answer for the worker, as it does in one, with this as torch's record."""
    words, futex, threads = [page.words], _Futex(), list[threading.Thread]()

    def sleep(count: int) -> None:
        anchor = futex.ctypes.c_char.from_buffer(page.map)
        futex.wait(futex.ctypes.addressof(anchor) + layout.REQUEST_COUNT * 8, count)

    def begin(record: bytes) -> None:
        def start(function: Callable[..., None], args: tuple[Any, ...]) -> None:
            threads.append(threading.Thread(target=function, args=args))
            threads[0].start()

        torch = {"torch._C._distributed_c10d": SimpleNamespace(_dump_fr_trace=lambda *_: record)}
        with patch.dict(sys.modules, torch), patch("_thread.start_new_thread", start):
            collectives.offer(layout, lambda: words[0] if words else None, sleep)  # type: ignore[arg-type]

    yield begin
    words.clear()
    page.ask_for_collectives()
    for thread in threads:
        thread.join()


def test_who_offers_nothing_is_not_waited_for(page: Page) -> None:
    assert not page.ask_for_collectives()


def test_it_answers_whenever_it_is_asked(page: Page, answering: Any, wait_until: Any) -> None:
    record = pickle.dumps({"entries": [entry(4, retired=False)]})
    answering(record)
    for _ in range(2):
        assert page.ask_for_collectives()
        said = wait_until(page.collectives)
        assert reached(said[0]) == (Reached(group="0", seq=4, what="all_reduce [[4]] Float", waits=True),)
        assert said[1] == record and parse(said[1], 0).calls[0].seq == 4


def test_what_torch_cannot_say_is_nothing(page: Page, answering: Any, wait_until: Any) -> None:
    answering(b"no record")
    assert page.ask_for_collectives()
    assert wait_until(page.collectives) == (b"", b"")


def test_a_record_without_room_is_left_out_and_the_answer_stays(page: Page, answering: Any, wait_until: Any) -> None:
    answering(pickle.dumps({"entries": [entry(4)], "padding": b"x" * layout.RECORD_ROOM}))
    assert page.ask_for_collectives()
    said = wait_until(page.collectives)
    assert reached(said[0])[0].seq == 4 and said[1] == b""
