"""Which rank hangs? Told step by step to the machine that judges the ranks of a node: no clock, no process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.client import hooks
from holdfast.core.config.fault_tolerance import FaultTolerance
from holdfast.core.machine import NEVER, Tick
from holdfast.core.page.signs import Limits as SaidLimits
from holdfast.core.page.signs import SectionSigns, Signs
from holdfast.core.value import replace
from holdfast.monitor.machine import Monitor
from holdfast.monitor.messages import (
    AskGpus,
    FaultPlayed,
    GpusSeen,
    MeasureRanks,
    Overdue,
    PaceHeard,
    RankGone,
    RankMeasured,
    RankSeen,
    RanksMeasured,
    RankStarted,
    SeeRanks,
)
from holdfast.monitor.state import GLANCE_S
from holdfast.monitor.stillness import Stillness
from holdfast.monitor.suspicion import AT_WORK, busy_for_s


class Node:
    """A node whose ranks show what `signs` says, driven from deadline to deadline as the agent does it."""

    def __init__(self, ranks: int = 1, *, job_s: dict[str, float] | None = None, **ft: Any) -> None:
        self.machine = Monitor(FaultTolerance(**ft))
        self.signs: dict[int, Signs] = dict.fromkeys(range(ranks), Signs())
        self.logged: dict[int, tuple[float, int]] = {}
        self.busy = dict.fromkeys(range(ranks), True)
        self.states = dict.fromkeys(range(ranks), "S")
        self.gpus_busy: bool | None = None
        self.cpu_s = 0.0
        self.now = 0.0
        self.hung: list[tuple[float, int, str]] = []
        self.looks: list[float] = []
        self.unread: set[int] = set()  # Ranks whose logs cannot be read in time.
        self.before_look: dict[int, Callable[[], None]] = {}
        """By number of the look, from the next on: what a rank does just before that."""
        self.asked = 0
        self.show(PaceHeard(job_s=job_s or {}))
        for rank in range(ranks):
            self.show(RankStarted(local_rank=rank, rank=rank, started_at=0.0))

    def show(self, seen: Any) -> None:
        for action in self.machine.observe(seen, self.now):
            match action:
                case SeeRanks(local_ranks=local_ranks):
                    self.looks.append(self.now)
                    self.before_look = {number - 1: do for number, do in self.before_look.items()}
                    self.before_look.pop(0, int)()
                    for rank in local_ranks:
                        (at, lines), is_whole = self.logged.get(rank, (None, 0)), rank not in self.unread
                        seen = RankSeen(local_rank=rank, signs=self.signs[rank], logged_at=at, lines=lines, is_whole=is_whole)
                        self.show(seen)
                case MeasureRanks(local_ranks=local_ranks):
                    self.cpu_s += 1000.0
                    measured = [
                        RankMeasured(local_rank=r, cpu_s=self.cpu_s * self.busy[r], io_bytes=0, state=self.states[r])
                        for r in local_ranks
                    ]
                    self.show(RanksMeasured(ranks=tuple(measured)))
                case AskGpus():
                    self.asked += 1
                    self.show(GpusSeen(busy=self.gpus_busy))
                case Overdue(local_rank=local_rank, reason=reason):
                    self.hung.append((self.now, local_rank, reason))

    def run(self, until: float) -> Node:
        while (due := self.machine.deadline()) <= until:
            assert due >= self.now - 1e-9, "time runs forwards"
            self.now = due
            self.show(Tick())
        self.now = until
        return self

    def sleep(self, until: float) -> Node:
        """The agent is not there."""
        self.now = until
        self.show(Tick())
        return self

    def beat(self, rank: int = 0, beats: int | None = None, **more: Any) -> None:
        old = self.signs[rank]
        gap_s = 0.0 if old.beat_at is None else self.now - old.beat_at
        self.signs[rank] = Signs(
            first_beat_at=self.now if old.first_beat_at is None else old.first_beat_at,
            beat_at=self.now,
            beats=old.beats + 1 if beats is None else beats,
            longest_gap_s=max(old.longest_gap_s, gap_s),
            sections=old.sections,
            limits=old.limits,
            **more,
        )


def opened(name: str, since: float | None, **more: Any) -> SectionSigns:
    return SectionSigns(name=name, open_since=since, **more)


# --- limits that were given -------------------------------------------------------------------------------------------------


def test_a_rank_hangs_at_the_moment_its_limit_runs_out_and_is_told_once() -> None:
    node = Node(rank_heartbeat_timeout=12.0)
    node.run(1.0).beat()
    node.run(100.0)
    assert [(at, rank) for at, rank, _ in node.hung] == [(pytest.approx(13.0), 0)]
    assert node.hung[0][2] == "no heartbeat for 12.0 s (limit 12 s)"


def test_each_heartbeat_begins_the_limit_anew() -> None:
    node = Node(rank_heartbeat_timeout=3.0)
    for second in range(1, 50, 2):
        node.run(float(second)).beat()
    assert node.hung == []


def test_the_limit_of_the_start_counts_from_the_start_of_the_process() -> None:
    node = Node(start_limit=5.0)
    node.run(60.0)
    assert node.hung == [(pytest.approx(5.0), 0, "no sign of life for 5.0 s after its start (limit 5 s)")]


@pytest.mark.parametrize("begins_at", [0.1, 4.9, 5.0, 5.1, 7.0, 300.0])
def test_the_initial_limit_counts_from_when_a_rank_begins_to_be_monitored(begins_at: float) -> None:
    node = Node(initial_rank_heartbeat_timeout=5.0)
    node.run(begins_at)
    assert node.hung == []
    node.signs[0] = Signs(awaited_since=begins_at)
    (at, _, reason), *_ = node.run(begins_at + 60.0).hung
    assert at == pytest.approx(begins_at + 5.0) and reason == "no heartbeat for 5.0 s since its monitoring began (limit 5 s)"


def test_who_waits_for_the_other_ranks_before_it_is_monitored_is_not_judged_by_the_initial_limit() -> None:
    node = Node(2, initial_rank_heartbeat_timeout=5.0, still_limit=3600.0)
    node.busy = {0: False, 1: False}
    assert node.run(3000.0).hung == []
    assert node.run(4000.0).hung, "a job that deadlocks before it is monitored is found in the end"


def test_no_learned_start_is_put_in_place_of_a_given_initial_limit() -> None:
    node = Node(1, job_s={"first": 2.0}, least_limit=10.0, initial_rank_heartbeat_timeout=5.0)
    node.busy = {0: False}
    assert node.run(1000.0).hung == []


def test_the_initial_limit_that_the_script_says_holds() -> None:
    node = Node(initial_rank_heartbeat_timeout=5.0)
    node.signs[0] = Signs(awaited_since=1.0, limits=SaidLimits(initial_s=12.0, count=1))
    assert [at for at, _, _ in node.run(100.0).hung] == [pytest.approx(13.0)]


def test_a_rank_that_is_monitored_again_has_the_initial_limit_again() -> None:
    node = Node(initial_rank_heartbeat_timeout=9.0, rank_heartbeat_timeout=3.0)
    node.run(1.0).beat()
    node.signs[0] = replace(node.signs[0], limits=SaidLimits(initial_s=NEVER, beat_s=NEVER, out_s=NEVER, count=1))
    assert node.run(100.0).hung == [], "its monitoring has ended"
    node.signs[0] = replace(node.signs[0], awaited_since=100.0, limits=SaidLimits(count=2))
    assert [at for at, _, _ in node.run(200.0).hung] == [pytest.approx(109.0)]


def test_a_given_initial_limit_is_for_the_first_heartbeat_whatever_else_is_shown() -> None:
    node = Node(initial_rank_heartbeat_timeout=5.0)
    node.signs[0] = Signs(awaited_since=0.0, sections=(opened("setup", 1.0),))
    node.run(60.0)
    assert [at for at, _, _ in node.hung] == [pytest.approx(5.0)] and "in section setup" in node.hung[0][2]


# --- a look may be old --------------------------------------------------------------------------------------------------------


def test_a_rank_that_has_beaten_since_it_was_looked_at_does_not_hang() -> None:
    node = Node(rank_heartbeat_timeout=3.0)
    node.run(1.0).beat()
    node.run(3.9)
    node.before_look = {2: node.beat}  # at the first it is too late, by what is read of its page
    node.run(4.1)
    assert len(node.looks) >= 2 and node.hung == []
    assert [at for at, _, _ in node.run(60.0).hung] == [pytest.approx(7.0)]


def test_a_rank_that_begins_a_section_anew_while_it_is_read_does_not_hang() -> None:
    """Half old: it was open since long, by the first word; it has been left five times, by the next."""
    node = Node(rank_section_timeouts={"step": 2.0, "warmup": 20.0}, num_warmup_iterations=5)
    node.signs[0] = Signs(sections=(opened("step", 0.0, count=4),))
    node.run(9.0)

    def goes_on() -> None:
        node.signs[0] = Signs(sections=(opened("step", 9.9, count=5),))

    node.signs[0] = Signs(sections=(opened("step", 0.0, count=5),))
    node.before_look = {2: goes_on}
    node.run(11.0)
    assert node.hung == []


def test_a_suspect_that_has_beaten_since_it_was_looked_at_does_not_hang() -> None:
    node = trained(Node(2, **LEARNED))
    node.busy = {0: False, 1: False}
    found_at = node.run(400.0).hung[0][0]
    node = trained(Node(2, **LEARNED))
    node.busy = {0: False, 1: False}
    node.run(found_at - 0.3)

    def beat() -> None:
        node.beat(0)
        node.beat(1)

    seen = len(node.looks)
    node.before_look = {1: beat}
    node.run(found_at + 0.1)
    assert len(node.looks) > seen and node.hung == []


def test_who_is_watched_by_a_new_monitor_is_looked_at_before_it_is_judged() -> None:
    node = Node(0, start_limit=5.0)
    node.now, node.signs[0] = 100.0, Signs(first_beat_at=1.0, beat_at=99.0, beats=50)
    node.show(RankStarted(local_rank=0, rank=0, started_at=0.0))
    assert node.run(200.0).hung == []


def test_nobody_hangs_by_a_log_that_cannot_be_read() -> None:
    node = Node(rank_heartbeat_timeout=10.0)
    node.logged[0] = (5.0, 1)
    node.run(6.0)
    node.unread = {0}
    assert node.run(100.0).hung == []
    node.unread, node.logged[0] = set(), (100.0, 2)
    assert [at for at, _, _ in node.run(200.0).hung] == [pytest.approx(110.0)]


def test_no_limit_is_no_limit() -> None:
    none = dict.fromkeys(
        ("initial_rank_heartbeat_timeout", "rank_heartbeat_timeout", "rank_out_of_section_timeout", "still_limit", "most_limit")
    )
    node = Node(rank_section_timeouts={"load": None}, **none)
    node.busy[0] = False
    node.run(1.0).beat()
    sections = opened("load", 1.5), opened("step", None, count=9)
    node.signs[0] = Signs(beat_at=1.0, beats=1, first_beat_at=1.0, sections=sections)
    node.run(2e4)  # more than five hours
    assert node.hung == []


def test_a_section_that_is_open_for_too_long_is_named() -> None:
    node = Node(rank_section_timeouts={"load": 4.0})
    node.signs[0] = Signs(sections=(opened("step", None, count=3), opened("load", 0.5)))
    node.run(60.0)
    assert node.hung == [(pytest.approx(4.5), 0, "in section load for 4.0 s (limit 4 s)")]


def test_sections_may_nest_and_overlap_and_each_has_its_own_clock() -> None:
    node = Node(rank_section_timeouts={"outer": 30.0, "inner": 4.0})
    node.signs[0] = Signs(sections=(opened("outer", 0.0), opened("inner", 20.0)))
    node.run(60.0)
    assert [(at, reason) for at, _, reason in node.hung] == [
        (pytest.approx(24.0), "in section inner for 4.0 s (limit 4 s)"),
    ]


def test_outside_of_sections_is_judged_from_the_first_section_on() -> None:
    node = Node(rank_out_of_section_timeout=3.0)
    node.run(50.0)
    assert node.hung == [], "none has been used yet"
    node.signs[0] = Signs(sections=(opened("load", None, count=1),), out_since=50.0)
    node.run(60.0)
    assert node.hung == [(pytest.approx(53.0), 0, "outside of any section for 3.0 s (limit 3 s)")]


def test_while_a_section_is_open_nobody_is_outside() -> None:
    node = Node(rank_out_of_section_timeout=3.0, rank_section_timeouts={"load": None})
    node.signs[0] = Signs(sections=(opened("load", 1.0, count=1),), out_since=0.5)  # read while the script was between the two
    node.run(60.0)
    assert node.hung == []


def test_the_first_steps_are_judged_by_the_limit_of_warmup() -> None:
    limits = {"step": 2.0, "warmup": 20.0}
    node = Node(rank_section_timeouts=limits, num_warmup_iterations=5)
    node.signs[0] = Signs(sections=(opened("step", 1.0, count=4),))
    assert [at for at, _, _ in node.run(60.0).hung] == [pytest.approx(21.0)]
    node = Node(rank_section_timeouts=limits, num_warmup_iterations=5)
    node.signs[0] = Signs(sections=(opened("step", 1.0, count=5),))
    assert [at for at, _, _ in node.run(60.0).hung] == [pytest.approx(3.0)]


@pytest.mark.parametrize(("said", "found_at"), [(0, 3.0), (1, 3.0), (2, 21.0), (None, 21.0)])
def test_how_many_steps_are_the_first_is_the_scripts_word_before_what_was_given(said: int | None, found_at: float) -> None:
    node = Node(rank_section_timeouts={"step": 2.0, "warmup": 20.0}, num_warmup_iterations=5)
    node.signs[0] = Signs(sections=(opened("step", 1.0, count=1),), limits=SaidLimits(warmup_steps=said, count=1))
    assert [at for at, _, _ in node.run(60.0).hung] == [pytest.approx(found_at)]


def test_without_a_limit_for_warmup_the_first_steps_are_like_the_others() -> None:
    node = Node(rank_section_timeouts={"step": 2.0})
    node.signs[0] = Signs(sections=(opened("step", 1.0),))
    assert [at for at, _, _ in node.run(60.0).hung] == [pytest.approx(3.0)]


def test_what_the_script_says_goes_before_what_was_given() -> None:
    node = Node(rank_heartbeat_timeout=50.0)
    node.run(1.0).beat()
    node.signs[0] = Signs(first_beat_at=1.0, beat_at=1.0, beats=1, limits=SaidLimits(beat_s=4.0, count=1))
    assert [at for at, _, _ in node.run(60.0).hung] == [pytest.approx(5.0)]
    node = Node(rank_heartbeat_timeout=5.0)
    node.signs[0] = Signs(first_beat_at=1.0, beat_at=1.0, beats=1, limits=SaidLimits(beat_s=NEVER, count=1))
    assert node.run(2e4).hung == [], "it says that there is no limit"


def test_a_limit_that_is_set_late_is_in_force_after_a_glance() -> None:
    node = Node(rank_heartbeat_timeout=None)
    node.run(100.1).beat()
    node.signs[0] = Signs(first_beat_at=100.1, beat_at=100.1, beats=1, limits=SaidLimits(beat_s=0.5, count=1))
    (found,) = node.run(200.0).hung
    assert found[0] <= 100.6 + GLANCE_S


def test_a_line_of_progress_is_a_heartbeat() -> None:
    node = Node(rank_heartbeat_timeout=10.0)
    node.logged[0] = (5.0, 1)
    assert [at for at, _, _ in node.run(60.0).hung] == [pytest.approx(15.0)]


def test_a_rank_that_has_ended_is_judged_no_longer() -> None:
    node = Node(2, start_limit=3.0)
    node.show(RankGone(local_rank=0))
    assert [rank for _, rank, _ in node.run(60.0).hung] == [1]
    node.show(RankGone(local_rank=1))
    assert node.machine.deadline() == NEVER


# --- limits that were learned -----------------------------------------------------------------------------------------------

LEARNED = {"least_limit": 10.0, "most_limit": 1000.0, "still_limit": 500.0}


def trained(node: Node, beats: int = 60, every_s: float = 1.0) -> Node:
    for _ in range(beats):
        for rank in node.signs:
            node.beat(rank)
        node.run(node.now + every_s)
    return node


def test_ranks_that_stand_still_after_their_learned_limit_hang() -> None:
    node = trained(Node(2, **LEARNED))
    node.busy = {0: False, 1: False}
    (at, _, reason), *_ = node.run(400.0).hung
    assert 59.0 + 10.0 < at < 59.0 + 10.0 + 5.0
    assert "(learned limit 10 s)" in reason and "nothing on this node has done anything" in reason


@pytest.mark.parametrize("for_s", [5.0, 9.0])
def test_a_hang_that_was_played_and_is_over_teaches_nobody_also_not_those_who_waited(for_s: float) -> None:
    node, other = trained(Node(2, **LEARNED)), trained(Node(2, **LEARNED))
    for one in (node, other):
        one.run(one.now + for_s)
    node.show(FaultPlayed())
    node.run(node.now + 0.5)  # looked at before the ranks go on
    for one in (trained(node, 3), trained(other, 3)):
        taught = one.machine.state.learned.longest_s("beat")
        assert taught >= for_s if one is other else taught < 2.0


def test_ranks_that_wait_for_one_that_works_do_not_hang_until_the_most_limit() -> None:
    """It evaluates: no steps are made, and the others wait at a barrier."""
    node = trained(Node(2, **LEARNED))
    node.busy = {0: True, 1: False}
    node.run(1000.0)
    assert node.hung == []
    node.run(1100.0)
    assert [rank for _, rank, _ in node.hung] == [0, 1]


def test_gpus_that_work_are_work() -> None:
    node = trained(Node(1, **LEARNED))
    node.busy[0], node.gpus_busy = False, True
    assert node.run(900.0).hung == [] and 0 < node.asked < 500
    node.gpus_busy = False
    assert len(node.run(920.0).hung) == 1


@pytest.mark.parametrize("how", ["pdb", "gdb"])
def test_who_is_debugged_and_who_waits_for_it_do_not_hang_until_the_most_limit(how: str) -> None:
    node = trained(Node(2, **LEARNED))
    node.busy = {0: False, 1: False}
    if how == "pdb":
        node.signs[0] = replace(node.signs[0], sections=(opened(hooks.DEBUGGER, node.now),))
    else:
        node.states[0] = "t"
    assert node.run(900.0).hung == []
    assert node.run(1100.0).hung != []


@pytest.mark.parametrize(("looks", "told"), [(AT_WORK - 1, False), (AT_WORK, True)])
def test_other_nodes_are_told_of_one_that_works_in_silence_but_not_of_one_that_only_wakes_up(looks: int, told: bool) -> None:
    node = trained(Node(2, **LEARNED))
    node.busy = {0: False, 1: False}
    node.run(node.now + LEARNED["least_limit"])
    assert node.machine.state.ranks[0].suspected and busy_for_s(node.machine.state) == 0
    for _ in range(looks):
        node.busy[0] = True
        node.run(node.machine.deadline())
    assert (busy_for_s(node.machine.state) > 0) == told


def test_other_nodes_are_told_of_one_at_which_somebody_sits() -> None:
    node = trained(Node(2, **LEARNED))
    node.busy = {0: False, 1: False}
    node.signs[0] = replace(node.signs[0], sections=(opened(hooks.DEBUGGER, node.now),))
    node.run(node.now + 2 * LEARNED["least_limit"])
    assert busy_for_s(node.machine.state) > 0


def test_one_that_is_stopped_hangs_though_the_others_spin() -> None:
    node = trained(Node(2, **LEARNED))
    node.busy[1], node.states[1] = False, "T"
    (_, rank, reason) = node.run(400.0).hung[0]
    assert rank == 1 and reason.endswith("it is stopped (SIGSTOP)")


def test_a_rank_that_gets_a_third_of_a_core_is_at_work_however_closely_it_is_looked_at() -> None:
    """Under a short limit looks are 50 ms apart, in which it spends less than the kernel's grain."""
    still = Stillness()
    for tick in range(100):
        at = 0.05 * tick
        still = still.looked(RankMeasured(local_rank=0, cpu_s=round(at / 3, 2), io_bytes=0, state="R"), at)
        assert at - still.since <= 0.2


def test_a_burst_after_a_long_rest_is_work() -> None:
    still = Stillness()
    for at in range(0, 151, 15):
        still = still.looked(RankMeasured(local_rank=0, cpu_s=0.2 if at >= 120 else 0.0, io_bytes=0, state="S"), float(at))
    assert still.since == 120.0


def test_of_those_that_hang_together_the_one_furthest_behind_is_named() -> None:
    node = trained(Node(3, **LEARNED))
    for rank, step in ((0, 60), (1, 59), (2, 60)):
        node.beat(rank, step=step, step_at=node.now)
    node.busy = dict.fromkeys(range(3), False)
    assert node.run(node.now + 30.0).hung[0][1] == 1


def test_a_rank_that_shows_nothing_hangs_only_after_a_long_stillness_of_the_node() -> None:
    node = Node(2, **LEARNED)
    node.run(2000.0)
    assert node.hung == []
    node.busy = {0: False, 1: False}
    (at, _, _) = node.run(4000.0).hung[0]
    assert 2500.0 <= at <= 2620.0


def test_what_took_long_once_is_allowed_again() -> None:
    node = trained(Node(1, **LEARNED))
    node.run(node.now + 9.0).beat()  # a checkpoint
    trained(node, 10)
    assert node.machine.state.limits.beat(Signs()).limit_s == pytest.approx(50.0, rel=0.05)


def test_what_others_of_the_job_needed_is_known_from_the_start() -> None:
    node = Node(1, job_s={"beat": 30.0}, **LEARNED)
    node.beat()
    assert node.machine.state.limits.beat(Signs()).limit_s == 150.0


def test_a_process_that_ends_is_judged_by_no_heartbeat_any_more() -> None:
    node = Node(rank_heartbeat_timeout=2.0, rank_section_timeouts={"save": 2.0}, least_limit=20.0, most_limit=None)
    node.run(1.0).beat()
    sections = (opened("save", 1.0),)
    node.signs[0] = Signs(first_beat_at=1.0, beat_at=1.0, beats=1, exit_at=1.5, sections=sections)
    node.run(500.0)
    assert node.hung == [], "it works"
    node.busy[0] = False
    (at, _, reason) = node.run(530.0).hung[0]
    assert 505.0 <= at < 510.0 and reason.startswith("its script has ended, but not its process for")


def test_a_rank_that_waits_for_a_processor_does_not_stand_still() -> None:
    node = trained(Node(1, **LEARNED))
    node.busy[0], node.states[0] = False, "R"
    assert node.run(900.0).hung == []


# --- our own absence --------------------------------------------------------------------------------------------------------


def test_time_in_which_the_agent_was_stopped_counts_against_nobody() -> None:
    node = Node(rank_heartbeat_timeout=12.0)
    node.run(1.0).beat()
    node.run(5.0).sleep(3600.0)
    assert node.hung == []
    node.run(3606.0)
    assert node.hung == []
    assert len(node.run(3620.0).hung) == 1


# --- for any story ----------------------------------------------------------------------------------------------------------

gaps = st.lists(st.floats(0.01, 30.0), min_size=1, max_size=40)


@settings(max_examples=60, deadline=None)
@given(gaps, st.floats(0.5, 30.0))
def test_a_given_limit_is_neither_missed_nor_early(seconds: list[float], limit_s: float) -> None:
    """Whenever the heartbeats come: a rank is told exactly when its first gap exceeds the limit."""
    node = Node(rank_heartbeat_timeout=limit_s)
    node.beat()
    last = 0.0
    for gap_s in seconds:
        node.run(last + gap_s)
        if node.hung:
            break
        node.beat()
        last += gap_s
    too_long = [gap_s for gap_s in seconds if gap_s > limit_s + 1e-3]
    if not too_long and all(abs(gap_s - limit_s) > 1e-3 for gap_s in seconds):
        assert node.hung == []
    if node.hung:
        assert node.hung[0][0] - last == pytest.approx(limit_s, abs=1e-3)
    else:
        assert not too_long


@settings(max_examples=60, deadline=None)
@given(gaps, st.booleans())
def test_a_rank_that_works_is_never_taken_for_hung_by_a_learned_limit(seconds: list[float], beats_many: bool) -> None:
    node = Node(2, least_limit=1.0, most_limit=None, still_limit=20.0)
    if beats_many:
        trained(node, 40, 0.2)
    for gap_s in seconds:
        node.run(node.now + gap_s)
        node.beat(0)
    assert node.hung == []


@settings(max_examples=60, deadline=None)
@given(gaps, st.floats(5.0, 5000.0))
def test_looks_are_bounded_in_number(seconds: list[float], least_s: float) -> None:
    """What it costs: a glance per GLANCE_S, and one more look per limit that could have run out."""
    node = Node(1, least_limit=least_s, most_limit=None)
    for gap_s in seconds:
        node.run(node.now + gap_s)
        node.beat(0)
    assert len(node.looks) <= 2 * node.now / GLANCE_S + len(seconds) + 2


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.1, 500.0), st.floats(1.5, 5000.0)), max_size=8))
def test_however_often_the_agent_is_stopped_nobody_is_blamed(times: list[tuple[float, float]]) -> None:
    """Its ranks are stopped with it, and beat in between."""
    node = Node(rank_heartbeat_timeout=600.0)
    node.beat()
    for awake_s, asleep_s in times:
        node.run(node.now + awake_s)
        node.beat()
        node.sleep(max(node.now + asleep_s, node.machine.deadline()))
    assert node.hung == []


@settings(max_examples=60, deadline=None)
@given(st.floats(0.5, 600.0), st.lists(st.tuples(st.floats(0.0, 0.4), st.floats(0.0, 5000.0)), max_size=8))
def test_a_host_that_stands_still_within_a_short_limit_is_no_ranks_fault(
    limit_s: float, times: list[tuple[float, float]]
) -> None:
    """Before the limit runs out, or after. `times`: the part of the limit in which all are awake, then seconds of a stop."""
    node = Node(2, rank_heartbeat_timeout=limit_s)
    for awake, asleep_s in times:
        node.beat(0)
        node.beat(1)
        node.run(node.now + awake * limit_s).sleep(node.now + asleep_s)
    assert node.hung == []
