"""Nodes that break and are repaired, while supervisors, daemons and hosts die in the middle of it."""

from __future__ import annotations

from functools import partial

import pytest
from kit.simulated.fleet import FleetWorld
from kit.simulated.repairable import NOBODY, RepairableHost

from holdfast.core.wire.fleet import Act
from holdfast.supervisor.fleet.repairs import HOUR_S
from holdfast.supervisor.fleet.state import RepairRules

SEEDS, AT_ONCE, HOSTS, PER_HOUR, LATE_S = 24, 4, 4, 3, 60.0


def fleet(seed: int, crash_chance: float = 0.0) -> tuple[FleetWorld, list[RepairableHost]]:
    """Hosts without jobs, all of which may be repaired."""
    rules = RepairRules(labels=dict.fromkeys(("reset-gpu", "reboot"), ""), per_hour=PER_HOUR, probation_s=300.0)
    world = FleetWorld(seed, hosts=0, supervisors=1 + seed % 2, crash_chance=crash_chance, repair=rules)
    return world, [RepairableHost(world, f"s{number}", crash_chance) for number in range(HOSTS)]


def most_in_an_hour(hosts: list[RepairableHost]) -> int:
    """Commands that were carried out in any hour, less what an order may be late when a supervisor dies before it is said."""
    begun = sorted(at for host in hosts for _, act, at in host.done if act != Act.CHECK)
    return max((sum(first <= at < first + HOUR_S - LATE_S for at in begun) for first in begun), default=0)


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_what_is_broken_is_repaired_once_or_reported_whoever_is_killed_when(first: int) -> None:
    booted = reported = 0
    for seed in range(first, first + AT_ONCE):
        world, hosts = fleet(seed, crash_chance=0.02 if seed % 3 else 0.0)
        world.run(10.0)
        for host in hosts[: 1 + seed % HOSTS]:
            needs = world.rng.choice([Act.RESET_GPU, Act.REBOOT, NOBODY])
            world.timeline.after(world.rng.uniform(0.0, 30.0), partial(host.breaks, needs))
        for _ in range(4):
            host = world.rng.choice(hosts)
            what = world.rng.choice([host.kill, world.kill_supervisor, partial(world.cut_off, f"{host.name}-daemon", 8.0)])
            world.timeline.after(world.rng.uniform(0.0, 120.0), what)
        world.run(HOUR_S + 600.0)
        world.crash_chance = 0.0
        for host in hosts:
            host.crash_chance = 0.0
        wrong = world.rest(lambda: [one for host in hosts for one in host.check_at_rest()], HOUR_S)  # noqa: B023
        assert not wrong, f"seed {seed}: {wrong}"
        assert most_in_an_hour(hosts) <= PER_HOUR, f"seed {seed}"
        booted += sum(host.boots for host in hosts)
        reported += sum(deed.act == Act.REPORT for deed in world.deeds())
    assert booted and reported


def test_a_host_is_booted_once_wherever_the_supervisor_is_killed_in_it() -> None:
    for dies_after in range(0, 30, 2):
        world, hosts = fleet(seed=2 * dies_after)
        world.run(10.0)
        hosts[0].breaks(Act.REBOOT)
        world.timeline.after(dies_after * 0.25, world.kill_supervisor)
        world.run(900.0)
        assert not hosts[0].check_at_rest() and hosts[0].boots == 1, dies_after
        deeds = [(deed.act, deed.outcome) for deed in world.deeds()][1:]
        assert deeds == [("reboot", "its checks find it fit"), ("probation", "it is fit")], dies_after
