"""Connects the agent to a supervisor (`--supervisor`): sends reports, and carries out its orders.

Loaded only where there is one. Its links are behind one descriptor of the agent's loop, and none of them is ever waited for: a
supervisor that is dead, slow or stuck costs the job nothing.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterable
from typing import Any

from holdfast.agent.component import Component
from holdfast.agent.control.control_handler import ControlHandler
from holdfast.agent.control.control_socket import Request
from holdfast.agent.group.state import Phase
from holdfast.agent.reporting.recoveries import Recoveries
from holdfast.agent.reporting.supervisor_uplink import Obey, Uplink
from holdfast.agent.surroundings import Surroundings
from holdfast.core.job.events import (
    CoordinatorFound,
    CoordinatorMissing,
    Decided,
    Event,
    FailureSeen,
    HealthChanged,
    JobEnded,
    RoundFormed,
)
from holdfast.core.job.failure import NO_OOM_KILL, Cause, Failure, describe
from holdfast.core.machine import Action, Observation, Say, Tick
from holdfast.core.value import replace, to_plain
from holdfast.core.wire.fleet import FLEET, VERBS, FleetMessage, Order, RankSaid, Standing, Trouble
from holdfast.core.wire.links import Connect, HangUp, Transmit
from holdfast.health.verdict import UNFIT
from holdfast.runtime.host import Host
from holdfast.runtime.net.codec import MANY
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.network import Network, is_open
from holdfast.runtime.secrets import shelter_of

LOOK_S = 5.0  # Between two looks at the ranks' steps. What is news is told at once.

WAITS_CHARS = 2000  # Of why a node waits for a coordinator.

STEP_DIGITS = 3  # Significant ones, of a step's time.

AGE_DECIMALS = 1  # Of a heartbeat's age, in seconds: it is seconds old when it is read.

MEMBERS = MANY["members"]  # Names of members that a report may have.


class SupervisorLink(Component):
    """One agent's."""

    notes = (Event,)

    def __init__(
        self,
        around: Surroundings,
        control: ControlHandler,
        *,
        secret: bytes,
        own: bytes,
        progress: Callable[[int], dict[str, object]],
    ) -> None:
        """`secret`: the supervisor's. `own`: the job's, which shows it whose job this is; empty: nothing does. `progress`: what
        is known of a local rank's."""
        config, host = around.config, around.host
        self.config, self.outer, self.control, self.group = config, host, control, around.node.group
        self.around = around
        self.rendezvous, self.progress, self.say = around.rendezvous, progress, around.agent_log.say
        self.inner = Host(host.complain)
        identity = Identity(FLEET, secret)
        shelter = shelter_of(config.tls_cert, config.tls_key, config.tls_ca)
        self.network = Network(self.inner, identity, ("", 0), shelter=shelter, family=FleetMessage)
        self.reporter, self.proof = self.group.join.node, Identity(config.rdzv_id, own).name_proof
        haste = 0.5 + os.urandom(1)[0] / 512
        self.uplink = Uplink(self.reporter, *config.supervisors, now=host.now(), haste=haste)
        self.told: Standing | None = None
        self.is_news = True
        self.look_at = host.now()
        self.outcome = ""
        self.recoveries = Recoveries(self.group.join.name)
        self.waits = ""  # Why this node waits for a coordinator, and what a person can do.
        self.unfit: dict[str, str] = {}  # Check → why this node is unfit by it.
        host.watch(self.inner.epoll.fileno(), select.EPOLLIN, lambda events: self._ready())

    # --- the loop -------------------------------------------------------------------------------------------------------

    @property
    def due_at(self) -> float:
        return 0.0 if self._has_news() else min(self.look_at, self.uplink.deadline(), self.network.deadline())

    def due(self) -> list[Observation]:
        """What the passing of time has brought: orders, as the agent's loop understands them."""
        now = self.outer.now()
        seen: list[Observation] = []
        for one in self.network.expire(now):
            seen += self._show(one)
        if self._has_news() or now >= self.look_at:
            self.is_news, self.look_at = False, now + LOOK_S
            standing = self._standing()
            if self.told is None or ageless(standing) != ageless(self.told):
                self.told = standing
                seen += self._carry_out(self.uplink.stands(standing, now))
        return seen + self._show(Tick()) if now >= self.uplink.deadline() else seen

    def _has_news(self) -> bool:
        """Something has been recorded; or the coordinator has said that this node waits for a place, of which nothing is."""
        return self.is_news or (self.told is not None and self.told.spare_because != self._spare_because())

    def _spare_because(self) -> str:
        return self.group.state.spare_because[:400] if self.group.phase is Phase.JOINING else ""

    def _ready(self) -> list[Observation]:
        return [seen for one in self.inner.heard(self.inner.epoll.poll(0)) for seen in self._show(one)]

    def _show(self, seen: Observation) -> list[Observation]:
        return self._carry_out(self.uplink.observe(seen, self.outer.now()))

    def close(self) -> None:
        """The agent ends. What the supervisor has to know of that goes out now, or never."""
        now = self.outer.now()
        self._carry_out([*self.uplink.stands(self._standing(), now), *self.uplink.bye(self.outcome or "the agent has ended")])
        self.network.close()
        self.outer.unwatch(self.inner.epoll.fileno())
        self.inner.close()

    # --- what is told ---------------------------------------------------------------------------------------------------

    def recorded(self, event: Event, at_unix: float) -> None:
        """Tell the supervisor at once of what concerns it."""
        self.is_news = True
        self.recoveries.recorded(event, at_unix)
        match event:
            case FailureSeen(failure=failure) if not failure.innocent and failure.rank >= 0:
                self._failed(failure)
            case HealthChanged(check=check, state=state, reason=reason, devices=devices):
                self.unfit.pop(check, None)
                is_unfit = state == UNFIT
                if is_unfit:
                    self.unfit[check] = f"{check}: {reason}"[:400]
                for one in devices:
                    if one.xid or is_unfit:
                        self._trouble("device" if one.xid else UNFIT, one.what, device=one.device, xid=one.xid)
                if is_unfit and not devices:
                    self._trouble(UNFIT, reason)
            case CoordinatorMissing(reason=reason, hint=hint):
                self.waits = f"{reason}; {hint}"
            case CoordinatorFound() | Decided() | RoundFormed():
                self.waits = ""
            case JobEnded(outcome=outcome):
                self.outcome = outcome

    def _failed(self, failure: Failure) -> None:
        kind = "hang" if failure.cause in (Cause.HUNG, Cause.WATCHDOG, Cause.STUCK) else "worker"
        cause = "injected" if failure.injected else "oom" if failure.oom not in ("", NO_OOM_KILL) else str(failure.cause)
        self._trouble(kind, describe(failure), round=failure.round, rank=failure.rank, cause=cause)

    def _trouble(self, kind: str, what: str, **more: Any) -> None:
        """Tell it. Whose trouble it is has to be known first."""
        now = self.outer.now()
        if self.told is None:
            self.told = self._standing()
            self._carry_out(self.uplink.stands(self.told, now))
        trouble = Trouble(node=self.reporter, number=0, kind=kind, what=what[:400], **more)
        self._carry_out(self.uplink.trouble(trouble, now))

    def _standing(self) -> Standing:
        group, assigned = self.group, self.group.assigned
        ranks = []
        for seat in group.workers.values() if group.phase is not Phase.JOINING else ():
            shown: dict[str, Any] = self.progress(seat.local_rank)
            ranks.append(
                RankSaid(
                    rank=seat.rank,
                    local_rank=seat.local_rank,
                    state=seat.state,
                    pid=seat.pid,
                    step=shown.get("step"),
                    step_s=_rounded(shown.get("step_s"), lambda value: float(f"{value:.{STEP_DIGITS}g}")),
                    beat_age_s=_rounded(shown.get("beat_age_s"), lambda value: round(value, AGE_DECIMALS)),
                    exitcode=seat.exitcode,
                )
            )
        return Standing(
            node=self.reporter,
            number=0,
            name=group.join.name,
            domain=group.join.domain or "",
            job=self.config.rdzv_id,
            proof=self.proof,
            life=group.join.life,
            state="ended" if self.outcome else group.phase.value,
            round=group.round,
            attempt=assigned.restart_count if assigned else 0,
            ranks=tuple(ranks),
            spare_because=self._spare_because(),
            waits=self.waits[:WAITS_CHARS],
            least=self.config.min_nodes,
            members=self._members(),
            unfit=next(iter(self.unfit.values()), ""),
            outcome=self.outcome,
            is_open=self.around.network is not None and is_open(self.around.network, self.config.max_nodes),
            recovery=self.recoveries.last,
        )

    def _members(self) -> tuple[str, ...] | None:
        rendezvous = self.rendezvous()
        return None if rendezvous is None else tuple(sorted({seat.name for seat in rendezvous.seats.values()}))[:MEMBERS]

    # --- carrying out ---------------------------------------------------------------------------------------------------

    def _carry_out(self, actions: Iterable[Action]) -> list[Observation]:
        seen: list[Observation] = []
        for action in actions:
            match action:
                case Connect() | Transmit() | HangUp():
                    for one in self.network.perform(action):
                        seen += self._show(one)
                case Say(text=text, level=level):
                    self.say(text, level)
                case Obey(order=order):
                    seen += self._obey(order)
        return seen

    def _obey(self, order: Order) -> list[Observation]:
        def answered(answer: dict[str, Any]) -> None:
            text = str(answer.get("text") or f"{order.verb}: done") if answer["ok"] else answer["error"]
            self._carry_out(self.uplink.did(order.order, answer["ok"], text))

        self.say(order.words, "warning")
        arguments = {"node": order.target, "reason": f"{order.reason} (the supervisor)", "ordered": True}
        if order.injection is not None:
            arguments |= to_plain(order.injection)
        request = Request(order.verb, arguments, answered)
        if order.verb not in VERBS:
            request.refuse(f"unknown order {order.verb!r}")
            return []
        if order.verb == "restart" and order.round and order.round != self.group.round:
            request.reply({"text": f"round {order.round} is over: {self.group.round} is the newest"})
            return []
        return self.control.answer(request)


def _rounded(value: float | None, how: Callable[[float], float]) -> float | None:
    """What is told of each rank of 1,000 nodes has no digits that nobody reads."""
    return None if value is None else how(value)


def ageless(standing: Standing) -> Standing:
    """The same without what is never twice the same, and is told with the next news."""
    return replace(standing, ranks=tuple(replace(rank, step_s=None, beat_age_s=None) for rank in standing.ranks))
