"""etcd as the store of the fleet: which of several supervisors leads, and what all of them know.

Under the prefix there are `leader`, bound to the leader's lease, `generation`, and a key for each thing that is kept:
`nodes/…`, `jobs/…`, `swaps/…`, `deeds/…`. A write holds only if `leader` is still the key that the writer created, and
`generation` the one that it wrote: so whoever has lost the lead, and does not know it yet, changes nothing, nor does a request
that was long on its way. A thread renews the lease; how long it still has is reckoned from before each request was sent, by a
clock that goes on while this machine sleeps. A write that etcd does not answer in KEEP_S costs the lead: the supervisor's loop
has other things to do than to wait.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from base64 import b64decode
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.core.config.grammar import comma_list, endpoint
from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.value import to_plain
from holdfast.integrations.etcd.client import WATCH_S, Client, Gone, Refused, words
from holdfast.integrations.etcd.election import PORT, access, number, text
from holdfast.runtime.net.codec import build
from holdfast.supervisor.fleet.state import Kept
from holdfast.supervisor.store import TABLES, LeadLost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.supervisor.fleet.messages import Keep
    from holdfast.supervisor.store import Store

PREFIX = "/holdfast-fleet"

TTL_S = 5
"""Seconds after which a leader that died is followed by another; whole ones, as etcd counts. etcd's own elections take one."""

MARGIN = 0.9
"""How much of its lease a leader uses: clocks differ."""

KEEP_S = 2.0
"""How long a write may take. etcd's disk takes some 10 ms, an election of its own a second or two."""

AGAIN_S = 0.1
"""Before what has failed is tried again."""

AT_ONCE, BYTES = 100, 500_000
"""Writes in a transaction, and their size; etcd allows 128 (--max-txn-ops) and 1.5 MiB. Where more are kept at once, as when
deeds by the hundred are closed after a restart, a kill in between leaves those before."""

PAGE = 500
"""Keys that are read at a time."""


class EtcdStore:
    """See `supervisor.store.Store`, and the module's text."""

    def __init__(self, endpoints: list[tuple[str, int]], conf: dict[str, str], prefix: str, name: str) -> None:
        self.prefix, self.name = prefix.rstrip("/") or PREFIX, name
        self.client, self.renewer = Client(endpoints, conf), Client(endpoints, conf)
        """The second is the thread's, which must not wait for the first's requests."""
        self.leader_key, self.generation_key = text(f"{self.prefix}/leader"), text(f"{self.prefix}/generation")
        self.lease = ""
        self.seen = 0
        """The revision that created the last `leader` that was another's."""
        self.term = 0
        """The revision that created our `leader`."""
        self.generation_at = 0
        """The revision at which we wrote our `generation`."""
        self.until = 0.0
        self.turn = threading.Lock()
        """Held while `term` and `until` change together."""
        self.closed = threading.Event()

    # --- who leads ------------------------------------------------------------------------------------------------------

    def left_s(self) -> float:
        """See `Store`."""
        return self.until - _now()

    def seek(self) -> str:
        """See `Store`."""
        try:
            return self._sought()
        except Refused as error:
            raise UsageError(f"--store: {error}", hint=error.hint) from error
        except Exception as error:
            if isinstance(error, Gone):
                self.lease = ""
            self.closed.wait(AGAIN_S)
            return f"etcd: {words(error)}"

    def _sought(self) -> str:
        leader, revision = self._leader(self.client)
        if leader is not None and str(leader.get("lease")) != self.lease:
            if number(leader, "create_revision") == self.seen:
                with contextlib.suppress(Exception):  # it was time to look again, or it broke: looking tells what is the case
                    self.client.watch(self.leader_key, revision, WATCH_S)
                leader, _ = self._leader(self.client)
            if leader is not None:
                self.seen = number(leader, "create_revision")
                return f"{json.loads(b64decode(leader['value']))['name']} leads"
        asked_at = _now()
        ttl_s = self._renewed(self.client, self.lease) if self.lease else 0.0
        if not ttl_s:
            granted = self.client.ask("/lease/grant", {"TTL": TTL_S, "ID": 0})
            self.lease, ttl_s, leader = str(granted["ID"]), float(granted["TTL"]), None
        term = number(leader, "create_revision")
        if leader is None:
            value = text(json.dumps({"name": self.name}))
            put = {"request_put": {"key": self.leader_key, "value": value, "lease": self.lease}}
            nobody = {"key": self.leader_key, "target": "CREATE", "create_revision": "0"}
            answer = self._transact([nobody], [put])
            if not answer.get("succeeded"):
                return "another was faster"
            term = int(answer["header"]["revision"])
        with self.turn:
            self.term, self.until = term, asked_at + MARGIN * ttl_s
        threading.Thread(target=self._hold, args=(term, self.lease, ttl_s), name="lead", daemon=True).start()
        return ""

    def _hold(self, term: int, lease: str, ttl_s: float) -> None:
        """Renew the lease, in a thread, for as long as we lead by it."""
        pause_s = ttl_s / 4
        while not self.closed.wait(pause_s) and self.term == term:
            asked_at = _now()
            try:
                ttl_s = self._renewed(self.renewer, lease)
                leader, _ = self._leader(self.renewer)
            except Exception:  # it is tried again until our time is over
                pause_s = AGAIN_S
                continue
            is_ours = bool(ttl_s) and number(leader, "create_revision") == term
            pause_s = ttl_s / 4
            with self.turn:
                if self.term == term:
                    self.until = asked_at + MARGIN * ttl_s if is_ours else 0.0
            if not is_ours:
                return

    def _lost(self, why: str) -> LeadLost:
        self._let_go()
        return LeadLost(why)

    def _let_go(self) -> None:
        with self.turn:
            self.term, self.until = 0, 0.0

    # --- what is kept ---------------------------------------------------------------------------------------------------

    def load(self) -> tuple[int, Kept]:
        """See `Store`. After the number is ours, nobody before us can write any more."""
        try:
            found = self.client.ask("/kv/range", {"key": self.generation_key}).get("kvs") or [None]
            last = int(b64decode(found[0]["value"])) if found[0] else 0
            same = {"key": self.generation_key, "target": "MOD", "mod_revision": number(found[0], "mod_revision")}
            put = {"request_put": {"key": self.generation_key, "value": text(str(last + 1))}}
            answer = self._transact([self._is_ours(), same], [put])
            if not answer.get("succeeded"):
                raise self._lost("another supervisor leads")
            self.generation_at = int(answer["header"]["revision"])
            tables: dict[str, Any] = {table: tuple(self._table(table, kind)) for table, kind in TABLES.items()}
        except LeadLost:
            raise
        except Exception as error:
            raise self._lost(f"etcd does not say what was kept: {words(error)}") from error
        return last + 1, Kept(**tables)

    def _table(self, table: str, kind: Any) -> list[Any]:
        values: list[Any] = []
        start, end = text(f"{self.prefix}/{table}/"), text(f"{self.prefix}/{table}0")  # 0 follows /
        while True:
            asked = {"key": start, "range_end": end, "limit": PAGE, "sort_order": "ASCEND", "sort_target": "KEY"}
            answer = self.client.ask("/kv/range", asked)
            kvs = answer.get("kvs") or []
            values += [build(kind, json.loads(b64decode(kv["value"]))) for kv in kvs]
            if not answer.get("more"):
                return values
            start = text(b64decode(kvs[-1]["key"]).decode() + "\0")

    def keep(self, changes: Sequence[Keep]) -> None:
        """See `Store`. What etcd may or may not have done is asked for again: twice is as good as once."""
        ours = [self._is_ours(), {"key": self.generation_key, "target": "MOD", "mod_revision": str(self.generation_at)}]
        last = {(change.table, change.key): change for change in changes}  # a transaction writes no key twice
        writes = [self._write(change) for change in last.values()]
        until = min(_now() + KEEP_S, self.until)
        for some in _portions(writes):
            while True:
                try:
                    answer = self._transact(ours, some)
                    break
                except Refused as error:
                    raise HoldfastError(f"the fleet's state cannot be written: {error}", hint=error.hint) from error
                except Exception as error:
                    if _now() + AGAIN_S >= until:
                        raise self._lost(f"etcd has not taken what was to be kept: {words(error)}") from error
                    self.closed.wait(AGAIN_S)
            if not answer.get("succeeded"):
                raise self._lost("another supervisor leads")

    def _write(self, change: Keep) -> dict[str, Any]:
        assert change.table in TABLES, f"there is no table {change.table}"
        key = text(f"{self.prefix}/{change.table}/{change.key}")
        if change.value is None:
            return {"request_delete_range": {"key": key}}
        return {"request_put": {"key": key, "value": text(json.dumps(to_plain(change.value)))}}

    def close(self) -> None:
        """See `Store`: whoever stands by takes over at once."""
        self.closed.set()
        self._let_go()
        if self.lease:
            with contextlib.suppress(Exception):  # then it runs out by itself
                self.client.ask("/lease/revoke", {"ID": self.lease})

    # --- requests -------------------------------------------------------------------------------------------------------

    def _leader(self, client: Client) -> tuple[dict[str, Any] | None, int]:
        """The leader's key, and the revision at which it was so."""
        answer = client.ask("/kv/range", {"key": self.leader_key})
        return (answer.get("kvs") or [None])[0], int(answer["header"]["revision"])

    def _renewed(self, client: Client, lease: str) -> float:
        """Seconds that a lease has from now; 0: it is gone."""
        return float(client.ask("/lease/keepalive", {"ID": lease}).get("result", {}).get("TTL", 0))

    def _is_ours(self) -> dict[str, Any]:
        return {"key": self.leader_key, "target": "CREATE", "create_revision": str(self.term)}

    def _transact(self, compare: list[dict[str, Any]], then: list[dict[str, Any]]) -> dict[str, Any]:
        equal = [{"result": "EQUAL", **one} for one in compare]
        return self.client.ask("/kv/txn", {"compare": equal, "success": then, "failure": []})


def open_store(where: str, name: str) -> EtcdStore:
    """`HOST:PORT[,HOST:PORT…][/PREFIX][?cacert=FILE&cert=FILE&key=FILE&protocol=https]`. UsageError."""
    from urllib.parse import parse_qsl

    try:
        import_module("etcd3gw")
    except ImportError as error:
        raise UsageError("--store: etcd3gw is not installed", hint="pip install 'holdfast[etcd]'") from error
    where, _, query = where.partition("?")
    hosts, _, prefix = where.partition("/")
    given = dict(parse_qsl(query))
    for key in set(given) - {"cacert", "cert", "key", "protocol"}:
        raise UsageError(f"--store: {key}= is not known", hint="known: cacert, cert, key, protocol")
    if "cacert" in given:
        given.setdefault("protocol", "https")
    endpoints = [endpoint(one, "--store", default_port=PORT) for one in comma_list(hosts)]
    return EtcdStore(endpoints, access(given, "--store"), f"/{prefix}" if prefix else PREFIX, name)


def _portions(writes: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    portions: list[list[dict[str, Any]]] = [[]]
    size = 0
    for write in writes:
        length = len(write.get("request_put", {}).get("value", ""))
        if len(portions[-1]) == AT_ONCE or (portions[-1] and size + length > BYTES):
            portions.append([])
            size = 0
        portions[-1].append(write)
        size += length
    return portions


def _now() -> float:
    """Seconds that have passed, those included in which this machine slept."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


if TYPE_CHECKING:
    _STORES: tuple[type[Store], ...] = (EtcdStore,)
