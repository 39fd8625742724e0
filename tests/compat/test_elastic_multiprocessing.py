"""Groups of workers, programs and functions: how they start, end, fail, and what is left of them. torch's and ours alike."""

from __future__ import annotations

import multiprocessing.context
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from kit import orphans
from kit.hosts.hung_mount import HungMount, why_not
from kit.jobs import elastic_workers as workers

from holdfast.runtime.process.process import dying

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
METHODS = ("fork", "spawn", "forkserver")


@pytest.fixture(scope="module", autouse=True)
def multiprocessing_servants():
    """Python keeps these for as long as it runs: started before a test is watched, they are nobody's orphans."""
    multiprocessing.resource_tracker.ensure_running()
    multiprocessing.forkserver.ensure_running()


@pytest.fixture(autouse=True)
def signal_handlers_are_put_back():
    before = {signum: signal.getsignal(signum) for signum in SIGNALS}
    yield
    for signum, handler in before.items():
        signal.signal(signum, handler)


@pytest.fixture
def start(tmp_path):
    """`start(names, [("-c", "…"), …])`: a group of Python programs; or of `entrypoint`, with these arguments by rank."""
    started = []

    def start(names, args, entrypoint=sys.executable, *, logs=None, envs=None, **options):
        api = names("multiprocessing")
        specs = {"log_dir": str(tmp_path / "logs")} | (logs or {})
        group = api.start_processes(
            name="trainer",
            entrypoint=entrypoint,
            args=dict(enumerate(args)),
            envs={rank: dict((envs or {}).get(rank, {})) for rank in range(len(args))},
            logs_specs=api.DefaultLogsSpecs(**specs),
            **options,
        )
        started.append(group)
        return group

    yield start
    for group in started:
        group.close(timeout=5)


def python(source):
    return "-c", textwrap.dedent(source)


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the latter: it went between opening and reading
        return False


def only_one(result):
    assert list(result.failures) == [0] and not result.return_values
    return result.failures[0]


# Programs.


def test_programs_that_exit_with_0_are_a_success_without_values(names, start):
    result = start(names, [python("pass"), python("pass")]).wait(period=0.05)
    assert not result.is_failed() and result.return_values == {0: None, 1: None} and result.failures == {}
    assert result.stdouts == {0: "", 1: ""}


def test_a_program_gets_its_arguments_as_text_and_its_environment_over_ours(names, start, monkeypatch):
    monkeypatch.setenv("INHERITED", "yes")
    show = "import os, sys; print(sys.argv[1:], os.environ['INHERITED'], os.environ['RANK'])"
    args, envs = [("-c", show, 7, [1]), ("-c", show)], {0: {"RANK": "4"}, 1: {"RANK": "5"}}
    group = start(names, args, envs=envs, logs={"redirects": names("multiprocessing").Std.OUT})
    result = group.wait(period=0.05)
    assert [Path(result.stdouts[rank]).read_text() for rank in (0, 1)] == ["['7', '[1]'] yes 4\n", "[] yes 5\n"]


def test_the_first_failure_ends_the_others_and_all_are_listed(names, start):
    group = start(names, [python("raise SystemExit(3)"), python("import time; time.sleep(600)")])
    result = group.wait(period=0.05)
    assert {rank: failure.exitcode for rank, failure in result.failures.items()} == {0: 3, 1: -signal.SIGTERM}
    assert result.failures[0].pid == group.pids()[0] and result.failures[0].error_file == "<N/A>"
    assert result.failures[1].message == f"Signal 15 (SIGTERM) received by PID {group.pids()[1]}"
    assert not any(alive(pid) for pid in group.pids().values())


def test_a_recorded_exception_of_a_program_is_read(names, start):
    main = f"""
        from {names.path("multiprocessing.errors")} import record

        @record
        def main():
            raise ValueError("no such layer")

        main()
    """
    failure = only_one(start(names, [python(main)], logs={"redirects": names("multiprocessing").Std.ERR}).wait(period=0.05))
    assert failure.message["message"] == "ValueError: no such layer" and failure.exitcode == 1
    assert "in main" in failure.message["extraInfo"]["py_callstack"]


def test_a_program_that_is_not_there_raises_and_ends_those_already_started(names, start, tmp_path):
    with pytest.raises(FileNotFoundError):
        start(names, [(), ()], entrypoint=str(tmp_path / "nothing"))


def test_ranks_must_be_the_same_in_arguments_and_environments(names):
    api = names("multiprocessing")
    for args, envs in (({0: ()}, {0: {}, 1: {}}), ({0: (), 1: ()}, {0: {}}), ({1: ()}, {1: {}})):
        with pytest.raises(RuntimeError, match="local rank mapping mismatch"):
            api.start_processes("x", "true", args, envs, api.DefaultLogsSpecs())


def test_a_group_can_be_closed_while_it_runs_and_again(names, start):
    group = start(names, [python("import time; time.sleep(600)")])
    assert group.wait(timeout=0) is None and group.wait(timeout=0.05, period=0.01) is None
    group.close()
    group.close()
    assert not alive(group.pids()[0])


@pytest.mark.timeout(60)
def test_an_end_is_seen_at_once_whatever_the_period(ours, start):
    assert not start(ours, [python("pass")]).wait(period=3600).is_failed()


@pytest.mark.timeout(60)
def test_those_who_ignore_sigterm_after_a_failure_get_the_shutdown_timeout_and_not_30_s(ours, start, tmp_path):
    ready = tmp_path / "ready"
    deaf = f"import signal, time; signal.signal(15, signal.SIG_IGN); open({str(ready)!r}, 'w').close(); time.sleep(600)"
    first = f"import os, time\nwhile not os.path.exists({str(ready)!r}): time.sleep(0.01)\nraise SystemExit(1)"
    group = start(ours, [python(first), python(deaf)])
    group.shutdown_timeout = 0.2
    assert group.wait().failures[1].exitcode == -signal.SIGKILL


@pytest.mark.parametrize("pidfds", [True, False])
@pytest.mark.parametrize("exitcode", [0, 3])
def test_what_a_program_leaves_behind_is_ended_though_it_is_gone_itself(
    ours, start, tmp_path, exitcode, pidfds, wait_until, monkeypatch
):
    if not pidfds:
        monkeypatch.delattr(os, "pidfd_open")
    pids = tmp_path / "pids"
    group = start(ours, [("-c", workers.LEAVE_BEHIND, pids, exitcode)])
    group.shutdown_timeout = 0.2
    group.wait()
    left = [int(pid) for pid in pids.read_text().split()]
    assert len(left) == 2
    wait_until(lambda: not any(map(alive, left)))


def test_a_program_that_is_closed_takes_its_whole_tree_with_it(ours, start, tmp_path, wait_until):
    pids = tmp_path / "pids"
    group = start(ours, [("-c", workers.LEAVE_BEHIND.replace("sys.exit(", "time.sleep(600 or "), pids, 0)])
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
    group.close(timeout=0.2)
    wait_until(lambda: not any(map(alive, map(int, pids.read_text().split()))))


@pytest.mark.parametrize("kind", ["program", *METHODS])
def test_workers_die_with_whoever_started_them(ours, kind, tmp_path, wait_until):
    """Both run: while a fork server has a worker, it does not end with us."""
    parent = f"""
        import os, sys, time
        from holdfast.elastic.multiprocessing import DefaultLogsSpecs, start_processes

        def work(folder):
            open(os.path.join(folder, f"pid{{os.getpid()}}"), "w").close()
            time.sleep(600)

        if __name__ == "__main__":
            kind, folder = sys.argv[1:]
            if kind == "program":
                code = f"import sys; sys.path.insert(0, {{os.getcwd()!r}}); import parent; parent.work({{folder!r}})"
                how = dict(entrypoint=sys.executable, args={{0: ("-c", code), 1: ("-c", code)}})
            else:
                how = dict(entrypoint=work, args={{0: (folder,), 1: (folder,)}}, start_method=kind)
            logs = DefaultLogsSpecs({str(tmp_path)!r})
            group = start_processes(name="x", envs={{0: {{}}, 1: {{}}}}, logs_specs=logs, **how)
            time.sleep(600)
    """
    script, begun = tmp_path / "parent.py", tmp_path / "begun"
    script.write_text(textwrap.dedent(parent))
    begun.mkdir()
    running = subprocess.Popen([sys.executable, script, kind, begun], cwd=tmp_path)
    wait_until(lambda: len(list(begun.iterdir())) == 2)
    running.kill()
    running.wait()
    wait_until(lambda: not any(alive(int(file.name.removeprefix("pid"))) for file in begun.iterdir()))


def test_the_watch_over_a_closed_group_leaves_without_a_look(ours, start, test_mark, monkeypatch, tmp_path, wait_until):
    """On a busy machine a look through all processes takes seconds."""
    looked, grep = tmp_path / "looked", tmp_path / "grep"
    grep.write_text(f"#!/bin/sh\ntouch {looked}\n")
    grep.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    group = start(ours, [python("import time; time.sleep(600)")])
    watch = [pid for pid in orphans.marked(test_mark) if "read -r _" in Path(f"/proc/{pid}/cmdline").read_text()]
    group.close(timeout=30)
    wait_until(lambda: not any(map(alive, watch)))
    assert len(watch) == 1 and not looked.exists()


BELOW = """
import os, subprocess, sys
def work(file):
    child = subprocess.Popen(["setsid", "sleep", "600"], stdin=-3, stdout=-3, stderr=-3)
    os.write(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), f"{child.pid}\\n".encode())
"""


def test_who_is_just_beginning_another_program_is_found_a_moment_later(ours, test_mark, monkeypatch, tmp_path, wait_until):
    """Its environment is empty for that moment: here a `grep` finds nothing when it looks first."""
    grep, once = tmp_path / "grep", tmp_path / "once"
    grep.write_text(f'#!/bin/sh\n[ -e {once} ] && exec {shutil.which("grep")} "$@"\n: > {once}\n')
    grep.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "below.py").write_text(textwrap.dedent(BELOW))
    code = f"""
        import os, sys, time
        from holdfast.elastic.multiprocessing import DefaultLogsSpecs, start_processes
        work = ("-c", "import below, time; below.work('pid'); time.sleep(600)")
        start_processes("x", sys.executable, {{0: work}}, {{0: {{}}}}, DefaultLogsSpecs({str(tmp_path)!r}))
        while not os.path.exists("pid") or not open("pid").read().endswith("\\n"):
            time.sleep(0.01)
        os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=tmp_path, timeout=60)
    wait_until(lambda: not alive(int((tmp_path / "pid").read_text())))
    assert once.exists()


@pytest.mark.parametrize("kind", ["program", "fork", "spawn"])
@pytest.mark.parametrize("end", ["killed", "closed", "ended"])
def test_what_workers_started_goes_however_the_group_ends(ours, kind, end, tmp_path, wait_until):
    """`killed`: the process that holds the group is; `ended`: the worker, before its group is closed."""
    (tmp_path / "below.py").write_text(textwrap.dedent(BELOW))
    then = "pass" if end == "ended" else "import time; time.sleep(600)"
    parent = f"""
        import os, sys, time
        import below
        from holdfast.elastic.multiprocessing import DefaultLogsSpecs, start_processes

        def work(file):
            below.work(file)
            {then}

        if __name__ == "__main__":
            kind, end, file = sys.argv[1:]
            if kind == "program":
                code = f"import below; below.work({{file!r}}); {then}"
                how = dict(entrypoint=sys.executable, args={{0: ("-c", code)}})
            else:
                how = dict(entrypoint=work, args={{0: (file,)}}, start_method=kind)
            group = start_processes(name="x", envs={{0: {{}}}}, logs_specs=DefaultLogsSpecs({str(tmp_path)!r}), **how)
            if end == "ended":
                assert not group.wait().is_failed()
            while not os.path.exists(file) or not open(file).read().endswith("\\n"):
                time.sleep(0.01)
            if end == "killed":
                os.kill(os.getpid(), 9)
            group.close(timeout=1)
    """
    script, file = tmp_path / "parent.py", tmp_path / "pid"
    script.write_text(textwrap.dedent(parent))
    done = subprocess.run([sys.executable, script, kind, end, file], cwd=tmp_path, timeout=60)
    assert done.returncode == (-9 if end == "killed" else 0)
    wait_until(lambda: not alive(int(file.read_text())))


# Functions.


def how_to_start(names):
    """torch imports itself in every spawned child, which takes seconds: for it the fastest way must do."""
    return METHODS if names.ours else ("fork",)


def test_functions_return_values_by_rank(names, start):
    envs = {rank: {"RANK": str(rank), "WORLD_SIZE": "2"} for rank in (0, 1)}
    for method in how_to_start(names):
        result = start(names, [(), ()], workers.place, envs=envs, start_method=method).wait(period=0.05)
        assert result.return_values == {0: "0 of 2", 1: "1 of 2"}, method


def test_values_larger_than_any_pipe_come_back(names, start):
    result = start(names, [(300_000,), (300_000,)], workers.many_words, start_method="fork").wait(period=0.05)
    assert [len(value) for value in result.return_values.values()] == [300_000, 300_000]


def test_an_exception_in_a_function_is_a_failure_with_its_traceback(names, start):
    for method in how_to_start(names):
        others = [("",)] if names.ours else []  # a forked child of torch's may swallow its SIGTERM, and then takes 30 s
        group = start(names, [("no such layer",), *others], workers.raise_or_wait, start_method=method)
        failure = only_one(group.wait(period=0.05))
        assert failure.exitcode == 1 and failure.message["message"] == "ValueError: no such layer", method
        assert "in raise_or_wait" in failure.message["extraInfo"]["py_callstack"]
        assert not any(alive(pid) for pid in group.pids().values())


def test_the_exit_code_of_a_function_is_kept(names, start):
    failure = only_one(start(names, [(7,)], workers.exit_or_wait, start_method="fork").wait(period=0.05))
    assert failure.exitcode == 7 and failure.error_file == "<N/A>" and "To enable traceback" in failure.message


def test_a_function_that_calls_exit_0_succeeds_with_none(names, start):
    assert start(names, [(0,)], workers.exit_or_wait, start_method="fork").wait(period=0.05).return_values == {0: None}


@pytest.mark.parametrize("method", METHODS)
def test_a_function_that_leaves_by_os_exit_0_succeeds_with_none(ours, start, method):
    assert start(ours, [(), ()], workers.vanish, start_method=method).wait().return_values == {0: None, 1: None}


def test_a_value_that_cannot_be_pickled_is_a_failure_that_says_so(ours, start):
    failure = only_one(start(ours, [()], workers.unpicklable).wait())
    assert "local object 'unpicklable.<locals>.<lambda>'" in failure.message["message"]


def test_a_functions_streams_go_where_they_are_sent_and_its_traceback_too(names, start):
    std = names("multiprocessing").Std
    result = start(names, [("hello",)], workers.speak, logs={"redirects": std.ALL}, start_method="fork").wait(period=0.05)
    assert Path(result.stdouts[0]).read_text() == "hello to stdout\n"
    assert Path(result.stderrs[0]).read_text() == "hello to stderr\n"


def test_a_functions_traceback_stands_in_its_log(ours, start):
    std = ours("multiprocessing").Std
    result = start(ours, [("no such layer",)], workers.raise_or_wait, logs={"redirects": std.ERR}).wait()
    assert Path(result.stderrs[0]).read_text().endswith("ValueError: no such layer\n")


@pytest.mark.torch
def test_tensors_come_back_from_spawned_functions(ours, start):
    value = start(ours, [(1000,)], workers.tensor).wait().return_values[0]
    assert value.shape == (1000,) and int(value.sum()) == 499500


def test_a_program_cannot_be_started_twice(names, start):
    for group in (start(names, [()], "true"), start(names, [(1, 2)], workers.add, start_method="fork")):
        with pytest.raises(ValueError, match="called twice"):
            group._start()
        group.wait(period=0.05)


def test_a_binding_to_cpus_is_left_to_torchs_options(ours, start, monkeypatch):
    def command_near(command, gpu_index, numa_options):
        return "env", f"{numa_options}={gpu_index}", *command

    def function_near(fn, gpu_index, numa_options):
        return lambda *args: (numa_options, gpu_index, fn(*args))

    binding = SimpleNamespace(
        _maybe_wrap_command_args_with_numa_binding=command_near, _maybe_wrap_with_numa_binding=function_near
    )
    monkeypatch.setitem(sys.modules, "torch.numa.binding", binding)
    std = ours("multiprocessing").Std
    program = start(ours, [("NEAR",)] * 2, "printenv", numa_options="NEAR", logs={"redirects": std.OUT})
    assert [Path(path).read_text() for path in program.wait().stdouts.values()] == ["0\n", "1\n"]
    function = start(ours, [(1, 2)], workers.add, numa_options="NEAR", start_method="fork")
    assert function.wait().return_values == {0: ("NEAR", 0, 3)}


@pytest.mark.parametrize("method", METHODS)
def test_a_function_that_we_stop_dies_of_the_signal_and_records_nothing(ours, start, method, tmp_path, wait_until):
    ready = tmp_path / "ready"
    group = start(ours, [(str(ready),)], workers.touch_and_wait, start_method=method)
    wait_until(ready.exists)
    group.close()
    assert group._pc.processes[0].exitcode == -signal.SIGTERM and not Path(group.error_files[0]).exists()


# Signals.


@pytest.mark.parametrize("signum", SIGNALS)
def test_a_signal_to_us_raises_where_we_wait(names, start, signum):
    group = start(names, [python("import time; time.sleep(600)")])
    with pytest.raises(names("multiprocessing").SignalException, match=f"got signal: {int(signum)}") as caught:
        threading.Timer(0.1, os.kill, (os.getpid(), signum)).start()
        group.wait(period=0.05)
    assert caught.value.sigval == signum
    group.close(caught.value.sigval)
    assert not alive(group.pids()[0])


def test_only_the_signals_that_are_named_are_handled(names, start, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGHUP,NOSUCH")
    before = signal.getsignal(signal.SIGTERM)
    start(names, [python("pass")]).wait(period=0.05)
    assert signal.getsignal(signal.SIGHUP) is names("multiprocessing.api")._terminate_process_handler
    assert signal.getsignal(signal.SIGTERM) is before


def test_the_signals_are_handled_before_the_workers_start(names, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGHUP")
    api, seen = names("multiprocessing.api"), []
    group = Mock(spec=api.PContext, _tail_logs=[])
    group._start = lambda: seen.append(signal.getsignal(signal.SIGHUP))
    api.PContext.start(group)
    assert seen == [api._terminate_process_handler]


def test_a_signal_while_a_program_is_waited_for_costs_nothing(ours, start, monkeypatch):
    """`subprocess` would keep its lock for ever, and the program seem to run for ever."""
    group = start(ours, [python("raise SystemExit(7)")])
    program = group.subprocess_handlers[0].proc
    lock = program._waitpid_lock

    class Interrupted:
        def acquire(self, *given):
            program._waitpid_lock = lock
            lock.acquire(*given)
            os.kill(os.getpid(), signal.SIGTERM)
            return True

        release = lock.release

    program._waitpid_lock = Interrupted()
    with pytest.raises(ours("multiprocessing").SignalException):
        group.wait(period=0.05)
    assert not lock.locked()
    assert only_one(group.wait(period=0.05)).exitcode == 7


def test_a_signal_just_before_a_long_wait_is_heard_soon(ours, monkeypatch):
    """Python runs no handler until a wait is over, where the signal came just before it."""
    strays, longest, looks = ours("multiprocessing.strays"), [], iter([False, True])
    monkeypatch.setattr(strays, "wait", lambda fds, seconds: longest.append(seconds) or [])
    assert strays.Running(os.getpid(), print, lambda: next(looks)).ends_within(600)
    assert longest and max(longest) <= 1


def test_a_signal_while_a_function_is_waited_for_costs_nothing(ours, start, monkeypatch):
    """Its exit code would be lost, and the function seem to run for ever."""
    group = start(ours, [(7,)], workers.exit_or_wait, start_method="fork")
    wait_for_one = os.waitpid

    def interrupted(pid, options):
        found = wait_for_one(pid, options)
        if found[0]:
            monkeypatch.setattr(os, "waitpid", wait_for_one)
            os.kill(os.getpid(), signal.SIGTERM)
        return found

    monkeypatch.setattr(os, "waitpid", interrupted)
    with pytest.raises(ours("multiprocessing").SignalException):
        group.wait(period=0.05)
    assert only_one(group.wait(period=0.05)).exitcode == 7


def test_a_function_that_has_let_go_of_its_descriptors_has_not_ended_yet(ours, start, tmp_path, caplog, wait_until):
    """As any has in its last moment: whoever takes it for deaf then kills it, or tells of a worker that cannot be killed."""
    shut = tmp_path / "shut"
    group = start(ours, [(str(shut),)], workers.shut_and_end_slowly, start_method="fork")
    wait_until(shut.exists)
    group.close(timeout=30)
    assert "forcefully" not in caplog.text and not alive(group.pids()[0])


def test_a_signal_to_a_forked_worker_that_has_not_begun_ends_it_and_nothing_else(ours, start, tmp_path):
    """It has its parent's handlers for a moment: what these raise would be lost in there, or come out in the parent's code."""
    armed = [True]
    os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM) if armed else None)
    try:
        group = start(ours, [(str(tmp_path / "touched"),)], workers.touch_and_wait, start_method="fork")
        result = group.wait(timeout=20)
    finally:
        armed.clear()
    assert result is not None and result.failures[0].exitcode == -signal.SIGTERM
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("kind", ["program", "function"])
def test_a_signal_while_workers_start_comes_once_they_can_be_ended(ours, start, monkeypatch, tmp_path, kind):
    """Raised before the worker is known it would leave one behind."""
    pids = []
    programs, forks = ours("multiprocessing.program_context"), multiprocessing.context.ForkProcess
    start_program, start_fork = programs.get_subprocess_handler, forks.start

    def interrupted(start_one):
        def start_it(*given, **named):
            made = start_one(*given, **named)
            pids.append(made.proc.pid if made else given[0].pid)
            os.kill(os.getpid(), signal.SIGTERM)
            return made

        return start_it

    monkeypatch.setattr(programs, "get_subprocess_handler", interrupted(start_program))
    monkeypatch.setattr(forks, "start", interrupted(start_fork))
    with pytest.raises(ours("multiprocessing").SignalException, match="got signal: 15"):
        if kind == "program":
            start(ours, [python("import time; time.sleep(600)")])
        else:
            start(ours, [(str(tmp_path / "touched"),)], workers.touch_and_wait, start_method="fork")
    assert len(pids) == 1 and not alive(pids[0])


@pytest.mark.skipif(bool(why_not()), reason=why_not())
def test_who_is_killed_is_waited_for_though_it_was_left_no_time_to_end(ours, tmp_path, wait_until, caplog):
    strays = ours("multiprocessing.strays")
    source = "import signal, sys\nheld = open(sys.argv[1])\nsignal.signal(15, signal.SIG_IGN)\nprint(0, flush=True)\n"
    with closing(HungMount(tmp_path / "hung")) as mount:
        (tmp_path / "hung/back/data").touch()
        command = [sys.executable, "-c", source + "signal.pause()", str(mount.path / "data")]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            child.stdout.readline()
            mount.hang()
            worker = strays.Running(child.pid, child.send_signal, lambda: child.poll() is not None)
            ending = threading.Thread(target=strays.end, args=([worker], signal.SIGTERM, time.monotonic(), 0.0))
            ending.start()
            wait_until(lambda: dying(child.pid))
            mount.go()
            ending.join()
            assert child.returncode == -signal.SIGKILL and "still there" not in caplog.text
