"""A key-value store inside this process, with a torch Store's methods: enough for the agent of a one-node job without torch.

Threads may share it. Values are bytes; text is stored as UTF-8. `get` and `wait` block until the key is there, `timeout` at
most, and then raise `StoreTimeout`, a RuntimeError as torch's is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, MutableMapping, Sequence
from datetime import timedelta

__all__ = ["MemoryStore", "PrefixMemoryStore", "StoreTimeout"]

DEFAULT_TIMEOUT = timedelta(seconds=300)
"""How long a read waits for its key; torch's Store: 300 s."""


class StoreTimeout(RuntimeError):
    """A key did not appear in time."""


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


class MemoryStore:
    """The store itself."""

    def __init__(self) -> None:
        self._values: MutableMapping[str, bytes] = {}
        self._changed = threading.Condition()
        self._timeout = DEFAULT_TIMEOUT

    @property
    def timeout(self) -> timedelta:
        """How long reads wait."""
        return self._timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Change it."""
        self._timeout = timeout

    def set(self, key: str, value: str | bytes) -> None:
        """Write."""
        with self._changed:
            self._values[key] = _as_bytes(value)
            self._changed.notify_all()

    def get(self, key: str) -> bytes:
        """Read; waits for the key."""
        self.wait([key])
        with self._changed:
            return self._values[key]

    def add(self, key: str, amount: int) -> int:
        """Add to the whole number under `key` (0 if absent) and return the sum."""
        with self._changed:
            total = int(self._values.get(key, b"0")) + amount
            self._values[key] = str(total).encode()
            self._changed.notify_all()
            return total

    def append(self, key: str, value: str | bytes) -> None:
        """Write behind what is there."""
        with self._changed:
            self._values[key] = self._values.get(key, b"") + _as_bytes(value)
            self._changed.notify_all()

    def compare_set(self, key: str, expected_value: str | bytes, desired_value: str | bytes) -> bytes:
        """Write if `expected_value` stands there, or if nothing does and it is empty. Returns what stands there afterwards.

        Nothing there and something expected: the expected value comes back, as torch's TCPStore does.
        """
        expected, desired = _as_bytes(expected_value), _as_bytes(desired_value)
        with self._changed:
            current = self._values.get(key)
            if current is None and expected:
                return expected
            if current in (None, expected):
                self._values[key] = desired
                self._changed.notify_all()
                return desired
            assert current is not None
            return current

    def wait(self, keys: Sequence[str], timeout: timedelta | None = None) -> None:
        """Until all `keys` are there."""
        limit_s = (self.timeout if timeout is None else timeout).total_seconds()
        deadline = time.monotonic() + limit_s
        with self._changed:
            while missing := [key for key in keys if key not in self._values]:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise StoreTimeout(f"waited {limit_s:g} s for {', '.join(missing)}, which nobody has set")
                self._changed.wait(left)

    def check(self, keys: Sequence[str]) -> bool:
        """Whether all `keys` are there now."""
        with self._changed:
            return all(key in self._values for key in keys)

    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        """Read several; waits for all of them."""
        self.wait(keys)
        with self._changed:
            return [self._values[key] for key in keys]

    def multi_set(self, keys: Sequence[str], values: Sequence[str | bytes]) -> None:
        """Write several at once."""
        with self._changed:
            self._values.update(zip(keys, map(_as_bytes, values), strict=True))
            self._changed.notify_all()

    def delete_key(self, key: str) -> bool:
        """Remove. False: it was not there."""
        with self._changed:
            return self._values.pop(key, None) is not None

    def num_keys(self) -> int:
        """How many keys there are."""
        with self._changed:
            return len(self._values)

    def list_keys(self) -> list[str]:
        """All keys."""
        with self._changed:
            return list(self._values)

    def has_extended_api(self) -> bool:
        """Whether append, multi_get and multi_set work."""
        return True


class _PrefixedKeys(MutableMapping[str, bytes]):
    """The part of a mapping whose keys start with a prefix, without it."""

    def __init__(self, prefix: str, everything: MutableMapping[str, bytes]) -> None:
        self._prefix = prefix
        self._everything = everything

    def __getitem__(self, key: str) -> bytes:
        return self._everything[self._prefix + key]

    def __setitem__(self, key: str, value: bytes) -> None:
        self._everything[self._prefix + key] = value

    def __delitem__(self, key: str) -> None:
        del self._everything[self._prefix + key]

    def __iter__(self) -> Iterator[str]:
        return (key.removeprefix(self._prefix) for key in list(self._everything) if key.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class PrefixMemoryStore(MemoryStore):
    """A view of `underlying_store` in which every key is written `<prefix>/<key>`."""

    def __init__(self, prefix: str, underlying_store: MemoryStore) -> None:
        self._prefix = f"{prefix}/"
        self.underlying_store = underlying_store
        self._values = _PrefixedKeys(self._prefix, underlying_store._values)
        self._changed = underlying_store._changed

    @property
    def timeout(self) -> timedelta:
        """The underlying store's."""
        return self.underlying_store.timeout

    def set_timeout(self, timeout: timedelta) -> None:
        """Change the underlying store's."""
        self.underlying_store.set_timeout(timeout)
