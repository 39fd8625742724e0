"""When warm spares are made, used, kept and ended."""

from __future__ import annotations

import pytest

from holdfast.agent.spares import machine as spares
from holdfast.agent.spares.import_list import Changes, at_load, contradiction, differences, is_line, merged
from holdfast.agent.spares.machine import (
    GUESS_BYTES,
    LEAST_ROOM_BYTES,
    LONGEST_AGE_S,
    MOST_FAILURES,
    QUIET_S,
    SURVEY_S,
    WATCH_S,
    MiB,
    Spares,
)
from holdfast.agent.spares.messages import (
    EndSpare,
    Lost,
    Made,
    MakeSpare,
    Ready,
    RoundBegan,
    RoundEnds,
    RoundOver,
    StandingBy,
    StartWith,
    Survey,
    Surveyed,
    Used,
    WorkerDue,
)
from holdfast.agent.spares.state import PATIENCE, no_spares
from holdfast.core.job.events import SpareLost, SpareReady
from holdfast.core.machine import NEVER, Action, Record, Say, Tick

GiB = 1024 * MiB


class Stage:
    """One node's spares, and the time."""

    def __init__(self, nproc: int = 2, wanted: int | None = None, fork: bool = False) -> None:
        self.machine = Spares(no_spares(nproc, wanted, fork=fork))
        self.now = 100.0
        self.pid = 1000

    def see(self, seen: object) -> list[Action]:
        """What it does; spares that it makes get a pid each, from 1001 on."""
        actions = self.machine.observe(seen, self.now)  # type: ignore[arg-type]
        for action in actions:
            if isinstance(action, MakeSpare):
                self.pid += 1
                assert self.machine.observe(Made(slot=action.slot, pid=self.pid), self.now) == []
        return actions

    def survey(self, *, beating: bool = True, room: int = 64 * GiB, modules: int = 9, **more: object) -> list[Action]:
        facts = {"reached": True, "total_bytes": 64 * GiB, "sizes": {}} | more
        return self.see(Surveyed(beating=beating, modules=modules, room_bytes=room, **facts))

    def train(self, **how: object) -> list[Action]:
        self.see(RoundBegan())
        return self.survey(**how)  # type: ignore[arg-type]

    def ready(self, pid: int, *, size: int = 200 * MiB, reads: frozenset[str] = frozenset()) -> list[Action]:
        return self.see(Ready(pid=pid, import_s=1.5, reads=reads, size_bytes=size))

    def choose(self, local_rank: int, changed: dict[int, Changes]) -> tuple[int, str]:
        """The spare that becomes this worker, or -1 and why none does."""
        (found,) = self.see(WorkerDue(local_rank=local_rank, changed=changed))
        assert isinstance(found, StartWith)
        return found.pid, found.cold_because

    def used(self, pid: int, trouble: str = "") -> None:
        assert self.see(Used(pid=pid, trouble=trouble)) == []

    def all_ready(self) -> None:
        self.train()
        self.ready(1001)
        self.survey()
        for pid in range(1002, self.pid + 1):
            self.ready(pid)


def made(actions: list[Action]) -> list[int]:
    return [action.local_rank for action in actions if isinstance(action, MakeSpare)]


def test_nothing_is_made_before_the_ranks_train() -> None:
    stage = Stage()
    assert stage.see(RoundBegan()) == []
    assert stage.machine.deadline() == stage.now + SURVEY_S
    assert stage.see(Tick()) == [Survey()]
    assert stage.survey(beating=False) == []
    assert stage.machine.deadline() == stage.now + SURVEY_S
    assert made(stage.survey(beating=True)) == [0]


def test_without_heartbeats_they_train_when_no_module_is_loaded_any_more() -> None:
    stage = Stage()
    stage.see(RoundBegan())
    for modules in (5, 90, 91):
        stage.now += QUIET_S - 0.1
        assert stage.survey(beating=False, modules=modules) == []
    stage.now += QUIET_S
    assert made(stage.survey(beating=False, modules=91)) == [0]


def test_the_first_shows_what_one_needs_and_the_others_follow() -> None:
    stage = Stage(nproc=4)
    assert made(stage.train()) == [0]
    assert made(stage.survey()) == []
    (noted,) = stage.ready(1001)
    assert noted == Record(event=SpareReady(local_rank=0, pid=1001, import_s=1.5, mb=200.0))
    assert stage.machine.deadline() == stage.now and stage.see(Tick()) == [Survey()]
    assert made(stage.survey()) == [1, 2, 3]
    assert stage.machine.deadline() == stage.now + WATCH_S


def test_auto_leaves_memory_to_others_and_says_so() -> None:
    stage = Stage(nproc=4)
    assert made(stage.train(room=6 * GiB + GUESS_BYTES)) == []
    assert stage.choose(0, {}) == (-1, "memory is short: 6656 MiB are left on this host")
    assert made(stage.survey(room=7 * GiB)) == [0]
    stage.ready(1001)
    assert made(stage.survey(room=int(6.4 * GiB) + 401 * MiB)) == [1, 2]


def test_a_number_is_made_whatever_the_memory() -> None:
    stage = Stage(nproc=1, wanted=2)
    assert made(stage.train(room=LEAST_ROOM_BYTES // 2)) == [0]


def test_a_spare_that_memory_is_needed_from_is_ended() -> None:
    stage = Stage()
    stage.all_ready()
    ended, noted = stage.survey(room=3 * GiB)
    assert ended == EndSpare(pid=1002)
    assert isinstance(noted, Record) and isinstance(noted.event, SpareLost) and "memory is short" in noted.event.reason


def test_no_spare_where_the_script_would_run_instead_of_waiting() -> None:
    assert made(Stage().train(reached=False)) == []


def test_one_that_waits_becomes_the_worker() -> None:
    stage = Stage()
    stage.all_ready()
    assert stage.choose(1, {1002: {}}) == (1002, "")
    stage.used(1002)
    assert stage.choose(1, {}) == (-1, "the last one has become a worker, and no other was ready yet")
    assert stage.choose(0, {1001: {}}) == (1001, "")


def test_one_that_still_imports_does_not() -> None:
    stage = Stage()
    assert made(stage.train()) == [0]
    assert stage.choose(0, {1001: {}}) == (-1, "it was still importing")
    stage.ready(1001)
    assert stage.choose(0, {1001: {}}) == (1001, "")


def test_after_a_restart_they_are_made_anew_once_it_trains() -> None:
    stage = Stage()
    stage.all_ready()
    for pid in (1001, 1002):
        stage.used(pid)
    stage.see(RoundBegan())
    assert stage.survey(beating=False) == []
    assert made(stage.survey()) == [0, 1]


def test_ranks_that_end_are_no_reason_to_make_any() -> None:
    stage = Stage()
    stage.train()
    stage.see(RoundOver())
    stage.ready(1001)
    assert stage.see(Tick()) == [Survey()] and made(stage.see(RoundOver())) == []


def test_while_ranks_are_slow_to_end_what_is_lacking_is_made() -> None:
    stage = Stage()
    stage.all_ready()
    for pid in (1001, 1002):
        stage.used(pid)
    stage.see(RoundBegan())
    stage.see(RoundEnds())
    assert stage.machine.deadline() == stage.now + SURVEY_S
    assert stage.see(Tick()) == [Survey()]
    assert made(stage.survey(beating=False, between=True)) == [0, 1]
    assert stage.machine.state.awaited_until == stage.now + PATIENCE * 1.5
    stage.ready(1003)
    stage.ready(1004)
    assert stage.machine.state.awaited_until == -NEVER


def test_nothing_is_made_between_rounds_where_no_rank_has_trained_yet() -> None:
    stage = Stage()
    stage.see(RoundBegan())
    stage.see(RoundEnds())
    assert made(stage.survey(between=True)) == []


def test_how_long_a_spare_takes_is_not_guessed() -> None:
    stage = Stage(nproc=1)
    assert made(stage.train()) == [0]
    assert stage.machine.state.awaited_until == -NEVER


def test_no_start_waits_for_what_would_find_its_environment_contradicted_again() -> None:
    stage = Stage(nproc=1)
    stage.train()
    stage.ready(1001, reads=frozenset({"RANK"}))
    stage.choose(0, {1001: {"RANK": ("0", "1")}})
    assert made(stage.survey(between=True)) == []
    assert made(stage.train()) == [0] and stage.machine.state.awaited_until == -NEVER
    stage.ready(1002)
    assert stage.choose(0, {1002: {}}) == (1002, "")
    stage.used(1002)
    assert made(stage.survey(between=True)) == [0] and stage.machine.state.awaited_until > stage.now


def test_a_worker_that_must_find_another_value_starts_cold() -> None:
    stage = Stage(nproc=1)
    stage.train()
    stage.ready(1001, reads=frozenset({"RANK", "HOME"}))
    pid, why = stage.choose(0, {1001: {"WORLD_SIZE": ("2", "3"), "RANK": ("1", "0")}})
    assert pid == -1 and why == "RANK, which its imports have read, was '1' and is '0' now"
    actions = stage.survey()
    assert actions[0] == EndSpare(pid=1001) and made(actions) == [0]


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "LC_ALL", "PYTHONHASHSEED", "LD_PRELOAD"])
def test_what_compiled_code_reads_need_not_be_seen_to_be_read(name: str) -> None:
    assert contradiction({name: (None, "1")}, ()) == f"{name}, which its imports have read, was not set and is '1' now"
    assert contradiction({"TORCHELASTIC_RESTART_COUNT": ("0", "1"), "MASTER_PORT": ("1", "2")}, ()) == ""


def test_differences_name_what_is_gone_and_what_is_new() -> None:
    before, after = {"a": "1", "b": "2", "c": "3", "page": "9"}, {"a": "1", "b": "4", "d": "5"}
    assert differences(before, after, but=["page"]) == {"b": ("2", "4"), "c": ("3", None), "d": (None, "5")}


def test_an_import_that_fails_is_told_once_and_is_not_tried_for_ever() -> None:
    stage = Stage(nproc=1)
    stage.train()
    noted, said = stage.see(Lost(pid=1001, reason="importing x failed"))
    assert isinstance(noted, Record) and isinstance(said, Say) and "importing x failed" in said.text
    assert stage.choose(0, {}) == (-1, "importing x failed")
    for failure in range(1, MOST_FAILURES):
        assert made(stage.train()) == [0]
        assert len(stage.see(Lost(pid=1001 + failure, reason="importing x failed"))) == 1
    assert made(stage.train()) == []


def test_old_and_grown_ones_are_made_anew() -> None:
    stage = Stage(nproc=1)
    stage.all_ready()
    assert stage.survey(sizes={1001: 300 * MiB}) == []
    assert stage.survey(sizes={1001: 500 * MiB})[0] == EndSpare(pid=1001)
    stage.ready(stage.pid)
    stage.now += LONGEST_AGE_S + 1
    assert stage.survey()[0] == EndSpare(pid=stage.pid - 1)


def test_one_is_there_for_all_where_workers_are_forked() -> None:
    stage = Stage(nproc=3, fork=True)
    assert made(stage.train()) == [0]
    stage.ready(1001)
    for local_rank in range(3):
        assert stage.choose(local_rank, {1001: {}}) == (1001, "")
        stage.used(1001)
    stage.used(1001, "it has 2 threads")
    assert stage.choose(0, {}) == (-1, "it has 2 threads")


def test_fewer_spares_than_workers() -> None:
    assert Stage(nproc=2, wanted=1).choose(1, {}) == (-1, "there are fewer spares than workers")


def test_a_node_that_waits_for_a_place_makes_them_at_once() -> None:
    stage = Stage(nproc=1)
    assert stage.see(StandingBy()) == [] and stage.machine.deadline() == stage.now
    assert made(stage.survey()) == [0]


def test_what_a_node_that_waits_could_not_know_is_told() -> None:
    stage = Stage(nproc=1)
    stage.see(StandingBy())
    stage.survey()
    stage.ready(1001, reads=frozenset({"RANK"}))
    _, why = stage.choose(0, {1001: {"RANK": ("0", "3")}})
    assert why == "RANK, which its imports have read, was '0' and is '3' now; this node had no rank yet"


def test_without_spares_and_ranks_there_is_nothing_to_wait_for() -> None:
    stage = Stage()
    assert stage.machine.deadline() == NEVER
    assert stage.see(Tick()) == []
    assert spares.SURVEY_S < spares.QUIET_S


# --- what is imported -------------------------------------------------------------------------------------------------------


def test_who_imports_less_ahead_says_once_why() -> None:
    stage = Stage()
    stage.train()
    _, said = stage.see(Ready(pid=1001, import_s=1.5, reads=frozenset(), until="OMP_NUM_THREADS", size_bytes=MiB))
    what = "the script changes OMP_NUM_THREADS, so warm spares import only what comes before: set it for the whole job instead"
    assert said == Say(text=what, level="warning")
    stage.survey()
    assert len(stage.see(Ready(pid=1002, import_s=1.5, reads=frozenset(), until="OMP_NUM_THREADS", size_bytes=MiB))) == 1


def test_a_change_comes_no_later_than_for_anybody() -> None:
    assert merged([], ["os", "=A 1", "torch"]) == ["os", "=A 1", "torch"]
    assert merged(["os", "torch"], ["os", "=A 1", "torch", "late"]) == ["os", "=A 1", "torch", "late"]
    assert merged(["os", "torch"], ["=A 1", "os"]) == ["=A 1", "os", "torch"]
    lines = ["os", "=A 1", "torch"]
    assert merged(lines, ["=A 2", "torch", "os"]) is lines, "a value of each life would be a line for each life"


@pytest.mark.parametrize("line", ["torch", "torch.nn", "=RANK 1f", "=RANK -", "?mine"])
def test_lines_that_another_node_may_say(line: str) -> None:
    assert is_line(line)


@pytest.mark.parametrize("line", ["", "torch nn", "a;b", "=A 1\nos", "?", "?mine /x", "!A 1"])
def test_lines_that_it_may_not(line: str) -> None:
    assert not is_line(line)


def test_what_compiled_code_reads_as_it_is_loaded_is_marked() -> None:
    lines = ["os", "=OMP_NUM_THREADS 1f", "=CUDA_VISIBLE_DEVICES 1f", "=MINE 1f", "OMP_"]
    assert [at_load(line) for line in lines] == ["os", "!OMP_NUM_THREADS 1f", *lines[2:]]
