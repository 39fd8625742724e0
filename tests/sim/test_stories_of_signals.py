"""What becomes of a job whose agents are signalled? Each story is one trouble, told by what the nodes record."""

from __future__ import annotations

import signal

from kit.stages.stories import HANGS, STUBBORN, Start, formed_at, rounds, story, told


def test_a_node_that_is_told_to_go_leaves_and_the_others_go_on_without_it(start: Start) -> None:
    cluster = start("abc", min_nodes=2)
    cluster.signal("c", signal.SIGTERM)
    cluster.finish()
    assert rounds(cluster) == ["abc", "ab"] and cluster.codes == {"a": 0, "b": 0, "c": 1}
    assert formed_at(cluster)[1] < 1.2, "it said so, and that its workers are gone: there is nothing to wait for"


def test_sigterm_to_the_hosting_agent_ends_the_job_everywhere(start: Start) -> None:
    cluster = start("ab")
    cluster.signal("a", signal.SIGTERM)
    cluster.finish()
    assert told(cluster) == story("""
        a: starts, hosts the coordinator
        b: starts
        a: a joined
        a: b joined
        a: round 1 of a b, group rank 0, 2 ranks (first round)
        b: round 1 of a b, group rank 1, 2 ranks (first round)
        a: received SIGTERM
        a: warning: received SIGTERM; stopping the workers, SIGKILL in 5 s, or at another signal
        a: decides to stop: a received SIGTERM
        a: rank 0 (local 0) on a was killed by SIGTERM (stopped by us)
        b: rank 1 (local 0) on b was killed by SIGTERM (stopped by us)
        a: ends with 1 (stopped): a received SIGTERM
        b: ends with 1 (stopped): a received SIGTERM
    """)


def test_a_second_signal_leaves_no_grace(start: Start) -> None:
    cluster = start("ab", {(0, 0): STUBBORN, (1, 0): HANGS}, grace_s=60.0)
    cluster.signal("a", signal.SIGINT)
    cluster.run_for(2.0)
    cluster.signal("a", signal.SIGINT)
    cluster.finish()
    assert cluster.timeline.now < 4.0 and cluster.codes == {"a": 1, "b": 1}


def test_signals_after_the_end_change_neither_exit_code_nor_report(start: Start) -> None:
    cluster = start("ab", runs_s=3.0)
    cluster.run(2.0)
    cluster.partition("b")
    cluster.run(2.9)
    cluster.power_off("b")
    cluster.run(8.0)  # b is lost; a alone cannot form a round of two
    cluster.start("c")
    cluster.run(12.0)
    cluster.break_links("c", other_lag_s=0.0)
    for _ in range(3):
        cluster.signal("a", signal.SIGTERM)
        cluster.run_for(0.01)
    cluster.finish()
    assert cluster.agents["a"].report is not None


def test_a_signal_before_the_first_round_is_died_of(start: Start) -> None:
    cluster = start("ab", min_nodes=3, max_nodes=3)
    cluster.signal("b", signal.SIGTERM)
    cluster.run_for(1.0)
    assert cluster.codes["b"] == -signal.SIGTERM and "a: b left: received SIGTERM" in told(cluster)
