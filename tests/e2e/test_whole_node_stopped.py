"""A node that was stopped as a whole and goes on does no harm: its ranks were killed in their sleep, or commit nothing."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time

import pytest
from kit import SCRIPTS
from kit.jobs.ranks import agent_pid
from kit.jobs.succession import begin

from holdfast.runtime.process.process import descendants, state
from holdfast.runtime.process.wake_up import WakeUp


@pytest.mark.parametrize("place", ["a", "c"], ids=["the coordinator's", "another"])
def test_its_ranks_die_in_their_sleep_before_others_take_their_place(job, holdfast, place):
    agents = begin(job, "abc", "2:3")
    (old,) = [event["pid"] for event in job.started(3) if event["node"] == place]
    asleep = [agents[place].process.pid, *descendants(agents[place].process.pid)]
    assert old in asleep and agent_pid(holdfast, place) in asleep
    for pid in asleep:
        os.kill(pid, signal.SIGSTOP)

    def has_begun(round: int) -> bool:
        return all((job.folder / f"{rank}.0.{round}").exists() for rank in range(2))

    # The kernel wakes its agent, which may be back before each of the others' ranks has run its first line in round 2.
    round = job.wait_until(lambda: next(filter(has_begun, (2, 3)), 0), what="the other two ranks in another round")
    assert [job.rank(rank, 0, round)[1] for rank in range(2)] in ([2, 2], [3, 3])
    assert state(old) in (None, "Z"), "nobody has continued it"
    os.kill(agents[place].process.pid, signal.SIGCONT)
    job.finish()
    assert [agent.wait().returncode for agent in agents.values()] == [0, 0, 0]
    # Why depends on whether its last turn before the stop is a whole lease ago: it slept, or the coordinator was silent.
    assert "; stopping the workers" in agents[place].stderr


def test_of_many_stops_none_lets_an_older_checkpoint_replace_a_newer_one(tmp_path):
    argv = [sys.executable, str(SCRIPTS / "stopped_commits.py"), str(tmp_path), "50"]
    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "50 stops, 0 times older\n"


ASKS = """
import multiprocessing, os, sys
from holdfast.client.commit import holds_lease
from holdfast.client import commit

code = sys.modules["holdfast.client.commit"]

def say(how):
    from holdfast.core.page.layout import LEASE_NS
    words = sys.modules["holdfast.client.commit"]._page()
    print(how, words is not None and words[LEASE_NS] > 0, flush=True)

if __name__ == "__main__":
    say("rank")
    for how in ("fork", "spawn"):
        child = multiprocessing.get_context(how).Process(target=say, args=(how,))
        child.start()
        child.join()
"""


def test_a_rank_and_its_children_know_the_lease_of_their_node(holdfast, script, free_port):
    endpoint = f"127.0.0.1:{free_port}"
    leased = ("--nnodes", "1:2", "--rdzv-endpoint", endpoint, "--rdzv-conf", "last_call_timeout=0.1")
    for options, knows in ((leased, True), ((), False)):
        end = holdfast.run("run", *options, script(ASKS))
        assert end.stdout.split("\n")[:3] == [f"{how} {knows}" for how in ("rank", "fork", "spawn")], end.stderr


def _sleep_until_woken(pipe) -> None:
    timer = WakeUp()
    timer.at(time.monotonic() + 60)
    timer.at(time.monotonic() + 0.05)
    os.kill(os.getpid(), signal.SIGSTOP)
    pipe.send("awake")


def test_the_kernel_wakes_a_stopped_process_when_its_time_has_come():
    ours, theirs = multiprocessing.Pipe()
    asleep = multiprocessing.get_context("fork").Process(target=_sleep_until_woken, args=(theirs,))
    asleep.start()
    try:
        assert ours.poll(20) and ours.recv() == "awake"
    finally:
        asleep.kill()
        asleep.join()
