"""How does an agent of torch's interface take part in Holdfast's rendezvous? Over Holdfast's member (`attendant`).

On the endpoint's host it runs the coordinator too. torch's own rendezvous lacks: the loss of a node ends the round within a
lease, a fresh store in each round, spares that take over.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
from collections import deque
from importlib import import_module
from typing import Any

from holdfast.core.config.grammar import did_you_mean
from holdfast.core.job.report import Outcome
from holdfast.core.machine import NEVER
from holdfast.core.resolve.resolve_rendezvous import KNOWN_KEYS
from holdfast.core.wire.messages import Assigned, Join
from holdfast.rendezvous.rules import Rules
from holdfast.runtime.net.addresses import is_here, own_address
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.network import open_doors
from holdfast.runtime.secrets import Shelter, shelter_of
from holdfast.telemetry.record.job_secret import job_identity
from holdfast.telemetry.record.state_dir import state_home

from .api import RendezvousHandler, RendezvousParameters
from .attendance import Attendance, Close, Depart, Enter, Stage
from .attendant import Attendant
from .coordinator_store import CoordinatorStore
from .memory_store import MemoryStore
from .round_store import RoundServer, RoundStore
from .store import Store
from .utils import parse_rendezvous_endpoint

logger = logging.getLogger(__name__)

BACKEND = "holdfast"
DEFAULT_PORT = 29400  # torchrun's and `holdfast run`'s, for an endpoint without a port
FAREWELL_S = 10.0  # how long the coordinator's host waits, at its end, until every node has heard the outcome
TLS_SETTINGS = ("tls_cert", "tls_key", "tls_ca")
SETTINGS = ("lease", "join_timeout", "last_call_timeout", "read_timeout", "is_host", "node_name", "token_file", *TLS_SETTINGS)
CLOSE_S = 2.0  # how long a node that closes the job waits for the coordinator's word that it is closed


class HoldfastRendezvousHandler(RendezvousHandler):
    """One node's part. Made by `create_handler`; `words` is the module with the caller's exceptions and values."""

    def __init__(
        self, attendant: Attendant, run_id: str, *, words: Any, alone: bool, read_timeout_s: float, backend: str = BACKEND
    ) -> None:
        self._attendant = attendant
        self._backend = backend
        self._run_id = run_id
        self._words = words
        self._alone = alone
        self._read_timeout_s = read_timeout_s
        # Of the last round too: another agent may be about to read its rank there when ours is called again.
        self._servers: deque[RoundServer] = deque(maxlen=2)
        self._round_store: Store | None = None  # the last round's store, of the agents
        self._stays = attendant.hosting
        self._seated = False  # whether the agent knows of the seat, so that workers may have run in it
        self._shut = False
        atexit.register(self._leave_at_exit)

    def get_backend(self) -> str:
        return self._backend

    def get_run_id(self) -> str:
        return self._run_id

    @property
    def use_agent_store(self) -> bool:
        """True: the workers use the round's store, which their agents serve. False: there is none that a socket reaches."""
        return not self._servers or self._servers[-1].for_workers

    # --- rounds ---------------------------------------------------------------------------------------------------------

    def next_rendezvous(self) -> Any:
        """Take part in the next round, as a spare first where there is no seat. No worker may be alive here any more."""
        while (info := self._enter()) is None:
            pass
        return info

    def _enter(self) -> Any | None:
        """One round's seat. None: it was called off before all had come."""
        if self._shut:
            raise self._error("RendezvousClosedError", f"this node has left the rendezvous of job '{self._run_id}'")
        self._seated = False
        own = RoundServer(self._attendant.attendance.join.addr, timeout_s=self._read_timeout_s)
        self._servers.append(own)
        self._attendant.show(Enter(port=own.port), lambda attendance: attendance.state is not Stage.JOINING)
        attendance = self._attendant.attendance
        if attendance.closing or attendance.state is Stage.LEFT:
            self._attendant.wait_for(self._has_ended, CLOSE_S)
            raise self._closed(attendance)
        assigned = attendance.assigned
        assert assigned is not None
        store = self._store(assigned)
        if not self._all_here(store, assigned):
            return None
        self._stays = self._attendant.hosting or assigned.group_rank == 0
        self._seated = True
        meeting_point = self._words.RendezvousStoreInfo(assigned.master_addr, assigned.master_port)
        return self._words.RendezvousInfo(store, assigned.group_rank, assigned.group_world_size, meeting_point)

    def _store(self, assigned: Assigned) -> RoundStore:
        """The agents' store of that round."""
        self._close_store()
        store: Store = MemoryStore()
        if not self._alone:
            network, node = self._attendant.network, self._attendant.attendance.join.node
            store = CoordinatorStore(self._attendant.where, network.identity, node, assigned.round, network.shelter)
        self._round_store = store
        return RoundStore(store, self._attendant, self._read_timeout_s)

    def _close_store(self) -> None:
        if self._round_store is not None:
            self._round_store.close()

    def _all_here(self, store: RoundStore, assigned: Assigned) -> bool:
        """Wait until every node of the round is at its store: torch's agent fails where one is lost after that."""
        try:
            if store.add("entered", 1) == assigned.group_world_size:
                store.set("complete", "")
            return store.wait_unless(lambda: self._attendant.attendance.state is not Stage.IN, ["complete"])
        except RuntimeError as error:  # its host has gone: word of that will come
            if self._attendant.wait_for(lambda attendance: attendance.state is not Stage.IN, self._read_timeout_s):
                return False
            raise self._error("RendezvousConnectionError", str(error)) from error

    def _closed(self, attendance: Attendance) -> BaseException:
        """What to raise, now that there is no further round."""
        where = f"the rendezvous of job '{self._run_id}'"
        if attendance.refused is not None:
            hint = f" ({attendance.refused.hint})" if attendance.refused.hint else ""
            return self._error("RendezvousConnectionError", f"{where} cannot be joined: {attendance.why}{hint}")
        if attendance.succeeded:
            if self._words.__name__.startswith("torch."):
                # torch's agent takes the exception for it, returns nothing, and its launcher then fails on that. To torchrun
                # this is the only word for "done, and all is well".
                return SystemExit(0)
            return self._error("RendezvousGracefulExitError", f"job '{self._run_id}' has ended: {attendance.why}")
        if attendance.report is not None and attendance.report.outcome == Outcome.FAILED:
            return self._error("RendezvousTimeoutError", f"{where}: {attendance.why}")
        return self._error("RendezvousClosedError", f"{where} is closed: {attendance.why}")

    def _error(self, name: str, text: str) -> BaseException:
        error: BaseException = getattr(self._words, name)(text)
        return error

    # --- questions ------------------------------------------------------------------------------------------------------

    def num_nodes_waiting(self) -> int:
        """1 when this round is over (a node came, left or was lost; the job was closed; our lease is over), else 0."""
        attendance, broken = self._attendant.attendance, self._attendant.broken is not None
        return int(broken or attendance.is_over)

    def is_closed(self) -> bool:
        return self._attendant.attendance.closing

    # --- the end --------------------------------------------------------------------------------------------------------

    def set_closed(self) -> None:
        self._close("a node's launcher has closed it")

    def _close(self, reason: str) -> None:
        if self._shut:
            return
        self._attendant.show(Close(reason=reason))
        self._attendant.wait_for(self._has_ended, CLOSE_S)

    def _has_ended(self, attendance: Attendance) -> bool:
        return attendance.state is Stage.ENDED or self._attendant.is_over

    def shutdown(self) -> bool:
        """The agent ends. Unless its workers have succeeded, that closes the job for all nodes, as torch's does."""
        if self._shut or self._attendant.broken is not None:
            return self._shut
        attendance = self._attendant.attendance
        match attendance.state:
            case Stage.JOINING | Stage.IN | Stage.CALLED if self._seated:
                self._close(f"{attendance.join.name} has ended, and its workers had not succeeded")
            case Stage.JOINING | Stage.IN | Stage.CALLED:
                self._depart("it could not enter the round")
            case Stage.DONE | Stage.LEFT:  # others may still need what is here: the coordinator, the round's store
                self._attendant.wait_for(self._has_ended, NEVER if self._stays else CLOSE_S)
        self._let_go()
        return True

    def _depart(self, reason: str) -> None:
        self._attendant.show(Depart(reason=reason))

    def _let_go(self) -> None:
        self._shut = True
        atexit.unregister(self._leave_at_exit)
        if self._attendant.hosting:
            self._attendant.wait_until_idle(FAREWELL_S)
        self._attendant.close()
        self._close_store()
        self._servers.clear()

    def _leave_at_exit(self) -> None:
        """Torch's launcher does not shut a handler down after a signal; the others should not wait for the lease, though."""
        if not self._shut and self._attendant.broken is None:
            self._depart("its launcher was stopped")
            self._let_go()


def create_handler(params: RendezvousParameters) -> HoldfastRendezvousHandler:
    """A handler from torch's or our parameters; its settings stand in the plug-in's documentation. Backend `memory`: for one
    node, and nobody else can come."""
    _warn_of_unread(params)
    alone, closed = params.max_nodes == 1, params.backend == "memory"
    if closed and not alone:
        raise ValueError(f"the rendezvous backend memory is for one node, and up to {params.max_nodes} are asked for")
    host, port = ("localhost", DEFAULT_PORT) if closed else parse_rendezvous_endpoint(params.endpoint, DEFAULT_PORT)
    if port == 0:
        if not alone:
            raise ValueError(f"the rendezvous endpoint {params.endpoint} has port 0: the other nodes could not find it")
        port = _free_port(host)
    name = str(params.get("node_name") or socket.gethostname())
    rules = Rules(
        job=params.run_id,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        join_timeout_s=_seconds(params, "join_timeout", 600),
        last_call_s=_seconds(params, "last_call_timeout", 30),
        lease_s=_lease_s(params),
    )
    join = Join(
        node=f"{name}-{os.getpid()}-{os.urandom(8).hex()}",
        name=name,
        addr=params.local_addr or own_address(host),
        master_port=0,
        nproc=1,  # nobody tells a handler; torch's agents count their ranks themselves
        role="default",
    )
    may_host = params.get_as_bool("is_host")
    attendant = Attendant(
        join,
        rules,
        identity_of(params.run_id, params.get("token_file")),
        (host, port),
        shelter=_shelter(params),
        may_host=is_here(host) if may_host is None else may_host,
        alone=closed,
    )
    if doors := open_doors(attendant.network, params.max_nodes, token_by="--rdzv-conf token_file=FILE"):
        logger.warning("%s", doors)
    # The module whose exceptions and values our caller knows: torch's or ours.
    words = next(base.__module__ for base in type(params).__mro__ if base.__name__ == RendezvousParameters.__name__)
    return HoldfastRendezvousHandler(
        attendant,
        params.run_id,
        words=import_module(words),
        alone=alone,
        read_timeout_s=_seconds(params, "read_timeout", 60),
        backend=params.backend,
    )


def _warn_of_unread(params: RendezvousParameters) -> None:
    """A setting that nothing reads may be a word misspelt, and the job without what it was meant to give."""
    for key in params.config:
        if key not in SETTINGS and key not in KNOWN_KEYS:  # those that torch's backends have come with any command line
            logger.warning("rendezvous settings: nothing reads '%s' (%s)", key, did_you_mean(key, SETTINGS))


def _seconds(params: RendezvousParameters, key: str, otherwise: float) -> float:
    value = float(params.get(key, otherwise))
    if value <= 0:
        raise ValueError(f"the rendezvous setting {key} must be greater than 0, not {value:g}")
    return value


def _lease_s(params: RendezvousParameters) -> float:
    """`lease`, or torch's words for it; 3 s, as `holdfast run` has."""
    if "lease" not in params.config and "keep_alive_interval" in params.config:
        return _seconds(params, "keep_alive_interval", 5) * _seconds(params, "keep_alive_max_attempt", 3)
    return _seconds(params, "lease", 3.0)


_identities: dict[str, Identity] = {}  # run id → what has its secret, which is no longer in the environment


def identity_of(job: str, path: str | None) -> Identity:
    """What proves that we belong to the job, by the token's file, if one is named. Its secret is not left to workers, but a
    second handler of the job finds it."""
    if path is None and job in _identities and b"HOLDFAST_TOKEN" not in os.environb:
        return _identities[job]
    found = job_identity(job, path, "the rendezvous setting token_file", state_home(os.environ))
    if path is None:
        _identities[job] = found
    return found


def _shelter(params: RendezvousParameters) -> Shelter | None:
    """TLS, where its settings name files. None: none is named."""
    files = {key: params.get(key) for key in TLS_SETTINGS}
    for key in ("tls_cert", "tls_ca"):
        if any(files.values()) and not files[key]:  # going on in plain text is not what is meant
            given = ", ".join(name for name, file in files.items() if file)
            raise ValueError(f"rendezvous settings: {given} needs {key} too; TLS takes a certificate and a CA on each side")
    return shelter_of(files["tls_cert"], files["tls_key"], files["tls_ca"])


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])
