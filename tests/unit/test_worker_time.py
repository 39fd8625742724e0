"""Where the workers' time went: each second in one state, whatever became of the job."""

from __future__ import annotations

import json
import sys
from io import BytesIO
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageColor, ImageFont
from test_timeline import Story, two_lives

from holdfast.core.errors import UsageError
from holdfast.core.job.events import Event, JobEnded, NodeLost, RankHung, RanksBegun, RanksEnded
from holdfast.telemetry.goodput.accounting import STATES, Goodput, goodput, shares
from holdfast.telemetry.goodput.drawing import COLOURS, FINER, picture, png, trace
from holdfast.telemetry.goodput.published import Steps, by_checkpoints, by_steps, steps_told
from holdfast.telemetry.record.reader import merge

NOTHING: dict[str, Any] = dict.fromkeys(("booted_s", "joining_s", "joined_s", "restored_s", "stepped_s"))


def begun(**fields: Any) -> RanksBegun:
    return RanksBegun(**{**NOTHING, "restore_s": 0.0, "booted_s": 0.5, **fields})


def ended(**fields: Any) -> RanksEnded:
    return RanksEnded(**{"last_step": None, "last_step_s": None, "saved_s": None, **fields})


def folded(story: Story, *running: str) -> Goodput:
    return goodput(merge(story.records.values()), story.told(*running), story.now)


def spent(found: Goodput) -> dict[str, float]:
    return {state: worker_s for state, worker_s in found.worker_s.items() if worker_s}


def one_node(*events: tuple[Event, float]) -> Story:
    """Agent at 1; formed at 1, its rank started at 2; then these, so long after what was before."""
    story = Story()
    story.agents("a")
    story.life(1, 0, "a")
    for event, after_s in events:
        story.then("a", event, after_s)
    return story


def again(story: Story, *events: tuple[Event, float]) -> Story:
    """Its rank is killed a second later and gone another second later; formed anew at once, started after one more."""
    story.failure("a", 0)
    story.exit("a", 0, -9)
    story.life(2, 1, "a")
    for event, after_s in events:
        story.then("a", event, after_s)
    return story


def test_a_life_passes_through_its_beginnings_into_its_steps() -> None:
    told = begun(joining_s=2.0, joined_s=3.0, restored_s=5.0, restore_s=1.5, stepped_s=6.0)
    story = one_node((told, 10.0))
    story.exit("a", 0, 0)
    story.then("a", JobEnded(outcome="succeeded", exit_code=0, reason=""), 2.0)
    assert spent(folded(story)) == {
        "start": 1.5, "import": 1.5, "first collective": 1.0, "restore": 1.5, "first step": 1.5, "productive": 5.0, "idle": 2.0,
    }  # fmt: skip


def test_where_no_rank_tells_of_steps_a_rank_that_runs_is_productive() -> None:
    assert spent(folded(one_node((begun(), 5.0)), "a")) == {"start": 1.5, "productive": 4.5}
    binary = one_node((JobEnded(outcome="stopped", exit_code=1, reason=""), 5.0))
    assert spent(folded(binary)) == {"start": 1.0, "productive": 5.0}


def test_steps_that_are_made_again_are_lost() -> None:
    """Ten steps of 1 s, from 0; the next life begins with step 6: four are made again, and what came after the last is lost."""
    first = one_node((begun(stepped_s=1.0, first_step=0), 1.0), (ended(last_step=9, last_step_s=10.0), 9.0))
    found = folded(again(first, (begun(stepped_s=1.0, first_step=6), 1.0)), "a")
    assert found.worker_s["lost steps"] == 5.0
    assert found.worker_s["productive"] == 5.0, "of the six that stayed, the first is a state of its own"


def test_steps_that_stayed_are_not_lost_though_the_job_was_down() -> None:
    """Where nothing is made again, others see no interruption at all."""
    first = one_node((begun(stepped_s=1.0, first_step=0), 1.0), (ended(last_step=9, last_step_s=10.0), 9.0))
    found = folded(again(first, (begun(stepped_s=1.0, first_step=10), 1.0)), "a")
    assert found.worker_s["lost steps"] == 1.0, "only the step that was under way"
    assert 0.5 < found.goodput < 1.0


def test_without_numbers_a_checkpoint_tells_what_stayed() -> None:
    first = one_node((begun(stepped_s=1.0), 1.0), (ended(last_step_s=10.0, saved_s=8.0), 9.0))
    restored = begun(restored_s=0.75, restore_s=0.25, stepped_s=1.0)
    assert folded(again(first, (restored, 1.0)), "a").worker_s["lost steps"] == 3.0

    def unsaved() -> Story:
        return one_node((begun(stepped_s=1.0), 1.0), (ended(last_step_s=10.0), 9.0))

    assert folded(again(unsaved(), (restored, 1.0)), "a").worker_s["lost steps"] == 10.0, "an earlier life's checkpoint"
    assert folded(again(unsaved(), (begun(stepped_s=1.0), 1.0)), "a").worker_s["lost steps"] == 0.0, "nobody tells"


def test_a_hang_is_counted_from_the_last_sign_of_life() -> None:
    hung = RankHung(rank=0, local_rank=0, pid=10, reason="no heartbeat for 4 s", quiet_s=4.0)
    found = folded(one_node((begun(stepped_s=1.0), 1.0), (hung, 9.0)), "a")
    assert spent(found) == {"start": 1.5, "first step": 0.5, "productive": 5.0, "hang": 4.0}


def test_what_a_smaller_life_has_not_is_missing() -> None:
    story = two_lives()
    story.then("a", NodeLost(name="b", reason="silent", silent_s=0.0), 5.0)
    story.life(3, 1, "a")
    story.then("a", JobEnded(outcome="succeeded", exit_code=0, reason=""), 10.0)
    found = folded(story)
    assert found.worker_s["missing"] == 11.0
    assert found.goodput < found.present
    assert sum(shares(found).values()) == pytest.approx(1.0)


def test_a_node_without_a_place_is_a_spare() -> None:
    story = Story()
    story.agents("a", "b")
    story.life(1, 0, "a")
    story.then("a", begun(), 5.0)
    assert folded(story, "a", "b").worker_s["spare"] == 6.0


def test_what_is_folded_of_a_running_job_is_folded_of_its_files() -> None:
    """The same records at the same moment: only who asks is another."""
    story = two_lives()
    live = folded(story, "a", "b")
    assert folded(story, "a", "b") == live and live.until == story.now


@given(st.data())
def test_each_second_of_each_worker_is_in_one_state(data: st.DataObject) -> None:
    """Whatever was recorded, and in whichever order."""
    story = Story()
    story.agents("a", "b")
    pause = st.sampled_from((0.0, 0.5, 3.0))
    numbers = st.one_of(st.none(), st.sampled_from((0.5, 1.0, 4.0)))
    for number in range(1, data.draw(st.integers(1, 4)) + 1):
        story.life(number, number - 1, *data.draw(st.sampled_from((("a", "b"), ("a",), ("b",)))))
        for node in data.draw(st.lists(st.sampled_from("ab"), max_size=4)):
            moments = {name: data.draw(numbers) for name in NOTHING}
            kind = data.draw(st.sampled_from(("begun", "ended", "failure", "hung", "exit", "lost")))
            match kind:
                case "begun":
                    story.then(node, RanksBegun(**moments, restore_s=data.draw(pause), first_step=data.draw(st.integers(0, 3))))
                case "ended":
                    told = {"last_step_s": data.draw(numbers), "saved_s": data.draw(numbers)}
                    story.then(node, ended(last_step=data.draw(st.integers(0, 9)), **told), data.draw(pause))
                case "failure":
                    story.failure(node, 0, after_s=data.draw(pause))
                case "hung":
                    hung = RankHung(rank=0, local_rank=0, pid=1, reason="", quiet_s=data.draw(pause))
                    story.then(node, hung, data.draw(pause))
                case "exit":
                    story.exit(node, 0, data.draw(st.sampled_from((0, -9))), data.draw(pause))
                case "lost":
                    story.then(node, NodeLost(name=node, reason="", silent_s=data.draw(pause)), data.draw(pause))
    found = folded(story, *data.draw(st.sampled_from(((), ("a",), ("a", "b")))))
    assert set(found.worker_s) == set(STATES) and 0.0 <= found.goodput <= found.present <= 1.0
    for node in "ab":
        own = sorted((span.begin, span.end) for span in found.spans if span.node == node)
        assert all(begin < end for begin, end in own)
        assert all(end == begin for (_, end), (begin, _) in pairwise(own)), own
        assert not own or own[0][0] == story.records[node][0].at


def test_the_trace_and_the_picture_show_every_span() -> None:
    found = folded(two_lives(), "a", "b")
    events = json.loads(trace("a <job>", found))["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) == len(found.spans)
    drawn = ElementTree.fromstring(picture("a <job> & more", found))
    bars = [bar for bar in drawn.iter("{http://www.w3.org/2000/svg}rect") if len(bar)]
    assert len(bars) == len(found.spans) and "a <job> & more" in "".join(drawn.itertext())


def pixels(content: bytes) -> dict[Any, int]:
    """Colour → how many."""
    with Image.open(BytesIO(content)) as image:
        return {colour: count for count, colour in image.getcolors(image.width * image.height)}


def test_the_picture_as_png_shows_the_same() -> None:
    found = folded(two_lives(), "a", "b")
    drawn = ElementTree.fromstring(picture("größe\x1b[2J\n & more", found))
    content = png("größe\x1b[2J\n & more", found)
    with Image.open(BytesIO(content)) as image:
        assert (image.format, image.size) == ("PNG", tuple(FINER * int(drawn.attrib[side]) for side in ("width", "height")))
        for bar in (bar.attrib for bar in drawn.iter("{http://www.w3.org/2000/svg}rect") if len(bar)):
            middle = [FINER * (float(bar[at]) + float(bar[long]) / 2) for at, long in (("x", "width"), ("y", "height"))]
            assert float(bar["width"]) < 1 or image.getpixel(tuple(map(round, middle))) == ImageColor.getrgb(bar["fill"])
    assert {ImageColor.getrgb(COLOURS[state]) for state in spent(found)} < set(pixels(content))
    assert pixels(content)[0, 0, 0] > 500, "words"


def test_without_pillow_a_png_is_refused_and_what_to_install_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(UsageError, match=r"holdfast\[png\]"):
        png("job", folded(two_lives(), "a", "b"))


def test_where_no_font_is_installed_there_are_words_too(monkeypatch: pytest.MonkeyPatch) -> None:
    found = folded(two_lives(), "a", "b")
    truetype = ImageFont.truetype

    def without_files(font: Any, *size: Any, **how: Any) -> Any:
        if isinstance(font, str):
            raise OSError("cannot open resource")
        return truetype(font, *size, **how)

    monkeypatch.setattr(ImageFont, "truetype", without_files)
    assert pixels(png("job", found))[0, 0, 0] > 500


def test_what_others_say_of_the_same_trace() -> None:
    """A hundred steps of 2 s with a crash in the fiftieth and a minute's outage. Their own calculator: 71.43 %, and 100 % where
    nothing is made again."""
    first = Steps(first=0, last=48, began_at=0.0, ended_at=98.0, saved=39)
    again = Steps(first=40, last=99, began_at=160.0, ended_at=280.0, saved=99)
    assert by_steps([first, again]) == pytest.approx(0.7143, abs=1e-4)
    assert by_checkpoints([first, again], 0.0, 280.0) == pytest.approx(200 / 280)
    on = Steps(first=49, last=99, began_at=158.0, ended_at=260.0)
    assert by_steps([first, on]) == 1.0, "an outage of which it knows nothing"
    assert by_steps([]) is None and by_checkpoints([on], 0.0, 280.0) is None


def test_the_steps_of_a_life_are_those_that_its_ranks_told() -> None:
    """Steps of 1 s: the first was done 1 s after the start, at 2; the checkpoint at 6.5 has the first six."""
    story = one_node((begun(stepped_s=1.0, first_step=3), 1.0), (ended(last_step=12, last_step_s=10.0, saved_s=6.5), 9.0))
    (steps,) = steps_told(merge(story.records.values()))
    assert steps == Steps(first=3, last=12, began_at=2.0, ended_at=12.0, saved=8) and steps.step_s == 1.0
    assert steps_told(merge(one_node((begun(), 1.0)).records.values())) == []
