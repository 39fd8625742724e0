"""How a rank gets on, as `holdfast status` says it."""

from __future__ import annotations

import pytest

from holdfast.cli.job.status import described

BEAT = {"of": "beat", "limit_s": 600.0, "basis": "learned"}
SAVE = {"of": "section save", "limit_s": 30.0, "basis": "given"}


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        ({}, "-"),
        ({"limits": [{"of": "first", "limit_s": None, "basis": "learned"}]}, "no sign yet"),
        ({"limits": [{"of": "first", "limit_s": 60.0, "basis": "given"}]}, "no sign yet (limit: start 1 min)"),
        ({"step": 1, "limits": [BEAT | {"basis": "usual"}]}, "step 1 (limits: heartbeat 10 min if it stands still)"),
        (
            {"step": 7, "section": "save", "beat_age_s": 1.5, "limits": [BEAT, SAVE]},
            "step 7, in save, 1.5 s ago (limits: heartbeat 10 min learned, save 30 s)",
        ),
        ({"step": 7, "overdue": "no heartbeat for 9.0 s (limit 9 s)"}, "hangs: no heartbeat for 9.0 s (limit 9 s)"),
    ],
)
def test_what_is_said_of_a_rank(progress: dict[str, object], words: str) -> None:
    assert described(progress) == words
