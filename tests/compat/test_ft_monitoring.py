"""A rank and its monitor, under no launcher of ours: the same outcome as with NVRx's client and server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from multiprocessing import get_context

import pytest
from kit.waiting import wait_for

BEGUN = """
import json, os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: os._exit(123))
if {grouped}:
    import torch.distributed as dist
    dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
from {package} import fault_tolerance as ft
client = ft.RankMonitorClient()
def refused(act, *args, **how):
    try:
        act(*args, **how)
    except ft.RankMonitorClientError:
        return True
    return False
"""
"""Every rank's beginning. The signal that ends one that hangs is seen in its exit code."""


class Bench:
    """Servers and ranks of one test."""

    def __init__(self, ft, folder):
        self.ft, self.folder = ft, folder
        self.path = str(folder / "monitor.socket")
        self.servers, self.ranks = [], []

    def serve(self, followed=False, **fields):
        config = self.ft().FaultToleranceConfig(
            **{"rank_termination_signal": signal.SIGUSR1, "workload_check_interval": 0.1, "rank_section_timeouts": {}} | fields
        )
        server = self.ft().RankMonitorServer.run_in_subprocess(config, self.path, followed, get_context("fork"))
        self.servers.append(server)
        return server

    def start(self, body, *, grouped=False, **env):
        package = self.ft.root.rpartition(".")[0]
        store = self.folder / f"store{len(self.ranks)}"
        source = BEGUN.format(package=package, grouped=grouped) + textwrap.dedent(body)
        if grouped:  # gloo's thread aborts some interpreters that end
            source += "\nsys.stdout.flush(); os._exit(0)\n"
        full = os.environ | {"RANK": "0", "LOCAL_RANK": "0", "FT_RANK_MONITOR_IPC_SOCKET": self.path} | env
        with (self.folder / f"rank{len(self.ranks)}").open("wb") as out:
            rank = subprocess.Popen([sys.executable, "-c", source, str(store)], env=full, stdout=out, stderr=subprocess.STDOUT)
        self.ranks.append(rank)
        return rank

    def run(self, body, **how):
        """Its exit code, and what it said."""
        rank = self.start(body, **how)
        return rank.wait(60), (self.folder / f"rank{self.ranks.index(rank)}").read_text()

    def close(self):
        for process in self.ranks:
            process.kill()
            process.wait()
        for server in self.servers:
            if server.is_alive():
                os.kill(server.pid, signal.SIGCONT)
                server.terminate()
            server.join(60)


@pytest.fixture
def bench(ft, tmp_path):
    made = Bench(ft, tmp_path)
    yield made
    made.close()


@pytest.fixture
def ours(ours_ft, tmp_path):
    made = Bench(ours_ft, tmp_path)
    yield made
    made.close()


def printed(said: str) -> str:
    """What follows `state` in its line; torch may warn of something afterwards."""
    return said.rpartition("state ")[2].partition("\n")[0]


NO_LIMITS = {"initial_rank_heartbeat_timeout": None, "rank_heartbeat_timeout": None}
LATE = "time.sleep(60); sys.exit(1)"


# Who hangs, and who does not.

HANGS = {
    "no first heartbeat": (
        {"initial_rank_heartbeat_timeout": 0.3, "rank_heartbeat_timeout": 99},
        "client.init_workload_monitoring()",
    ),
    "no further heartbeat": (
        {"initial_rank_heartbeat_timeout": 99, "rank_heartbeat_timeout": 0.3},
        "client.init_workload_monitoring(); client.send_heartbeat()",
    ),
    "a section that does not end": (
        NO_LIMITS | {"rank_section_timeouts": {"setup": None, "step": 0.3}},
        "client.init_workload_monitoring(); client.start_section('setup'); client.start_section('step')",
    ),
    "nothing between two sections": (
        NO_LIMITS | {"rank_section_timeouts": {"setup": 99}, "rank_out_of_section_timeout": 0.3},
        "client.init_workload_monitoring(); client.start_section('setup'); client.end_section('setup')",
    ),
    "nothing before the first section": (
        NO_LIMITS | {"rank_section_timeouts": {"setup": 99}, "rank_out_of_section_timeout": 0.3},
        "client.init_workload_monitoring()",
    ),
    "it is stopped": (
        {"initial_rank_heartbeat_timeout": 99, "rank_heartbeat_timeout": 0.3},
        "client.init_workload_monitoring(); client.send_heartbeat(); os.kill(os.getpid(), signal.SIGSTOP)",
    ),
}


@pytest.mark.parametrize(("limits", "does"), HANGS.values(), ids=HANGS)
def test_who_hangs_is_ended_by_the_signal(bench, limits, does):
    bench.serve(**limits)
    code, said = bench.run(f"{does}\n{LATE}")
    assert code == 123, said


FINE = {
    "it ends before it says anything": "client.init_workload_monitoring()",
    "it says something and ends": "client.init_workload_monitoring(); client.send_heartbeat(); client.send_heartbeat()",
    "it says that it ends, and goes on": """
        client.init_workload_monitoring()
        client.send_heartbeat()
        client.send_heartbeat()
        client.shutdown_workload_monitoring()
        client.shutdown_workload_monitoring()
        time.sleep(4)
        """,
    "it is never monitored": "time.sleep(4)",
    "it gets on": """
        client.init_workload_monitoring()
        for _ in range(20):
            client.send_heartbeat()
            time.sleep(0.2)
        """,
}


@pytest.mark.parametrize("does", FINE.values(), ids=FINE)
def test_who_does_not_hang_is_left_alone(bench, does):
    bench.serve(initial_rank_heartbeat_timeout=3.0, rank_heartbeat_timeout=3.0)
    code, said = bench.run(does)
    assert code == 0, said


def test_the_next_life_is_monitored_too(bench):
    server = bench.serve(initial_rank_heartbeat_timeout=99, rank_heartbeat_timeout=0.5)
    for _ in range(2):
        rank = bench.start("client.init_workload_monitoring()\nwhile True: client.send_heartbeat(); print('beat', flush=True)")
        wait_for(lambda: "beat" in (bench.folder / f"rank{len(bench.ranks) - 1}").read_text(), what="a heartbeat")
        rank.kill()
        rank.wait()
    code, said = bench.run(f"client.init_workload_monitoring(); client.send_heartbeat()\n{LATE}")
    assert code == 123 and server.is_alive(), said


def test_a_server_ends_when_it_is_told_to_and_leaves_no_socket(bench):
    server = bench.serve()
    assert os.path.exists(bench.path)
    server.terminate()
    server.join(60)
    assert not server.is_alive() and (not bench.ft.ours or not os.path.exists(bench.path))


LIVES = ["client.send_heartbeat()", "client.start_section('one'); client.end_section('one')"]


@pytest.mark.parametrize("sign", LIVES, ids=["heartbeats", "sections"])
def test_layered_restarts_can_be_followed(bench, capfd, sign):
    bench.serve(True, **NO_LIMITS | {"rank_section_timeouts": {"one": 60.0}})
    for _ in range(2):
        code, said = bench.run(f"client.init_workload_monitoring(); {sign}")
        assert code == 0, said
    seen = ""

    def followed():
        nonlocal seen
        seen += "".join(capfd.readouterr())
        return seen.count("stage=starting") == 2

    wait_for(followed, what="the second loss in the log")
    told = [line.partition("name=[InJob] ")[2] for line in seen.splitlines() if "[NestedRestarter]" in line]
    handled = ["state=handling stage=starting", "state=handling stage=completed"]
    assert told == ["state=initialize", *handled, handled[0]]


# What the client says.


def test_nothing_can_be_said_before_it_begins(bench):
    bench.serve()
    code, said = bench.run("""
        assert client.hb_timeouts is None and client.section_timeouts is None and client.cfg is None
        assert not client.is_initialized
        assert refused(client.send_heartbeat) and refused(client.start_section, "a") and refused(client.end_section, "a")
        assert refused(client.calculate_and_set_hb_timeouts) and refused(client.calculate_and_set_section_timeouts)
        client.init_workload_monitoring()
        assert client.is_initialized and refused(client.init_workload_monitoring)
        assert (client.rank_info.global_rank, client.rank_info.local_rank) in ((0, 0), ("0", 0))
        assert client.rank_info.pid == os.getpid()
        client.shutdown_workload_monitoring()
        assert not client.is_initialized and refused(client.send_heartbeat)
        client.init_workload_monitoring()
        client.send_heartbeat()
    """)
    assert code == 0, said


def test_without_a_monitor_it_says_so(bench):
    environ = {"FT_RANK_MONITOR_IPC_SOCKET": ""}
    code, said = bench.run(
        "del os.environ['FT_RANK_MONITOR_IPC_SOCKET']; sys.exit(refused(client.init_workload_monitoring))", **environ
    )
    assert code == 1, said


def test_without_a_launcher_there_is_nobody_to_ask(bench):
    bench.serve()
    code, said = bench.run("""
        client.init_workload_monitoring()
        try:
            client.send_workload_control_request(ft.WorkloadControlRequest(ft.WorkloadAction.Continue))
        except RuntimeError:
            sys.exit(0)
        sys.exit(1)
    """)
    assert code == 0, said


def test_a_launcher_is_asked(bench):
    bench.serve()
    connector = bench.ft("ipc_connector").IpcConnector(str(bench.folder / "launcher"))
    connector.start_receiving()
    try:
        code, said = bench.run(
            """
            client.init_workload_monitoring()
            client.send_workload_control_request(ft.WorkloadControlRequest(ft.WorkloadAction.ShutdownWorkload, "enough"))
            """,
            FT_LAUNCHER_IPC_SOCKET=connector.socket_path,
        )
        assert code == 0, said
        [(rank, request)] = connector.fetch_received()
        assert int(rank) == 0
        assert (request.action.name, request.description) == ("ShutdownWorkload", "enough")
    finally:
        connector.stop_receiving()


def test_the_configuration_comes_from_the_server(bench):
    bench.serve(**NO_LIMITS | {"rank_section_timeouts": {"one": 5.0, "two": None}, "rank_out_of_section_timeout": 7.0})
    code, said = bench.run("""
        client.init_workload_monitoring()
        assert client.cfg.rank_section_timeouts == {"one": 5.0, "two": None}
        assert client.cfg.rank_termination_signal is signal.SIGUSR1
        assert client.hb_timeouts.are_valid is False and client.hb_timeouts.were_calculated is False
        assert client.section_timeouts.section == {"one": 5.0, "two": None} and client.section_timeouts.out_of_section == 7.0
        assert client.section_timeouts.are_valid is False and client.section_timeouts.were_calculated is False
        assert client.state_dict() == {"current_timeouts": {}}
    """)
    assert code == 0, said


def test_sections_may_overlap_but_not_be_opened_twice(bench):
    bench.serve(**NO_LIMITS | {"rank_section_timeouts": {"one": None, "two": None}})
    code, said = bench.run("""
        client.init_workload_monitoring()
        client.start_section("one")
        client.start_section("two")
        assert refused(client.start_section, "one")
        client.end_section("one")
        assert refused(client.end_section, "one")
        client.end_section("two")
        client.start_section("one")
    """)
    assert code == 0, said


# Limits from what was seen.

UNCHECKED = NO_LIMITS | {"workload_check_interval": 3600.0}
"""NVRx would act on the limits of a second that come of it."""
SECTIONS = UNCHECKED | {
    "rank_section_timeouts": {"one": 9.0, "two": None, "three": 999.0},
    "rank_out_of_section_timeout": 123.0,
}

CALCULATES = """
    client.init_workload_monitoring()
    assert refused(client.calculate_and_set_section_timeouts)
    assert client.calculate_and_set_section_timeouts(skip_if_not_ready=True) is False
    client.start_section("one")
    for name in ("two", "three"):
        client.start_section(name)
        time.sleep(0.1)
        client.end_section(name)
    assert refused(client.calculate_and_set_section_timeouts)
    client.end_section("one")
    time.sleep(0.15)
    client.start_section(section="one")
    client.end_section(section="one")
    assert client.section_timeouts.were_calculated is False
    assert client.calculate_and_set_section_timeouts() is True
    limits = client.section_timeouts
    assert limits.are_valid and limits.were_calculated and limits.out_of_section >= 5 * 0.15
    assert limits.section["one"] >= limits.section["two"] + limits.section["three"] >= 5 * 0.2
    assert client.hb_timeouts.are_valid is False
"""


@pytest.mark.torch
def test_section_limits_are_calculated_saved_and_loaded(bench):
    bench.serve(**SECTIONS)
    code, said = bench.run(CALCULATES + "    print('state', json.dumps(client.state_dict()))", grouped=True)
    assert code == 0, said
    state = json.loads(printed(said))
    kept = state["current_timeouts"]
    assert kept.keys() == {"section"}
    assert kept["section"].keys() == {"section", "out_of_section", "calculated_sections", "is_out_of_section_calculated"}
    assert kept["section"]["calculated_sections"] == ["one", "three", "two"]
    for when in ("before", "after"):
        code, said = bench.run(
            f"""
            state = json.loads(os.environ["STATE"])
            if "{when}" == "before":
                client.load_state_dict(state)
            client.init_workload_monitoring()
            if "{when}" == "after":
                client.load_state_dict(state)
            assert client.section_timeouts.were_calculated and client.section_timeouts.are_valid
            assert client.section_timeouts.section == state["current_timeouts"]["section"]["section"]
            assert client.hb_timeouts.were_calculated is False
            assert client.state_dict() == state
            client.send_heartbeat()
            """,
            STATE=json.dumps(state),
        )
        assert code == 0, said


@pytest.mark.torch
def test_heartbeat_limits_are_calculated_averaged_saved_and_loaded(bench):
    bench.serve(**UNCHECKED)
    code, said = bench.run(
        """
        client.init_workload_monitoring()
        assert refused(client.calculate_and_set_hb_timeouts)
        time.sleep(0.3)
        client.send_heartbeat()
        assert client.calculate_and_set_hb_timeouts(skip_if_not_ready=True) is False
        time.sleep(0.2)
        client.send_heartbeat()
        assert client.calculate_and_set_hb_timeouts() is True
        first = client.hb_timeouts
        assert first.are_valid and first.were_calculated
        assert first.initial >= 5 * 0.3 and first.subsequent >= 5 * 0.2
        assert client.calculate_and_set_hb_timeouts() is True
        assert abs(client.hb_timeouts.subsequent - first.subsequent) < 1e-3 * first.subsequent
        print('state', json.dumps(client.state_dict()))
        """,
        grouped=True,
    )
    assert code == 0, said
    state = json.loads(printed(said))
    assert state["current_timeouts"].keys() == {"heartbeat"}
    assert state["current_timeouts"]["heartbeat"].keys() == {"initial", "subsequent", "were_calculated"}
    # Far more than any heartbeat of the next life takes, so that the average of both tells which is which.
    state["current_timeouts"]["heartbeat"] |= {"initial": 1000.0, "subsequent": 1000.0}
    code, said = bench.run(
        """
        was = json.loads(os.environ["STATE"])["current_timeouts"]["heartbeat"]
        client.load_state_dict(json.loads(os.environ["STATE"]))
        client.init_workload_monitoring()
        assert client.hb_timeouts.were_calculated and client.hb_timeouts.initial == was["initial"]
        for _ in range(4):
            client.send_heartbeat()
        client.calculate_and_set_hb_timeouts()
        assert 500 <= client.hb_timeouts.initial < 1000 and 500 <= client.hb_timeouts.subsequent < 1000
        """,
        grouped=True,
        STATE=json.dumps(state),
    )
    assert code == 0, said


@pytest.mark.torch
def test_only_the_sections_selected_are_calculated(bench):
    bench.serve(**SECTIONS)
    code, said = bench.run(
        """
        client.init_workload_monitoring()
        client.start_section("one")
        time.sleep(0.05)
        client.end_section("one")
        assert client.calculate_and_set_section_timeouts(selected_sections=["one"], calc_out_of_section=False) is True
        limits = client.section_timeouts
        assert limits.calculated_sections == {"one"} and limits.section["three"] == 999.0 and limits.out_of_section == 123.0
        """,
        grouped=True,
    )
    assert code == 0, said
