"""etcd as the store of an election: one thread that talks to it, so that the agent's loop never waits for a network.

Under `<prefix>/<job>/` there are two keys: `leader`, bound to the leader's lease, and `state`, what a successor must know. The
leader's writes hold only while `leader` has the revision that created it: that is the election's term, and it fences. A watch
ends with any error and after a while, and then the key is read again: a watch that was compacted or that died in silence costs
some seconds at most.

etcd3gw speaks etcd's own JSON gateway (etcd 3.4 and newer), and needs no gRPC.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from functools import cached_property

from holdfast.core.config.config import RunConfig
from holdfast.core.config.grammar import endpoint as parse_endpoint
from holdfast.core.machine import Action, Observation
from holdfast.core.value import to_plain
from holdfast.core.wire.messages import Past
from holdfast.integrations.etcd import client as etcd
from holdfast.rendezvous.election import store_election as election
from holdfast.runtime.host import Host
from holdfast.runtime.net.codec import build
from holdfast.telemetry.record.state_dir import JobDir

STATE_TTL_S = 900  # How long the state of a job without a leader is kept: well after its members have given up.
FAREWELL_S = 2.0  # How long an agent that ends waits for its lead to be given back.

PREFIX = "/holdfast"


class EtcdStore:
    """The store of one agent's election: see `agent.leader.build.Store`."""

    def __init__(self, host: Host, endpoints: list[tuple[str, int]], conf: dict[str, str], job: str) -> None:
        self.host = host
        self.endpoints, self.conf = endpoints, conf
        folder = f"{conf.get('etcd_prefix', PREFIX).rstrip('/')}/{job}"
        self.leader_key, self.state_key = etcd.text(f"{folder}/leader"), etcd.text(f"{folder}/state")
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

    def open(self, job_dir: JobDir) -> None:
        """Nothing is kept there: etcd remembers."""

    def perform(self, action: Action) -> list[Observation]:
        self.asked.put(action)
        return []

    def close(self, last: list[Action]) -> None:
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
            except etcd.Refused as error:
                seen = election.StoreTrouble(reason=str(error), hint=error.hint, final=True)
            except etcd.Gone as error:
                self.state_lease = ""  # the next time there will be a new one
                seen = election.StoreTrouble(reason=str(error))
            except Exception as error:
                seen = election.StoreTrouble(reason=etcd.words(error))
            if seen is not None:
                self.said.append(seen)
                os.eventfd_write(self.alarm, 1)

    @cached_property
    def client(self) -> etcd.Client:
        """Made by the thread: what it imports takes long."""
        return etcd.Client(self.endpoints, self.conf)

    def _done(self, action: Action) -> election.StoreSeen | None:
        match action:
            case election.Campaign():
                return self._campaign(action)
            case election.Await(term=term):
                return self._await(term)
            case election.Keep(term=term):
                return self._keep(term)
            case election.Persist(term=term, past=past):
                if not self.client.transact([etcd.created(self.leader_key, term)], [self._put_state(past)]).get("succeeded"):
                    return election.Deposed(term=term, reason="our key in etcd was deleted")
                return election.Persisted(term=term, past=past)
            case election.Resign(term=term, past=past, forget=forget):
                with contextlib.suppress(Exception):  # then the lease runs out by itself
                    left = [etcd.delete(self.state_key)] if forget else [self._put_state(past)] if past else []
                    self.client.transact([etcd.created(self.leader_key, term)], [*left, etcd.delete(self.leader_key)])
                    self._revoke()
                return None
        raise AssertionError(f"etcd cannot do {action!r}")

    def _campaign(self, wish: election.Campaign) -> election.StoreSeen:
        (leader, state), _ = self._look()
        if leader is not None and leader.get("lease") == self.lease and self.lease:
            return self._won_unheard(leader, state, wish)
        if leader is not None:
            return _leads(leader)
        asked_at = self.host.now()
        self.lease, ttl_s = self.client.grant(wish.ttl_s)
        past = election.inherited(_past(state), life=wish.life, fresh_life=wish.fresh_life)
        answer = self.client.transact(
            [etcd.created(self.leader_key, 0), etcd.changed(self.state_key, etcd.number(state, "mod_revision"))],
            [etcd.put(self.leader_key, {"endpoint": wish.endpoint, "life": past.life}, self.lease)],
        )
        if not answer.get("succeeded"):
            self._revoke()
            return self._who_leads()
        return election.Won(term=int(answer["header"]["revision"]), past=past, asked_at=asked_at, ttl_s=ttl_s)

    def _won_unheard(self, leader: etcd.Kv, state: etcd.Kv | None, wish: election.Campaign) -> election.StoreSeen:
        """We had won, and the answer was lost on its way; or we had stepped down because etcd was out of reach."""
        asked_at = self.host.now()
        ttl_s = self.client.renew(self.lease)
        if not ttl_s:
            return election.Vacant()
        past = election.inherited(_past(state), life=etcd.value(leader)["life"], fresh_life=wish.fresh_life)
        return election.Won(term=etcd.number(leader, "create_revision"), past=past, asked_at=asked_at, ttl_s=ttl_s)

    def _await(self, term: int) -> election.StoreSeen:
        (leader, _), revision = self._look()
        if leader is not None and etcd.number(leader, "create_revision") == term:
            with contextlib.suppress(Exception):  # it timed out, or broke: looking tells what is the case
                self.client.watch(self.leader_key, revision)
        return self._who_leads()

    def _keep(self, term: int) -> election.StoreSeen:
        asked_at = self.host.now()
        if not self.client.renew(self.lease):
            return election.Deposed(term=term, reason="our lease in etcd was revoked, or ran out")
        if self.state_lease and asked_at - self.state_kept_at > STATE_TTL_S / 10:
            if not self.client.renew(self.state_lease):
                self.state_lease = ""
            self.state_kept_at = asked_at
        (leader, _), _ = self._look()
        if etcd.number(leader, "create_revision") != term:
            return election.Deposed(term=term, reason="our key in etcd was deleted")
        return election.Kept(term=term, asked_at=asked_at)

    # --- requests -------------------------------------------------------------------------------------------------------

    def _look(self) -> tuple[list[etcd.Kv | None], int]:
        """The leader's key and the state's, and the revision at which they were so."""
        return self.client.look(self.leader_key, self.state_key)

    def _who_leads(self) -> election.StoreSeen:
        (leader, _), _ = self._look()
        return election.Vacant() if leader is None else _leads(leader)

    def _put_state(self, past: Past) -> etcd.Kv:
        if not self.state_lease:
            self.state_lease, _ = self.client.grant(STATE_TTL_S)
            self.state_kept_at = self.host.now()
        return etcd.put(self.state_key, to_plain(past), self.state_lease)

    def _revoke(self) -> None:
        lease, self.lease = self.lease, ""
        with contextlib.suppress(etcd.Gone):
            self.client.revoke(lease)


def open_store(config: RunConfig, host: Host) -> EtcdStore:
    """The store that `config` names. Raises UsageError for what is wrong with it."""
    conf = etcd.access(dict(config.rdzv_conf), "--rdzv-conf")
    endpoints = [parse_endpoint(one, "--rdzv-endpoint", default_port=etcd.PORT) for one in config.rdzv_endpoint.split(",")]
    return EtcdStore(host, endpoints, conf, config.rdzv_id)


def _leads(leader: etcd.Kv) -> election.Leads:
    told = etcd.value(leader)
    return election.Leads(endpoint=told["endpoint"], life=told["life"], term=etcd.number(leader, "create_revision"))


def _past(state: etcd.Kv | None) -> Past | None:
    return None if state is None else build(Past, etcd.value(state))
