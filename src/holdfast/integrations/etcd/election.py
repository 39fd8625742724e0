"""etcd as the store of an election: one thread that talks to it, so that the agent's loop never waits for a network.

Under `<prefix>/<job>/` there are two keys, whatever the size of the job: `leader`, bound to the leader's lease, and `state`,
what a successor must know. What the leader writes is compared with the revision that created its `leader`: that is the
election's term, and it fences. Watches end with any error and after a while, and then the key is read again: so a watch
that was compacted, or that died in silence, costs some seconds at most.

etcd3gw speaks etcd's own JSON gateway (etcd 3.4 and newer), and needs no gRPC.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import threading
import time
from base64 import b64decode, b64encode
from typing import Any

import msgspec

from holdfast.core.config.config import RunConfig
from holdfast.core.config.grammar import endpoint as parse_endpoint
from holdfast.core.errors import UsageError
from holdfast.core.machine import Action, Observation
from holdfast.core.value import to_plain
from holdfast.core.wire.messages import Past
from holdfast.integrations.etcd.client import Client, Gone, Refused, words
from holdfast.rendezvous.election.store_election import (
    Await,
    Campaign,
    Deposed,
    Keep,
    Kept,
    Leads,
    Persist,
    Persisted,
    Resign,
    StoreSeen,
    StoreTrouble,
    Vacant,
    Won,
    inherited,
)
from holdfast.runtime.host import Host
from holdfast.runtime.net.codec import build

PORT = 2379
"""etcd's port for clients."""

STATE_TTL_S = 900
"""What a job without a leader left behind is forgotten after so long: well after its members have given up."""

FAREWELL_S = 2.0
"""How long an agent that ends waits, at most, for its place to be given back."""

PREFIX = "/holdfast"


class EtcdStore:
    """The hands of one agent's election."""

    def __init__(self, host: Host, endpoints: list[tuple[str, int]], conf: dict[str, str], job: str) -> None:
        self.host = host
        self.endpoints, self.conf = endpoints, conf
        folder = f"{conf.get('etcd_prefix', PREFIX).rstrip('/')}/{job}"
        self.leader_key, self.state_key = text(f"{folder}/leader"), text(f"{folder}/state")
        self.client: Client | None = None
        self.asked: queue.SimpleQueue[Action | None] = queue.SimpleQueue()
        self.said: list[Observation] = []
        self.alarm = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        host.watch(self.alarm, select.EPOLLIN, self._heard)
        self.lease = ""
        self.state_lease = ""
        self.state_kept_at = 0.0
        self.thread = threading.Thread(target=self._run, name="etcd", daemon=True)
        self.thread.start()

    # --- the loop's side ------------------------------------------------------------------------------------------------

    def perform(self, action: Action) -> list[Observation]:
        """See `agent.leader.build.Store`."""
        self.asked.put(action)
        return []

    def close(self, last: list[Action]) -> None:
        """See `agent.leader.build.Store`."""
        for action in last:
            self.asked.put(action)
        self.asked.put(None)
        if last:  # a follower owes nothing, and its thread may be watching
            self.thread.join(FAREWELL_S)
        self.host.unwatch(self.alarm)

    def _heard(self, events: int) -> list[Observation]:
        os.eventfd_read(self.alarm)
        return [self.said.pop(0) for _ in range(len(self.said))]

    # --- the thread's side ----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (action := self.asked.get()) is not None:
            try:
                seen = self._done(action)
            except Refused as error:
                seen = StoreTrouble(reason=str(error), hint=error.hint, final=True)
            except Gone as error:
                self.state_lease = ""  # the next time there will be a new one
                seen = StoreTrouble(reason=str(error))
            except Exception as error:
                seen = StoreTrouble(reason=words(error))
            if seen is not None:
                self.said.append(seen)
                os.eventfd_write(self.alarm, 1)

    def _ask(self, path: str, what: dict[str, Any]) -> dict[str, Any]:
        if self.client is None:
            self.client = Client(self.endpoints, self.conf)
        return self.client.ask(path, what)

    def _done(self, action: Action) -> StoreSeen | None:
        match action:
            case Campaign():
                return self._campaign(action)
            case Await(term=term):
                return self._await(term)
            case Keep(term=term):
                return self._keep(term)
            case Persist(term=term, past=past):
                return self._persist(term, past)
            case Resign(term=term, past=past, forget=forget):
                with contextlib.suppress(Exception):  # then the lease runs out by itself
                    self._resign(term, past, forget)
                return None
        raise AssertionError(f"etcd cannot do {action!r}")

    def _campaign(self, wish: Campaign) -> StoreSeen:
        leader, state, _ = self._look()
        if leader is not None and leader.get("lease") == self.lease and self.lease:
            return self._won_unheard(leader, state, wish)
        if leader is not None:
            return _leads(leader)
        asked_at = time.monotonic()
        granted = self._ask("/lease/grant", {"TTL": int(wish.ttl_s), "ID": 0})
        self.lease, ttl_s = granted["ID"], float(granted["TTL"])
        past = inherited(_past(state), life=wish.life, fresh_life=wish.fresh_life)
        value = json.dumps({"endpoint": wish.endpoint, "life": past.life})
        unchanged = {"key": self.state_key, "target": "MOD", "mod_revision": number(state, "mod_revision")}
        answer = self._transact(
            [{"key": self.leader_key, "target": "CREATE", "create_revision": "0"}, unchanged],
            [{"request_put": {"key": self.leader_key, "value": text(value), "lease": self.lease}}],
        )
        if not answer.get("succeeded"):
            self._revoke()
            leader, _, _ = self._look()
            return Vacant() if leader is None else _leads(leader)
        term = int(answer["header"]["revision"])
        return Won(term=term, past=past, asked_at=asked_at, ttl_s=ttl_s)

    def _won_unheard(self, leader: dict[str, Any], state: dict[str, Any] | None, wish: Campaign) -> StoreSeen:
        """We had won, and the answer was lost on its way; or we had stepped down because etcd was out of reach."""
        asked_at = time.monotonic()
        ttl_s = self._renewed(self.lease)
        if not ttl_s:
            return Vacant()
        past = inherited(_past(state), life=_value(leader)["life"], fresh_life=wish.fresh_life)
        return Won(term=number(leader, "create_revision"), past=past, asked_at=asked_at, ttl_s=ttl_s)

    def _await(self, term: int) -> StoreSeen:
        leader, _, revision = self._look()
        if leader is not None and number(leader, "create_revision") == term:
            assert self.client is not None
            with contextlib.suppress(Exception):  # it timed out, or broke: looking tells what is the case
                self.client.watch(self.leader_key, revision)
            leader, _, _ = self._look()
        return Vacant() if leader is None else _leads(leader)

    def _keep(self, term: int) -> StoreSeen:
        asked_at = time.monotonic()
        if not self._renewed(self.lease):
            return Deposed(term=term, reason="our lease in etcd was revoked, or ran out")
        if self.state_lease and asked_at - self.state_kept_at > STATE_TTL_S / 10:
            if not self._renewed(self.state_lease):
                self.state_lease = ""
            self.state_kept_at = asked_at
        leader, _, _ = self._look()
        if number(leader, "create_revision") != term:
            return Deposed(term=term, reason="our key in etcd was deleted")
        return Kept(term=term, asked_at=asked_at)

    def _persist(self, term: int, past: Past) -> StoreSeen:
        if not self._transact([self._is_ours(term)], [self._put_state(past)]).get("succeeded"):
            return Deposed(term=term, reason="our key in etcd was deleted")
        return Persisted(term=term, past=past)

    def _resign(self, term: int, past: Past | None, forget: bool) -> None:
        put = [{"request_delete_range": {"key": self.state_key}}] if forget else [self._put_state(past)] if past else []
        self._transact([self._is_ours(term)], [*put, {"request_delete_range": {"key": self.leader_key}}])
        self._revoke()

    # --- requests -------------------------------------------------------------------------------------------------------

    def _look(self) -> tuple[dict[str, Any] | None, dict[str, Any] | None, int]:
        """The leader's key, the state's, and the revision at which they were so."""
        answer = self._transact([], [{"request_range": {"key": key}} for key in (self.leader_key, self.state_key)])
        found = [(part["response_range"].get("kvs") or [None])[0] for part in answer["responses"]]
        return found[0], found[1], int(answer["header"]["revision"])

    def _transact(self, compare: list[dict[str, Any]], then: list[dict[str, Any]]) -> dict[str, Any]:
        equal = [{"result": "EQUAL", **one} for one in compare]
        return self._ask("/kv/txn", {"compare": equal, "success": then, "failure": []})

    def _is_ours(self, term: int) -> dict[str, Any]:
        return {"key": self.leader_key, "target": "CREATE", "create_revision": str(term)}

    def _put_state(self, past: Past) -> dict[str, Any]:
        if not self.state_lease:
            self.state_lease = self._ask("/lease/grant", {"TTL": STATE_TTL_S, "ID": 0})["ID"]
            self.state_kept_at = time.monotonic()
        value = text(json.dumps(to_plain(past)))
        return {"request_put": {"key": self.state_key, "value": value, "lease": self.state_lease}}

    def _renewed(self, lease: str) -> float:
        """Seconds that a lease has from now; 0: it is gone."""
        return float(self._ask("/lease/keepalive", {"ID": lease}).get("result", {}).get("TTL", 0))

    def _revoke(self) -> None:
        lease, self.lease = self.lease, ""
        with contextlib.suppress(Gone):
            self._ask("/lease/revoke", {"ID": lease})


def access(conf: dict[str, str], flag: str) -> dict[str, str]:
    """How to come to etcd: `conf`, as given with `flag`, and what the environment adds. UsageError for what is wrong."""
    for key, variable in (("user", "HOLDFAST_ETCD_USER"), ("password", "HOLDFAST_ETCD_PASSWORD")):
        conf.setdefault(key, os.environ.pop(variable, ""))  # it is not left to the workers
    for ours, theirs in (("cert", "ssl_cert"), ("key", "ssl_cert_key"), ("cacert", "ca_cert")):
        if theirs in conf:
            conf.setdefault(ours, conf[theirs])
    if conf.get("protocol", "http") not in ("http", "https"):
        raise UsageError(f"{flag} protocol={conf['protocol']}: neither http nor https")
    for key in ("cert", "key", "cacert"):
        if key in conf and not os.access(conf[key], os.R_OK):
            raise UsageError(f"{flag} {key}: {conf[key]} cannot be read")
    return conf


def open_store(config: RunConfig, host: Host) -> EtcdStore:
    """The store that `config` names. Raises UsageError for what is wrong with it."""
    conf = access(dict(config.rdzv_conf), "--rdzv-conf")
    endpoints = [parse_endpoint(one, "--rdzv-endpoint", default_port=PORT) for one in config.rdzv_endpoint.split(",")]
    return EtcdStore(host, endpoints, conf, config.rdzv_id)


def _leads(leader: dict[str, Any]) -> Leads:
    value = _value(leader)
    return Leads(endpoint=value["endpoint"], life=value["life"], term=number(leader, "create_revision"))


def _value(kv: dict[str, Any]) -> dict[str, Any]:
    return msgspec.json.decode(b64decode(kv["value"]), type=dict[str, Any])


def _past(state: dict[str, Any] | None) -> Past | None:
    return None if state is None else build(Past, _value(state))


def number(kv: dict[str, Any] | None, field: str) -> int:
    """A field of a key; 0 where there is no key."""
    return 0 if kv is None else int(kv[field])


def text(plain: str) -> str:
    """As the gateway takes keys and values."""
    return b64encode(plain.encode()).decode()
