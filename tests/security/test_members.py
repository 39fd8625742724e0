"""What can somebody do who does know the token? Nonsense and other nodes' words are refused, and no name moves the cursor."""

from __future__ import annotations

import pytest

from holdfast.core.errors import ProtocolError
from holdfast.core.job.failure import Failure
from holdfast.core.job.report import JobReport
from holdfast.core.wire.links import Arrived, HangUp, LinkDown, LinkUp
from holdfast.core.wire.messages import (
    Failed,
    Finish,
    Join,
    Leave,
    Renew,
    Renewed,
    Request,
    RequestKind,
    Stop,
    Stopped,
    Waiting,
)
from holdfast.rendezvous.link_router import LinkRouter
from holdfast.rendezvous.member import Member
from holdfast.runtime.net.codec import decode

REPORT = JobReport(job="secure", outcome="failed", exit_code=1, started_at_unix=0, ended_at_unix=1, reason="because I say so")

NONSENSE = {
    "no JSON": (b"\x00\xff garbage \x1b[2J", "not a message: "),
    "deep": (b'{"is":' + b"[" * 200_000, "not a message: "),
    "huge number": (b'{"is":"Renew","node":"n","round":' + b"9" * 5000 + b"}", "not a message: "),
    "huge round": (b'{"is":"Renew","node":"n","round":99999999999}', "Expected `int` <= 2147483648"),
    "NaN": (b'{"is":"Renew","node":"n","round":1,"sent_at":NaN}', "not a message: "),
    "surrogate": (b'{"is":"Renew","node":"\\ud800","round":1}', "not a message: "),
    "long name": (b'{"is":"Leave","node":"' + b"n" * 500 + b'","round":1,"reason":""}', "Expected `str` of length <= 300"),
    "nothing known": (b'{"is":"Exec","node":"n","argv":["sh"]}', "not a message: "),
    "the coordinator's part": (Finish(report=REPORT), "it may not send Finish"),
}


def join(node: str, name: str = "b") -> Join:
    return Join(node=node, name=name, addr="127.0.0.1", master_port=1, nproc=1, role="default")


def test_nonsense_after_the_handshake_gets_a_line_and_costs_nothing(job):
    job.begin()
    for what, (said, line) in NONSENSE.items():
        if what in ("deep", "huge number", "NaN", "surrogate"):
            continue  # the same line as "no JSON", in the next test
        peer = job.peer()
        peer.prove("secure")
        peer.say(said)
        peer.until_closed()
        if what not in ("nothing known", "the coordinator's part"):  # an address gets four lines
            job.said(line)
    stderr = job.finish()
    assert "\x1b" not in stderr and stderr.count("hung up on") == 5  # four, and the last of those that were counted


@pytest.mark.parametrize("what", ["deep", "huge number", "NaN", "surrogate"])
def test_json_that_is_none_gets_a_line_and_costs_nothing(job, what):
    job.begin()
    said, line = NONSENSE[what]
    peer = job.peer()
    peer.prove("secure")
    peer.say(said)
    peer.until_closed()
    job.said(line)
    assert job.finish().count("hung up on") == 1


def test_a_frame_of_4_gib_is_refused_after_the_handshake_too(job):
    job.begin()
    peer = job.peer()
    peer.prove("secure")
    peer.send(b"\xff\xff\xff\xff" + bytes(1000))
    peer.until_closed()
    job.said("it announced a frame of 4294967295 bytes")
    job.finish()


def test_a_link_speaks_for_one_node_only(job):
    job.begin("--max-restarts", 0, nnodes="1:1")
    peer = job.peer()
    peer.prove("secure")
    peer.say(Renew(node="spare-1-aa", round=0))
    assert isinstance(peer.told(), Stop)  # it has no seat: "join, or go"
    peer.say(Leave(node="a-1-bb", round=1, reason="goodbye"))
    peer.until_closed()
    job.said("a link of spare-1-aa said Leave for a-1-bb")
    job.finish()


def test_who_speaks_for_others_again_and_again_fills_no_log(job):
    job.begin()
    for number in range(60):
        peer = job.peer()
        peer.prove("secure")
        for node in (f"x\x1b{number}", f"y{number}"):
            peer.say(Leave(node=node, round=1, reason="goodbye"))
        peer.until_closed()
    stderr = job.finish()
    assert 0 < stderr.count("said Leave for") <= 5 and "56 times more" in stderr and "\x1b" not in stderr


def test_a_node_s_name_cannot_move_the_cursor_or_forge_a_line(job):
    job.begin(nnodes="1:1")
    evil = "b\x1b[2J\x1b]0;owned\x07\r\nholdfast[a]: all is well\n\u202eevil"
    peer = job.peer()
    peer.prove("secure")
    peer.say(join("b-1-aa", evil))
    peer.say(Renew(node="b-1-aa", round=0, sent_at=1.0))
    assert [type(peer.told()) for _ in range(2)] == [Waiting, Renewed]
    peer.say(Request(node="b-1-aa", kind=RequestKind.STOP, reason=f"stopped by {evil}"))
    while not isinstance(peer.told(), Finish):
        pass
    peer.say(Leave(node="b-1-aa", round=0, reason="the job is over"))
    peer.sock.close()
    assert job.agent.wait().returncode == 1
    shown = job.agent.stderr
    for command in ("status", "why", "report", "events", "jobs"):
        shown += job.holdfast(command).output
    assert "owned" in shown and "\x1b" not in shown and "\x07" not in shown and "\r" not in shown and "\u202e" not in shown
    assert not any(line.startswith("holdfast[a]: all is well") for line in shown.splitlines())


# --- the server alone -------------------------------------------------------------------------------------------------------


class Deaf:
    """A round machine that notes what it hears."""

    def __init__(self) -> None:
        self.heard: list[object] = []
        self.seats: dict[str, object] = {}

    def observe(self, seen: object, now: float) -> list[object]:
        self.heard.append(seen)
        return []


def server() -> tuple[LinkRouter, Deaf]:
    deaf = Deaf()
    return LinkRouter(deaf), deaf  # type: ignore[arg-type]


def test_a_node_may_come_back_over_a_new_link():
    serving, deaf = server()
    for link in (100, 101):
        serving.observe(LinkUp(link=link, ours=False), 0.0)
        serving.observe(Arrived(link=link, message=Renew(node="n", round=1)), 0.0)
    assert len(deaf.heard) == 2 and serving.links == {"n": 101}


@pytest.mark.parametrize(
    "stolen",
    [
        Leave(node="m", round=1, reason="bye"),
        Stopped(node="m", round=1),
        Failed(node="m", round=1, failure=Failure(node="m", rank=0, at_unix=0.0)),
        Request(node="m", kind=RequestKind.STOP, reason="bye"),
        join("m"),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_a_link_says_for_another_node_is_not_heard(stolen):
    serving, deaf = server()
    serving.observe(LinkUp(link=100, ours=False), 0.0)
    serving.observe(Arrived(link=100, message=Renew(node="n", round=1)), 0.0)
    (hung_up,) = serving.observe(Arrived(link=100, message=stolen), 0.0)
    assert len(deaf.heard) == 1 and "m" not in serving.links
    assert hung_up == HangUp(link=100, why=f"a link of n said {type(stolen).__name__} for m")
    serving.observe(LinkDown(link=100, reason="closed"), 0.0)
    assert serving.idle


@pytest.mark.parametrize("said", ['"lease_s":1e12', '"lease_s":-1', '"lease_s":3,"sent_at":NaN'])
def test_no_coordinator_s_word_binds_a_node_for_longer_than_a_day(said):
    with pytest.raises(ProtocolError):
        decode(b'{"is":"Renewed",' + said.encode() + b"}")


def test_a_lease_is_counted_from_no_later_than_now_whatever_the_coordinator_gives_back():
    member = Member("b", endpoint="a:1", join_timeout_s=60.0, now=0.0)
    member.observe(LinkUp(link=member.link, ours=True), 1.0)
    member.observe(Arrived(link=member.link, message=Renewed(lease_s=3.0, sent_at=1e12)), 2.0)
    assert member.lease_ends is not None and member.lease_ends <= 5.0
