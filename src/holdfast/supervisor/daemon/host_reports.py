"""What does the supervisor hear of ranks that no agent of ours has started? The machine of their host's daemon.

For each workload of stock torchrun's there is a reporter (`agent.reporting.supervisor_uplink`), and one for the host itself
while it has no agent of ours: without ranks it is a spare. Agents of ours report their own ranks, of which they know more. An
order about the host itself is noted in the table, as Google's actuator would have it; ranks are not ours to stop. A daemon that
can repair its host is heard beside agents, too. A trouble is owed to the supervisor until it has heard of it, by the daemon's
next life too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import count
from typing import Any

from holdfast.agent.reporting.supervisor_uplink import Obey, Uplink
from holdfast.core.machine import NEVER, Action, Observation, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Order, RankSaid, Repaired, ReporterState, Standing, Trouble, TroubleKind, Verb
from holdfast.core.wire.google_wire import COMPLETE, FAILED, RUNNING, UNDEFINED, state_name
from holdfast.core.wire.links import HangUp, LinkDown
from holdfast.supervisor.daemon.host_table import CordonTold, HostTable, RepairOrdered, TroubleHeard, Worker
from holdfast.supervisor.fleet.policies.google_limits import limits_of

UNNAMED = "unnamed workload"
"""The job of workers that have never told of any."""

WAIT_S = 1.0
"""Before a workload is reported first: if an agent of ours has started it, the agent will have said so by then."""

MOST_WHAT = 400
"""Characters of what has gone wrong."""

HERE = ""
"""The job of the host's own reporter."""


class ShowTable(Action):
    """The daemon's table is to see this."""

    seen: Observation


class Reporter:
    """Of one workload, or of the host (`HERE`)."""

    def __init__(self, name: str, job: str, uplink: Uplink) -> None:
        self.uplink = uplink
        self.first = Standing(node=uplink.reporter, number=0, name=name, job=job, state=ReporterState.JOINING, is_watcher=True)
        self.told: Standing | None = None
        self.round = 1 if job else 0
        """Counted here: each time that ranks which had failed run again."""
        self.failed: set[str] = set()
        """Addresses of ranks that have failed in it."""
        self.unheard: dict[int, TroubleHeard] = {}
        """Number of a trouble that is said until it is heard → what the table is to see then."""

    def stands(
        self, state: ReporterState, now: float, ranks: tuple[RankSaid, ...] = (), limits: Mapping[str, int] | None = None,
        **more: Any
    ) -> list[Action]:
        """Say how things are, unless that was said last."""
        standing = replace(self.first, state=state, round=self.round, ranks=ranks, limits=dict(limits or {}), **more)
        if standing == self.told:
            return []
        self.told = standing
        return self.uplink.stands(standing, now)

    def tells(self, workers: list[Worker], limits: Mapping[str, int], now: float) -> list[Action]:
        """Say how the workload's ranks are, and what has gone wrong with them."""
        owing = [(one, TroubleHeard(key=one.key, what=one.owed)) for one in workers if one.owed]
        owing = [(one, heard) for one, heard in owing if heard not in self.unheard.values()]
        self.failed |= {one.info.worker_address for one, _ in owing}
        running = [one for one in workers if one.info.state in (RUNNING, UNDEFINED) and not one.is_silent]
        if self.failed & {one.info.worker_address for one in running}:
            self.round += 1
            self.failed.clear()
        ranks = tuple(
            RankSaid(rank=one.info.global_rank, local_rank=one.info.local_rank, state=state_name(one.info.state).lower())
            for one in sorted(running, key=lambda one: one.info.global_rank)
        )
        state = ReporterState.RUNNING if running and not self.failed else ReporterState.STOPPING
        actions = self.stands(state, now, ranks, limits)
        for worker, heard in owing:
            kind = TroubleKind.WORKER if worker.is_dead or worker.info.state == FAILED else TroubleKind.HANG
            what, rank = worker.owed[:MOST_WHAT], worker.info.global_rank
            trouble = Trouble(node=self.uplink.reporter, number=0, kind=kind, rank=rank, what=what)
            actions += self.uplink.trouble(trouble, now)
            self.unheard[self.uplink.numbers] = heard
        return actions

    def heard(self) -> list[Action]:
        """Troubles that the supervisor has heard since this was asked last."""
        left = {trouble.number for trouble in self.uplink.troubles}
        numbers = [number for number in self.unheard if number not in left]
        return [ShowTable(seen=self.unheard.pop(number)) for number in numbers]

    def ends(self, outcome: str, now: float) -> list[Action]:
        """Nobody of it is left."""
        actions: list[Action] = []
        if self.told is not None:
            last = replace(self.told, state=ReporterState.ENDED, ranks=(), outcome=outcome)
            actions += [*self.uplink.stands(last, now), *self.uplink.bye(outcome or "no rank is left")]
        if self.uplink.connect_at == NEVER:  # it has a link, or is making one
            actions.append(HangUp(link=self.uplink.link))
        return actions


class HostReports:
    """All reporters of one life of a daemon."""

    def __init__(
        self, name: str, life: str, endpoints: tuple[str, ...], haste: float, offers: tuple[str, ...] = (), boot: str = "",
        links: Iterator[int] | None = None
    ) -> None:
        """`name`: the node's; `life`: what no other daemon's life is called; `endpoints`, `haste`, `links`: as of `Uplink`;
        `offers`: by what the host can be repaired; `boot`: which of the host's it is."""
        self.name, self.life, self.endpoints, self.haste = name, life, endpoints, haste
        self.offers, self.boot = offers, boot
        self.reporters: dict[str, Reporter] = {}
        """By job."""
        self._lives, self._links = count(1), links or count(1)

    def deadline(self) -> float:
        return min((one.uplink.deadline() for one in self.reporters.values()), default=NEVER)

    def shows(self, table: HostTable, now: float) -> list[Action]:
        """Tell the supervisor what is new in the table."""
        own = table.own_workloads()
        by_job: dict[str, list[Worker]] = {}
        for worker in table.workers.values():
            if worker.workload not in own:
                by_job.setdefault(worker.workload or UNNAMED, []).append(worker)
        open_jobs = {job: workers for job, workers in by_job.items() if any(one.info.state != COMPLETE for one in workers)}
        actions: list[Action] = []
        for job in [job for job in self.reporters if job not in (HERE, *open_jobs)]:
            actions += self._end(job, "succeeded" if job in by_job else "", now)
        for job, workers in open_jobs.items():
            workload = table.workloads.get(workers[0].workload)
            actions += self._reporter(job, now).tells(workers, limits_of(workload) if workload is not None else {}, now)
        return actions + self._host(table, bool(open_jobs), now)

    def suffers(self, kind: str, what: str, now: float, *, xid: int = 0, device: str = "") -> list[Action]:
        """Tell of what has gone wrong with the host itself, for whichever job it works."""
        uplink = self._reporter(next((job for job in self.reporters if job != HERE), HERE), now).uplink
        said = Trouble(node=uplink.reporter, number=0, kind=kind, what=what[:MOST_WHAT], xid=xid, device=device)
        return uplink.trouble(said, now)

    def breaks(self, now: float) -> list[Action]:
        """Close all links without a goodbye, as the end of a daemon does."""
        actions: list[Action] = []
        for one in (each.uplink for each in self.reporters.values()):
            link = one.link
            if link:
                actions += [HangUp(link=link), *one.observe(LinkDown(link=link, reason="its daemon has ended"), now)]
        return [action for action in actions if not isinstance(action, Say)]

    def close(self, now: float) -> list[Action]:
        return [action for job in list(self.reporters) for action in self._end(job, "", now)]

    def _host(self, table: HostTable, has_jobs: bool, now: float) -> list[Action]:
        """How the host itself is."""
        if table.agents and not self.offers:
            return self._end(HERE, "", now)
        is_beside, done, repaired = bool(table.agents), table.repair, None
        is_free = not has_jobs and not table.cordoned and not is_beside
        state = ReporterState.JOINING if is_free else ReporterState.RUNNING
        if done is not None and done.is_over:
            repaired = Repaired(order=done.order, ok=done.ok, text=done.text[:MOST_WHAT], is_busy=done.is_busy)
        host = self._reporter(HERE, now)
        return host.stands(state, now, offers=self.offers, repaired=repaired, is_beside=is_beside, boot=self.boot)

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """A `Tick` is for those whose time has come."""
        actions: list[Action] = []
        for reporter in list(self.reporters.values()):
            if isinstance(seen, Tick) and now < reporter.uplink.deadline():
                continue
            for action in reporter.uplink.observe(seen, now):
                actions += self._obey(reporter.uplink, action.order) if isinstance(action, Obey) else [action]
            actions += reporter.heard()
        return actions

    def _end(self, job: str, outcome: str, now: float) -> list[Action]:
        reporter = self.reporters.pop(job, None)
        return reporter.ends(outcome, now) if reporter is not None else []

    def _reporter(self, job: str, now: float) -> Reporter:
        if job not in self.reporters:
            wait_s, name = WAIT_S if job else 0.0, f"{self.life}-{next(self._lives)}"
            uplink = Uplink(name, *self.endpoints, now=now + wait_s, haste=self.haste, links=self._links)
            self.reporters[job] = Reporter(self.name, job, uplink)
        return self.reporters[job]

    def _obey(self, uplink: Uplink, order: Order) -> Iterable[Action]:
        said = Say(text=order.words)
        if order.verb in self.offers and order.target == self.name:
            begun = RepairOrdered(order=order.order, act=order.verb, boot=self.boot)
            return [ShowTable(seen=begun), *uplink.did(order.order, True, "it has begun")]
        if order.verb not in (Verb.EXCLUDE, Verb.READMIT) or order.target != self.name:
            why = "its launcher takes no orders from us: it restarts its ranks by itself"
            return [said, *uplink.did(order.order, False, why)]
        out = order.verb == Verb.EXCLUDE
        done = uplink.did(order.order, True, f"{self.name} is {'cordoned' if out else 'used again'}")
        return [said, ShowTable(seen=CordonTold(on=out)), *done]
