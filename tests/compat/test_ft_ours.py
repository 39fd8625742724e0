"""Where our fault_tolerance differs from NVRx's on purpose, as docs/reference/fault-tolerance.md says, or offers more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from kit.waiting import wait_for
from test_ft_monitoring import CALCULATES, LATE, NO_LIMITS, SECTIONS, Bench, printed


@pytest.fixture
def bench(ours_ft, tmp_path):
    made = Bench(ours_ft, tmp_path)
    yield made
    made.close()


def said_by(bench, rank=0):
    return (bench.folder / f"rank{rank}").read_text()


# Beside a server of its own.


def test_a_limit_is_acted_on_when_it_runs_out_however_seldom_it_is_to_be_checked(bench):
    bench.serve(workload_check_interval=3600.0, initial_rank_heartbeat_timeout=0.2, rank_heartbeat_timeout=None)
    code, said = bench.run(f"client.init_workload_monitoring()\n{LATE}")
    assert code == 123, said


def test_who_takes_no_notice_of_the_signal_gets_it_again(bench):
    bench.serve(initial_rank_heartbeat_timeout=0.2)
    code, said = bench.run("""
        seen = []
        signal.signal(signal.SIGUSR1, lambda *_: os._exit(7) if seen else seen.append(1))
        client.init_workload_monitoring()
        while True: time.sleep(1)
    """)
    assert code == 7, said


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_stopped_server_holds_up_nobody(bench, what):
    server = bench.serve(**NO_LIMITS | {"rank_section_timeouts": {"one": None}})
    rank = bench.start("""
        client.init_workload_monitoring()
        print("begun", flush=True)
        input_ = open(sys.argv[1] + ".go", "rb").read()
        for _ in range(2000):
            client.send_heartbeat()
            client.start_section("one")
            client.end_section("one")
            client._monitor.calculate(client.hb_timeouts, client.section_timeouts)
        client.shutdown_workload_monitoring()
    """)
    go = bench.folder / "store0.go"
    os.mkfifo(go)
    wait_for(lambda: "begun" in said_by(bench), what="the beginning")
    os.kill(server.pid, what)
    go.write_bytes(b"go")
    assert rank.wait(60) == 0, said_by(bench)


def test_all_sections_can_be_ended(bench):
    bench.serve(**NO_LIMITS | {"rank_section_timeouts": {"one": 3.0, "two": 3.0}})
    code, said = bench.run("""
        client.init_workload_monitoring()
        client.start_section("one")
        client.start_section("two")
        client.end_all_sections()
        client.end_all_sections()
        time.sleep(4)
        client.start_section("one")
        client.end_section("one")
    """)
    assert code == 0, said


def test_a_section_that_nobody_listed_is_let_pass(bench):
    bench.serve(rank_section_timeouts={"one": None})
    code, said = bench.run("""
        client.init_workload_monitoring()
        for _ in range(2):
            client.start_section("other")
        client.end_section("another")
    """)
    assert code == 0, said


@pytest.mark.torch
def test_calculated_limits_are_never_microscopic(bench):
    bench.serve(**NO_LIMITS)
    code, said = bench.run(
        """
        client.init_workload_monitoring()
        for _ in range(3):
            client.send_heartbeat()
        client.calculate_and_set_hb_timeouts()
        time.sleep(client.hb_timeouts.subsequent + 1)
        client.shutdown_workload_monitoring()
        """,
        grouped=True,
    )
    assert code == 0, said


@pytest.mark.torch
def test_calculated_limits_are_known_as_such_after_a_reconnect(bench):
    bench.serve(**SECTIONS)
    code, said = bench.run(CALCULATES + "    print('state', json.dumps(client.state_dict()))", grouped=True)
    assert code == 0, said
    state = printed(said)
    code, said = bench.run("client.init_workload_monitoring(); print('state', json.dumps(client.state_dict()))")
    assert code == 0 and printed(said) == state


def test_the_first_step_may_take_its_time(bench):
    """Until the first `step` the time outside of sections has no limit: warm-up is slow."""
    bench.serve(**NO_LIMITS | {"rank_section_timeouts": {"setup": 9, "step": 9}, "rank_out_of_section_timeout": 0.3})
    code, said = bench.run("""
        client.init_workload_monitoring()
        client.send_heartbeat()
        client.start_section("setup")
        client.end_section("setup")
        time.sleep(0.6)
        print("slow", flush=True)
        client.start_section("step")
        client.end_section("step")
        time.sleep(60)
    """)
    assert code == 123 and "slow" in said, said


def test_the_first_steps_are_judged_by_the_limit_of_warmup(bench):
    bench.serve(**NO_LIMITS | {"rank_section_timeouts": {"step": 0.5, "warmup": 30}, "num_warmup_iterations": 5})
    code, said = bench.run("""
        client.init_workload_monitoring(num_warmup_iters=2)
        for step in range(3):
            client.start_section("step")
            time.sleep(1.2 if step < 2 else 60)
            client.end_section("step")
            print("step", step, flush=True)
    """)
    assert code == 123 and "step 1" in said and "step 2" not in said, said


def test_whoever_hangs_is_ended_and_not_whom_it_names(bench):
    bench.serve(initial_rank_heartbeat_timeout=0.3)
    code, said = bench.run("""
        import socket
        from holdfast.fault_tolerance import data, utils
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(os.environ["FT_RANK_MONITOR_IPC_SOCKET"])
            utils.write_object_to_ipc_socket(data.InitMsg(data.RankInfo(0, 0, "here", os.getppid())), link)
            time.sleep(60)
    """)
    assert code == 123, said


def test_what_cannot_be_watched_is_turned_away_and_the_next_is_not(bench):
    bench.serve(**NO_LIMITS)
    code, said = bench.run("""
        import socket, tempfile
        from holdfast.fault_tolerance import data, utils, wire
        me = data.InitMsg(data.RankInfo(0, 0, "here", os.getpid()))
        with socket.socket(socket.AF_UNIX) as link, tempfile.TemporaryFile() as no_page:
            link.connect(os.environ["FT_RANK_MONITOR_IPC_SOCKET"])
            socket.send_fds(link, [wire.frame(me)], [no_page.fileno()])
            print(utils.read_obj_from_ipc_socket(link, raise_exc=True))
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(os.environ["FT_RANK_MONITOR_IPC_SOCKET"])
            link.sendall(b"\\0\\0\\0\\x02{]")
            assert link.recv(1) == b""
        client.init_workload_monitoring()
    """)
    assert code == 0 and "it passed an invalid page" in said, said


def test_a_server_ends_with_whoever_started_it(bench, alive):
    started = bench.start("""
        server = ft.RankMonitorServer.run_in_subprocess(ft.FaultToleranceConfig(), sys.argv[1])
        print("pid", server.pid, flush=True)
        time.sleep(60)
    """)
    wait_for(lambda: "pid" in said_by(bench), what="its server")
    pid = int(said_by(bench).rpartition("pid")[2])
    started.kill()
    started.wait()
    wait_for(lambda: not bench.ft("utils").is_process_alive(pid), what="the server's end")


def test_a_rank_of_another_make_may_say_everything_in_messages(bench):
    import socket

    from holdfast.fault_tolerance import data
    from holdfast.fault_tolerance.utils import read_obj_from_ipc_socket, write_object_to_ipc_socket

    bench.serve(**NO_LIMITS | {"rank_section_timeouts": {"one": 60.0}, "skip_section_response": False})
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(60)
        link.connect(bench.path)

        def asked(word):
            write_object_to_ipc_socket(word, link)
            return read_obj_from_ipc_socket(link, raise_exc=True)

        me = data.RankInfo(0, 0, "here", os.getpid())
        assert isinstance(asked(data.HeartbeatMsg(0)), data.ErrorMsg)  # who are you?
        assert isinstance(asked(data.AuthkeyMsg()), data.OkMsg)
        assert asked(data.InitMsg(me)).cfg.rank_section_timeouts == {"one": 60.0}
        opened = data.SectionMsg(0, "one", data.SectionAction.OPEN)
        assert isinstance(asked(data.HeartbeatMsg(0)), data.OkMsg)
        assert isinstance(asked(opened), data.OkMsg)
        assert "open already" in asked(opened).cause
        assert isinstance(asked(data.SectionMsg(0, None, data.SectionAction.CLOSE_ALL)), data.OkMsg)
        assert "not open" in asked(data.SectionMsg(0, "one", data.SectionAction.CLOSE)).cause
        assert isinstance(asked(data.UpdateConfigMsg(data.HeartbeatTimeouts(60.0, 60.0, True))), data.OkMsg)
    code, said = bench.run("client.init_workload_monitoring(); sys.exit(client.hb_timeouts.were_calculated)")
    assert code == 1, said


def test_a_launcher_speaks_to_its_monitors(bench, tmp_path):
    import socket
    import tempfile

    from holdfast.fault_tolerance import data
    from holdfast.fault_tolerance.utils import write_object_to_ipc_socket

    server = bench.serve(**NO_LIMITS)
    with socket.socket(socket.AF_UNIX) as launcher:
        launcher.connect(f"{tempfile.gettempdir()}/_ft_launcher{server.pid}_to_rmon.socket")
        for word in (data.UpdateConfigMsg(current_cycle=3), "close_worker_ipc_connection", "what?", "shutdown"):
            write_object_to_ipc_socket(word, launcher)
        server.join(60)
    assert server.exitcode == 0


# Under `holdfast run`.

UNDER = """
import json, os, signal, sys, time
from holdfast import fault_tolerance as ft
client = ft.RankMonitorClient()
"""


def test_under_our_agent_it_needs_no_server(holdfast, script):
    path = script(f"""{UNDER}
client.init_workload_monitoring()
assert client.cfg.rank_section_timeouts == {{"one": 60.0}} and client.cfg.rank_out_of_section_timeout is None
assert client.hb_timeouts.initial == 50.0 and client.hb_timeouts.subsequent is None
assert client.cfg.safety_factor == 3.0
client.send_heartbeat()
client.start_section("one")
client.end_section("one")
client.shutdown_workload_monitoring()
client.init_workload_monitoring()
""")
    args = ("--ft-rank-section-timeouts", "one:60", "--ft-initial-rank-heartbeat-timeout", "50", "--ft-safety-factor", "3")
    done = holdfast.run("run", *args, path)
    assert done.returncode == 0, done.output


def test_under_our_agent_the_initial_limit_is_that_of_its_monitoring_and_not_of_its_process(holdfast, script):
    """So nodes that wait for slower ones, in `init_process_group` say, are left in peace."""
    path = script(f"""{UNDER}
for life in range(2):
    time.sleep(1.8)
    client.init_workload_monitoring()
    time.sleep(0.8)
    client.send_heartbeat()
    print("life", life, flush=True)
    client.shutdown_workload_monitoring()
client.init_workload_monitoring()
time.sleep(100)
""")
    done = holdfast.run("run", "--ft-initial-rank-heartbeat-timeout", "1.5", "--ft-rank-heartbeat-timeout", "0.5", path)
    assert "life 1" in done.output and "since its monitoring began (limit 1.5 s)" in done.output, done.output


def test_under_our_agent_a_rank_that_hangs_is_ended(holdfast, script):
    path = script(f"{UNDER}\nclient.init_workload_monitoring()\nclient.send_heartbeat()\ntime.sleep(100)\n")
    done = holdfast.run("run", "--ft-rank-heartbeat-timeout", "0.5", path)
    assert done.returncode != 0 and "no heartbeat for" in done.output, done.output


def test_under_our_agent_how_many_steps_are_the_first_is_the_scripts_word(holdfast, script):
    path = script(f"""{UNDER}
client.init_workload_monitoring(num_warmup_iters=2)
for _ in range(2):
    client.start_section("step")
    client.end_section("step")
client.start_section("step")
time.sleep(100)
""")
    done = holdfast.run("run", "--ft-num-warmup-iterations", "5", "--ft-rank-section-timeouts", "step:1,warmup:30", path)
    assert "in section step for" in done.output and "(limit 1 s)" in done.output, done.output


@pytest.mark.parametrize("when", ["before", "after"])
def test_under_our_agent_calculated_limits_hold_and_are_known_in_the_next_life(holdfast, script, when):
    path = script(f"""{UNDER}
from holdfast.fault_tolerance.data import HeartbeatTimeouts
limits = {{"current_timeouts": {{"heartbeat": {{"initial": 20.0, "subsequent": 10.5, "were_calculated": True}}}}}}
is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
if is_first and "{when}" == "before":
    client.load_state_dict(limits)
client.init_workload_monitoring()
client.send_heartbeat()
if is_first:
    if "{when}" == "after":
        client.load_state_dict(limits)
    sys.exit(1)
assert client.hb_timeouts == HeartbeatTimeouts(20.0, 10.5, True), client.hb_timeouts
time.sleep(100)
""")
    done = holdfast.run("run", "--max-restarts", "1", path)
    assert done.returncode != 0 and "limit 10.5 s" in done.output, done.output


@pytest.mark.torch
def test_under_our_agent_two_ranks_calculate_together_and_know_it_in_the_next_life(holdfast, script):
    path = script(f"""
import torch.distributed as dist
{UNDER}
dist.init_process_group("gloo")
client.init_workload_monitoring()
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    for _ in range(2):
        time.sleep(0.2 * dist.get_rank())
        client.send_heartbeat()
    assert client.calculate_and_set_hb_timeouts()
    assert client.hb_timeouts.subsequent >= 5 * 0.2, client.hb_timeouts  # on the faster rank too
    dist.barrier()
    sys.exit(1)
assert client.hb_timeouts.were_calculated and client.hb_timeouts.subsequent >= 5 * 0.2, client.hb_timeouts
assert client.state_dict()["current_timeouts"]["heartbeat"]["were_calculated"]
""")
    done = holdfast.run("run", "--nproc-per-node", "2", "--max-restarts", "1", path)
    assert done.returncode == 0, done.output


def test_under_our_agent_a_request_is_acted_on(holdfast, script):
    path = script(f"""{UNDER}
client.send_workload_control_request(ft.WorkloadControlRequest(ft.WorkloadAction.ShutdownWorkload, "data is broken"))
time.sleep(100)
""")
    done = holdfast.run("run", "--max-restarts", "3", path)
    assert "data is broken" in done.output, done.output
    assert len(holdfast.events("WorkerStarted")) == 1, done.output


def test_megatrons_iteration_is_the_ranks_step(holdfast, script):
    path = script(f"""
import sys, types
arguments = types.SimpleNamespace(curr_iteration=41)
sys.modules["megatron.training.global_vars"] = types.SimpleNamespace(_GLOBAL_ARGS=arguments)
integration = sys.modules["megatron.training.ft_integration"] = types.SimpleNamespace()
{UNDER}
client.init_workload_monitoring(num_warmup_iters=3)
assert integration._NUM_WARMUP_ITERS == 3 and client._can_report_iterations()
client.start_section("step")
from holdfast.core.page import layout as page
assert client._monitor.writer.words[page.STEP] == 41
""")
    done = holdfast.run("run", "--ft-rank-section-timeouts", "step:60", path)
    assert done.returncode == 0, done.output


def test_a_rank_imports_nothing_heavy_for_it():
    code = "import sys; from holdfast import fault_tolerance; print(*sys.modules)"
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")}
    done = subprocess.run([sys.executable, "-S", "-c", code], env=env, capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert not {name.split(".")[0] for name in loaded} & {"torch", "msgspec", "yaml", "asyncio", "rich"}
    assert not [name for name in loaded if name.startswith(("holdfast.agent", "holdfast.monitor", "holdfast.runtime"))]
