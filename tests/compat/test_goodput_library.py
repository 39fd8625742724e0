"""Google's own goodput calculator and our version of its definition, over the same lives of a job.

They should agree where steps are made again; `make google` brings the library, into a folder of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import pytest
from kit import SCRIPTS

from holdfast.telemetry.goodput.published import Steps, by_steps

LIBRARY = Path(sys.prefix) / "goodput"
PROBE = SCRIPTS / "goodput_library.py"

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="ml-goodput-measurement is not here: make google")

AT = 1_700_000_000.0


def life(first: int, last: int, began_s: float, step_s: float = 2.0) -> Steps:
    return Steps(first=first, last=last, began_at=AT + began_s, ended_at=AT + began_s + (last + 1 - first) * step_s)


def as_entries(lives: Sequence[Steps], job: str) -> list[dict[str, str | int | float]]:
    """These lives as ml-goodput-measurement's recorder would have logged them (its keys), for its own calculator.

    The step after a life's last is taken to have begun, unless the next life begins with it: then it ended between two steps.
    """
    entries: list[dict[str, str | int | float]] = []
    for life, following in zip_longest(lives, lives[1:]):
        begun = life.last + (following is None or following.first != life.last + 1)
        entries.append({"job_name": job, "job_start_time": life.began_at})
        for step in range(life.first, begun + 1):
            at = life.began_at + (step - life.first) * life.step_s
            entries.append({"job_name": job, "step_count": step, "step_start_time": at})
    if lives:
        entries.append({"job_name": job, "job_end_time": lives[-1].ended_at})
    return entries


@pytest.mark.parametrize(
    "lives",
    [
        (life(0, 99, 0.0),),
        (life(0, 48, 0.0), life(40, 99, 160.0)),
        (life(0, 48, 0.0), life(40, 69, 160.0), life(60, 99, 300.0)),
        (life(0, 48, 0.0, 3.0), life(0, 99, 500.0, 3.0)),
        (life(0, 48, 0.0), life(49, 99, 158.0)),
    ],
    ids=["undisturbed", "one crash", "two crashes", "all is lost", "nothing is lost, which neither sees"],
)
def test_their_calculator_agrees_within_half_a_percent(lives: tuple[Steps, ...]) -> None:
    env = {**os.environ, "PYTHONPATH": str(LIBRARY)}
    entries = json.dumps(as_entries(lives, "train"))
    done = subprocess.run([sys.executable, PROBE], input=entries, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert by_steps(lives) == pytest.approx(float(done.stdout) / 100, abs=0.005)
