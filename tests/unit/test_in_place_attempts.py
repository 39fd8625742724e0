"""Which attempt does a pod say that it is at, whatever its JobSet has counted?"""

from __future__ import annotations

import io
import json
import random
from email.message import Message
from typing import Any
from urllib.error import HTTPError

import pytest
from kit.servers.jobset_controller import CURRENT, PREVIOUS, status_of

from holdfast.integrations.kubernetes.jobset_in_place import Follower, attempt_of, bypass

JOBSET: dict[str, Any] = {
    "metadata": {"name": "train"},
    "spec": {
        "failurePolicy": {"restartStrategy": "InPlaceRestart", "maxRestarts": 1000},
        "replicatedJobs": [{"replicas": 1, "template": {"spec": {"parallelism": 3}}}],
    },
}


@pytest.mark.parametrize(
    ("own", "current", "previous", "says"),
    [
        pytest.param(None, None, None, 0, id="the first life of all pods"),
        pytest.param(None, 0, None, 1, id="a pod that is made again"),
        pytest.param(None, 4, 3, 5, id="and again"),
        pytest.param(None, 4, 4, 5, id="when others have been made again meanwhile"),
        pytest.param(None, None, 0, 1, id="a first life that is outdated before it has said so"),
        pytest.param(0, None, None, 0, id="others are still to come"),
        pytest.param(0, 0, None, 0, id="all are there"),
        pytest.param(0, 0, 0, 1, id="another pod was made again: we follow"),
        pytest.param(1, 0, 0, 1, id="we have followed"),
        pytest.param(1, 0, 4, 5, id="after a while without the API server"),
        pytest.param(1, 6, 4, 7, id="the others have got on without us"),
    ],
)
def test_a_pod_says_the_attempt_that_jobset_waits_for(own, current, previous, says):
    assert attempt_of(own, current, previous) == says


@pytest.mark.parametrize("seed", range(50))
def test_whatever_comes_first_all_agree_in_the_end_and_a_pod_made_again_counts_once_at_most(seed):
    choices, status, own, made_again = random.Random(seed), {}, [None, None, None], 0
    steps = [*(choices.choice(("again", "agent", "agent", "controller")) for _ in range(40)), *("agent", "controller") * 40]
    for number, step in enumerate(steps):
        pod = choices.randrange(3) if number < 40 else number // 2 % 3
        if step == "again":
            made_again, own[pod] = made_again + 1, None
        elif step == "agent":
            own[pod] = attempt_of(own[pod], status.get(CURRENT), status.get(PREVIOUS))
        else:
            status = status_of({**JOBSET, "status": status}, [attempt for attempt in own if attempt is not None])
    assert set(own) == {status[CURRENT]} and status[CURRENT] <= made_again


def test_nothing_is_said_to_a_jobset_that_does_not_ask_for_it():
    assert bypass(JOBSET) == ""
    disabled = {"name": "train", "annotations": {"jobset.sigs.k8s.io/disable-in-place-restart": ""}}
    assert "disable-in-place-restart" in bypass({**JOBSET, "metadata": disabled})
    for policy in ({}, {"failurePolicy": {"maxRestarts": 3}}, {"failurePolicy": {"restartStrategy": "Recreate"}}):
        assert bypass({**JOBSET, "spec": policy}) == "its restartStrategy is Recreate"


class Answers:
    """An API server that gives these answers in turn: a status that is none, or objects."""

    namespace = "default"

    def __init__(self, *answers: int | list[Any]) -> None:
        self.answers = list(answers)

    def open(self, what: str, path: str, **_: object) -> io.BytesIO:
        answer = self.answers.pop(0)
        if isinstance(answer, int):
            raise HTTPError(path, answer, "No", Message(), None)
        return io.BytesIO(b"\n".join(json.dumps(one).encode() for one in answer))


def follow(*answers: int | list[Any]) -> None:
    """Of a program that has said attempt 0 before."""
    there = {"metadata": {"resourceVersion": "7"}, "items": [JOBSET]}
    Follower(Answers([there], *answers), "train", "a", 0).follow()


def error(code: int) -> list[Any]:
    return [{"type": "ERROR", "object": {"code": code, "message": "so it is"}}]


@pytest.mark.parametrize("watch", [[], error(410), 410], ids=["at once", "by an event", "by a status"])
def test_a_watch_that_cannot_be_gone_on_with_is_no_trouble(watch):
    follow(watch)


@pytest.mark.parametrize(("watch", "said"), [(error(500), "500 so it is"), (503, "503"), ([{"type": "ADDED"}], "object")])
def test_a_watch_that_goes_wrong_is_trouble(watch, said):
    with pytest.raises((OSError, KeyError), match=said):
        follow(watch)
