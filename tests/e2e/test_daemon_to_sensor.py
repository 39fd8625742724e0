"""Our daemon in the place of Google's: Google's sensor, controller and actuator know its host and ranks, and command it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from kit.hosts.daemons import DaemonHere  # noqa: E402
from kit.hosts.google_parts import GOOGLE, Talking  # noqa: E402
from kit.hosts.host_service import HostService  # noqa: E402
from kit.ports import port_of, ports  # noqa: E402

from holdfast.core.wire.google_wire import RUNNING  # noqa: E402

RANK = """
import sys
from holdfast.google import DeviceState, GoogleCloudResiliencyClient
port, rank = int(sys.argv[1]), int(sys.argv[2])
client = GoogleCloudResiliencyClient(port + rank + 1, port, rank, rank, workload_name="train")
client.update_state(DeviceState.RUNNING)
for line in sys.stdin:
    client.update_state(DeviceState[line.strip()])
"""


class Ranks:
    """Processes of a launcher that is not ours."""

    def __init__(self, port: int, many: int) -> None:
        commands = [[sys.executable, "-c", RANK, str(port), str(rank)] for rank in range(many)]
        self.processes = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True) for command in commands]

    def say(self, rank: int, state: str) -> None:
        stdin = self.processes[rank].stdin
        assert stdin is not None
        print(state, file=stdin, flush=True)

    def end(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


@pytest.fixture
def ranks() -> Iterator[Any]:
    """`ranks(port, 2)`: two of them, at the daemon there."""
    started: list[Ranks] = []

    def start(port: int, many: int) -> Ranks:
        started.append(Ranks(port, many))
        return started[-1]

    yield start
    for each in started:
        each.end()


def events(sensor: HostService) -> list[str]:
    """What a sensor was told of, in words."""
    return [str(data) for method, data in sensor.calls if method.endswith("SensorService/ReportEvent")]


def test_the_sensor_hears_of_ranks_and_of_a_killed_one_at_once(holdfast: Any, ranks: Any, wait_until: Any) -> None:
    """Though a heartbeat is due once a minute."""
    (at,) = ports(1)
    flags = "--port", 0, "--node-name", "n1", "--sensor", f"127.0.0.1:{at}", "--sensor-every", 60
    daemon = holdfast.start("daemon", *flags)
    port = port_of(daemon)
    daemon.wait_for_output("Google's SensorService does not answer: unavailable")
    sensor = HostService(at)
    try:
        wait_until(lambda: sensor.methods[:2] == ["RegisterHost", "Heartbeat"], what="it is told who we are")
        told = ranks(port, 2)
        wait_until(lambda: any(state == RUNNING and load and load.workload_name == "train" for state, load in sensor.hosts()))
        table = DaemonHere(holdfast, port, wait_until)
        wait_until(lambda: table.states() == {"train": ["RUNNING", "RUNNING"]})
        told.processes[1].kill()
        wait_until(lambda: len(events(sensor)) == 1)
        assert "the process of rank 1 (" in events(sensor)[0]
        told.say(0, "FAILED")
        wait_until(lambda: len(events(sensor)) == 2)
        assert ") of train has failed" in events(sensor)[1]
    finally:
        sensor.close()


def test_a_failure_that_the_sensor_has_not_heard_outlives_the_daemon(holdfast: Any, ranks: Any, wait_until: Any) -> None:
    (at,) = ports(1)
    flags = "daemon", "--port", 0, "--sensor", f"127.0.0.1:{at}"
    daemon = holdfast.start(*flags)
    told = ranks(port_of(daemon), 1)
    told.say(0, "FAILED")
    daemon.wait_for_output("is FAILED")
    daemon.kill()
    daemon.process.wait()
    sensor = HostService(at)
    try:
        holdfast.start(*flags)  # at another port: the rank does not come back to it
        wait_until(lambda: len(events(sensor)) == 1)
        assert ") of train has failed" in events(sensor)[0]
    finally:
        sensor.close()


def test_other_hosts_reach_the_actuator_s_commands_and_nothing_else(holdfast: Any, wait_until: Any) -> None:
    nobody, commands = ports(2)
    flags = "--port", 0, "--sensor", f"127.0.0.1:{nobody}", "--commands-at", f"127.0.0.1:{commands}"
    holdfast.start("daemon", *flags).wait_for_output("listening at")
    with grpc.insecure_channel(f"127.0.0.1:{commands}") as channel:
        channel.unary_unary("/supervisor_core_proto.HostService/TriggerCordon")(b"", timeout=30)
        assert json.loads(holdfast.run("daemon", "--json").stdout)["table"]["cordoned"]
        with pytest.raises(grpc.RpcError) as refused:
            channel.unary_unary("/supervisor_core_proto.HostService/Heartbeat")(b"", timeout=30)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--sensor", "a:1", "--supervisor", "b:2"), "both would act on the same failure"),
        (("--controller", "a:1"), "--controller: only with --sensor"),
        (("--sensor", "a"), "--sensor: 'a' has no port"),
        (("--sensor", "a:1", "--commands-at", "0.0.0.0:2"), "--commands-at: 0.0.0.0 is every address of this host"),
        (("--sensor", "a:1", "--commands-at", "[::]:2"), "--commands-at: :: is every address of this host"),
    ],
)
def test_wrong_use_is_told_before_anything_is_made(holdfast: Any, flags: tuple[str, ...], said: str) -> None:
    ended = holdfast.run("daemon", "--port", 0, *flags)
    assert ended.returncode == 2 and said in ended.stderr
    assert not holdfast.state_dir.exists()


@pytest.mark.skipif(not GOOGLE.exists(), reason="google-cloud-resiliency-supervisor is not here: make google")
@pytest.mark.timeout(300)
def test_google_s_own_sensor_controller_and_actuator_know_and_command_it(
    holdfast: Any, ranks: Any, wait_until: Any, tmp_path: Path
) -> None:
    sensor, controller, actuator, commands = ports(4)
    google = Talking("hosts/google_brain.py", sensor, controller, actuator)
    named = {"--sensor": sensor, "--controller": controller, "--actuator": actuator, "--commands-at": commands}
    flags = [word for flag, port in named.items() for word in (flag, f"127.0.0.1:{port}")]
    daemon = holdfast.start("daemon", "--port", 0, "--node-name", "n1", "--sensor-every", 1, *flags)
    port = port_of(daemon)

    def commanded(command: str, said: str) -> None:
        """Until it has arrived: Google's controller drops what its actuator is not ready for."""
        wait_until(lambda: google.say(command) == "done" and said in daemon.stderr, what=said)

    try:
        wait_until(lambda: google.say("hosts") == "0 1", what="a spare host")
        commanded("cordon n1", "this host was cordoned, at the actuator's word")
        told = ranks(port, 2)
        wait_until(lambda: google.say("hosts") == "1 0", what="a host that runs")
        told.say(1, "FAILED")
        wait_until(lambda: ["WORKER_HB", "n1", "train"] in json.loads(google.say("events")))
        commanded("reset n1", "all workers of this host were reset, as the actuator asked")
        told.say(0, "RUNNING")
        wait_until(lambda: google.say("hosts") == "1 0", what="it runs again")
        daemon.kill(signal.SIGSTOP)
        wait_until(lambda: ["HOST_HB", "n1", "train"] in json.loads(google.say("events")), what="a host that is lost")
    finally:
        daemon.kill(signal.SIGCONT)
        google.process.kill()
        google.process.communicate()
