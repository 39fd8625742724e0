"""The messages of Google's host daemon, as Protocol Buffers have them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.wire import google_wire as wire
from holdfast.core.wire import protobuf

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
INT32 = st.integers(-(2**31), 2**31 - 1)
WORKERS = st.builds(
    wire.WorkerInfo,
    worker_address=TEXT,
    worker_id=TEXT,
    worker_name=TEXT,
    local_rank=INT32,
    global_rank=INT32,
    state=st.integers(0, 4),
)
WORKLOADS = st.builds(
    wire.WorkloadInfo,
    workload_name=TEXT,
    container_name=TEXT,
    max_workload_restarts=INT32,
    max_in_job_restarts=INT32,
    workload_scaling_enabled=st.booleans(),
)


def test_bytes_are_those_of_google_s_own_client():
    """Taken from what the client of the package 1.0.5 has sent, for short names."""
    address = wire.worker_address(50051, 0)
    said = wire.WorkerInfo(worker_address=address, worker_id="id", worker_name="n-id", global_rank=3, state=wire.RUNNING)
    assert said.encode() == b"\x0a\x0flocalhost:50052\x12\x02id\x1a\x04n-id\x28\x03\x30\x01"
    assert wire.WorkerInfo().encode() == b"", "zero values are absent"


@given(WORKERS | WORKLOADS | st.builds(wire.HostResponse, response=TEXT))
def test_a_message_comes_back_as_it_was(message):
    assert type(message).decode(message.encode()) == message


@given(st.sampled_from([*wire.METHODS.values()]), st.binary())
def test_what_is_no_message_is_a_value_error_and_nothing_else(kind, data):
    with contextlib.suppress(ValueError):
        kind.decode(data)


def test_fields_of_a_later_version_are_passed_over():
    later = b"\x7a\x03new" + b"\x78\x07"
    assert wire.WorkerInfo.decode(later + wire.WorkerInfo(local_rank=2).encode()) == wire.WorkerInfo(local_rank=2)


@pytest.mark.parametrize("data", [b"\x08\x01", b"\x22\x01x", b"\x0a\x05ab"])
def test_a_field_of_another_kind_or_cut_short_is_told_apart(data):
    with pytest.raises(ValueError):
        wire.WorkerInfo.decode(data)


def test_a_rank_s_address_is_one_above_the_daemon_s_port():
    assert wire.worker_address(50051, 0) == "localhost:50052" and wire.worker_address(50051, 7) == "localhost:50059"


def test_a_message_of_more_fields_than_any_has_is_not_read_to_its_end():
    with pytest.raises(ValueError, match="more than 2048 fields"):
        list(protobuf.fields(b"\x0a\x00" * 100_000))
