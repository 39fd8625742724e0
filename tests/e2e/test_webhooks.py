"""Who is told of incidents is told of all, once or more, in order, however receiver, supervisor and we fare meanwhile."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.fleet.supervised import Supervised
from kit.fleet.told_fleet import ToldFleet
from kit.network.receiver import Receiver, receiver
from kit.ports import ports

from holdfast.supervisor.notify import webhook
from holdfast.supervisor.notify.delivery_queue import Notification, Phase


@pytest.fixture
def hook(wait_until: Any) -> Iterator[Receiver]:
    with receiver(wait_until) as made:
        yield made


@pytest.fixture
def told(tmp_path: Path) -> Iterator[ToldFleet]:
    made = ToldFleet(tmp_path / "fleet")
    yield made
    made.close()


class Notified:
    """`holdfast notify`, of that fleet."""

    def __init__(self, holdfast: Any, told: ToldFleet, wait_until: Any, *flags: object) -> None:
        self.command = ("notify", "--state", told.folder, *flags)
        self.holdfast, self.told, self.wait_until = holdfast, told, wait_until
        self.start()

    def start(self) -> None:
        """And wait until it listens: what is decided from now on is told."""
        self.running = self.holdfast.start(*self.command)
        kept = self.told.folder / "told"
        hooks = self.command.count("--webhook")
        self.told.change()
        self.wait_until(lambda: kept.is_dir() and len(list(kept.glob("*.json"))) >= hooks, what="it to listen")

    def kill(self) -> None:
        self.running.kill()
        self.running.process.wait()


def kept(wait_until: Any, folder: Path, deed: str, phase: str) -> None:
    """Wait until it stands on disk that this has been told: what it was killed before comes again."""
    known = lambda: [json.loads(file.read_text())["told"].get(deed) for file in (folder / "told").glob("*.json")]
    wait_until(lambda: phase in known(), what=f"{deed}.{phase} to be kept as told")


def ids(hook: Receiver, count: int) -> list[str]:
    return [post.json["id"] for post in hook.wait_for(count)]


def test_a_deed_is_told_in_words_and_in_fields_and_signed(holdfast, told, hook, tmp_path, wait_until):
    secret = tmp_path / "secret"
    secret.write_text("hush\n")
    Notified(holdfast, told, wait_until, "--webhook", f"{hook.url}/in?from=holdfast", "--webhook-secret-file", secret)
    told.deed("1-1", node="<!channel> b")
    hook.wait_for(1)
    told.deed("1-1", "c has taken over in round 2", node="<!channel> b")
    begun, ended = hook.wait_for(2)
    assert begun.path == "/in?from=holdfast" and begun.headers["Content-Type"] == "application/json"
    assert begun.headers["Idempotency-Key"] == begun.json["id"] == "1-1.begun" and ended.json["id"] == "1-1.ended"
    said = begun.json
    assert (said["node"], said["job"], said["act"], said["outcome"]) == ("<!channel> b", "train", "swap", "")
    assert (said["cause"], said["reason"]) == ("b was not heard for 5 s", "c takes over")
    assert "swap &lt;!channel&gt; b (job train): c takes over" in said["text"]
    assert ended.json["outcome"] == "c has taken over in round 2" and ended.json["ended_at_unix"] >= ended.json["at_unix"]
    for post in (begun, ended):
        wanted = hmac.new(b"hush", post.body, hashlib.sha256).hexdigest()
        assert post.headers["Holdfast-Signature"] == f"sha256={wanted}"


def test_what_is_not_taken_comes_again_in_order_and_a_refusal_is_final(holdfast, told, hook, wait_until):
    hook.answers = [503, (429, {"Retry-After": "1"}), 200, 404]
    notified = Notified(holdfast, told, wait_until, "--webhook", hook.url)
    told.deed("1")
    told.deed("2")
    told.deed("3")
    assert ids(hook, 2) == ["1.begun", "3.begun"]
    assert [post.json["id"] for post in hook.posts] == ["1.begun"] * 3 + ["2.begun", "3.begun"]
    notified.running.wait_for_output("has refused 2.begun (status 404): it is not sent again")
    assert "has not taken 1.begun (status 503): tried again in 1 s" in notified.running.stderr


def test_one_that_hangs_delays_nobody_else(holdfast, told, hook, wait_until):
    with receiver(wait_until) as hangs:
        hangs.answers = [None]
        Notified(holdfast, told, wait_until, "--webhook", hangs.url, "--webhook", hook.url)
        for number in range(5):
            told.deed(str(number), "done")
        assert ids(hook, 5) == [f"{number}.ended" for number in range(5)]
        wait_until(lambda: hangs.posts)
        assert hangs.taken == [] and len(hangs.posts) == 1


def test_an_attempt_that_we_give_up_is_not_laid_to_the_receiver(hook, monkeypatch):
    monkeypatch.setattr(webhook, "TRY_S", 0.2)
    hook.answers = [None] * 5
    notification = Notification(id="1.begun", phase=Phase.BEGUN, deed={"id": "1"})
    assert {webhook.Webhook(hook.url).deliver(notification).text for _ in range(5)} == {"no answer within 0.2 s"}


def test_one_that_is_away_is_told_when_it_is_back_also_by_another_life_of_ours(holdfast, told, hook, wait_until):
    hook.close()
    notified = Notified(holdfast, told, wait_until, "--webhook", hook.url)
    told.deed("1", "done")
    notified.running.wait_for_output("has not taken 1.ended")
    notified.kill()
    told.deed("2")
    notified.start()
    with receiver(wait_until, hook.port) as back:
        assert ids(back, 2) == ["1.ended", "2.begun"]
        kept(wait_until, told.folder, "2", "begun")
        notified.kill()
        told.deed("2", "in vain: late")
        notified.start()
        assert ids(back, 3) == ["1.ended", "2.begun", "2.ended"], "nothing that was taken comes again"


def test_a_supervisor_that_is_away_is_waited_for(holdfast, told, hook, wait_until):
    notified = Notified(holdfast, told, wait_until, "--webhook", hook.url)
    told.deed("1")
    assert ids(hook, 1) == ["1.begun"]
    told.close()
    notified.running.wait_for_output("the supervisor does not answer")
    again = ToldFleet(told.folder)
    again.deed("1", "done")
    assert ids(hook, 2) == ["1.begun", "1.ended"]
    again.close()


def test_what_makes_no_sense_is_refused_before_anything_starts(holdfast, tmp_path):
    for flags, said in (
        (("--webhook", "ftp://example.com/"), "is not http://host/path"),
        (("--webhook", "http://h:99999/"), "is not http://host/path"),
        (("--webhook", "http://[::1/"), "is not http://host/path"),
        (("--webhook", "http://h/", "--webhook-secret-file", tmp_path / "none"), "cannot be read"),
        (("--otlp", "collector:4318"), "is not http://host:port"),
        (("--otlp", "http://collector:port"), "is not http://host:port"),
    ):
        refused = holdfast.run("supervisor", "--listen", "127.0.0.1:0", "--http", "off", "--state", tmp_path / "fleet", *flags)
        assert refused.returncode == 2 and said in refused.stderr, refused.output
    assert "no receiver is given" in holdfast.run("notify", "--state", tmp_path).stderr
    lost = holdfast.run("notify", "--state", tmp_path / "nowhere", "--webhook", "http://h/")
    assert lost.returncode == 2 and "no supervisor keeps its state there" in lost.stderr and not (tmp_path / "nowhere").exists()


def test_the_swap_of_a_real_node_is_told_and_counted_and_once_though_all_are_killed(holdfast, job, tmp_path, wait_until, hook):
    fleet = Supervised(holdfast, job, f"127.0.0.1:{ports(1)[0]}", tmp_path, wait_until)
    flags = ("--webhook", hook.url, "--http", "off")
    fleet.start(*flags)
    agents = fleet.agents("a", "b", "c")
    wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit", "c": "spare"})
    hook.answers = [503]
    fleet.drain("b")
    ended = wait_until(lambda: next((post for post in list(hook.taken) if post.json["phase"] == "ended"), None))
    assert (ended.json["act"], ended.json["node"], ended.json["trouble"]) == ("swap", "b", "operator")
    assert ended.json["outcome"] == "c has taken over in round 2"
    wait_until(lambda: fleet.states() == {"a": "fit", "b": "unfit", "c": "fit"})
    shown = holdfast.run("top", "--once", "--state", fleet.state).stdout
    assert "b     unfit" in shown and "c has taken over in round 2" in shown and "supervisor, generation 1" in shown
    ranks = holdfast.run("top", "several", "--once", "--state", fleet.state).stdout
    assert "ranks of several" in ranks
    kept(wait_until, fleet.state, ended.json["id"].removesuffix(".ended"), "ended")
    fleet.kill()
    fleet.start(*flags)
    wait_until(lambda: fleet.states()["b"] == "unfit")
    fleet.holdfast.run("uncordon", "b", "--state", fleet.state)
    wait_until(lambda: [post for post in list(hook.taken) if post.json["act"] == "uncordon"])
    assert [post.json["id"] for post in hook.taken].count(ended.json["id"]) == 1, "what was taken does not come again"
    job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]


def test_who_tells_is_started_again_and_ends_with_the_supervisor(holdfast, tmp_path, hook, wait_until, alive):
    flags = ("--listen", "127.0.0.1:0", "--http", "off", "--state", tmp_path / "fleet", "--webhook", hook.url)
    running = holdfast.start("supervisor", *flags)
    running.wait_for_output("listening at")

    def command(pid: int) -> bytes:
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes()
        except OSError:  # it has ended meanwhile
            return b""

    def teller() -> int | None:
        return next((pid for pid in alive() if pid != running.pid and b"notify" in command(pid)), None)

    first = wait_until(teller)
    os.kill(first, signal.SIGKILL)
    running.wait_for_output("who tells webhooks and OpenTelemetry is gone (it was ended by SIGKILL)")
    wait_until(lambda: teller() not in (None, first))
    running.kill()
    wait_until(lambda: alive() == [])
