"""What has changed since a version, and for whom that is enough to know."""

from __future__ import annotations

from holdfast.supervisor.change_log import LIFE, ChangeLog


def test_whoever_knows_a_version_is_told_what_is_newer_and_each_thing_once():
    changes = ChangeLog(generation=1)
    known = changes.version
    for key in ("a", "b", "a"):
        changes.mark("nodes", key)
    changes.mark("jobs", "train")
    assert changes.since(known) == {"jobs": ["train"], "nodes": ["a", "b"]}
    known = changes.version
    assert changes.since(known) == {}
    changes.mark("nodes", "b")
    assert changes.since(known) == {"nodes": ["b"]} and changes.knows(known)


def test_a_version_of_another_life_is_no_knowledge():
    old, new = ChangeLog(generation=3), ChangeLog(generation=4)
    old.mark("nodes", "a")
    assert old.version < new.version and not new.knows(old.version) and not new.knows(0) and not old.knows(new.version)
    assert not new.knows(4 * LIFE) and new.knows(new.version)


def test_what_is_forgotten_is_not_told_of():
    changes = ChangeLog()
    known = changes.version
    changes.mark("deeds", "1-1")
    changes.forget("deeds", "1-1")
    assert changes.since(known) == {}
