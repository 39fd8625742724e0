"""The supervisor's machine among hosts that die, hang and are cut off, and killed itself between any two of its actions."""

from __future__ import annotations

from functools import partial

import pytest
from kit.simulated.fleet import FleetWorld
from kit.simulated.storm import storm

from holdfast.supervisor.fleet.messages import Asked, Wish
from holdfast.supervisor.fleet.state import Gives
from holdfast.supervisor.web import view

SEEDS, AT_ONCE = 200, 25


@pytest.fixture
def world() -> FleetWorld:
    """Six hosts, four of which have ranks; nothing happens yet."""
    world = FleetWorld(seed=1)
    world.run(10.0)
    assert [len(world.job.ranks), world.deeds()] == [4, []]
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_every_promise_is_kept_whoever_dies_when(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        world = FleetWorld(seed, crash_chance=0.02 if seed % 2 else 0.0)
        world.run(10.0)
        storm(world, 60.0, 4 + seed % 12)
        world.run(120.0)
        world.crash_chance = 0.0
        assert not world.rest(world.check_at_rest), f"seed {seed}"


@pytest.mark.parametrize("first", range(0, SEEDS, AT_ONCE))
def test_of_two_supervisors_one_takes_over_whatever_happens_to_them_and_to_their_store(first: int) -> None:
    for seed in range(first, first + AT_ONCE):
        world = FleetWorld(seed, crash_chance=0.02 if seed % 2 else 0.0, supervisors=2)
        world.stop_chance = 0.02 if seed % 3 else 0.0
        world.run(10.0)
        storm(world, 60.0, 4 + seed % 12)
        world.run(120.0)
        world.crash_chance = world.stop_chance = 0.0
        assert not world.rest(world.check_at_rest), f"seed {seed}"


def test_a_leader_that_is_stopped_in_a_swap_does_nothing_twice_when_it_goes_on() -> None:
    for stopped_after in range(40):
        world = FleetWorld(seed=stopped_after, supervisors=2)
        world.run(10.0)
        first = world.supervisor
        world.guilty.add("n1")
        world.hosts["n1"].trouble("device", "GPU gpu0: Xid 79, the GPU has fallen off the bus", 79)
        assert first is not None
        world.timeline.after(stopped_after * 0.05, partial(first.pause, 30.0))
        world.run(200.0)
        (deed,) = world.deeds()
        assert deed.act == "swap" and deed.outcome.endswith("in round 2") and not world.check_at_rest(), stopped_after
        assert world.supervisor is not first and world.store.generation == 2


def test_a_swap_is_done_once_wherever_the_supervisor_is_killed_in_it() -> None:
    for dies_after in range(40):
        world = FleetWorld(seed=dies_after)
        world.run(10.0)
        world.guilty.add("n1")
        world.hosts["n1"].trouble("device", "GPU gpu0: Xid 79, the GPU has fallen off the bus", 79)
        world.timeline.after(dies_after * 0.05, world.kill_supervisor)
        world.run(200.0)
        (deed,) = world.deeds()
        assert deed.act == "swap" and deed.outcome.endswith("in round 2") and not world.check_at_rest(), dies_after


def test_a_host_that_hangs_delays_nobody(world: FleetWorld) -> None:
    coordinator = world.job.coordinator
    world.hosts[coordinator].pause(100.0)
    world.run(0.5)  # it hangs, and nobody knows
    sick = next(name for name in world.job.ranks if name != coordinator)
    world.guilty |= {sick, coordinator}
    world.hosts[sick].trouble("device", "GPU gpu0: Xid 79, the GPU has fallen off the bus", 79)
    world.run(0.1)
    assert [(deed.node, deed.act) for deed in world.deeds()] == [(sick, "swap")]
    other = next(name for name in world.job.ranks if name not in (coordinator, sick))
    world.hosts[other].trouble("worker", f"rank 0 on {other} was killed by SIGKILL")
    world.run(0.1)
    assert [(deed.node, deed.act) for deed in world.deeds()][1:] == [(other, "restart-workers")]
    world.run(30.0)
    swapped = world.deeds()[0]
    assert any("has not answered" in step for step in swapped.done) and "has taken over" in swapped.outcome


def test_a_node_whose_link_to_the_supervisor_is_broken_is_left_alone(world: FleetWorld) -> None:
    before = list(world.job.ranks)
    name = next(name for name in before if name != world.job.coordinator)
    world.cut_off(name, 60.0)
    world.run(50.0)
    assert world.node(name).state == "lost" and world.deeds() == [] and world.job.ranks == before
    world.run(60.0)
    assert world.node(name).state == "fit"


def test_a_supervisor_that_was_stopped_blames_nobody_for_the_time(world: FleetWorld) -> None:
    assert world.supervisor is not None
    world.supervisor.paused = True
    world.run(60.0)
    world.supervisor.paused = False
    world.supervisor.turn()
    world.run(20.0)
    assert world.deeds() == [] and {world.node(name).state for name in world.hosts} == {"fit", "spare"}


def test_hosts_that_die_at_once_are_acted_on_at_once(world: FleetWorld) -> None:
    dead = [name for name in world.job.ranks if name != world.job.coordinator][:2]
    for name in dead:
        world.kill(name, power=True, back_s=1000.0)
    world.run(6.0)
    acted = [deed for deed in world.deeds() if deed.act in ("swap", "shrink")]
    assert sorted(deed.node for deed in acted) == sorted(dead)
    assert max(deed.at_unix for deed in acted) - min(deed.at_unix for deed in acted) < 1.5


def test_what_a_program_did_wrong_costs_no_node(world: FleetWorld) -> None:
    world.hosts["n0"].trouble("device", "GPU gpu0: Xid 31, page fault", 31)
    world.run(1.0)
    (deed,) = world.deeds()
    assert deed.act == "none" and "the GPU is well" in deed.reason and world.node("n0").state == "fit"


def test_a_node_that_was_taken_out_and_comes_back_gets_no_rank(world: FleetWorld) -> None:
    world.guilty.add("n1")
    world.hosts["n1"].trouble("device", "GPU gpu0: Xid 79, the GPU has fallen off the bus", 79)
    world.run(30.0)
    world.kill("n1", power=False, back_s=5.0)
    world.run(30.0)
    world.job.excluded.clear()  # its job has forgotten it, as one that is started anew
    world.kill("n1", power=False, back_s=5.0)
    world.run(30.0)
    assert "n1" in world.job.excluded and "n1" not in world.job.ranks and not world.check_at_rest()


# --- no spare waits, and the job needs all its nodes ------------------------------------------------------------------------


def needy(seed: int = 1) -> FleetWorld:
    """Four hosts, all of which have ranks, and which the job needs."""
    world = FleetWorld(seed, hosts=4, size=4, least=4)
    world.run(10.0)
    assert [len(world.job.ranks), world.deeds()] == [4, []]
    return world


def shown_job(world: FleetWorld) -> view.Job:
    assert world.supervisor is not None and world.supervisor.connections is not None
    fleet = world.supervisor.connections.fleet.state
    return view.job(fleet, fleet.jobs["train"])


def test_a_job_that_needs_all_its_nodes_runs_again_whoever_dies_when() -> None:
    for seed in range(AT_ONCE):
        world = FleetWorld(seed, hosts=4, size=4, least=4, crash_chance=0.02 if seed % 2 else 0.0)
        world.run(10.0)
        storm(world, 60.0, 4 + seed % 12)
        world.run(120.0)
        world.crash_chance = 0.0
        assert not world.rest(world.check_at_rest), f"seed {seed}"
        assert len(world.job.ranks) == 4, f"seed {seed}"


def test_a_lost_node_without_a_spare_is_replaced_by_one_that_the_orchestrator_gives() -> None:
    world = needy()
    world.kill("n1", power=True, back_s=1000.0)
    world.run(8.0)
    assert shown_job(world).state == "waiting" and "needs all its nodes" in shown_job(world).waits
    world.run(30.0)
    (deed,) = world.deeds()
    assert (deed.act, deed.outcome) == ("replace", "the job goes on with 4 nodes in round 2") and "m1" in world.job.ranks
    assert world.replaced == ["n1"] and "n1" in world.drained and world.node("n1").standing == "unfit"
    assert shown_job(world).waits == ""


def test_a_sick_node_without_a_spare_keeps_its_place_until_another_is_there() -> None:
    world = needy()
    world.guilty.add("n1")
    world.hosts["n1"].trouble("device", "GPU gpu0: Xid 79, the GPU has fallen off the bus", 79)
    world.run(5.0)
    assert "n1" in world.job.ranks and world.node("n1").standing == "draining" and "n1" in world.drained
    world.run(30.0)
    (deed,) = world.deeds()
    assert (deed.act, deed.outcome) == ("replace", "m1 has taken over in round 2") and "n1" in world.job.excluded


def drained(said: Gives | None = None, *, gives: bool = True, gives_s: float = 20.0) -> FleetWorld:
    """A node of a job that may be smaller has been drained for ten seconds, and no spare waits."""
    world = FleetWorld(1, hosts=4, size=4, least=2, said=said)
    world.gives, world.gives_s = gives, gives_s
    world.run(10.0)
    world.guilty.add("n1")
    assert world.supervisor is not None
    world.supervisor.host.see(Asked(ask=0, wish=Wish.DRAIN, node="n1", reason="its fan is loud"))
    world.run(10.0)
    return world


SAID = Gives(within_s=30.0)
SMALLER = "the job goes on with 3 nodes in round 2"


def test_a_job_that_may_be_smaller_keeps_its_node_until_the_orchestrator_s_is_there_where_it_is_known_to_come() -> None:
    world = drained(SAID)
    (deed,) = world.deeds()
    assert deed.act == "replace" and "another node comes within 30 s, as the operator has said" in deed.reason
    assert "n1" in world.job.ranks and world.job.round == 1
    world.run(30.0)
    assert world.deeds()[0].outcome == "m1 has taken over in round 2" and not world.check_at_rest()


def test_a_job_that_may_be_smaller_goes_on_so_at_once_where_nobody_knows_when_another_node_comes_or_it_is_refused() -> None:
    assert [(deed.act, deed.outcome) for deed in drained().deeds()] == [("shrink", SMALLER)]
    assert [(deed.act, deed.outcome) for deed in drained(SAID, gives=False).deeds()] == [("replace", SMALLER)]
    assert [deed.act for deed in drained(Gives(within_s=30.0, evicts=True)).deeds()] == ["shrink"], "its ranks end first"


def test_a_job_whose_other_node_does_not_come_in_time_goes_on_smaller_though_the_supervisor_is_killed_meanwhile() -> None:
    world = drained(SAID, gives_s=1000.0)
    world.run(10.0)
    assert world.job.round == 1
    world.kill_supervisor(back_s=1.0)
    world.run(30.0)
    (deed,) = world.deeds()
    assert deed.outcome == SMALLER and "await: no other node has come in time" in deed.done


def test_where_the_orchestrator_has_no_node_the_job_waits_visibly_for_any_that_comes() -> None:
    world = needy()
    world.gives = False
    world.kill("n1", power=True, back_s=1000.0)
    world.run(400.0)
    assert shown_job(world).state == "waiting" and "uncordon n1" in shown_job(world).waits
    assert world.deeds()[0].outcome == "" and len(world.deeds()[0].done) < 5, "it asks again and again, and says it once"
    world.boot("fresh")
    world.run(10.0)
    assert world.deeds()[0].outcome == "the job goes on with 4 nodes in round 2" and not world.check_at_rest()


def test_a_lost_node_that_comes_back_first_gets_its_place_again() -> None:
    world = needy()
    world.gives = False
    world.kill("n1", power=True, back_s=60.0)
    world.run(90.0)
    (deed,) = world.deeds()
    assert deed.outcome == "n1 is back: the job runs on it again in round 2" and world.drained == {}
    assert world.node("n1").state == "fit" and not world.swaps
