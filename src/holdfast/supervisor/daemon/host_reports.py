"""What does the supervisor hear of ranks that no agent of ours has started? The machine of their host's daemon.

For each workload of stock torchrun's there is a reporter (`agent.reporting.supervisor_uplink`), and one for the host itself
while it has no agent of ours: without ranks it is a spare. Ranks of our own agents are these agents' to report, who know more
of them; so nothing is counted twice. Orders about the host itself are noted in the table, as Google's actuator would have it;
ranks are not ours to stop. What has gone wrong is owed to the supervisor until it has heard it, by the daemon's next life too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.agent.reporting.supervisor_uplink import Obey, Uplink
from holdfast.core.machine import NEVER, Action, Observation, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Order, RankSaid, Standing, Trouble
from holdfast.core.wire.google_wire import COMPLETE, FAILED, RUNNING, UNDEFINED, WorkloadInfo
from holdfast.core.wire.links import HangUp
from holdfast.supervisor.daemon.host_table import CordonTold, HostTable, TroubleHeard, Worker, state_name
from holdfast.supervisor.fleet.policies.google_limits import limits_of

UNNAMED = "unnamed workload"
"""The job of workers that have never told of any."""

WAIT_S = 1.0
"""Before a workload is reported first: if an agent of ours has started it, the agent will have said so by then."""

REPORTERS, NUMBERS = 200, 1 << 12
"""Reporters that may be at a time (the table has 64 workloads), and numbers of links that each has; then they begin anew."""

MOST_WHAT = 400
"""Characters of what has gone wrong."""

HERE = ""
"""The reporter of the host itself."""


class ShowTable(Action):
    """The daemon's table is to see this."""

    seen: Observation


class Reporter:
    """Of one workload, or of the host."""

    def __init__(self, uplink: Uplink, links_from: int) -> None:
        self.uplink, self.links_from = uplink, links_from
        uplink.link = links_from
        self.told: Standing | None = None
        self.round = 1
        """Counted here: each time that ranks which had failed run again."""
        self.failed: set[str] = set()
        """Addresses of ranks that have failed in it."""
        self.unheard: dict[int, str] = {}
        """Number of a trouble that is said until it is heard → key of its worker."""


class HostReports:
    """All reporters of one life of a daemon."""

    def __init__(self, name: str, life: str, endpoints: tuple[str, ...], haste: float) -> None:
        """`name`: the node's; `life`: what no other daemon's life is called; `endpoints`, `haste`: as of `Uplink`."""
        self.name, self.life, self.endpoints, self.haste = name, life, endpoints, haste
        self.reporters: dict[str, Reporter] = {}
        """By job; HERE: of the host itself."""
        self.made = 0

    def deadline(self) -> float:
        """See `core.machine.Machine`."""
        return min((one.uplink.deadline() for one in self.reporters.values()), default=NEVER)

    # --- what is told -----------------------------------------------------------------------------------------------------

    def shows(self, table: HostTable, now: float) -> list[Action]:
        """The table is so now."""
        own = table.own_workloads()
        by_job: dict[str, list[Worker]] = {}
        for worker in table.workers.values():
            if worker.workload not in own:
                by_job.setdefault(worker.workload or UNNAMED, []).append(worker)
        actions: list[Action] = []
        for job in [job for job in self.reporters if job and (job not in by_job or _is_over(by_job[job]))]:
            actions += self._end(job, by_job.get(job, []), now)
        for job, workers in by_job.items():
            if not _is_over(workers):
                standing = self._of_workload(job, workers, table.workloads.get(workers[0].workload), now)
                actions += self._stands(job, standing, now)
                actions += self._troubles(job, workers, now)
        if not table.agents:
            is_free = all(_is_over(workers) for workers in by_job.values()) and not table.cordoned
            actions += self._stands(HERE, self._standing(HERE, "joining" if is_free else "running", now), now)
        elif HERE in self.reporters:
            actions += self._end(HERE, [], now)
        return actions

    def close(self, now: float) -> list[Action]:
        """The daemon ends; its host does not."""
        return [action for job in list(self.reporters) for action in self._end(job, [], now)]

    def _of_workload(self, job: str, workers: list[Worker], workload: WorkloadInfo | None, now: float) -> Standing:
        reporter = self._reporter(job, now)
        reporter.failed |= {one.info.worker_address for one in _untold(reporter, workers)}
        running = [one for one in workers if one.info.state in (RUNNING, UNDEFINED) and not one.is_silent]
        if reporter.failed & {one.info.worker_address for one in running}:
            reporter.round += 1
            reporter.failed.clear()
        ranks = tuple(
            RankSaid(rank=one.info.global_rank, local_rank=one.info.local_rank, state=state_name(one.info.state).lower())
            for one in sorted(running, key=lambda one: one.info.global_rank)
        )
        state = "running" if running and not reporter.failed else "stopping"
        limits = limits_of(workload) if workload is not None else {}
        return self._standing(job, state, now, ranks=ranks, round=reporter.round, limits=limits)

    def _standing(self, job: str, state: str, now: float, **more: Any) -> Standing:
        reporter = self._reporter(job, now).uplink.reporter
        return Standing(node=reporter, number=0, name=self.name, job=job, state=state, is_watcher=True, **more)

    def _stands(self, job: str, standing: Standing, now: float) -> list[Action]:
        reporter = self._reporter(job, now)
        if standing == reporter.told:
            return []
        reporter.told = standing
        return self._sorted(reporter, reporter.uplink.stands(standing, now))

    def _troubles(self, job: str, workers: list[Worker], now: float) -> list[Action]:
        reporter = self._reporter(job, now)
        actions: list[Action] = []
        for worker in _untold(reporter, workers):
            kind, what = "worker" if worker.info.state == FAILED else "hang", worker.owed[:MOST_WHAT]
            said = Trouble(node=reporter.uplink.reporter, number=0, kind=kind, rank=worker.info.global_rank, what=what)
            actions += reporter.uplink.trouble(said, now)
            reporter.unheard[reporter.uplink.numbers] = worker.key
        return self._sorted(reporter, actions)

    def _end(self, job: str, workers: list[Worker], now: float) -> list[Action]:
        """Nobody of it is left."""
        reporter = self.reporters.pop(job)
        actions: list[Action] = []
        if reporter.told is not None:
            outcome = "succeeded" if workers else ""
            last = replace(reporter.told, state="ended", ranks=(), outcome=outcome)
            actions += [*reporter.uplink.stands(last, now), *reporter.uplink.bye(outcome or "no rank is left")]
        if reporter.uplink.connect_at == NEVER:  # it has a link, or is making one
            actions.append(HangUp(link=reporter.uplink.link))
        return actions

    def _reporter(self, job: str, now: float) -> Reporter:
        if job not in self.reporters:
            self.made += 1
            wait_s = WAIT_S if job else 0.0
            uplink = Uplink(f"{self.life}-{self.made}", *self.endpoints, now=now + wait_s, haste=self.haste)
            self.reporters[job] = Reporter(uplink, self.made % REPORTERS * NUMBERS)
        return self.reporters[job]

    # --- what happens -----------------------------------------------------------------------------------------------------

    def observe(self, seen: Observation, now: float) -> list[Action]:
        """See `core.machine.Machine`. A `Tick` is for those whose time has come."""
        actions: list[Action] = []
        for reporter in list(self.reporters.values()):
            uplink = reporter.uplink
            if isinstance(seen, Tick):
                if now < uplink.deadline():
                    continue
                if uplink.link == reporter.links_from + NUMBERS - 1 and not uplink.is_up:
                    uplink.link = reporter.links_from
            actions += self._sorted(reporter, uplink.observe(seen, now))
            left = {trouble.number for trouble in uplink.troubles}
            for number in [number for number in reporter.unheard if number not in left]:
                actions.append(ShowTable(seen=TroubleHeard(key=reporter.unheard.pop(number))))
        return actions

    def _sorted(self, reporter: Reporter, actions: Iterable[Action]) -> list[Action]:
        """The same, with orders carried out."""
        made: list[Action] = []
        for action in actions:
            made += self._obey(reporter, action.order) if isinstance(action, Obey) else [action]
        return made

    def _obey(self, reporter: Reporter, order: Order) -> list[Action]:
        made: list[Action] = [Say(text=order.words)]
        if order.verb in ("exclude", "readmit") and order.target == self.name:
            made.append(ShowTable(seen=CordonTold(on=order.verb == "exclude")))
            came = True, f"{self.name} is {'cordoned' if order.verb == 'exclude' else 'used again'}"
        else:
            came = False, "its launcher takes no orders from us: it restarts its ranks by itself"
        return [*made, *reporter.uplink.did(order.order, *came)]


def _untold(reporter: Reporter, workers: Iterable[Worker]) -> list[Worker]:
    return [one for one in workers if one.owed and one.key not in reporter.unheard.values()]


def _is_over(workers: list[Worker]) -> bool:
    return all(worker.info.state == COMPLETE for worker in workers)
