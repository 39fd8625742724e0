"""What the supervisor keeps is there after kill -9: each batch of it whole, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.wire.fleet import Change, Deed, DeviceKept, JobKept, JobLife, NodeKept, Swap
from holdfast.supervisor.fleet.messages import Keep
from holdfast.supervisor.standby import lead
from holdfast.supervisor.store import SqliteStore

PAST = Change(state="unfit", reason="Xid 79", at_unix=2.0)
DEVICE = DeviceKept(name="0000:9b:00", state="unfit", reason="Xid 79", xid=79, at_unix=2.0, history=(PAST,))
NODE = NodeKept(
    name="a",
    state="draining",
    standing="draining",
    reason="ü 'quoted'",
    by="policy",
    devices=(DEVICE,),
    heard={"a-1": 7},
    history=(Change(state="fit", reason="", at_unix=1.0),),
)
JOB = JobKept(name="train", lives=(JobLife(life="x", at_unix=1.0, round=3, outcome="failed"),))
SWAP = Swap(id="1-1", node="a", job="train", reason="Xid 79", spare="b", round=3, step="drain", replaces=True)
WHAT = {"trouble": "device", "seen": "", "policy": "default", "act": "swap", "reason": "", "done": ("x",)}
DEED = Deed(id="1-1", at_unix=3.0, node="a", job="train", **WHAT)

WRITES = """
import sys
from holdfast.core.wire.fleet import JobKept, NodeKept
from holdfast.supervisor.store import SqliteStore
from holdfast.supervisor.fleet.messages import Keep
store = SqliteStore(sys.argv[1])
store.load()
number = 0
while True:
    number += 1
    node = NodeKept(name="a", state="fit", standing="fit", reason=str(number))
    store.keep([Keep(table="nodes", key="a", value=node), Keep(table="jobs", key="a", value=JobKept(name=str(number)))])
    print(number, flush=True)
"""


def test_everything_comes_back_as_it_was(tmp_path):
    store = SqliteStore(str(tmp_path))
    assert store.load()[0] == 1
    for table, key, value in (("nodes", "a", NODE), ("jobs", "train", JOB), ("swaps", "1-1", SWAP), ("deeds", "1-1", DEED)):
        store.keep([Keep(table=table, key=key, value=value)])
    store.close()
    again = SqliteStore(str(tmp_path))
    generation, kept = again.load()
    assert (generation, kept.nodes, kept.jobs, kept.swaps, kept.deeds) == (2, (NODE,), (JOB,), (SWAP,), (DEED,))
    again.keep([Keep(table="swaps", key="1-1", value=None)])
    assert again.load()[1].swaps == ()
    again.close()


def test_killed_at_any_moment_it_has_kept_what_it_said_it_had_and_nothing_by_halves(tmp_path):
    for _ in range(5):
        writer = subprocess.Popen([sys.executable, "-c", WRITES, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        said = [writer.stdout.readline() for _ in range(20)]
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.readlines()
        writer.wait()
        store = SqliteStore(str(tmp_path))
        _, kept = store.load()
        store.close()
        last = int([line for line in said if line.endswith("\n")][-1])
        assert kept.nodes[0].reason == kept.jobs[0].name and int(kept.jobs[0].name) >= last


def test_one_folder_is_one_supervisor_s(tmp_path):
    first = SqliteStore(str(tmp_path))
    with pytest.raises(UsageError, match="another supervisor runs on"):
        SqliteStore(str(tmp_path))
    first.close()
    SqliteStore(str(tmp_path)).close()


def test_a_file_that_is_no_database_is_told(tmp_path):
    (tmp_path / "fleet.sqlite").write_bytes(os.urandom(5000))
    with pytest.raises(UsageError, match="cannot be used"):
        SqliteStore(str(tmp_path))
    not_a_folder = Path(tmp_path / "file")
    not_a_folder.touch()
    with pytest.raises(UsageError, match="cannot be used"):
        SqliteStore(str(not_a_folder))


def test_what_cannot_be_kept_is_an_error(tmp_path):
    store = SqliteStore(str(tmp_path))
    store._base.execute("DROP TABLE nodes")
    with pytest.raises(HoldfastError, match="cannot be written"):
        store.keep([Keep(table="nodes", key="a", value=NODE)])
    store.close()


def test_what_cannot_be_taken_over_is_an_error(tmp_path):
    store = SqliteStore(str(tmp_path))
    store._base.execute("DROP TABLE deeds")
    with pytest.raises(HoldfastError, match="cannot be taken over: no such table"):
        store.load()
    store.close()


class Broken:
    """A store whose client has a defect."""

    def left_s(self):
        return 0.0

    def seek(self):
        raise KeyError("leader")


def test_who_stands_by_ends_with_a_defect_of_its_store_and_does_not_wait_for_ever(tmp_path):
    with os.fdopen(os.eventfd(0)) as no_signals, pytest.raises(KeyError, match="leader"):
        lead(Broken(), str(tmp_path), lambda text: None, no_signals.fileno())
