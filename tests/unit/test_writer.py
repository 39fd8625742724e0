"""What the script says, as it stands in the page, on a clock that the test sets."""

from __future__ import annotations

import asyncio
import dis
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.agent.workers.rank_stacks import reached
from holdfast.client import writer as module
from holdfast.client.writer import Section, Writer
from holdfast.core.page import layout
from holdfast.core.page.signs import Limits, SectionSigns
from holdfast.runtime.shm.pages import Page, create_page

INFINITY = float("inf")


class Clock:
    """Monotonic time, in seconds, as the writer asks for it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    set_by_hand = Clock()
    monkeypatch.setattr(module, "monotonic_ns", set_by_hand)
    return set_by_hand


@pytest.fixture
def page() -> Iterator[Page]:
    made = create_page()
    yield made
    made.close()


@pytest.fixture
def writer(page: Page) -> Iterator[Writer]:
    made = Writer()
    made.attach(page.words)
    yield made
    made.words = None


def section_of(page: Page, name: str) -> SectionSigns:
    return next(section for section in page.signs().sections if section.name == name)


# --- heartbeats and steps -----------------------------------------------------------------------------------------------


def test_a_step_that_the_script_tells_is_told_apart_from_one_that_was_counted(page: Page, writer: Writer) -> None:
    assert page.last_step == (None, False)
    writer.progress(3, by_script=False)
    assert page.last_step == (3, False)
    writer.progress(1200)
    assert page.last_step == (1200, True)


def test_a_heartbeat_is_dated_and_the_longest_gap_is_kept(page: Page, writer: Writer, clock: Clock) -> None:
    for at in (100.0, 102.0, 107.0, 108.0):
        clock.now = at
        writer.heartbeat()
    seen = page.signs()
    assert (seen.first_beat_at, seen.beat_at, seen.beats, seen.longest_gap_s) == (100.0, 108.0, 4, 5.0)
    assert seen.step is None and seen.sections == () and seen.out_since is None


def test_progress_is_a_heartbeat_with_a_step_and_its_duration(page: Page, writer: Writer, clock: Clock) -> None:
    writer.progress(0)
    assert (page.signs().step, page.signs().step_took_s) == (0, 0.0)
    clock.now = 103.0
    writer.progress(7)
    seen = page.signs()
    assert (seen.step, seen.step_at, seen.step_took_s) == (7, 103.0, 3.0)
    assert (seen.first_beat_at, seen.beat_at, seen.beats, seen.longest_gap_s) == (100.0, 103.0, 2, 3.0)


@pytest.mark.parametrize("wrong", [-1, 1.5, "3", None])
def test_a_step_that_is_no_whole_number_is_named(page: Page, writer: Writer, wrong: object) -> None:
    with pytest.raises(ValueError, match=r"step: .* is not a whole number, 0 or more"):
        writer.progress(wrong)  # type: ignore[arg-type]
    assert page.signs().step is None and page.signs().beats == 0


# --- sections -----------------------------------------------------------------------------------------------------------


def test_a_section_is_open_while_it_runs(page: Page, writer: Writer, clock: Clock) -> None:
    with writer.section("checkpoint"):
        assert section_of(page, "checkpoint") == SectionSigns(name="checkpoint", open_since=100.0)
        clock.now = 104.0
    with writer.section("checkpoint"):
        clock.now = 105.0
    wanted = SectionSigns(name="checkpoint", took_s=1.0, longest_s=4.0, count=2, closed_at=105.0)
    assert section_of(page, "checkpoint") == wanted


def test_sections_nest_and_overlap_and_time_without_any_is_counted(page: Page, writer: Writer, clock: Clock) -> None:
    first, second = writer.section("first"), writer.section("second")
    assert page.signs().out_since is None  # none has been used yet
    first.__enter__()
    clock.now = 101.0
    second.__enter__()
    first.__exit__()
    assert page.signs().out_since is None
    clock.now = 103.0
    second.__exit__()
    assert page.signs().out_since == 103.0
    clock.now = 109.0
    with writer.section("first"):
        assert (page.signs().out_since, page.signs().longest_out_s) == (None, 6.0)
    assert [(section.name, section.took_s, section.count) for section in page.signs().sections] == [
        ("first", 0.0, 2),
        ("second", 2.0, 1),
    ]


def test_a_section_entered_twice_is_closed_when_all_have_left(page: Page, writer: Writer, clock: Clock) -> None:
    with writer.section("load"):
        clock.now = 101.0
        with writer.section("load"):
            clock.now = 102.0
        assert section_of(page, "load").open_since == 100.0
    assert section_of(page, "load") == SectionSigns(name="load", took_s=2.0, longest_s=2.0, count=1, closed_at=102.0)


def test_an_exception_closes_the_section_and_goes_on(page: Page, writer: Writer) -> None:
    with pytest.raises(KeyError), writer.section("a"), writer.section("b"):
        raise KeyError
    assert [(section.open_since, section.count) for section in page.signs().sections] == [(None, 1), (None, 1)]


def test_what_others_mark_is_no_section_of_the_script(page: Page, writer: Writer, clock: Clock) -> None:
    with writer.named("checkpoint"):
        clock.now = 101.0
    assert section_of(page, "checkpoint").count == 1
    assert page.signs().out_since is None, "the script uses none, so it is not out of them"
    with writer.section("step"):
        pass
    with writer.named("checkpoint"):
        clock.now = 102.0
    assert page.signs().out_since == 102.0


def test_all_sections_can_be_closed_at_once(page: Page, writer: Writer) -> None:
    for name in ("a", "b", "a"):
        writer.section(name).__enter__()
    writer.close_all()
    assert [section.open_since for section in page.signs().sections] == [None, None]
    writer.section("a").__exit__()
    assert section_of(page, "a").count == 1, "one that is closed cannot be closed again"


def test_functions_generators_and_coroutines_can_be_decorated(page: Page, writer: Writer) -> None:
    def is_open() -> bool:
        return section_of(page, "work").open_since is not None

    @writer.section("work")
    def plain(x: int, *, y: int) -> tuple[int, bool]:
        """Its text."""
        return x + y, is_open()

    @writer.section("work")
    def generator() -> Iterator[bool]:
        yield is_open()

    @writer.section("work")
    async def coroutine() -> bool:
        await asyncio.sleep(0)
        return is_open()

    assert plain(1, y=2) == (3, True)
    assert (plain.__name__, plain.__doc__) == ("plain", "Its text.")
    assert list(generator()) == [True]
    assert asyncio.run(coroutine())
    assert not is_open() and section_of(page, "work").count == 3
    with pytest.raises(TypeError, match="asynchronous generator"):

        @writer.section("work")
        async def asynchronous_generator():
            yield 1


@pytest.mark.parametrize("name", ["", "x" * 65, "é" * 33, "a\0b", 7, None])
def test_a_name_that_does_not_fit_is_refused(writer: Writer, name: object) -> None:
    with pytest.raises(ValueError, match=r"section: .* is not a name of 1 to 64 bytes \(UTF-8\)"):
        writer.section(name)  # type: ignore[arg-type]


def test_names_of_64_bytes_and_32_of_them_fit(page: Page, writer: Writer) -> None:
    names = ["é" * 32, *(f"part {number}" for number in range(31))]
    for name in names:
        with writer.section(name):
            pass
    with pytest.raises(ValueError, match=r"section 'one more' is one too many: at most 32, and there are .*part 30"):
        writer.section("one more")
    assert [section.name for section in page.signs().sections] == names
    assert writer.section("part 30") is writer.section("part 30")


# --- limits -------------------------------------------------------------------------------------------------------------


def test_limits_are_counted_so_that_a_change_is_seen(page: Page, writer: Writer) -> None:
    assert page.signs().limits == Limits()
    writer.set_limits(initial_s=600, beat_s=0.5)
    assert page.signs().limits == Limits(initial_s=600.0, beat_s=0.5, count=1)
    writer.set_limits(out_s=INFINITY)
    assert page.signs().limits == Limits(out_s=INFINITY, count=2)
    for limit_s in (30.0, 30.0, INFINITY):
        with writer.section("save", limit_s=limit_s):
            assert section_of(page, "save").limit_s == limit_s
    assert page.signs().limits.count == 4, "the same limit again is no change"
    with writer.section("save"):
        assert section_of(page, "save").limit_s == INFINITY


def test_how_many_steps_are_slow_is_told_beside_the_limits(page: Page, writer: Writer) -> None:
    writer.set_warmup(0)
    assert page.signs().limits == Limits(warmup_steps=0, count=1)
    writer.set_warmup(3)
    writer.set_limits(beat_s=0.5)
    assert page.signs().limits == Limits(beat_s=0.5, warmup_steps=3, count=3)
    with pytest.raises(ValueError, match="0 or more"):
        writer.set_warmup(-1)


@pytest.mark.parametrize("wrong", [0, -1.0, float("nan")])
def test_a_limit_that_is_none_is_refused(writer: Writer, wrong: float) -> None:
    with pytest.raises(ValueError, match=r"limit: .* is not a number of seconds above 0"):
        writer.set_limits(beat_s=wrong)
    with pytest.raises(ValueError, match=r"limit: .* is not a number of seconds above 0"):
        writer.section("a", limit_s=wrong)


def test_calculated_limits_are_told_in_full_and_each_change_once(page: Page, writer: Writer) -> None:
    assert page.calculated() is None
    writer.tell_calculated(0.25, 0.5, None, {"save": 3.5})
    writer.tell_calculated(0.25, 0.75, 2.0, {"save": 3.5, "load": 0.125})
    wanted = {"first": 0.25, "beat": 0.75, "out": 2.0, "section save": 3.5, "section load": 0.125}
    assert (page.calculated(), page.calculated()) == (wanted, None)
    assert page.signs().limits == Limits() and section_of(page, "save").limit_s is None, "in force is what is set"
    writer.tell_calculated(None, None, 1.0, {})
    assert page.calculated() == {"out": 1.0, "section save": 3.5, "section load": 0.125}


# --- requests -----------------------------------------------------------------------------------------------------------


def test_a_request_is_heard_once_and_a_later_one_takes_its_place(page: Page, writer: Writer) -> None:
    assert page.asked() is None
    assert writer.ask("exclude", "bad memory") is True
    writer.ask("stop", "é" * 200)
    assert page.asked() == ("stop", "é" * 120)
    assert page.asked() is None
    writer.ask("stop", "é" * 200)
    assert page.asked() == ("stop", "é" * 120), "the same again is another request"


def test_a_request_wakes_until_somebody_is_roused(page: Page) -> None:
    roused = [0, 0, 1]
    writer = Writer()
    writer.attach(page.words, lambda: roused.pop(0))
    writer.ask("stop", "enough")
    assert roused == []


@pytest.mark.parametrize("filling", [b"\xff", b"\x01", b"\x80\x00", b"\x39\x00\x00\x00\x00\x00\x00\x00", b"holdfast"])
def test_a_script_that_scribbles_over_its_page_harms_only_itself(page: Page, filling: bytes) -> None:
    page.map[:] = filling * (len(page.map) // len(filling))
    seen = page.signs()
    assert len(seen.sections) == 32 and seen.beats > 0
    assert page.asked() is None
    assert page.ask_for_stacks() != "" and page.stacks() == ""
    assert page.ask_for_collectives() == bool(page.words[layout.HEARS])
    page.words[layout.REQUEST_SEEN] = page.words[layout.REQUEST_COUNT]
    said = page.collectives()
    assert said is not None and reached(said[0]) == () and len(said[0] + said[1]) <= layout.RECORD_ROOM
    assert page.error_at_unix is not None and len(page.trouble) <= 256


# --- without a page, in threads, in signal handlers ---------------------------------------------------------------------


def test_without_a_page_nothing_happens(clock: Clock) -> None:
    writer = Writer()
    writer.heartbeat()
    writer.progress(3)
    writer.set_limits(beat_s=1)
    with writer.section("a", limit_s=2):
        pass
    assert writer.ask("stop", "enough") is False


def test_what_was_said_of_sections_before_there_was_a_page_is_in_it(page: Page) -> None:
    writer = Writer()
    early = writer.section("early", limit_s=5)
    early.__enter__()
    writer.attach(page.words)
    early.__exit__()
    assert page.signs().sections == (SectionSigns(name="early", limit_s=5.0),)


@pytest.fixture(params=[False, True], ids=["with a lock", "without"])
def switching(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Threads take turns as often as the interpreter lets them, with sections locked as elsewhere, and as here."""
    if request.param and not module.UNBROKEN:
        pytest.skip("this interpreter may switch anywhere")
    monkeypatch.setattr(module, "UNBROKEN", request.param)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("switching")
def test_threads_may_share_it_all(page: Page, writer: Writer) -> None:
    threads, times = 8, 400
    start = threading.Barrier(threads)

    def use(number: int) -> None:
        start.wait()
        for step in range(times):
            with writer.section("shared"), writer.section(f"own {number}"):
                writer.heartbeat()
            writer.progress(step)

    running = [threading.Thread(target=use, args=[number]) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    seen = page.signs()
    assert 0 < seen.beats <= 2 * threads * times
    assert seen.step == times - 1
    sections = {section.name: section for section in seen.sections}
    assert {section.open_since for section in seen.sections} == {None}
    assert [sections[f"own {number}"].count for number in range(threads)] == [times] * threads
    assert 0 < sections["shared"].count <= threads * times
    assert seen.out_since is not None
    assert [writer.section(name).depth for name in sections] == [0] * len(sections)


@pytest.mark.parametrize("method", [Section.__enter__, Section.__exit__])
def test_a_section_calls_nothing_between_the_time_and_its_end(method: Callable[..., object]) -> None:
    """Where it has no lock, that is what keeps others out."""
    names = [(one.opname, one.argval) for one in dis.get_instructions(method)]
    asked = next(at for at, (_, what) in enumerate(names) if what == "monotonic_ns")
    called = next(at for at, (name, _) in enumerate(names) if at > asked and name == "CALL")
    unlocks = next(at for at, (_, what) in enumerate(names) if at > asked and what == "release")
    between = {name for name, _ in names[called + 1 : unlocks]}
    assert "STORE_SUBSCR" in between
    assert not {name for name in between if name.startswith(("CALL", "JUMP_BACKWARD", "RESUME", "SEND", "FOR_ITER", "WITH"))}


@pytest.mark.usefixtures("switching")
def test_a_signal_handler_may_come_in_between(page: Page, writer: Writer) -> None:
    """SIGTERM's handler saves a checkpoint, say, while its own thread is within a call."""
    came = 0
    section: Section = writer.section("checkpoint")

    def handler(signum: int, frame: object) -> None:
        nonlocal came
        came += 1
        with section:
            writer.heartbeat()

    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    entered = 0
    try:
        while came < 50:
            entered += 1
            with section:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    seen = section_of(page, "checkpoint")
    assert seen.open_since is None and section.depth == 0
    assert entered <= seen.count <= entered + came


def test_every_call_is_in_the_reference() -> None:
    from holdfast import client
    from holdfast.client import control

    text = (Path(__file__).parents[2] / "docs/reference/client.md").read_text()
    calls = [*(set(client.__all__) - {"control"}), *(f"control.{name}" for name in control.__all__)]
    assert [call for call in calls if f"| `{call}" not in text] == []
