"""Of a fleet's answers, each with what has changed, the whole is put together again; rounds and frames are made of that."""

from __future__ import annotations

from typing import Any

from holdfast.cli.fleet.top_frame import fit, sections
from holdfast.supervisor.notify.round_events import Rounds, life_at
from holdfast.supervisor.snapshot import DEEDS, Snapshot


def whole(**more: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "generation": 2,
        "nodes": [{"name": "a", "state": "fit"}],
        "jobs": [],
        "deeds": [],
        "swaps": [],
    } | more


def test_what_has_changed_is_put_into_its_place():
    now = Snapshot()
    assert now.take(whole(deeds=[{"id": "1", "outcome": ""}])) == [("nodes", "a"), ("deeds", "1")]
    news = {
        "version": 2,
        "nodes": [{"name": "b"}],
        "jobs": [{"name": "j"}],
        "deeds": [{"id": "1", "outcome": "done"}, {"id": "2"}],
    }
    touched = now.take({**news, "swaps": [{"id": "2"}], "gone": {"nodes": ["a"], "jobs": []}})
    assert touched == [("nodes", "b"), ("nodes", "a"), ("jobs", "j"), ("deeds", "1"), ("deeds", "2")]
    assert now.tables["nodes"] == {"b": {"name": "b"}} and now.tables["jobs"] == {"j": {"name": "j"}}
    assert list(now.tables["deeds"].values()) == [{"id": "1", "outcome": "done"}, {"id": "2"}]
    assert now.head == {"version": 2, "generation": 2, "swaps": [{"id": "2"}]}
    now.take(whole())
    assert now.tables["nodes"] == {"a": {"name": "a", "state": "fit"}} and not now.tables["jobs"], "a whole answer replaces all"


def test_only_the_newest_deeds_are_remembered():
    known = Snapshot()
    known.take(whole())
    for number in range(DEEDS + 7):
        touched = known.take({"nodes": [], "jobs": [], "deeds": [{"id": str(number)}], "gone": {}})
    assert list(known.tables["deeds"]) == [str(number) for number in range(7, DEEDS + 7)]
    assert touched == [("deeds", str(DEEDS + 6)), ("deeds", "6")]


def job(round: int, state: str = "running", life: str = "x") -> dict[str, Any]:
    return {"name": "j", "state": state, "round": round, "lives": [{"life": life, "at_unix": 5.0}], "nodes": ["a"], "ranks": 2}


def test_a_round_lasts_until_another_runs_or_none_does():
    rounds = Rounds()
    assert rounds.hear([job(1)], 10.0) == rounds.hear([job(1)], 11.0) == []
    (first,) = rounds.hear([job(2)], 20.0)
    assert (first.round, first.began_unix, first.ended_unix, first.ranks, first.life) == (1, 10.0, 20.0, 2, "x")
    (second,) = rounds.hear([job(2, "joining")], 30.0)
    assert (second.round, second.ended_unix) == (2, 30.0) and rounds.hear([job(2, "joining")], 31.0) == []
    rounds.hear([job(1)], 40.0)
    assert [one.life for one in rounds.hear([job(1, life="y")], 50.0)] == ["x"], "the same number in another life is another"


def test_a_deed_belongs_to_the_life_that_its_job_was_in():
    lives = [{"life": "x", "at_unix": 5.0}, {"life": "y", "at_unix": 50.0}]
    jobs = [{"name": "j", "lives": lives}]
    assert [life_at(jobs, "j", at) for at in (1.0, 5.0, 49.0, 60.0)] == ["", "x", "x", "y"] and life_at(jobs, "k", 60.0) == ""


def test_the_tables_of_a_frame_share_the_room():
    assert fit([3, 2], 100) == [3, 2]
    assert fit([1000, 2, 500], 30) == [14, 2, 14]
    assert fit([1000, 9, 500], 1) == [1, 1, 1], "each has a row, however small the terminal is"


def test_a_frame_of_one_job_leaves_the_others_out():
    nodes = [
        {"name": name, "state": "fit", "jobs": [{"job": at, "ranks": [{"rank": 0, "state": "running"}]}]}
        for name, at in (("a", "j"), ("b", "k"))
    ]
    deeds = [{"at_unix": float(number), "job": at, "node": "a", "act": "swap", "reason": ""} for number, at in enumerate("jkj")]
    fleet = {"nodes": nodes, "jobs": [job(1), {**job(1), "name": "k"}], "deeds": deeds}
    shown = {section.title: [row[0] for row in section.rows] for section in sections(fleet, "j")}
    assert shown["nodes"] == ["a"] and shown["jobs"] == ["j"] and shown["ranks of j"] == ["0"]
    assert shown["newest decisions"] == ["1970-01-01 00:00:02 UTC", "1970-01-01 00:00:00 UTC"]
    assert "ranks of j" not in {section.title for section in sections(fleet)}, "of several jobs only the named one's ranks"
