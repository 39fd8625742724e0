"""How do agents meet in a torch Store: exchange bytes, wait for one another, and find out which are missing?

Any object with torch's Store methods will do. torch itself is never imported here: where it is not loaded, the store is not
its, and a store's failure is a `RuntimeError`, which torch's own `DistStoreError` is too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

_NUM_MEMBERS = "/num_members"
_LAST_MEMBER_CHECKIN = "/last_member"
_TRACE = "/TRACE"
_TRACING_GATE = "/TRACING_GATE"
_MAX_TRACE_MISSING_RANKS = 16
_MARK = "<val_ignored>"  # what stands under keys whose presence is all that counts


def __getattr__(name: str) -> Any:
    if name == "DistStoreError":
        return _store_error()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _store_error() -> type[Exception]:
    torch = sys.modules.get("torch")
    return torch._C._DistStoreError if torch is not None else RuntimeError


@contextmanager
def store_timeout(store: Any, timeout: float) -> Iterator[None]:
    """For the length of the block, `store` waits `timeout` seconds at most. (After an error it stays so, as with torch.)"""
    before = store.timeout
    store.set_timeout(timedelta(seconds=timeout))
    yield
    store.set_timeout(before)


def get_all(store: Any, rank: int, prefix: str, world_size: int) -> list[bytes]:
    """The values under `<prefix>0` to `<prefix><world_size - 1>`, waiting for each.

    Rank 0, which may be hosting the store, returns only after all others have read theirs.
    """
    found: list[bytes] = store.multi_get([f"{prefix}{index}" for index in range(world_size)])
    everybody_has_read = _barrier_nonblocking(store, world_size, f"{prefix}/finished")
    if rank == 0:
        store.wait([everybody_has_read])
    return found


def synchronize(store: Any, data: bytes, rank: int, world_size: int, key_prefix: str, timeout: float = 300) -> list[bytes]:
    """Give `data`, get everybody's in rank order. Nothing is deleted: use each `key_prefix` once."""
    with store_timeout(store, timeout):
        store.set(f"{key_prefix}{rank}", data)
        return get_all(store, rank, key_prefix, world_size)


def barrier(
    store: Any,
    world_size: int,
    key_prefix: str,
    barrier_timeout: float = 300,
    rank: int | None = None,
    rank_tracing_decoder: Callable[[int], str] | None = None,
    trace_timeout: float = 10,
) -> None:
    """Wait until `world_size` members are here. Use each `key_prefix` once.

    With a `rank`, a timeout's message says which ranks never came, each in the words of `rank_tracing_decoder`; rank 0, which
    looks for them, gives each `trace_timeout` seconds.
    """
    assert rank is not None or rank_tracing_decoder is None, "Tracing requires rank information"
    with store_timeout(store, barrier_timeout):
        last_member_key = _barrier_nonblocking(store, world_size, key_prefix)
        store_error = _store_error()
        try:
            store.wait([last_member_key])
        except store_error:
            if rank is None:
                raise
            decode = rank_tracing_decoder or str
            missing = _try_detecting_missing_ranks(store, world_size, key_prefix, rank, decode, trace_timeout)
            if missing is None:
                raise
            raise store_error(
                f"Timed out waiting on barrier on rank {rank}, for key prefix: {key_prefix} "
                f"(world_size={world_size}, missing_ranks=[{', '.join(missing)}], timeout={barrier_timeout})"
            ) from None


def _barrier_nonblocking(store: Any, world_size: int, key_prefix: str) -> str:
    """Count this member in, without waiting. The key returned appears when all have been counted."""
    last_member_key = key_prefix + _LAST_MEMBER_CHECKIN
    if store.add(key_prefix + _NUM_MEMBERS, 1) == world_size:
        store.set(last_member_key, _MARK)
    return last_member_key


def _try_detecting_missing_ranks(
    store: Any, world_size: int, key_prefix: str, rank: int, rank_decoder: Callable[[int], str], trace_timeout: float
) -> Iterable[str] | None:
    """Who did not come, as far as this rank can tell. None: not even rank 0 could be asked."""
    store.set(f"{key_prefix}{rank}{_TRACE}", _MARK)
    if rank == 0:
        missing = _never_traced(store, world_size, key_prefix, rank_decoder, trace_timeout)
        store.set(f"{key_prefix}{_TRACING_GATE}", _MARK)
        return missing
    try:
        store.wait([f"{key_prefix}{_TRACING_GATE}"])
    except _store_error():
        return None
    return [f"[<check rank 0 ({rank_decoder(0)}) for missing rank info>]"]


def _never_traced(
    store: Any, world_size: int, key_prefix: str, decode: Callable[[int], str], trace_timeout: float
) -> list[str]:
    missing: list[str] = []
    # The first absentee costs the whole wait; those after it have had that time too.
    patience = timedelta(seconds=trace_timeout)
    for index in range(1, world_size):
        if len(missing) >= _MAX_TRACE_MISSING_RANKS:
            break
        try:
            store.wait([f"{key_prefix}{index}{_TRACE}"], patience)
        except _store_error():
            missing.append(decode(index))
            patience = timedelta(milliseconds=1)
    return missing
