"""Hosts without ranks that break and can be repaired, simulated: some by a reset, some by a boot, some by nobody."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kit.simulated.daemons import StockHost

from holdfast.core.wire.fleet import Act, NodeState, RepairStep, Trouble, TroubleKind
from holdfast.supervisor.daemon.host_reports import HERE
from holdfast.supervisor.daemon.host_table import HostRepair, RepairEnded

if TYPE_CHECKING:
    from kit.simulated.fleet import FleetWorld

NOBODY = "nobody"
"""What mends a host that a person has to repair."""

XIDS = {Act.RESET_GPU: 119, Act.REBOOT: 79, NOBODY: 119}
"""What mends a host → what its driver says."""


class RepairableHost(StockHost):
    """One of them."""

    def __init__(self, world: FleetWorld, name: str, crash_chance: float = 0.0) -> None:
        super().__init__(world, name, range(0), crash_chance)
        self.needs = ""
        """What mends it. Empty: it is well."""
        self.done: list[tuple[str, str, float]] = []
        """Orders that were carried out: id, act, when."""
        self.wrong: list[str] = []

    def start(self) -> None:
        self.offers = (Act.CHECK, Act.RESET_GPU, Act.REBOOT)
        super().start()

    def breaks(self, needs: str) -> None:
        """Its GPU does. What finds it says so until the supervisor knows."""
        if self.needs and self.world.node(self.name).standing != NodeState.FIT:
            return
        self.needs = needs
        self.world.timeline.after(20.0, lambda: self.breaks(needs) if self.needs else None)
        if self.daemon is not None and HERE in self.daemon.reports.reporters:
            number, uplink = XIDS[needs], self.daemon.reports.reporters[HERE].uplink
            what = {"kind": TroubleKind.DEVICE, "what": f"Xid {number}", "device": "gpu0", "xid": number}
            said = Trouble(node=uplink.reporter, number=0, **what)
            for action in uplink.trouble(said, self.daemon.host.now()):
                self.daemon.perform(action)

    def carry_out(self, repair: HostRepair) -> None:
        """What is ordered takes its time; a reboot ends the daemon."""
        timeline = self.world.timeline
        self.done.append((repair.order, repair.act, timeline.now))
        if self.name not in self.world.drained:
            self.wrong.append(f"{repair.act} of {self.name}, which is not cordoned")
        if repair.act == Act.REBOOT:
            self.boots += 1
            self.needs = "" if self.needs == Act.REBOOT else self.needs
            timeline.after(0.0, lambda: self.kill(back_s=self.world.rng.uniform(30.0, 200.0)))
            return

        def ends() -> None:
            self.needs = "" if self.needs == repair.act else self.needs
            ok = repair.act != Act.CHECK or not self.needs
            if self.daemon is not None:
                self.daemon.see(RepairEnded(order=repair.order, ok=ok, text="done" if ok else "gpu0 is sick"))

        timeline.after(self.world.rng.uniform(1.0, 60.0), ends)

    def check_at_rest(self) -> list[str]:
        """What is wrong, when nothing has happened for a long while."""
        kept, deeds = self.world.node(self.name), [deed for deed in self.world.deeds() if deed.node == self.name]
        ids = [order for order, _, _ in self.done]
        wrong = [*self.wrong, *(f"{one} was carried out twice" for one in set(ids) if ids.count(one) > 1)]
        booted = sum(deed.act == Act.REBOOT for deed in deeds)
        wrong += [f"{self.name} was booted {self.boots} times by {booted} decisions"] if self.boots > booted else []
        is_probed = kept.repair is not None and kept.repair.step == RepairStep.PROBATION
        wrong += [f"{self.name}: {kept.repair} is not over"] if kept.repair is not None and not is_probed else []
        wrong += [f"it is not known what came of {deed}" for deed in deeds if not deed.outcome and not is_probed]
        is_reported = any(deed.act == Act.REPORT for deed in deeds)
        is_out = kept.standing == NodeState.UNFIT
        is_drained = self.name in self.world.drained
        if is_out != is_reported or is_out != is_drained or (self.needs and not is_out):
            wrong.append(f"{self.name} is {kept.standing}; reported: {is_reported}; drained: {is_drained}; {self.needs}")
        return wrong
