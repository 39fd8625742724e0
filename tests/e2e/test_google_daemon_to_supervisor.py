"""Google's own daemon, unmodified, reports to our supervisor: its ranks, their failures, its host's GPUs, and that it is there.

`make google` puts it into an environment of its own; without that these tests are skipped. What it says, and when, is held here
to what unit/test_google_hosts.py plays.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from kit.hosts.google_parts import GOOGLE, Talking  # noqa: E402
from kit.hosts.host_service import HostService  # noqa: E402
from kit.ports import port_of  # noqa: E402

from holdfast.core.wire.google_sensor import EventReports, HostInfo  # noqa: E402
from holdfast.core.wire.google_wire import FAILED, RUNNING  # noqa: E402
from holdfast.supervisor.daemon.google_hosts import SAME_TURN_S  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not GOOGLE.exists(), reason="google-cloud-resiliency-supervisor is not here: make google"),
    pytest.mark.timeout(300),
]

NODE = os.uname().nodename
"""Google's daemon knows a worker by its host's name and its device."""

Started = Callable[..., Talking]


@pytest.fixture
def google() -> Iterator[Started]:
    """`google(script, *arguments)`: one of its parts."""
    parts: list[Talking] = []

    def start(script: str, *arguments: object) -> Talking:
        parts.append(Talking(script, *arguments))
        return parts[-1]

    yield start
    for part in parts:
        part.process.kill()
        part.process.communicate()


class Fleet:
    """Our supervisor, and what Google's daemons report to."""

    def __init__(self, holdfast: Any, folder: Path, wait_until: Any) -> None:
        self.holdfast, self.state, self.wait_until = holdfast, folder / "fleet", wait_until
        where = "--listen", "127.0.0.1:0", "--http", "off", "--state", self.state
        supervisor = f"127.0.0.1:{port_of(holdfast.start('supervisor', *where))}"
        flags = "--listen", "127.0.0.1:0", "--supervisor", supervisor, "--every", 1
        self.sensor = holdfast.start("google-sensor", *flags)
        self.port = port_of(self.sensor)

    def node(self) -> dict[str, Any]:
        told = self.holdfast.run("nodes", "--json", "--state", self.state)
        return next((one for one in json.loads(told.stdout) if one["name"] == NODE), {})

    def stands(self) -> tuple[str, list[tuple[str, list[int]]]]:
        """Its state, and its jobs with their ranks."""
        node = self.node()
        jobs = [(one["job"], [rank["rank"] for rank in one["ranks"]]) for one in node.get("jobs", []) if one["job"]]
        return node.get("state", ""), jobs

    def becomes(self, state: str, *jobs: tuple[str, list[int]]) -> None:
        self.wait_until(lambda: self.stands() == (state, list(jobs)), what=lambda: f"{self.stands()} {self.sensor.stderr}")

    def deeds(self) -> list[tuple[str, str, str]]:
        told = self.holdfast.run("why", NODE, "--json", "--state", self.state)
        return [(deed["trouble"], deed["act"], deed["outcome"]) for deed in json.loads(told.stdout)["deeds"]]


class Heard:
    """What a daemon has said of its host, in turn, without what it only repeats."""

    def __init__(self, sensor: HostService) -> None:
        self.sensor, self.seen = sensor, 0

    def next(self) -> HostInfo:
        while True:
            method, data = self.next_call()
            if method.endswith("ReportEvent"):
                return EventReports.decode(data).reports[0].host
            if method.endswith("SensorService/Heartbeat"):
                return HostInfo.decode(data)

    def next_call(self) -> tuple[str, bytes]:
        while len(self.sensor.calls) == self.seen:
            time.sleep(0.01)
        self.seen += 1
        return self.sensor.calls[self.seen - 1]

    def until(self, state: int) -> tuple[float, list[int]]:
        """When it says of the host that it is so, and what it says of its ranks then."""
        while (said := self.next()).state != state:
            pass
        return time.monotonic(), [one.state for one in said.workers]


@pytest.fixture
def fleet(holdfast: Any, tmp_path: Path, wait_until: Any) -> Fleet:
    return Fleet(holdfast, tmp_path, wait_until)


def test_its_ranks_failures_and_gpus_reach_our_supervisor_as_those_of_our_own(
    fleet: Fleet, google: Started, free_port: int
) -> None:
    daemon = google("hosts/google_daemon.py", free_port, fleet.port)
    fleet.becomes("spare")
    client = google("scripts/google_client.py", free_port, 2)
    client.say("RUNNING 0")
    client.say("RUNNING 1")
    client.say("beating")
    fleet.becomes("fit", ("train", [0, 1]))
    client.say("FAILED 1")
    fleet.wait_until(lambda: fleet.deeds() == [("worker", "restart-workers", "")], what=fleet.deeds)
    assert fleet.stands() == ("fit", [("train", [0])]), "its daemon says in the same turn that all run"
    client.say("RUNNING 1")
    fleet.wait_until(lambda: fleet.deeds() == [("worker", "restart-workers", "round 2 runs")], what=fleet.deeds)
    daemon.say("xid 79")
    fleet.wait_until(lambda: [deed[:2] for deed in fleet.deeds()[1:]] == [("device", "replace")], what=fleet.deeds)
    assert fleet.stands() == ("draining", [("train", [0, 1])]), "its ranks run on until another node is there"
    client.say("COMPLETE 0")
    client.say("COMPLETE 1")
    fleet.becomes("unfit")


def test_its_end_is_known_and_it_counts_again_when_it_is_back(fleet: Fleet, google: Started, free_port: int) -> None:
    """It is called, since it beats only while ranks run."""
    daemon = google("hosts/google_daemon.py", free_port, fleet.port)
    fleet.becomes("spare")
    daemon.process.send_signal(signal.SIGSTOP)
    fleet.becomes("lost")
    daemon.process.send_signal(signal.SIGCONT)
    fleet.becomes("spare")
    daemon.process.kill()
    fleet.sensor.wait_for_output("Google's daemon there has ended")
    fleet.becomes("lost")
    google("hosts/google_daemon.py", free_port, fleet.port)
    fleet.becomes("spare")


def test_its_ranks_keep_their_places_while_it_is_started_again_and_has_forgotten_their_job(
    fleet: Fleet, google: Started, free_port: int
) -> None:
    daemon = google("hosts/google_daemon.py", free_port, fleet.port)
    client = google("scripts/google_client.py", free_port, 2)
    client.say("RUNNING 0")
    client.say("RUNNING 1")
    client.say("beating")
    fleet.becomes("fit", ("train", [0, 1]))
    daemon.process.kill()
    fleet.sensor.wait_for_output("Google's daemon there has ended")
    again = google("hosts/google_daemon.py", free_port, fleet.port)
    fleet.wait_until(lambda: len(json.loads(again.say("workers"))) == 2, what="its clients are heard")
    client.say("FAILED 1")
    fleet.wait_until(lambda: fleet.deeds() == [("worker", "restart-workers", "")], what=fleet.deeds)
    assert fleet.stands() == ("fit", [("train", [0])])


def test_it_says_of_a_failure_what_our_unit_tests_play(google: Started, free_port: int) -> None:
    sensor = HostService()
    try:
        google("hosts/google_daemon.py", free_port, sensor.port)
        client = google("scripts/google_client.py", free_port, 2)
        client.say("RUNNING 0")
        client.say("RUNNING 1")
        client.say("beating")
        heard = Heard(sensor)
        assert heard.until(RUNNING)[1] == [RUNNING, RUNNING]
        client.say("FAILED 1")
        failed_at, ranks = heard.until(FAILED)
        assert ranks == [RUNNING, FAILED]
        same_turn_at, ranks = heard.until(RUNNING)
        assert same_turn_at - failed_at < SAME_TURN_S and ranks == [RUNNING, RUNNING], "as it was before"
        client.say("RUNNING 1")
        later_at, ranks = heard.until(RUNNING)
        assert later_at - failed_at > SAME_TURN_S and ranks == [RUNNING, FAILED], "the one that had failed is shown so for good"
    finally:
        sensor.close()
