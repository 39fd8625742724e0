"""Kubernetes as the store of the fleet: a Lease says which of several supervisors leads, ConfigMaps hold what all of them know.

`NAME`, a ConfigMap, has the number of the leader's life, and `NAME-0` to `NAME-15` what is kept. Who begins to lead writes its
number into each. A write holds only if nobody has written since the writer did: so a supervisor that has lost the lead changes
nothing, nor does a request that was long on its way. What belongs together but lies in several ConfigMaps stands in `NAME`
until it is in all of them, and the next leader completes it; what they have no room for is not begun.

A thread renews the Lease, whose time counts from before each request, by a clock that goes on while this machine sleeps. A
write that the API server does not take in KEEP_S costs the lead, and nothing else: its rights may come, or come back.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import threading
import urllib.error
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any
from zlib import crc32

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.core.value import to_plain
from holdfast.integrations.kubernetes.api import WRONG, Api, Refused, Thing, words
from holdfast.integrations.kubernetes.lease import MARGIN, Lease, Turn, lease_of
from holdfast.runtime.clocks import passed_s, utc
from holdfast.runtime.net.codec import build
from holdfast.supervisor.fleet.state import Kept
from holdfast.supervisor.store import TABLES, LeadLost, portions

if TYPE_CHECKING:
    from holdfast.supervisor.fleet.messages import Keep
    from holdfast.supervisor.store import Store

TTL_S = 10
"""Seconds after which a leader that died is followed by another. client-go: 15."""

STEP_S, KEEP_S = 2.0, 3.0  # How long a request may take, and a write with all that it is tried again.
AGAIN_S, LOOK_S = 0.1, 1.0  # Before what has failed is tried again, and between two looks at another's Lease.

PARTS, ROOM = 16, 1 << 20
"""ConfigMaps, and the bytes that the values of one may have."""

TOGETHER = 400_000
"""Bytes that are written together: `NAME` has room for them too, where they are quoted and up to twice as long."""

GENERATION = "holdfast/generation"  # Annotation: the number of the life that may write.
NUMBER, JOURNAL = "generation", "journal"  # Keys of `NAME`.

NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,200}[a-z0-9])?")

HINT = "deploy/kubernetes/base/rbac.yaml has the rights that it needs"

Data = dict[str, str | None]  # None: the key goes.


class KubernetesStore:
    """See `supervisor.store.Store`, and the module's text."""

    def __init__(self, api: Api, name: str, us: str) -> None:
        self.api, self.name = api, name
        self.us = f"{us}_{os.urandom(4).hex()}"  # another life of ours is another
        self.whose_turn = Turn(self.us)
        self.lease: Lease | None = None  # Ours, as it was when we wrote it last.
        self.term = 0  # How often we have led.
        self.generation = 0
        self.versions: dict[str, str] = {}  # ConfigMap → its version after our last write.
        self.sizes: dict[str, dict[str, int]] = {}  # ConfigMap → key → bytes of its value.
        self.until = 0.0
        self.turn = threading.Lock()  # Held while `lease` and `until` change together.
        self.closed = threading.Event()

    # --- who leads ------------------------------------------------------------------------------------------------------

    def left_s(self) -> float:
        return self.until - passed_s()

    def seek(self) -> str:
        try:
            return self._sought()
        except WRONG as error:
            self.closed.wait(AGAIN_S)
            return f"Kubernetes: {_words(error)}"

    def _sought(self) -> str:
        found = self._read_lease()
        if holder := self.whose_turn.wait_for(found, passed_s()):
            self.closed.wait(LOOK_S)
            return f"{holder.rpartition('_')[0] or holder} leads"
        asked_at = passed_s()
        try:
            lease = self._write_lease(found)
        except urllib.error.HTTPError as error:
            if error.code != 409:
                raise
            return "another was faster"
        with self.turn:
            self.term, self.lease, self.until = self.term + 1, lease, asked_at + MARGIN * TTL_S
        threading.Thread(target=self._hold, args=(lease, self.term), name="lead", daemon=True).start()
        return ""

    def _hold(self, lease: Lease, term: int) -> None:
        pause_s = TTL_S / 4
        while not self.closed.wait(pause_s) and self.lease is not None and self.term == term:
            asked_at = passed_s()
            try:
                lease = self._write_lease(lease)
            except WRONG as error:  # it is tried again until our time is over
                pause_s = AGAIN_S
                if not isinstance(error, urllib.error.HTTPError) or error.code not in (404, 409):
                    continue
                with contextlib.suppress(*WRONG):
                    found = self._read_lease()
                    if found is None or found.holder != self.us:
                        return self._let_go()
                    lease = found  # an answer was lost, or somebody has looked after other fields
                continue
            pause_s = TTL_S / 4
            with self.turn:
                if self.lease is None or self.term != term:
                    return
                self.lease, self.until = lease, asked_at + MARGIN * TTL_S

    def _read_lease(self) -> Lease | None:
        found = self._read(self._leases(self.name))
        return lease_of(found) if found is not None else None

    def _write_lease(self, found: Lease | None, holder: str | None = None) -> Lease:
        """Take it, renew it or (`holder` empty) give it back. HTTPError 409: somebody else has written."""
        at = utc().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        spec: Thing = {"holderIdentity": self.us if holder is None else holder, "leaseDurationSeconds": TTL_S, "renewTime": at}
        if found is None or found.holder != self.us:
            spec |= {"acquireTime": at, "leaseTransitions": found.transitions + 1 if found is not None else 0}
        if found is None:
            made = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": self.name}, "spec": spec}
            return lease_of(self.api.ask("create leases", self._leases(), make=made, timeout_s=STEP_S))
        patch = {"metadata": {"resourceVersion": found.version}, "spec": spec}
        return lease_of(self.api.ask("patch leases", self._leases(self.name), patch, timeout_s=STEP_S))

    def _lost(self, why: str) -> LeadLost:
        self._let_go()
        return LeadLost(why)

    def _let_go(self) -> None:
        with self.turn:
            self.lease, self.until = None, 0.0

    # --- what is kept ---------------------------------------------------------------------------------------------------

    def load(self) -> tuple[int, Kept]:
        """See `Store`. After the number is ours, nobody before us can write any more."""
        try:
            head = self._number()
            parts = [self._taken(f"{self.name}-{part}") for part in range(PARTS)]
            if journal := head.get(JOURNAL):
                for name, data in json.loads(journal):
                    self._patch(name, data)
                self._patch(self.name, {JOURNAL: None})
                parts = [self._taken(f"{self.name}-{part}") for part in range(PARTS)]
        except WRONG as error:
            self.closed.wait(LOOK_S)
            raise self._lost(f"Kubernetes does not say what was kept: {_words(error)}") from error
        rows = sorted(item for part in parts for item in part.items())
        found: dict[str, Any] = {
            table: tuple(build(kind, json.loads(text)) for key, text in rows if key.startswith(f"{table}."))
            for table, kind in TABLES.items()
        }
        return self.generation, Kept(**found)

    def _number(self) -> dict[str, str]:
        """Take the next number; what else stands beside it."""
        found = self._read(self._maps(self.name)) or self._make(self.name)
        self.generation = int((found.get("data") or {}).get(NUMBER, "0")) + 1
        self.versions = {self.name: found["metadata"]["resourceVersion"]}
        return self._data(self._write(self.name, {NUMBER: str(self.generation)}))

    def _taken(self, name: str) -> dict[str, str]:
        """What a ConfigMap has, from when on nobody before us can change it. LeadLost: somebody leads after us."""
        while self.left_s() > 0:
            found = self._read(self._maps(name)) or self._make(name)
            if self._owner(found) > self.generation:
                raise self._lost("another supervisor leads")
            self.versions[name] = found["metadata"]["resourceVersion"]
            try:
                return self._data(self._write(name, {}))
            except urllib.error.HTTPError as error:
                if error.code != 409:
                    raise
        raise self._lost("its Lease was over before it had read what was kept")

    def keep(self, changes: Sequence[Keep]) -> None:
        """See `Store`. A write without an answer is sent again: twice is as good as once."""
        rows = {_row(change): _text(change) for change in changes}
        for some in portions(rows.items(), lambda row: len(row[0][1]) + len(row[1] or ""), TOGETHER):
            self._keep_together(sorted(some))

    def _keep_together(self, rows: list[tuple[tuple[int, str], str | None]]) -> None:
        writes: list[tuple[str, Data]] = [
            (f"{self.name}-{part}", {key: text for (_, key), text in some})
            for part, some in groupby(rows, key=lambda row: row[0][0])
        ]
        for name, data in writes:
            size = sum((self.sizes[name] | {key: len(text or "") for key, text in data.items()}).values())
            if size > ROOM:
                hint = "keep the fleet's state in etcd: --store etcd://…"
                raise HoldfastError(f"the fleet's state cannot be written: ConfigMap {name} has no room for it", hint=hint)
        if len(writes) > 1:
            self._patch(self.name, {JOURNAL: json.dumps(writes)})
        for name, data in writes:
            self._patch(name, data)
        if len(writes) > 1:
            self._patch(self.name, {JOURNAL: None})

    def _patch(self, name: str, data: Data) -> None:
        until = min(passed_s() + KEEP_S, self.until)
        while True:
            try:
                self._write(name, data)
                return
            except WRONG as error:
                if passed_s() + AGAIN_S >= until:
                    raise self._lost(f"Kubernetes has not taken what was to be kept: {_words(error)}") from error
                if getattr(error, "code", 0) in (404, 409):
                    self._look_again(name)
                else:
                    self.closed.wait(AGAIN_S)

    def _look_again(self, name: str) -> None:
        """Somebody has written: we, and the answer was lost; or a leader after us. LeadLost."""
        with contextlib.suppress(*WRONG):
            found = self._read(self._maps(name))
            if found is None or self._owner(found) != self.generation:
                raise self._lost("another supervisor leads")
            self.versions[name] = found["metadata"]["resourceVersion"]

    def _write(self, name: str, data: Data) -> Thing:
        meta = {"resourceVersion": self.versions[name], "annotations": {GENERATION: str(self.generation)}}
        answer = self.api.ask("patch configmaps", self._maps(name), {"metadata": meta, "data": data}, timeout_s=STEP_S)
        self.versions[name] = answer["metadata"]["resourceVersion"]
        self.sizes[name] = {key: len(text) for key, text in self._data(answer).items()}
        return answer

    def _read(self, path: str) -> Thing | None:
        try:
            return self.api.ask(f"get {path}", path, timeout_s=STEP_S)
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise

    def _make(self, name: str) -> Thing:
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
        return self.api.ask("create configmaps", self._maps(), make=made, timeout_s=STEP_S)

    def _owner(self, found: Thing) -> int:
        return int((found["metadata"].get("annotations") or {}).get(GENERATION, "0"))

    def _data(self, found: Thing) -> dict[str, str]:
        return dict(found.get("data") or {})

    def _maps(self, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.api.namespace}/configmaps/{name}".rstrip("/")

    def _leases(self, name: str = "") -> str:
        return f"/apis/coordination.k8s.io/v1/namespaces/{self.api.namespace}/leases/{name}".rstrip("/")

    def close(self) -> None:
        """See `Store`: a standby takes over at once."""
        self.closed.set()
        lease = self.lease
        self._let_go()
        if lease is not None:
            with contextlib.suppress(*WRONG):  # then it runs out by itself
                self._write_lease(lease, holder="")


def open_store(where: str, name: str) -> KubernetesStore:
    """`NAME`, in the namespace of this pod. UsageError."""
    if not NAME.fullmatch(where):
        raise UsageError(f"--store: {where!r} is no name of Kubernetes'", hint="for example kubernetes://holdfast-supervisor")
    try:
        return KubernetesStore(Api(os.environ), where, name)
    except WRONG as error:
        hint = f"run the supervisor in a pod that has a service account; {HINT}"
        raise UsageError(f"--store: this is no pod of Kubernetes ({words(error)})", hint=hint) from error


def _row(change: Keep) -> tuple[int, str]:
    """In which part a value is kept, and by which key there, which may hold no letters but a few."""
    assert change.table in TABLES, f"there is no table {change.table}"
    key = f"{change.table}.{hashlib.blake2b(change.key.encode(), digest_size=16).hexdigest()}"
    return crc32(key.encode()) % PARTS, key


def _text(change: Keep) -> str | None:
    """ASCII."""
    return None if change.value is None else json.dumps(to_plain(change.value))


def _words(error: BaseException) -> str:
    return f"{words(error)}; {HINT}" if isinstance(error, Refused) else words(error)


if TYPE_CHECKING:
    _STORES: tuple[type[Store], ...] = (KubernetesStore,)
