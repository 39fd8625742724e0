"""What when the host is lost where the nodes meet? A majority goes on without it, or, where there is none, what the user says.

Hosts are network namespaces, as in test_network.py. The endpoint is on host a.
"""

from __future__ import annotations

import re
import signal
from typing import Any

import pytest
from kit.network.netjob import CONT, STOP

pytestmark = pytest.mark.root
CUTS = ["both ways", "what it says", "what it is told"]


LOOKS = 3  # So often it is looked whether an agent that has woken ends its rank, before it is taken to lead on.

CHOOSE = re.compile(r"if the coordinator is lost, the (.+) choose another")


def settle(job: Any) -> None:
    """Until who has a say is settled: every node but the one that leads knows that those have who are there, and no others."""

    def settled() -> bool:
        there = [agent for agent in job.agents.values() if not agent.ended]
        known = [CHOOSE.findall(agent.stderr)[-1:] for agent in there]
        return known.count([f"{len(there)} nodes"]) >= len(there) - 1

    job.wait_until(settled)


def cut_off(job: Any, name: str, lost: str = "both ways") -> None:
    """Cut a host off from all others, in one direction or both."""
    settle(job)
    for other in job.switch.places:
        if other != name and lost != "what it is told":
            job.switch.cut_one_way(name, other)
        if other != name and lost != "what it says":
            job.switch.cut_one_way(other, name)


def lose_power(job: Any, name: str, *, settled: bool = True) -> None:
    """No word of farewell: the cable is pulled first."""
    if settled:
        settle(job)
    job.switch.unplug(name)
    job.switch.places[name].kill()


def hosts_of(job: Any, round: int, ranks: int) -> list[str]:
    """Who has the ranks of a round, once it runs; in the order of their names."""
    lives = [job.rank(rank, round) for rank in range(ranks)]
    assert {life.world for life in lives} == {ranks}
    return sorted(life.host for life in lives)


# --- three hosts: there is a majority ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", CUTS)
def test_a_majority_goes_on_when_the_endpoint_s_host_is_cut_off(hosts, lost):
    job = hosts("a", "b", "c")
    for name in "abc":
        job.agent(name, "2:3", words=("stubborn",) if name == "a" else ())
    assert hosts_of(job, 1, 3) == ["a", "b", "c"]
    cut_off(job, "a", lost)
    assert hosts_of(job, 2, 2) == ["b", "c"]
    job.switch.heal()
    assert hosts_of(job, 3, 3) == ["a", "b", "c"]
    job.finish("a", "b", "c")
    assert job.rounds() == {1, 2, 3}, "one restart for the loss, one for the return"
    assert {life.attempt for life in job.lives()} == {0}, "neither is a failure"
    job.never_two_rounds()


def test_an_endpoint_s_host_that_is_lost_as_soon_as_all_ranks_run_is_succeeded_too(hosts):
    """By default there is a second between two renewals of a lease."""
    job = hosts("a", "b", "c")
    for name in "abc":
        job.agent(name, "2:3", lease=None)
    assert hosts_of(job, 1, 3) == ["a", "b", "c"]
    lose_power(job, "a", settled=False)
    assert hosts_of(job, 2, 2) == ["b", "c"]
    job.finish("b", "c")
    job.never_two_rounds()


def test_a_spare_votes_and_takes_the_place_of_the_endpoint_s_host_which_comes_back_as_a_spare(hosts):
    job = hosts("a", "b", "c")
    job.running("a", "b", spares=("c",))
    lose_power(job, "a")
    assert hosts_of(job, 2, 2) == ["b", "c"]
    job.switch.unplug("a", plug=True)
    job.agent("a")
    job.joined_elsewhere("a")
    job.finish("a", "b", "c")
    assert job.rounds() == {1, 2}
    job.never_two_rounds()


ENDED_BY = {
    "killed it and its workers": "its guardian",
    "its workers were killed, since others may hold their ranks": "itself",
    "sent SIGKILL": "itself",
}
"""What is said of the ranks beside an agent that was stopped → who has ended them."""


def test_the_ranks_beside_a_stopped_coordinator_end_by_its_guardian_s_hand_or_by_its_own_as_it_wakes(hosts):
    """The kernel wakes the agent 0.05 s after its guardian would have ended it: which on a busy host is late."""
    job = hosts("a", "b", "c")
    job.running("a", "b", spares=("c",))
    settle(job)
    job.signal(STOP, job.agent_pid("a"))
    places, stderr = hosts_of(job, 2, 2), lambda: job.agents["a"].stderr
    ended_by = job.wait_until(lambda: next((who for words, who in ENDED_BY.items() if words in stderr()), ""))
    if ended_by == "its guardian":
        assert places == ["b", "c"] and job.agents["a"].wait().returncode == 1
        job.finish("b", "c")
    else:
        assert len(set(places)) == 2
        job.finish("a", "b", "c")
    assert job.rounds() == {1, 2}
    job.never_two_rounds()


def test_a_coordinator_that_was_stopped_with_its_whole_host_leads_nobody_when_it_wakes(hosts):
    """Soon after the end of its lease the kernel wakes its agent, which ends the old rank and seeks the others. If it wakes
    before one of them has missed it, it leads on, by what they have said meanwhile: then it is stopped again."""
    job = hosts("a", "b", "c")
    job.running("a", "b", spares=("c",))
    settle(job)
    old = job.rank(0, 1)
    others = [pid for pid in job.switch.places["a"].pids() if pid != old.pid]
    awake = 0

    def is_missed() -> bool:
        nonlocal awake
        awake = 0 if job.has_ended(old) or job.is_stopped("a") else awake + 1
        if awake > LOOKS:
            job.signal(STOP, old.pid, *others)
        return 2 in job.rounds()

    job.signal(STOP, old.pid, *others)
    job.wait_until(is_missed)
    assert len(set(hosts_of(job, 2, 2))) == 2
    job.signal(CONT, *others)
    job.finish("a", "b", "c")
    assert job.rounds() == {1, 2}
    job.never_two_rounds()


def test_the_successor_is_lost_too(hosts):
    job = hosts("a", "b", "c", "d", "e")
    for name in "abcde":
        job.agent(name, "2:5")
    assert hosts_of(job, 1, 5) == list("abcde")
    lose_power(job, "a")
    assert hosts_of(job, 2, 4) == list("bcde")
    lose_power(job, "b")
    assert hosts_of(job, 3, 3) == list("cde")
    job.finish("c", "d", "e")
    job.never_two_rounds()


def test_a_network_that_breaks_in_two_has_one_job_on_the_larger_side(hosts):
    """The endpoint's host is on the smaller."""
    job = hosts(*"abcde")
    for name in "abcde":
        job.agent(name, "2:5")
    assert hosts_of(job, 1, 5) == list("abcde")
    settle(job)
    for one in "ab":
        for another in "cde":
            job.switch.cut(one, another)
    assert hosts_of(job, 2, 3) == list("cde")
    job.switch.heal()  # they come back one by one, or together
    job.wait_until(lambda: len([life for life in job.lives() if (life.round > 2 and life.world == 5)]) == 5)
    job.finish(*"abcde")
    job.never_two_rounds()


def test_a_host_that_reaches_the_others_but_not_the_endpoint_s_takes_nothing_over(hosts):
    job = hosts("a", "b", "c")
    for name in "abc":
        job.agent(name, "2:3", words=("stubborn",) if name == "c" else ())
    assert hosts_of(job, 1, 3) == list("abc")
    settle(job)
    job.switch.cut("a", "c")
    assert hosts_of(job, 2, 2) == ["a", "b"]
    job.goes_on(job.rank(0, 2), 1.2)
    job.switch.heal()
    assert hosts_of(job, 3, 3) == list("abc")
    job.finish("a", "b", "c")
    assert job.rounds() == {1, 2, 3}
    job.never_two_rounds()


# --- two hosts: there is none -----------------------------------------------------------------------------------------------


def test_of_two_hosts_the_one_that_is_left_stops_and_says_what_to_set(hosts):
    job = hosts("a", "b")
    job.running("a", "b", nnodes="1:2")
    lose_power(job, "a")
    job.agents["b"].wait_for_output("--on-split")
    assert "witness" in job.agents["b"].stderr
    job.wait_until(lambda: job.has_ended(job.rank(1, 1)), what="its rank to end")
    job.agents["b"].kill(signal.SIGTERM)  # it would wait for half a minute
    assert job.agents["b"].wait().returncode == 1
    assert job.rounds() == {1}


def test_of_two_hosts_the_one_that_is_left_goes_on_where_it_may(hosts):
    job = hosts("a", "b")
    job.running("a", "b", nnodes="1:2", options=("--on-split", "continue"))
    lose_power(job, "a")
    assert hosts_of(job, 2, 1) == ["b"]
    job.finish("b")
    job.never_two_rounds()


def test_of_two_hosts_a_shared_directory_lets_one_go_on_and_never_both(hosts, tmp_path):
    (tmp_path / "witness").mkdir()
    job = hosts("a", "b")
    job.running("a", "b", nnodes="1:2", options=("--witness", tmp_path / "witness"))
    cut_off(job, "a")
    assert len(hosts_of(job, 2, 1)) == 1
    job.goes_on(job.rank(0, 2), 1.2)
    job.switch.heal()
    assert hosts_of(job, 3, 2) == ["a", "b"]
    job.finish("a", "b")
    assert len([life for life in job.lives() if life.round == 2]) == 1
    job.never_two_rounds()
