"""Does the supervisor keep its promises, whichever process dies, and when? Its machine and its reporters', over the simulated
network.

The supervisor is killed or stopped between any two of its actions, and keeps what it had kept by then; of two the one takes
over from the other. Hosts are killed, lose power, hang, are cut off, and their GPUs fail (`kit.simulated.storm`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kit.simulated.hosts import JOB_LEASE_S, Scene, SimJob, SimReporter
from kit.simulated.supervisor import SimStore, SimSupervisor

from holdfast.core.wire.fleet import Act, HeldBy, NodeState
from holdfast.supervisor.fleet.action_log import Result, result
from holdfast.supervisor.fleet.messages import Call, Called
from holdfast.supervisor.fleet.policies.default import OUTCOME_S

if TYPE_CHECKING:
    from collections.abc import Callable

    from holdfast.core.wire.fleet import Deed, NodeKept, Swap
    from holdfast.supervisor.fleet.state import Gives, Kept, RepairRules

QUIET_S = OUTCOME_S + 10.0  # Longer than anything that has been done can go on to have an effect.


class FleetWorld(Scene):
    """All of it."""

    def __init__(
        self, seed: int, hosts: int = 6, size: int = 4, least: int = 2, crash_chance: float = 0.0, supervisors: int = 1,
        repair: RepairRules | None = None, said: Gives | None = None
    ) -> None:
        super().__init__(seed, crash_chance, supervisors, repair, said)
        self.store = SimStore()
        self.drained: dict[str, str] = {}
        self.replaced: list[str] = []
        """Nodes in whose place others were asked for, once for each time that was done."""
        self.keys: set[str] = set()
        self.guilty: set[str] = set()  # Nodes that gave cause to take them out.
        self.failed: set[str] = set()  # Nodes of which a rank has failed.
        self.wrong: list[str] = []  # Broken promises.
        self.lives = 0
        self.gives, self.gives_s = True, 10.0
        """Whether the orchestrator gives another node where a job waits for one, and after how long."""
        self.hosts: dict[str, SimReporter] = {}
        self.job = SimJob(self.timeline, size, least, self.hosts, self.round_formed)
        self.processes: dict[str, SimSupervisor] = {}  # Supervisors that live, by their endpoints.
        for number in range(hosts):
            self.boot(f"n{number}")
        for endpoint in self.endpoints:
            self.start_supervisor(endpoint)

    # --- what happens ---------------------------------------------------------------------------------------------------

    def boot(self, name: str) -> None:
        """A host's agent starts."""
        self.lives += 1
        self.hosts[name] = SimReporter(self, self.job, name, self.lives)
        self.job.join(name)

    def kill(self, name: str, *, power: bool, back_s: float) -> None:
        """A host's agent dies, and is started again after a while; its job learns of it at once, or by its lease."""
        self.hosts[name].die(power=power)
        self.guilty.add(name)
        self.timeline.after(JOB_LEASE_S if power else 0.01, lambda: None if self.hosts[name].alive else self.job.lose(name))
        self.timeline.after(back_s, lambda: None if self.hosts[name].alive else self.boot(name))

    def cut_off(self, name: str, seconds: float) -> None:
        """Nothing passes between a host and the supervisor for a while. Its job hears it all the same."""
        self.ether.partition(name)
        self.timeline.after(seconds, lambda: self.ether.heal(name))

    def start_supervisor(self, endpoint: str) -> None:
        """Another life of one, unless it lives."""
        if endpoint not in self.processes:
            self.processes[endpoint] = SimSupervisor(
                self, self.store, endpoint, end=self.end_supervisor, call=self.call
            )

    @property
    def supervisor(self) -> SimSupervisor | None:
        """The one that leads, if it lives."""
        leader = self.store.leader
        return leader if leader is not None and leader.alive else None

    def kill_supervisor(self, back_s: float | None = None) -> None:
        """kill -9, of the one that leads."""
        if self.supervisor is not None:
            self.end_supervisor(self.supervisor, back_s)

    def end_supervisor(self, which: SimSupervisor, back_s: float | None = None) -> None:
        """It is no more, and is started again."""
        which.die()
        del self.processes[which.place]
        self.store.release(which)
        back_s = self.rng.uniform(0.05, 8.0) if back_s is None else back_s
        self.timeline.after(back_s, lambda: self.start_supervisor(which.place))

    def take_store_away(self, seconds: float) -> None:
        """etcd answers nobody for a while. A file is always there."""
        if len(self.endpoints) > 1 and not self.store.away:
            self.store.go_away()
            self.timeline.after(seconds, self.store.come_back)

    def run(self, seconds: float) -> None:
        """Let that much time pass."""
        self.timeline.run(self.timeline.now + seconds)

    def rest(self, wrong: Callable[[], list[str]], within_s: float = 600.0) -> list[str]:
        """Let time pass until `wrong` tells of nothing, for so long at most, and then `QUIET_S` more. What it tells then."""
        until = self.timeline.now + within_s
        while self.timeline.now < until:
            self.run(20.0)
            if not wrong():
                break
        self.run(QUIET_S)
        return wrong()

    # --- what is seen ---------------------------------------------------------------------------------------------------

    def kept(self) -> Kept:
        """What is on the disk."""
        return self.store.kept()

    def deeds(self) -> list[Deed]:
        """The record, as it is on the disk."""
        return sorted(self.kept().deeds, key=lambda deed: deed.at_unix)

    def node(self, name: str) -> NodeKept:
        """As it is on the disk."""
        return next(node for node in self.kept().nodes if node.name == name)

    @property
    def swaps(self) -> tuple[Swap, ...]:
        """Those that are under way."""
        return self.kept().swaps

    def call(self, caller: SimSupervisor, call: Call) -> None:
        """The orchestrator is called: it does what it does in its own time, whether somebody still waits for it or not, and
        sometimes does not answer."""

        def happen() -> None:
            ok = self.gives or call.verb != "replace"
            match call.verb:
                case "vacant":
                    ok = call.target in self.drained
                case "drain":
                    self.drained[call.target] = call.need.reason
                case "uncordon":
                    self.drained.pop(call.target, None)
                case "replace" if self.gives and call.task not in self.keys:
                    self.keys.add(call.task)
                    self.replaced.append(call.target)
                    if call.need.is_urgent or self.said.within_s is not None:
                        self.timeline.after(self.gives_s, partial(self.boot, f"m{len(self.replaced)}"))
            if caller.alive and self.rng.random() > 0.05:
                caller.host.see(Called(task=call.task, ok=ok, text=f"{call.verb}: done"))

        self.timeline.after(self.rng.uniform(0.001, 2.0), happen)

    def round_formed(self) -> None:
        """A round of the job begins: who has got a rank must not be one that has been taken out."""
        for name in self.job.ranks:
            kept = self.store.tables["nodes"].get(name)
            if kept is not None and kept.standing == NodeState.UNFIT and kept.by == HeldBy.POLICY:  # type: ignore[attr-defined]
                self.wrong.append(f"{self.timeline.now:.3f}: {name} is unfit and was given a rank")

    def check_at_rest(self) -> list[str]:
        """What is wrong, when nothing has happened for a long while."""
        wrong = list(self.wrong)
        if self.supervisor is None or self.supervisor.connections is None:
            return [*wrong, "no supervisor leads"]
        wrong += [f"the swap of {swap.node} is not over ({swap.step})" for swap in self.swaps]
        wrong += [f"it is not known what came of {deed}" for deed in self.deeds() if not deed.outcome]
        deeds = [deed for deed in self.deeds() if " is back: " not in deed.outcome]
        taken = [deed for deed in deeds if deed.act in (Act.SWAP, Act.SHRINK, Act.REPLACE)]
        wrong += [f"{deed.node} was taken out without a cause: {deed}" for deed in taken if deed.node not in self.guilty]
        for name in {deed.node for deed in taken}:
            wrong += self._check_taken(name, sum(deed.node == name and result(deed) != Result.IN_VAIN for deed in taken))
        alive = [name for name, host in self.hosts.items() if host.alive]
        wrong += [f"{name} lives and is lost" for name in alive if self.node(name).state == NodeState.LOST]
        return wrong + [f"{name} was replaced twice" for name in set(self.replaced) if self._is_excessive(name)]

    def _is_excessive(self, name: str) -> bool:
        """Whether nodes were asked for in its place more often than there was a reason."""
        tries = [1 + sum("exclude: " in step for step in deed.done) for deed in self.deeds() if deed.node == name]
        return self.replaced.count(name) > sum(tries)

    def _check_taken(self, name: str, times: int) -> list[str]:
        """What is wrong about a node that was taken out so often."""
        wrong = [f"{name} was taken out {times} times"] if times > 1 else []
        if times and (self.node(name).standing != NodeState.UNFIT or name in self.job.ranks):
            wrong.append(f"{name} was taken out, and is {self.node(name).standing}; ranks: {self.job.ranks}")
        return wrong
