"""Troubles of all kinds, at random times, for the hosts and the supervisors of a simulated fleet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from kit.simulated.hosts import JOB_LEASE_S

if TYPE_CHECKING:
    from kit.simulated.fleet import FleetWorld


OF_A_HOST = ("device", "program", "worker", "kill", "power", "hang", "cut")
"""Kinds of trouble that one host has; the others are those of the supervisors."""


def storm(world: FleetWorld, seconds: float, troubles: int) -> None:
    """Troubles at random times within the next `seconds`."""
    rng, names = world.rng, list(world.hosts)

    def later(what: str, name: str) -> None:
        if what in OF_A_HOST:
            _of_host(world, what, name)
        else:
            _of_supervisors(world, what)

    kinds = [*OF_A_HOST, "supervisor", "stopped"]
    if len(world.endpoints) > 1:
        kinds += ["store", "both"]
    for _ in range(troubles):
        what, name = rng.choice(kinds), rng.choice(names)
        world.timeline.after(rng.uniform(0.0, seconds), partial(later, what, name))


def _of_host(world: FleetWorld, what: str, name: str) -> None:
    rng, host = world.rng, world.hosts[name]
    match what:
        case "device":
            world.guilty.add(name)
            host.trouble("device", "GPU gpu0: Xid 79, the GPU has fallen off the bus", 79)
        case "program":
            host.trouble("device", "GPU gpu0: Xid 31, page fault", 31)
        case "worker":
            if name in world.failed:  # more often than a program is thought to fail by itself
                world.guilty.add(name)
            world.failed.add(name)
            host.trouble("worker", f"rank 0 on {name} was killed by SIGKILL")
        case "kill" | "power" if host.alive:
            world.kill(name, power=what == "power", back_s=rng.uniform(0.1, 20.0))
        case "hang" if host.alive and not host.paused:
            seconds = rng.uniform(0.5, 15.0)
            if seconds > JOB_LEASE_S:
                world.guilty.add(name)
            host.pause(seconds)
        case "cut":
            world.cut_off(name, rng.uniform(0.5, 20.0))


def _of_supervisors(world: FleetWorld, what: str) -> None:
    rng = world.rng
    match what:
        case "supervisor":
            world.kill_supervisor()
        case "both":
            for one in list(world.processes.values()):
                world.end_supervisor(one)
        case "stopped" if world.supervisor is not None and not world.supervisor.paused:
            world.supervisor.pause(rng.uniform(0.5, 20.0))
        case "store":
            world.take_store_away(rng.uniform(0.5, 20.0))
