"""Does a job live through what networks do? Hosts are network namespaces; what is cut is cut silently, with no RST or FIN."""

from __future__ import annotations

import contextlib
import resource
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.network.netjob import CONT, STOP

pytestmark = pytest.mark.root
TRAIN = Path(__file__).parents[2] / "examples" / "train.py"
FLAP_S = 1.5
"""How long an interface is down: with a lease of 3 s and a word every 0.75 s, what TCP sends again has come in time."""

MEETS = """
import os, socket, time
rank, address = os.environ["RANK"], (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == "0":
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    with socket.create_server(address, family=family) as listener:
        listener.settimeout(60)
        listener.accept()[0].recv(1)
else:
    until = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(address, timeout=60).sendall(b"x")
            break
        except ConnectionRefusedError:  # it does not listen yet
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
os.write(1, f"rank {rank} met at {address[0]}\\n".encode())
"""


# --- a partition ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost", ["both ways", "what it says", "what it is told"])
def test_a_member_that_is_cut_off_has_stopped_its_ranks_before_a_spare_takes_them(hosts, lost):
    job = hosts("a", "b", "c")
    job.agent("b", words=("stubborn",))  # its usual grace is 30 s
    job.running("a", spares=("c",), ranks=2)
    if lost == "both ways":
        job.switch.isolate("b")
    else:
        job.switch.cut_one_way(*("b", "a") if lost == "what it says" else ("a", "b"))
    assert (job.rank(0, 2).host, job.rank(1, 2).host) == ("a", "c")
    assert job.lost() == ["b"]
    job.switch.heal()
    job.joined(4)  # and b is a spare now
    job.finish("a", "b", "c")
    assert job.rounds() == {1, 2}
    job.never_two_rounds()


def test_without_a_spare_the_job_goes_on_smaller_and_takes_the_lost_one_back(hosts):
    job = hosts("a", "b")
    job.running("a", "b", nnodes="1:2")
    job.switch.isolate("b")
    assert job.rank(0, 2).world == 1
    job.switch.heal()
    assert {job.rank(rank, 3).world for rank in (0, 1)} == {2}
    job.finish("a", "b")
    assert {life.attempt for life in job.lives()} == {0}, "a change of members spends no restart"
    job.never_two_rounds()


def test_a_spare_that_is_cut_off_costs_the_job_nothing(hosts):
    job = hosts("a", "b", "c")
    job.running("a", "b", spares=("c",))
    job.switch.isolate("c")
    job.wait_until(job.lost, what="the spare to be missed")
    job.goes_on(job.rank(0, 1), 1.0)
    job.switch.heal()
    job.joined(4)
    job.finish("a", "b", "c")
    assert job.rounds() == {1}


# --- a poor network ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["200 ms later", "every fifth packet lost"])
def test_on_a_poor_network_joining_failing_and_restarting_work_and_nobody_is_given_up(hosts, how):
    job = hosts("a", "b", slow={"b": 0.2} if how == "200 ms later" else {})
    if how != "200 ms later":
        job.switch.lose("a", one_in=5)
        job.switch.lose("b", one_in=5)
    job.running("a", "b", options=("--max-restarts", 1), lease=None)
    victim = job.rank(1, 1)
    assert victim.host == "b"
    job.signal(signal.SIGKILL, victim.pid)
    job.goes_on(job.rank(1, 2), 3.3)  # for longer than the lease
    job.finish("a", "b")
    assert {(life.round, life.attempt) for life in job.lives()} == {(1, 0), (2, 1)}
    assert job.lost() == []
    job.never_two_rounds()


def test_an_interface_that_is_down_for_half_a_lease_costs_nothing(hosts):
    job = hosts("a", "b")
    job.running("a", "b", lease=None)
    for whose in "ab":  # the coordinator's and a member's, wherever between two of the member's words it begins
        job.switch.flap(whose, FLAP_S)
        job.goes_on(job.rank(1, 1), 1.3)
    job.goes_on(job.rank(1, 1), 2.0)  # whoever had lost the other would have said so by now
    job.finish("a", "b")
    assert job.rounds() == {1} and job.lost() == []


# --- agents that are stopped, hosts that are gone ---------------------------------------------------------------------------


@contextlib.contextmanager
def no_timers() -> Iterator[None]:
    """Who is started meanwhile can have no timer that sends a signal."""
    before = resource.getrlimit(resource.RLIMIT_SIGPENDING)
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_SIGPENDING, before)


def test_the_ranks_of_a_stopped_agent_end_by_its_guardian_s_hand_before_others_take_their_places(hosts):
    job = hosts("a", "b", "c")
    with no_timers():  # which wake a stopped agent 50 ms later: where the guardian had to wait for a CPU, that was the first
        job.running("a", "b", spares=("c",))
    job.signal(STOP, job.agent_pid("b"))
    assert job.rank(1, 2).host == "c"
    ended = job.agents["b"].wait()
    assert ended.returncode == 1 and "(stopped?) and its lease is over" in ended.stderr and "no timer (" in ended.stderr
    again = job.agent("b")  # whatever has started it starts it again
    job.joined(4)
    job.finish("a", "c")
    assert again.wait().returncode == 0
    assert job.rounds() == {1, 2}
    job.never_two_rounds()


def test_an_agent_that_was_stopped_for_longer_than_its_lease_comes_back_as_any_other(hosts):
    """Its guardian was stopped with it, and so could not end it; it is itself that finds out."""
    job = hosts("a", "b", "c")
    job.running("a", "b", spares=("c",))
    stopped = job.agents["b"].pid, job.agent_pid("b")
    job.signal(STOP, *stopped)
    job.wait_until(job.lost, what="the stopped agent to be given up")
    job.signal(CONT, *stopped)
    job.joined(4)
    job.rank(1, 2)
    job.finish("a", "b", "c")
    assert job.rounds() == {1, 2}
    job.never_two_rounds()


def test_a_host_that_was_stopped_as_a_whole_comes_back(hosts):
    """Soon after the end of its lease the kernel wakes its agent, which ends the old rank: as a spare, or in its place."""
    job = hosts("a", "b", "c")
    job.running("a", "b", spares=("c",))
    rank, others = job.rank(1, 1).pid, [pid for pid in job.switch.places["b"].pids() if pid != job.rank(1, 1).pid]
    job.signal(STOP, rank, *others)
    assert job.rank(0, 2).host == "a" and job.rank(1, 2).host in ("b", "c")  # both have looked who is beside them
    # The agent first. A kernel that wakes all at once may give the rank some milliseconds; on its round's port it meets nobody.
    job.signal(CONT, *others)
    job.joined(4)
    job.finish("a", "b", "c")
    assert job.rounds() == {1, 2}
    job.never_two_rounds()


def test_a_job_that_is_stopped_at_one_host_s_terminal_goes_on_without_that_host(hosts):
    """Ctrl-Z, and `fg` when it is too late."""
    job = hosts("a", "b", "c")
    waits = "while wait -f $!; code=$?; [ $code = 148 ]; do sleep 0.01; done; exit $code"  # now and then it tells of the stop
    job.commands["b"].through += ("bash", "-c", f'set -m; "$@" & {waits}', "shell")
    job.agent("b", words=("stubborn",))
    job.running("a", spares=("c",), ranks=2)
    guardian = int(Path(f"/proc/{job.agent_pid('b')}/stat").read_text().rpartition(")")[2].split()[1])  # its parent
    job.signal(signal.SIGTSTP, guardian)
    assert [job.rank(rank, 2).host for rank in (0, 1)] == ["a", "c"]  # who begins after that `fg` may find the old rank awake
    job.signal(CONT, guardian)
    job.joined(4)
    job.finish("a", "b", "c")
    assert job.rounds() == {1, 2}
    job.never_two_rounds()


@pytest.mark.torch
def test_a_host_that_loses_its_power_is_replaced_and_training_goes_on(hosts, tmp_path):
    """Real training, and the defaults. Nothing says goodbye: the cable is pulled first."""
    job = hosts("a", "b", "c")
    options = ("--checkpoint", tmp_path / "checkpoint.pt", "--steps", 60, "--step-s", 0.03)
    for name in ("a", "b"):
        job.start(name, "2", program=(TRAIN, *options))
    job.joined(2)
    job.start("c", "2", program=(TRAIN, *options))
    job.agents["a"].wait_for_output("step 20 ")
    job.joined(3)
    job.switch.unplug("b")
    job.switch.places["b"].kill()
    for name in ("a", "c"):
        assert job.agents[name].wait().returncode == 0, job.agents[name].stderr
    said = job.agents["a"].stdout
    assert "2 ranks, starting at step 0\n" in said and "finished: final loss" in said
    assert said.count("2 ranks, starting at step") == 2
    assert (job.rounds(), job.lost()) == ({1, 2}, ["b"])
    assert [event["round"] for event in job.events("RoundFormed", "c")] == [2]


# --- addresses --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "endpoint, met_at", [("[fd77::1]:29400", "fd77::1"), ("fd77::1", "fd77::1"), ("a:29400", "10.77.0.1")], ids=str
)
def test_nodes_meet_by_an_ipv6_address_and_by_name(hosts, script, endpoint, met_at):
    job = hosts("a", "b", endpoint=endpoint)
    agents = [job.start(name, "2", program=(script(MEETS),)) for name in ("b", "a")]
    assert sorted(line for agent in agents for line in said(agent)) == [f"rank {rank} met at {met_at}" for rank in (0, 1)]


def test_a_node_s_local_addr_is_where_the_others_look_for_its_ranks(hosts, script):
    """Its address towards the endpoint takes no connections, as behind a management network's firewall; it has another."""
    job = hosts("b", "a", two=True)  # the endpoint is on b, and rank 0 on a
    a = job.switch.places["a"]
    a.run("nft", f"add rule inet cut in ip daddr {a.address} tcp flags & (syn | ack) == syn drop")
    for name in ("a", "b"):
        job.start(name, "2", "--local-addr", job.switch.places[name].second, program=(script(MEETS),))
    assert [line for name in "ab" for line in said(job.agents[name])] == [f"rank {rank} met at {a.second}" for rank in (0, 1)]


def said(agent: Any) -> list[str]:
    """What the ranks of an agent that ended well have said."""
    ended = agent.wait()
    assert ended.returncode == 0, ended.output
    return str(ended.stdout).splitlines()
