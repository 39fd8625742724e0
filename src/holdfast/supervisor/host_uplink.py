"""How does the supervisor hear of ranks that no agent of ours has started? From this host's daemon, which is told by them.

For each workload of stock torchrun's there is a reporter (`agent.uplink`), and one for the host itself while it has no agent of
ours: without ranks it is a spare. Ranks of our own agents are these agents' to report, who know more of them; so nothing is
counted twice. Orders about the host itself are noted in the table, as Google's actuator would have it; ranks are not ours to
stop.
"""

from __future__ import annotations

import os

from holdfast.agent.uplink import Obey, Uplink
from holdfast.core.fleet import FLEET, FleetMessage, RankSaid, Standing, Trouble
from holdfast.core.google_wire import COMPLETE, FAILED, RUNNING, UNDEFINED, WorkloadInfo
from holdfast.core.links import Connect, HangUp, Transmit
from holdfast.core.machine import NEVER, Say, Tick
from holdfast.core.value import replace
from holdfast.runtime.frames import Identity
from holdfast.runtime.host import Host
from holdfast.runtime.net import Network
from holdfast.supervisor.host_table import CordonTold, state_name
from holdfast.supervisor.policies.google_limits import limits_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from holdfast.core.fleet import Order
    from holdfast.core.machine import Action
    from holdfast.runtime.net import Shelter
    from holdfast.supervisor.host_table import HostTable, Worker

UNNAMED = "unnamed workload"
"""The job of workers that have never told of any."""

WAIT_S = 1.0
"""Before a workload is reported first: if an agent of ours has started it, the agent will have said so by then."""

REPORTERS, NUMBERS = 200, 1 << 12
"""Reporters that may be at a time (the table has 64 workloads), and numbers of links that each has; then they begin anew."""

HERE = ""
"""The reporter of the host itself."""


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


class HostUplink:
    """All reporters of a daemon. Their links are behind one descriptor."""

    def __init__(
        self,
        endpoint: tuple[str, int],
        name: str,
        *,
        secret: bytes,
        shelter: Shelter | None,
        say: Callable[[str], None],
        see: Callable[[CordonTold], None],
    ) -> None:
        """`name`: the node's; `see` shows the table what the supervisor has ordered."""
        self.name, self.say, self.see = name, say, see
        self.inner = Host(say)
        self.network = Network(self.inner, Identity(FLEET, secret), endpoint, shelter=shelter, family=FleetMessage)
        self.life = f"{name}-daemon-{os.getpid()}-{os.urandom(4).hex()}"
        self.reporters: dict[str, Reporter] = {}
        """By job; HERE: of the host itself."""
        self.made = 0

    def fileno(self) -> int:
        """Readable when there is something to hear."""
        return self.inner.epoll.fileno()

    def deadline(self) -> float:
        """When to call `due`."""
        return min((one.uplink.deadline() for one in self.reporters.values()), default=NEVER)

    # --- what is told -----------------------------------------------------------------------------------------------------

    def shows(self, table: HostTable, troubles: Iterable[tuple[Worker, str]]) -> None:
        """The table is so now; and these workers have failed, or fallen silent, which the text says."""
        now, own = self.inner.now(), table.own_workloads()
        by_job: dict[str, list[Worker]] = {}
        for worker in table.workers.values():
            if worker.workload not in own:
                by_job.setdefault(worker.workload or UNNAMED, []).append(worker)
        for job in [job for job in self.reporters if job and (job not in by_job or _is_over(by_job[job]))]:
            self._end(job, by_job.get(job, []), now)
        for job, workers in by_job.items():
            if not _is_over(workers):
                self._stands(job, self._of_workload(job, workers, table.workloads.get(workers[0].workload)), now)
        if not table.agents:
            is_free = all(_is_over(workers) for workers in by_job.values()) and not table.cordoned
            self._stands(HERE, self._standing(HERE, "joining" if is_free else "running"), now)
        elif HERE in self.reporters:
            self._end(HERE, [], now)
        for worker, what in troubles:
            self._trouble(worker, what, now)

    def _of_workload(self, job: str, workers: list[Worker], workload: WorkloadInfo | None) -> Standing:
        reporter = self._reporter(job)
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
        return self._standing(job, state, ranks=ranks, round=reporter.round, limits=limits)

    def _standing(self, job: str, state: str, **more: Any) -> Standing:
        reporter = self._reporter(job).uplink.reporter
        return Standing(node=reporter, number=0, name=self.name, job=job, state=state, is_watcher=True, **more)

    def _stands(self, job: str, standing: Standing, now: float) -> None:
        reporter = self._reporter(job)
        if standing != reporter.told:
            reporter.told = standing
            self._carry_out(reporter, reporter.uplink.stands(standing, now))

    def _trouble(self, worker: Worker, what: str, now: float) -> None:
        reporter = self.reporters.get(worker.workload or UNNAMED)
        if reporter is None:
            return
        kind = "worker" if worker.info.state == FAILED else "hang"
        trouble = Trouble(node=reporter.uplink.reporter, number=0, kind=kind, rank=worker.info.global_rank, what=what[:400])
        self._carry_out(reporter, reporter.uplink.trouble(trouble, now))
        reporter.failed.add(worker.info.worker_address)

    def _end(self, job: str, workers: list[Worker], now: float) -> None:
        """Nobody of it is left."""
        reporter = self.reporters.pop(job)
        if reporter.told is not None:
            outcome = "succeeded" if workers else ""
            last = replace(reporter.told, state="ended", ranks=(), outcome=outcome)
            self._carry_out(reporter, [*reporter.uplink.stands(last, now), *reporter.uplink.bye(outcome or "no rank is left")])
        if reporter.uplink.connect_at == NEVER:  # it has a link, or is making one
            self._carry_out(reporter, [HangUp(link=reporter.uplink.link)])

    def _reporter(self, job: str) -> Reporter:
        if job not in self.reporters:
            self.made += 1
            name = f"{self.life}-{self.made}"
            wait_s = WAIT_S if job else 0.0
            uplink = Uplink(name, "", now=self.inner.now() + wait_s, haste=0.5 + os.urandom(1)[0] / 512)
            self.reporters[job] = Reporter(uplink, self.made % REPORTERS * NUMBERS)
        return self.reporters[job]

    # --- what is heard ----------------------------------------------------------------------------------------------------

    def due(self) -> None:
        """What has come, and what the passing of time has brought."""
        seen = [*self.inner.heard(self.inner.epoll.poll(0)), *self.network.expire(self.inner.now())]
        for reporter in list(self.reporters.values()):
            now = self.inner.now()
            for one in seen:
                self._carry_out(reporter, reporter.uplink.observe(one, now))
            if now >= reporter.uplink.deadline():
                if reporter.uplink.link == reporter.links_from + NUMBERS - 1 and not reporter.uplink.is_up:
                    reporter.uplink.link = reporter.links_from
                self._carry_out(reporter, reporter.uplink.observe(Tick(), now))

    def close(self) -> None:
        """The daemon ends; its host does not."""
        for job in list(self.reporters):
            self._end(job, [], self.inner.now())
        self.network.close()
        self.inner.close()

    def _carry_out(self, reporter: Reporter, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Connect() | Transmit() | HangUp():
                    for one in self.network.perform(action):
                        self._carry_out(reporter, reporter.uplink.observe(one, self.inner.now()))
                case Say(text=text):
                    self.say(text)
                case Obey(order=order):
                    self._carry_out(reporter, reporter.uplink.did(order.order, *self._obey(order)))

    def _obey(self, order: Order) -> tuple[bool, str]:
        self.say(f"the supervisor orders: {order.verb} {order.target}: {order.reason}")
        if order.verb in ("exclude", "readmit") and order.target == self.name:
            self.see(CordonTold(on=order.verb == "exclude"))
            return True, f"{self.name} is {'cordoned' if order.verb == 'exclude' else 'used again'}"
        return False, "its launcher takes no orders from us: it restarts its ranks by itself"


def _is_over(workers: list[Worker]) -> bool:
    return all(worker.info.state == COMPLETE for worker in workers)
