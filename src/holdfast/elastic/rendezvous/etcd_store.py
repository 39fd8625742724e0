"""A store over etcd: the same methods, the keys of one prefix, and a lease, so that nothing is left behind.

What is written stays as long as any agent lives that has written to a store of this prefix, and `ttl_s` seconds longer. A wait
is a watch on the key that is missing. etcd's own limits hold: 1.5 MiB for a value, and each write waits for a disk. As in
torch, a store over etcd has no queues, and a time-out is a LookupError.
"""

from __future__ import annotations

import random
import time
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from importlib import import_module
from typing import Any

from holdfast.core.value import replace
from holdfast.core.wire.messages import StoreAnswer, StoreAsk
from holdfast.elastic.utils.logging import get_logger

from .etcd_connection import Lease, after, plain, read, text, write
from .store import Each, Store, StoreError, StoreTimeout, StoreUnreachable
from .utils import _PeriodicTimer

logger = get_logger(__name__)

TTL_S = 60  # how long what is written outlives the last agent that uses it
LONGEST_WATCH_S = 10.0
"""After so long the key is read again: nothing is heard of a member of etcd that lost its power."""
LOOK_S = 0.5  # the same for a wait that its caller may end


class EtcdStoreTimeout(StoreTimeout, LookupError):
    """A key did not appear in time. A LookupError too, as with torch's EtcdStore."""


def cas_delay() -> None:
    """A short random pause before a lost compare-and-set is tried again."""
    time.sleep(random.uniform(0, 0.1))


class EtcdStore(Store):
    """The store. `etcd_client` is `EtcdServer.get_client()`'s kind, or `etcd_connection.client_for`'s."""

    def __init__(
        self, etcd_client: Any, etcd_store_prefix: str, timeout: timedelta | None = None, *, ttl_s: int = TTL_S
    ) -> None:
        if not hasattr(etcd_client, "ask"):
            raise TypeError(
                f"EtcdStore speaks etcd's version 3 API, and cannot use a {type(etcd_client).__module__} client. "
                "Take one of holdfast.elastic.rendezvous.etcd_connection.client_for('host:port', {})."
            )
        self.client = etcd_client
        self.prefix = etcd_store_prefix if etcd_store_prefix.endswith("/") else etcd_store_prefix + "/"
        self._lease = Lease(etcd_client, self.prefix, ttl_s)
        self._renewals: _PeriodicTimer | None = None
        if timeout is not None:
            self.set_timeout(timeout)

    def add(self, key: str, num: int) -> int:
        return super().add(key, num)

    def wait(self, keys: Sequence[str], override_timeout: timedelta | None = None) -> None:
        super().wait(keys, override_timeout)

    def _perform(self, ask: StoreAsk, each: Each | None) -> StoreAnswer:
        try:
            return self._done(replace(ask, keys=tuple(self.prefix + key for key in ask.keys)), each)
        except (StoreError, NotImplementedError):
            raise
        except Exception as error:
            kind = StoreError if isinstance(error, _client_module().Refused) else StoreUnreachable
            raise kind(f"etcd: {error}") from error

    def _done(self, ask: StoreAsk, each: Each | None) -> StoreAnswer:
        key, values, number = ask.keys[0] if ask.keys else "", tuple[bytes, ...](), 0
        match ask.op:
            case "set":
                self._write(list(zip(ask.keys, ask.values)))
            case "get" | "wait":
                values = self._read(ask.keys, ask.wait_s, each)
            case "check":
                number = int(len(read(self.client, ask.keys)[0]) == len(set(ask.keys)))
            case "add":
                number = int(self._change(key, lambda current: _sum(key, current, ask.number)))
            case "append":
                values = (self._change(key, lambda current: (current or b"") + ask.values[0]),)
            case "compare_set":
                values = (self._compare_set(key, *ask.values),)
            case "delete":
                number = int(self.client.ask("/kv/deleterange", {"key": text(key)}).get("deleted", 0))
            case "count":
                number = int(self._range(key, count_only=True).get("count", 0))
            case "list":
                found = [plain(kv["key"]) for kv in self._range(key, keys_only=True).get("kvs", ())]
                values, number = tuple(name[len(self.prefix.encode()) :] for name in found), len(found)
            case _:
                raise NotImplementedError(f"a store over etcd has no queues ({ask.op})")
        return StoreAnswer(ask=0, values=values, number=number)

    def _read(self, keys: Sequence[str], wait_s: float, each: Each | None) -> tuple[bytes, ...]:
        """The values of all `keys`, once they are there."""
        deadline = time.monotonic() + wait_s
        while True:
            found, revision = read(self.client, keys)
            missing = [key for key in keys if key not in found]
            if not missing:
                return tuple(found[key][0] for key in keys)
            if each is not None:
                each()
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                names = ", ".join(key.removeprefix(self.prefix) for key in missing[:10])
                raise EtcdStoreTimeout(f"waited {wait_s:g} s for {names}, which nobody has set")
            self._watch(missing[0], revision, min(left_s, LONGEST_WATCH_S if each is None else LOOK_S))

    def _watch(self, key: str, revision: int, longest_s: float) -> None:
        began_at = time.monotonic()
        try:
            self.client.watch(text(key), revision, longest_s)
        except Exception:  # its time is over, or it broke: the key is read again, and that tells
            if time.monotonic() < began_at + min(longest_s, 0.1):
                cas_delay()

    def _range(self, prefix: str, **how: bool) -> dict[str, Any]:
        answer: dict[str, Any] = self.client.ask("/kv/range", {"key": text(prefix), "range_end": after(prefix), **how})
        return answer

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        def unless_other(current: bytes | None) -> bytes | None:
            return desired if current == expected or (current is None and not expected) else None

        return self._change(key, unless_other, otherwise=expected)

    def _change(self, key: str, how: Callable[[bytes | None], bytes | None], *, otherwise: bytes = b"") -> bytes:
        """Write what `how` makes of the current value (None: no value); retried when another client was faster.

        Returns the value afterwards. If `how` gives None, nothing is written; without a current value, returns `otherwise`.
        """
        while True:
            found, _ = read(self.client, [key])
            current, revision = found.get(key, (None, 0))
            wanted = how(current)
            if wanted is None:
                return otherwise if current is None else current
            if self._write([(key, wanted)], unchanged=revision):
                return wanted
            cas_delay()

    def _write(self, pairs: list[tuple[str, bytes]], *, unchanged: int | None = None) -> int:
        if self._renewals is None:
            self._lease.hold()
            self._renewals = _PeriodicTimer(timedelta(seconds=self._lease.ttl_s / 3), _renew, weakref.ref(self._lease))
            self._renewals.set_name("EtcdStoreLease")
            self._renewals.start()
        try:
            return write(self.client, pairs, self._lease.id, unchanged=unchanged)
        except _client_module().Gone:
            return write(self.client, pairs, self._lease.hold(anew=True), unchanged=unchanged)


def _sum(key: str, current: bytes | None, amount: int) -> bytes:
    try:
        return str(int(current or b"0") + amount).encode()
    except ValueError:
        raise StoreError(f"the value of {key} is not a whole number") from None


def _client_module() -> Any:
    return import_module("holdfast.integrations.etcd.client")


def _renew(known: weakref.ref[Lease]) -> None:
    """By a thread that must not keep the store alive. What fails is tried again the next time, and by the next write."""
    lease = known()
    if lease is not None:
        try:
            lease.hold(anew=True)
        except Exception as error:
            logger.debug("a lease of etcd could not be renewed: %s", error)
