"""What do the ranks of one call tell each other, over a store of torch's? NVRx's names.

Each life has keys of its own (`PrefixStore`). A rank is named by its number in that life. What several say under one key is put
behind one another by one operation of the store's, so that whoever dies in the middle has said it or has not. Nothing in it is
unpickled.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Collection, Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from holdfast.inprocess.attribution import InterruptionRecord
from holdfast.inprocess.exception import RestartError
from holdfast.inprocess.state import Mode, State, fields_of

BETWEEN = "\x1e"
"""Between two texts under one key: none contains it."""


LOOK_S, SELDOM_S = 0.02, 0.5
"""Seconds between two looks whether something is there, at first and at last: the longer it has taken, the less often. torch's
own wait is deaf to signals."""


class BarrierError(RestartError):
    """Not all ranks have met."""


class BarrierTimeout(BarrierError):
    """Not in time."""


class BarrierOverflow(BarrierError):
    """More have come than there are."""


class StoreMixin:
    """For a class with torch's `set`, `get`, `add`, `append`, `check` and `wait`."""

    # torch's own, by the class that this is mixed into
    set: Any
    get: Any
    add: Any
    append: Any
    check: Any
    wait: Any

    @property
    def critical_ranks(self) -> Collection[int]:
        """Initial ranks whose processes serve the store: they are the last to leave."""
        return ()

    def put(self, key: str, texts: Iterable[object]) -> None:
        """Say these too."""
        self.append(key, "".join(f"{text}{BETWEEN}" for text in texts))

    def all_put(self, key: str) -> list[str]:
        """What all have said."""
        self.append(key, "")  # so that it is there
        said: str = self.get(key).decode()
        return [text for text in said.split(BETWEEN) if text]

    # --- how a life goes ------------------------------------------------------------------------------------------------

    def record_interrupted(self, records: Iterable[InterruptionRecord] | None = None) -> None:
        """This life is to be cut short, and why. What comes after `lock_interruption_records` is not recorded."""
        if records is not None and not self.add("interruptions_locked", 0):
            self.put("interruptions", records)
        self.set("interrupted", "")

    def lock_interruption_records(self) -> None:
        """No reason counts any more that comes later."""
        self.add("interruptions_locked", 1)

    def get_interruption_records(self) -> list[InterruptionRecord]:
        """Why it was."""
        return [InterruptionRecord.from_str(text) for text in self.all_put("interruptions")]

    def is_interrupted(self) -> bool:
        """Whether it was."""
        return bool(self.check(["interrupted"]))

    def record_completed(self) -> None:
        """The function has returned on some rank."""
        self.set("completed", "")

    def wait_for_completed(self) -> None:
        """Until it has."""
        self.look_for("completed")

    def record_terminated_ranks(self, ranks: Iterable[int]) -> None:
        """These are not of the next life."""
        self.put("terminated", ranks)

    def get_terminated_ranks(self) -> Any:
        """All that have been recorded: a set."""
        return {int(rank) for rank in self.all_put("terminated")}

    def send_heartbeat(self, rank: int) -> None:
        """The monitor of `rank` lives."""
        self.set(f"heartbeat_{rank}", str(time.time()))

    def get_heartbeat(self, rank: int) -> float | None:
        """When it last said so, by its clock; None: not yet."""
        key = f"heartbeat_{rank}"
        return float(self.get(key)) if self.check([key]) else None

    def set_initial_rank(self, rank: int, initial_rank: int) -> None:
        """Who `rank` is in this life."""
        self.set(f"initial_{rank}", str(initial_rank))

    def get_initial_rank(self, rank: int) -> int | None:
        """None: it has not come."""
        key = f"initial_{rank}"
        return int(self.get(key)) if self.check([key]) else None

    # --- what a topology is made of -------------------------------------------------------------------------------------

    def send_state(self, state: State, rank: int) -> None:
        """For `get_states` of all ranks; without the exception."""
        told = {**fields_of(state), "mode": state.mode.name, "fn_exception": None}
        self.set(f"state_{rank}", json.dumps(told))

    def get_states(self, ranks: Iterable[int]) -> list[State]:
        """Waits for those that have not sent it."""
        told = [json.loads(self.get(f"state_{rank}")) for rank in ranks]
        return [State(**{**one, "mode": Mode[one["mode"]]}) for one in told]

    def send_key(self, key: Any, rank: int) -> None:
        """A list of texts and numbers."""
        self.set(f"key_{rank}", json.dumps(key))

    def get_keys(self, ranks: Iterable[int]) -> list[Any]:
        """Waits for those that have not sent it."""
        return [json.loads(self.get(f"key_{rank}")) for rank in ranks]

    # --- barriers -------------------------------------------------------------------------------------------------------

    def arrive(self, ranks: Iterable[int], group_name: str, rendezvous_count: int) -> None:
        """These are at the barrier, which may have been said before. BarrierOverflow: more are than `rendezvous_count`."""
        self.put(f"barrier_{group_name}", ranks)
        here = set(self.all_put(f"barrier_{group_name}"))
        if len(here) > rendezvous_count:
            raise BarrierOverflow(
                f"{group_name}: ranks {sorted(map(int, here))} have come, and {rendezvous_count} were to meet"
            )
        if len(here) == rendezvous_count:
            self.set(f"barrier_{group_name}_open", "")

    def is_open(self, group_name: str) -> bool:
        """Whether all have come."""
        return bool(self.check([f"barrier_{group_name}_open"]))

    def barrier(
        self,
        ranks: Iterable[int],
        group_name: str,
        rendezvous_count: int,
        timeout: timedelta,
        timeout_chunk: timedelta | None = None,
    ) -> None:
        """Arrive, and wait for the others; look each `timeout_chunk` at least. BarrierTimeout: not all have come."""
        self.arrive(ranks, group_name, rendezvous_count)
        if not self.look_for(f"barrier_{group_name}_open", timeout, timeout_chunk):
            raise BarrierTimeout(f"{group_name}: {rendezvous_count} ranks did not meet within {timeout.total_seconds():g} s")

    def look_for(self, key: str, timeout: timedelta = timedelta.max, between: timedelta | None = None) -> bool:
        """Wait in Python until `key` is there, and look each `between` at least. False: it is not within `timeout`."""
        began, most_s = time.monotonic(), min(SELDOM_S, (between or timedelta.max).total_seconds())
        while not self.check([key]):
            waited_s = time.monotonic() - began
            if waited_s >= timeout.total_seconds():
                return False
            threading.Event().wait(min(max(LOOK_S, waited_s / 10), most_s))
        return True


_is_served = False


@contextlib.contextmanager
def served_elsewhere() -> Iterator[None]:
    """A `TCPStore` that is made meanwhile connects to one that another process serves."""
    global _is_served
    before, _is_served = _is_served, True
    try:
        yield
    finally:
        _is_served = before


class TCPStore(StoreMixin, dist.TCPStore):  # type: ignore[misc]
    """Served by the first rank's monitor, so that no rank takes it along. Without a port: MASTER_PORT, where a launcher may
    serve a store already."""

    def __init__(
        self,
        host_name: str | None = None,
        port: int | None = None,
        world_size: int | None = None,
        timeout: timedelta = timedelta(seconds=300),
        wait_for_workers: bool = False,
        multi_tenant: bool = False,
        use_libuv: bool = True,
    ) -> None:
        """torch.distributed.DistNetworkError: nobody serves it within `timeout`."""
        size = int(os.environ["WORLD_SIZE"]) if world_size is None else world_size
        given = {
            "host_name": os.environ["MASTER_ADDR"] if host_name is None else host_name,
            "port": int(os.environ["MASTER_PORT"]) if port is None else port,
            "world_size": size,
            "timeout": timeout,
            "wait_for_workers": wait_for_workers,
            "multi_tenant": multi_tenant,
            "use_libuv": use_libuv,
        }
        if os.environ["RANK"] == "0" and not _is_served:
            with contextlib.suppress(dist.DistNetworkError):  # the port is taken: by one that serves it already
                super().__init__(is_master=True, **given)
                return
        super().__init__(is_master=False, **given)

    @property
    def critical_ranks(self) -> Collection[int]:
        """The first one, whose monitor serves it."""
        return (0,)


class PrefixStore(StoreMixin, dist.PrefixStore):  # type: ignore[misc]
    """The keys of one life, or of one call."""

    def __init__(self, iteration: object, store: Any) -> None:
        self.base_store = store
        super().__init__(f"inprocess_{iteration}", store)

    @property
    def critical_ranks(self) -> Collection[int]:
        """Those of the store that it is in."""
        return self.base_store.critical_ranks  # type: ignore[no-any-return]


class FileStore(StoreMixin, dist.FileStore):  # type: ignore[misc]
    """In a file that all ranks have."""

    def append(self, key: str, text: str) -> None:
        """torch's has none: put in its place if nobody else has meanwhile."""
        before = self.get(key).decode() if self.check([key]) else ""
        while (found := self.compare_set(key, before, before + text).decode()) != before + text:
            before = found
