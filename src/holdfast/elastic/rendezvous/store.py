"""What is a store of ours? A torch Store's methods over one primitive, `_perform`, which each kind of store gives.

In a program that has loaded torch every store of ours *is* a `torch.distributed.Store` too, so that process groups, torch's
`PrefixStore` and its C++ collectives take it; and its errors are torch's. In one that has not, nothing of torch is loaded.
What torch's C++ does not pass on to a store in Python, it cannot do through torch's `PrefixStore`: queues, `num_keys` by that
name, `list_keys`. `with_prefix` of `stores` makes a view that can.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import new_class
from typing import Any

from holdfast.core.value import replace
from holdfast.core.wire.messages import StoreAnswer, StoreAsk
from holdfast.rendezvous.kvstore.table import EMPTY, OVER, TIMEOUT

DEFAULT_TIMEOUT = timedelta(seconds=300)  # how long a read waits for its key; torch's Store: 300 s

Each = Callable[[], None]

_both: dict[tuple[type, type], type] = {}


def _joined(ours: type, theirs: type) -> Any:
    """The class that is both."""
    if (ours, theirs) not in _both:
        named = {"__module__": ours.__module__, "__qualname__": ours.__qualname__, "__doc__": ours.__doc__}
        _both[ours, theirs] = new_class(ours.__name__, (ours, theirs), exec_body=lambda body: body.update(named))
    return _both[ours, theirs]


def _torchs(name: str) -> Any:
    """`torch.distributed.<name>`, where that has been loaded. None: it has not, or there is no such thing in it."""
    return getattr(sys.modules.get("torch.distributed"), name, None)


class StoreError(RuntimeError):
    """The store could not do it. A `torch.distributed.DistStoreError` where torch is loaded."""

    torchs_name = "DistStoreError"

    def __new__(cls, *args: Any) -> StoreError:
        theirs = _torchs(cls.torchs_name)
        kind = cls if theirs is None or issubclass(cls, theirs) else _joined(cls, theirs)
        made: StoreError = RuntimeError.__new__(kind, *args)
        return made


class StoreTimeout(StoreError):
    """A key did not appear in time."""


class StoreEmpty(StoreError):
    """Nothing is in the queue. A `torch.distributed.QueueEmptyError` where torch is loaded."""

    torchs_name = "QueueEmptyError"


class StoreUnreachable(StoreError):
    """The store's server does not answer. A `torch.distributed.DistNetworkError` where torch is loaded."""

    torchs_name = "DistNetworkError"


ERRORS: dict[str, type[StoreError]] = {TIMEOUT: StoreTimeout, EMPTY: StoreEmpty, OVER: StoreUnreachable}
"""An answer's word → what is raised; any other is a StoreError."""


def understood(answer: StoreAnswer) -> StoreAnswer:
    """The answer, or what its error raises."""
    if answer.error:
        raise ERRORS.get(answer.error, StoreError)(answer.reason)
    return answer


def as_bytes(value: str | bytes) -> bytes:
    """Text is stored as UTF-8."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise TypeError(f"a store's values are text or bytes, not {type(value).__name__}")


def as_key(key: str | bytes) -> str:
    """Keys are text; bytes are read as UTF-8."""
    return key.decode() if isinstance(key, bytes) else key


class Store:
    """The methods. Values are bytes; `get`, `multi_get`, `wait` and `queue_pop` block until their keys are there, `timeout` at
    most, and then raise StoreTimeout."""

    _timeout = DEFAULT_TIMEOUT

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        theirs = _torchs("Store")
        if theirs is None:
            return object.__new__(cls)
        made = theirs.__new__(cls if issubclass(cls, theirs) else _joined(cls, theirs))
        theirs.__init__(made)
        return made

    def _do(
        self, op: str, keys: Sequence[str], *values: str | bytes, number: int = 0, wait_s: float = 0.0, each: Each | None = None
    ) -> StoreAnswer:
        keys, stored = tuple(map(as_key, keys)), tuple(map(as_bytes, values))
        ask = StoreAsk(node="", ask=0, round=0, op=op, keys=keys, values=stored, number=number, wait_s=wait_s)
        return self._perform(ask, each)

    def _perform(self, ask: StoreAsk, each: Each | None) -> StoreAnswer:
        """What each kind of store gives: one operation of `holdfast.rendezvous.kvstore.table`. While it waits, `each` is called
        again and again, and may end the wait by an exception."""
        raise NotImplementedError

    # --- how long to wait -----------------------------------------------------------------------------------------------

    def _torchs_class(self) -> Any:
        """torch's Store, if this is one too. None: torch was not loaded when this store was made."""
        theirs = _torchs("Store")
        return theirs if theirs is not None and isinstance(self, theirs) else None

    @property
    def timeout(self) -> timedelta:
        """How long reads wait."""
        theirs = self._torchs_class()
        # A view of torch's sets it in the C++ object, past our own method.
        told: timedelta = self._timeout if theirs is None else theirs.timeout.__get__(self)
        return told

    def set_timeout(self, timeout: timedelta) -> None:
        """Change it."""
        self._timeout = timeout
        self._tell_torch(timeout)

    def _tell_torch(self, timeout: timedelta) -> None:
        """torch's C++ has a copy of its own."""
        theirs = self._torchs_class()
        if theirs is not None:
            theirs.set_timeout(self, timeout)

    def _wait_s(self, timeout: timedelta | None = None) -> float:
        return max(0.0, (self.timeout if timeout is None else timeout).total_seconds())

    # --- one key --------------------------------------------------------------------------------------------------------

    def set(self, key: str, value: str | bytes) -> None:
        """Write."""
        self._do("set", [key], value)

    def get(self, key: str) -> bytes:
        """Read; waits for the key."""
        return self._do("get", [key], wait_s=self._wait_s()).values[0]

    def add(self, key: str, amount: int) -> int:
        """Add to the whole number under `key` (0 if absent) and return the sum."""
        return self._do("add", [key], number=int(amount)).number

    def append(self, key: str, value: str | bytes) -> None:
        """Write behind what is there."""
        self._do("append", [key], value)

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Write if `expected_value` stands there, or if nothing does and it is empty. Returns the value afterwards.

        Nothing there and something expected: the expected value comes back, as torch's TCPStore does.
        """
        return self._do("compare_set", [key], expected_value, desired_value).values[0]

    def delete_key(self, key: str) -> bool:
        """Remove. False: it was not there."""
        return bool(self._do("delete", [key]).number)

    # --- several --------------------------------------------------------------------------------------------------------

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Until all `keys` are there."""
        self._do("wait", keys, wait_s=self._wait_s(timeout))

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all `keys` are there now."""
        return bool(self._do("check", keys).number)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Read several; waits for all of them."""
        found = list[bytes]()
        while len(found) < len(keys):  # as much at once as one answer can hold
            found += self._do("get", keys[len(found) :], wait_s=self._wait_s()).values
        return found

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write several at once."""
        if len(keys) != len(values):
            raise StoreError(f"multi_set: {len(keys)} keys and {len(values)} values")
        self._do("set", keys, *values)

    def num_keys(self) -> int:
        """How many keys there are."""
        return self._do("count", [""]).number

    def list_keys(self) -> list[str]:
        """All keys."""
        found: list[str] = []
        while True:
            answer = self._do("list", [""], number=len(found))
            found += [key.decode() for key in answer.values]
            if len(found) >= answer.number or not answer.values:
                return found

    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        """Until `world_size` callers have come to this barrier. Each `key` is good for one."""
        if self.add(f"{key}/num_members", 1) == world_size:
            self.set(f"{key}/last_member", "1")
        self.wait([f"{key}/last_member"], timeout)

    # --- queues ---------------------------------------------------------------------------------------------------------

    def queue_push(self, key: str, value: str | bytes) -> None:
        """Put behind the others."""
        self._do("push", [key], value)

    def queue_pop(self, key: str, block: bool = True) -> bytes:
        """Take the first. `block`: wait for it; otherwise an empty queue is a StoreEmpty at once."""
        return self._do("pop", [key], number=int(block), wait_s=self._wait_s()).values[0]

    def queue_len(self, key: str) -> int:
        """How many there are."""
        return self._do("length", [key]).number

    def close(self) -> None:
        """Let go of what it holds beside its keys: links, for some. Where it is asked again they are made again."""

    # --- for torch ------------------------------------------------------------------------------------------------------

    getNumKeys = num_keys  # torch's C++ calls these two by their names there
    deleteKey = delete_key

    def has_extended_api(self) -> bool:
        """Whether append, multi_get and multi_set work."""
        return True

    def clone(self) -> Any:
        """A store for another thread: this one, since threads may share it."""
        return self


class PrefixedStore(Store):
    """A view of `underlying_store` in which every key is written `<prefix>/<key>`."""

    def __init__(self, prefix: str, underlying_store: Store) -> None:
        self._prefix = f"{prefix}/"
        self.underlying_store = underlying_store
        self._tell_torch(underlying_store.timeout)

    @property
    def timeout(self) -> timedelta:
        """The underlying store's."""
        return self.underlying_store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the underlying store's."""
        self.underlying_store.set_timeout(timeout)
        self._tell_torch(timeout)

    def _perform(self, ask: StoreAsk, each: Each | None) -> StoreAnswer:
        answer = self.underlying_store._perform(replace(ask, keys=tuple(self._prefix + key for key in ask.keys)), each)
        if ask.op != "list":
            return answer
        return replace(answer, values=tuple(key[len(self._prefix.encode()) :] for key in answer.values))
