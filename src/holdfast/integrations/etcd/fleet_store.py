"""etcd as the store of the fleet: which of several supervisors leads, and what all of them know.

Under the prefix there are `leader`, bound to the leader's lease, `generation`, and a key for each thing that is kept:
`nodes/…`, `jobs/…`, `swaps/…`, `deeds/…`. A write holds only if `leader` is still the key that the writer created, and
`generation` the one that it wrote. So a supervisor that has lost the lead changes nothing, nor does a request that was long on
its way. A thread renews the lease, whose time counts from before each request, by a clock that goes on while this machine
sleeps. A write that etcd does not answer in KEEP_S costs the lead: the supervisor's loop does not wait longer.
"""

from __future__ import annotations

import contextlib
import threading
from base64 import b64decode
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from holdfast.core.config.grammar import comma_list, endpoint
from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.value import to_plain
from holdfast.integrations.etcd import client as etcd
from holdfast.runtime.clocks import passed_s
from holdfast.runtime.net.codec import build
from holdfast.supervisor.fleet.messages import Keep
from holdfast.supervisor.fleet.state import Kept
from holdfast.supervisor.store import TABLES, LeadLost, Store, portions

PREFIX = "/holdfast-fleet"

TTL_S = 5
"""Seconds after which a leader that died is followed by another; whole ones, as etcd counts. etcd's own elections take one."""

MARGIN = 0.9  # How much of its lease a leader uses: clocks differ.
KEEP_S = 2.0  # How long a write may take. etcd's disk takes some 10 ms, an election of its own a second or two.
AGAIN_S = 0.1  # Before what has failed is tried again.

AT_ONCE, BYTES = 100, 500_000
"""Writes in a transaction, and their size; etcd allows 128 (--max-txn-ops) and 1.5 MiB. More are written in several: a kill in
between leaves the first ones."""

PAGE = 500  # Keys that are read at a time.


class EtcdStore:
    """See `supervisor.store.Store`, and the module's text."""

    def __init__(self, endpoints: list[tuple[str, int]], conf: dict[str, str], prefix: str, name: str) -> None:
        self.prefix, self.name = prefix.rstrip("/") or PREFIX, name
        self.client, self.renewer = etcd.Client(endpoints, conf), etcd.Client(endpoints, conf)
        """The second is the thread's, which must not wait for the first's requests."""
        self.leader_key, self.generation_key = etcd.text(f"{self.prefix}/leader"), etcd.text(f"{self.prefix}/generation")
        self.lease = ""
        self.seen = 0  # The revision that created the last `leader` that was another's.
        self.term = 0  # The revision that created our `leader`.
        self.generation_at = 0  # The revision at which we wrote our `generation`.
        self.until = 0.0
        self.turn = threading.Lock()  # Held while `term` and `until` change together.
        self.closed = threading.Event()

    # --- who leads ------------------------------------------------------------------------------------------------------

    def left_s(self) -> float:
        return self.until - passed_s()

    def seek(self) -> str:
        try:
            return self._sought()
        except etcd.Refused as error:
            raise UsageError(f"--store: {error}", hint=error.hint) from error
        except Exception as error:
            if isinstance(error, etcd.Gone):
                self.lease = ""
            self.closed.wait(AGAIN_S)
            return f"etcd: {etcd.words(error)}"

    def _sought(self) -> str:
        (leader,), revision = self.client.look(self.leader_key)
        if leader is not None and str(leader.get("lease")) != self.lease:
            if etcd.number(leader, "create_revision") == self.seen:
                with contextlib.suppress(Exception):  # it was time to look again, or it broke: looking tells what is the case
                    self.client.watch(self.leader_key, revision)
                (leader,), _ = self.client.look(self.leader_key)
            if leader is not None:
                self.seen = etcd.number(leader, "create_revision")
                return f"{etcd.value(leader)['name']} leads"
        asked_at = passed_s()
        ttl_s = self.client.renew(self.lease) if self.lease else 0.0
        if not ttl_s:
            (self.lease, ttl_s), leader = self.client.grant(TTL_S), None
        term = etcd.number(leader, "create_revision")
        if leader is None:
            claim = etcd.put(self.leader_key, {"name": self.name}, self.lease)
            answer = self.client.transact([etcd.created(self.leader_key, 0)], [claim])
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
            asked_at = passed_s()
            try:
                ttl_s = self.renewer.renew(lease)
                (leader,), _ = self.renewer.look(self.leader_key)
            except Exception:  # it is tried again until our time is over
                pause_s = AGAIN_S
                continue
            is_ours = bool(ttl_s) and etcd.number(leader, "create_revision") == term
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
            (found,), _ = self.client.look(self.generation_key)
            last = int(etcd.value(found)) if found else 0
            same = etcd.changed(self.generation_key, etcd.number(found, "mod_revision"))
            ours = etcd.created(self.leader_key, self.term)
            answer = self.client.transact([ours, same], [etcd.put(self.generation_key, last + 1)])
            if not answer.get("succeeded"):
                raise self._lost("another supervisor leads")
            self.generation_at = int(answer["header"]["revision"])
            tables: dict[str, Any] = {table: tuple(self._table(table, kind)) for table, kind in TABLES.items()}
        except LeadLost:
            raise
        except Exception as error:
            raise self._lost(f"etcd does not say what was kept: {etcd.words(error)}") from error
        return last + 1, Kept(**tables)

    def _table(self, table: str, kind: Any) -> list[Any]:
        values: list[Any] = []
        start, end = etcd.text(f"{self.prefix}/{table}/"), etcd.text(f"{self.prefix}/{table}0")  # 0 follows /
        while True:
            asked = {"key": start, "range_end": end, "limit": PAGE, "sort_order": "ASCEND", "sort_target": "KEY"}
            answer = self.client.ask("/kv/range", asked)
            kvs = answer.get("kvs") or []
            values += [build(kind, etcd.value(kv)) for kv in kvs]
            if not answer.get("more"):
                return values
            start = etcd.text(b64decode(kvs[-1]["key"]).decode() + "\0")

    def keep(self, changes: Sequence[Keep]) -> None:
        """See `Store`. A write without an answer is sent again: twice is as good as once."""
        ours = [etcd.created(self.leader_key, self.term), etcd.changed(self.generation_key, self.generation_at)]
        last = {(change.table, change.key): change for change in changes}  # a transaction writes no key twice
        writes = [self._write(change) for change in last.values()]
        until = min(passed_s() + KEEP_S, self.until)
        for some in portions(writes, lambda write: len(write.get("request_put", {}).get("value", "")), BYTES, AT_ONCE):
            while True:
                try:
                    answer = self.client.transact(ours, some)
                    break
                except etcd.Refused as error:
                    raise HoldfastError(f"the fleet's state cannot be written: {error}", hint=error.hint) from error
                except Exception as error:
                    if passed_s() + AGAIN_S >= until:
                        raise self._lost(f"etcd has not taken what was to be kept: {etcd.words(error)}") from error
                    self.closed.wait(AGAIN_S)
            if not answer.get("succeeded"):
                raise self._lost("another supervisor leads")

    def _write(self, change: Keep) -> etcd.Kv:
        assert change.table in TABLES, f"there is no table {change.table}"
        key = etcd.text(f"{self.prefix}/{change.table}/{change.key}")
        return etcd.delete(key) if change.value is None else etcd.put(key, to_plain(change.value))

    def close(self) -> None:
        """See `Store`: a standby takes over at once."""
        self.closed.set()
        self._let_go()
        if self.lease:
            with contextlib.suppress(Exception):  # then it runs out by itself
                self.client.revoke(self.lease)


def open_store(where: str, name: str) -> EtcdStore:
    """`HOST:PORT[,HOST:PORT…][/PREFIX][?cacert=FILE&cert=FILE&key=FILE&protocol=https]`. UsageError."""
    if find_spec("etcd3gw") is None:
        raise UsageError("--store: etcd3gw is not installed", hint="pip install 'holdfast[etcd]'")
    where, _, query = where.partition("?")
    hosts, _, prefix = where.partition("/")
    given = dict(parse_qsl(query))
    for key in set(given) - {"cacert", "cert", "key", "protocol"}:
        raise UsageError(f"--store: {key}= is not known", hint="known: cacert, cert, key, protocol")
    if "cacert" in given:
        given.setdefault("protocol", "https")
    endpoints = [endpoint(one, "--store", default_port=etcd.PORT) for one in comma_list(hosts)]
    return EtcdStore(endpoints, etcd.access(given, "--store"), f"/{prefix}" if prefix else PREFIX, name)


if TYPE_CHECKING:
    _STORES: tuple[type[Store], ...] = (EtcdStore,)
