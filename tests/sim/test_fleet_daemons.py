"""Daemons that are killed between any two of their actions, on hosts of stock torchrun's, and their supervisor with them."""

from __future__ import annotations

from functools import partial

import pytest
from kit.simulated.daemons import StockHost
from kit.simulated.fleet import FleetWorld

SEEDS, AT_ONCE = 200, 25


def stock(world: FleetWorld, crash_chance: float = 0.0) -> list[StockHost]:
    """Two hosts of four ranks each."""
    return [StockHost(world, f"s{number}", range(4 * number, 4 * number + 4), crash_chance) for number in range(2)]


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_what_a_daemon_has_noted_is_acted_on_whoever_is_killed_when(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        world = FleetWorld(seed, hosts=0, supervisors=1 + seed % 2, crash_chance=0.01 if seed % 3 else 0.0)
        hosts = stock(world, crash_chance=0.02 if seed % 5 else 0.0)
        world.run(10.0)
        for _ in range(2 + seed % 5):
            host = world.rng.choice(hosts)
            rank, at_s = world.rng.choice(sorted(host.states)), world.rng.uniform(0.0, 60.0)
            match world.rng.choice(["fail", "hang", "daemon", "supervisor", "cut"]):
                case "fail":
                    world.timeline.after(at_s, partial(host.fail, rank, world.rng.uniform(1.0, 5.0)))
                case "hang":
                    world.timeline.after(at_s, partial(host.hang, rank, world.rng.uniform(1.0, 20.0)))
                case "daemon":
                    world.timeline.after(at_s, host.kill)
                case "supervisor":
                    world.timeline.after(at_s, world.kill_supervisor)
                case "cut":
                    world.timeline.after(at_s, partial(world.cut_off, f"{host.name}-daemon", world.rng.uniform(0.5, 3.0)))
        world.run(120.0)
        world.crash_chance = 0.0
        for host in hosts:
            host.crash_chance = 0.0
        wrong = world.rest(lambda: [one for host in hosts for one in host.check_at_rest()])  # noqa: B023
        assert not wrong, f"seed {seed}: {wrong}"
