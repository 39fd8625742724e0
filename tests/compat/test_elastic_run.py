"""torchrun's command line as Python: flags, variables, what they become, and jobs started by them. torch's and ours alike."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import textwrap
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import MagicMock, patch

import pytest


@pytest.fixture(autouse=True)
def a_clean_environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("PET_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


@pytest.fixture
def run(names):
    """The module."""
    return names("run")


@pytest.fixture
def config_of(run):
    """What a command line becomes."""
    return lambda *args: run.config_from_args(run.parse_args([*args, "train.py"]))[0]


@pytest.fixture
def command_of(run):
    """What each worker runs, and its arguments."""
    return lambda *args: run.config_from_args(run.parse_args(list(args)))[1:]


# Flags.


def test_attributes_and_defaults_are_torchs(ours):
    torchs = vars(pytest.importorskip("torch.distributed.run").parse_args(["s"]))
    assert vars(ours("run").parse_args(["s"])) == torchs


def test_spellings_are_torchs(ours):
    def spellings(module):
        return {option for action in module.get_args_parser()._actions for option in action.option_strings}

    assert spellings(ours("run")) == spellings(pytest.importorskip("torch.distributed.run"))


VALUES = dict(
    nnodes="2:4",
    nproc_per_node="8",
    rdzv_backend="c10d",
    rdzv_endpoint="h:1",
    rdzv_id="j",
    rdzv_conf="a=b",
    max_restarts="3",
    monitor_interval="5",
    start_method="fork",
    event_log_handler="console",
    role="r",
    log_dir="/l",
    redirects="3",
    tee="1",
    local_ranks_filter="0",
    node_rank="1",
    duplicate_stdout_filters="a,,b,c",
    duplicate_stderr_filters="x",
    master_addr="m",
    master_port="9",
    local_addr="l",
    signals_to_handle="SIGTERM",
    shutdown_timeout="4",
    logs_specs="default",
    numa_binding="node",
)
SWITCHES = ["standalone", "module", "no_python", "run_path", "virtual_local_rank"]
PARSED = dict(
    max_restarts=3,
    monitor_interval=5.0,
    node_rank=1,
    master_port=9,
    shutdown_timeout=4,
    duplicate_stdout_filters=["a,b", "c"],
    duplicate_stderr_filters=["x"],
)


@pytest.mark.parametrize("underscored", [False, True])
def test_every_flag(run, underscored):
    spelled = (lambda name: name) if underscored else (lambda name: name.replace("_", "-"))
    words = [f"--{spelled(name)}={value}" for name, value in VALUES.items()] + [f"--{spelled(name)}" for name in SWITCHES]
    args = vars(run.parse_args([*words, "s"]))
    assert {name: args[name] for name in VALUES} == VALUES | PARSED and all(args[name] for name in SWITCHES)


def test_every_variable(run, monkeypatch):
    with_variable = {name: value for name, value in VALUES.items() if name not in ("logs_specs", "numa_binding")}
    for name, value in {**with_variable, **dict.fromkeys(SWITCHES, "1"), "logs_specs": "x"}.items():
        monkeypatch.setenv(f"PET_{name.upper()}", value)
    args = vars(run.parse_args(["--role", "typed", "s"]))
    assert {name: args[name] for name in with_variable} == with_variable | PARSED | {"role": "typed"}
    assert all(args[name] for name in SWITCHES) and args["logs_specs"] is None


@pytest.mark.torch
def test_numa_binding_becomes_torchs_options(config_of):
    binding = pytest.importorskip("torch.numa.binding")
    assert config_of("--numa-binding=exclusive").numa_options == binding.NumaOptions(binding.AffinityMode.EXCLUSIVE)
    assert config_of().numa_options is None


@pytest.mark.parametrize(("value", "on"), [("0", False), ("1", True), ("2", True)])
def test_switches_are_numbers_in_the_environment(run, monkeypatch, value, on):
    monkeypatch.setenv("PET_STANDALONE", value)
    assert run.parse_args(["s"]).standalone is on


def test_flags_of_a_parser_of_ones_own(names, monkeypatch):
    actions = names("argparse_util")

    def parsed(*words):
        parser = argparse.ArgumentParser()
        parser.add_argument("-d", "--depth", action=actions.env, type=int, required=True)
        parser.add_argument("--dry", action=actions.check_env)
        return vars(parser.parse_args(words))

    assert parsed("-d", "1", "--dry") == {"depth": 1, "dry": True}
    with pytest.raises(SystemExit):
        parsed()
    monkeypatch.setenv("PET_DEPTH", "2")
    monkeypatch.setenv("PET_DRY", "1")
    assert parsed() == {"depth": 2, "dry": True} and parsed("--depth", "3")["depth"] == 3


def test_all_after_the_script_is_its_own(run):
    args = run.parse_args(["--nproc-p", "2", "s", "a", "--nproc-per-node", "3", "--", "x"])
    assert (args.nproc_per_node, args.training_script, args.training_script_args) == (
        "2",
        "s",
        ["a", "--nproc-per-node", "3", "--", "x"],
    )


@pytest.mark.parametrize(
    "words", [["--nproc", "1", "s"], ["--start-method", "x", "s"], ["--max-restarts", "x", "s"], ["--nosuch", "s"], []]
)
def test_what_argparse_refuses(run, words, capsys):
    with pytest.raises(SystemExit) as stopped:
        run.parse_args(words)
    assert stopped.value.code == 2 and "usage:" in capsys.readouterr().err


def test_numbers_of_nodes(run):
    assert run.parse_min_max_nnodes("3") == (3, 3) and run.parse_min_max_nnodes("2:20") == (2, 20)
    with pytest.raises(RuntimeError, match='nnodes=2:20:30 is not in "MIN:MAX" format'):
        run.parse_min_max_nnodes("2:20:30")
    with pytest.raises(ValueError):
        run.parse_min_max_nnodes("two")


def test_numbers_of_workers(run):
    assert run.determine_local_world_size("4") == 4 and run.determine_local_world_size("cpu") == len(os.sched_getaffinity(0))
    with pytest.raises(ValueError, match="Unsupported nproc_per_node value: GPU"):
        run.determine_local_world_size("GPU")


@pytest.mark.torch
def test_devices_are_counted_by_torch_where_it_is_loaded(run):
    torch = pytest.importorskip("torch")
    for kind, name in (("gpu", "cuda"), ("xpu", "xpu")):
        module = getattr(torch, name)
        with patch.object(module, "is_available", return_value=True), patch.object(module, "device_count", return_value=3):
            assert run.determine_local_world_size(kind) == 3
        with (
            patch.object(module, "is_available", return_value=False),
            pytest.raises(ValueError, match=f"{name.title()} is not available."),
        ):
            run.determine_local_world_size(kind)
    found = MagicMock(type="gpu")
    with patch.multiple(
        torch.accelerator, is_available=lambda: True, device_count=lambda: 3, current_accelerator=lambda: found
    ):
        assert run.determine_local_world_size("auto") == 3
    with patch.object(torch.accelerator, "is_available", return_value=False):
        assert run.determine_local_world_size("auto") == len(os.sched_getaffinity(0))


def test_devices_are_counted_without_torch_where_it_is_not(ours):
    code = """
        import sys
        from unittest.mock import patch
        sys.modules["torch"] = None
        from holdfast.elastic.run import determine_local_world_size
        from holdfast.runtime.hardware import gpus as accelerators
        with patch.object(accelerators, "count", side_effect=lambda kind, environ: {"gpu": 0, "xpu": 5}[kind]):
            print(determine_local_world_size("auto"), determine_local_world_size("xpu"))
            try:
                determine_local_world_size("gpu")
            except ValueError as error:
                print(str(error).splitlines()[0])
    """
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60)
    assert ran.stdout == "5 5\nCuda is not available.\n", ran


# What they become.


def test_a_config(config_of):
    config = config_of(
        "--nnodes=1:2",
        "--nproc-per-node=3",
        "--rdzv-backend=c10d",
        "--rdzv-endpoint=h:1",
        "--rdzv-id=j",
        "--rdzv-conf=a=b",
        "--role=r",
    )
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node, config.run_id, config.role) == (1, 2, 3, "j", "r")
    assert (config.rdzv_backend, config.rdzv_endpoint, config.rdzv_configs) == ("c10d", "h:1", {"a": "b", "timeout": 900})
    assert (config.max_restarts, config.monitor_interval, config.shutdown_timeout, config.event_log_handler) == (
        0,
        0.1,
        30,
        "null",
    )


def test_a_static_config(config_of):
    config = config_of("--node-rank=1", "--master-addr=h", "--master-port=9")
    assert (config.rdzv_endpoint, config.rdzv_configs["rank"], config.run_id) == ("h:9", 1, "none")


def test_a_log_line_prefix(config_of, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[${rank}]")
    assert config_of().log_line_prefix_template == "[${rank}]"


@pytest.mark.parametrize(
    ("words", "command"),
    [
        (["s", "a"], (sys.executable, ["-u", "s", "a"])),
        (["-m", "pkg.mod", "a"], (sys.executable, ["-u", "-m", "pkg.mod", "a"])),
        (["--no-python", "prog", "-x"], ("prog", ["-x"])),
    ],
)
def test_what_a_worker_runs(command_of, words, command):
    assert command_of(*words) == command


def test_another_python(command_of, monkeypatch):
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert command_of("s") == ("/opt/python", ["-u", "s"])


def test_a_script_as_a_function(run, command_of):
    assert command_of("--run-path", "--no-python", "-m", "s", "a") == (run.run_script_path, ["s", "a"])


def test_running_a_script_here(run, tmp_path, capsys):
    (tmp_path / "s.py").write_text("import sys; print(__name__, sys.argv[1:])")
    with patch.object(sys, "argv", []):
        run.run_script_path(str(tmp_path / "s.py"), "a")
    assert capsys.readouterr().out == "__main__ ['a']\n"


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--no-python", "-m", "s"], ValueError),
        (["--nnodes=0", "s"], AssertionError),
        (["--nnodes=3:2", "s"], AssertionError),
        (["--max-restarts=-1", "s"], AssertionError),
        (["--rdzv-conf=a", "s"], ValueError),
        (["--local-ranks-filter=a", "s"], ValueError),
        (["--redirects=9", "s"], ValueError),
        (["--logs-specs=nobodys", "s"], ValueError),
        (["--nproc-per-node=many", "s"], ValueError),
        (["--shutdown-timeout=-1", "s"], ValueError),
    ],
)
def test_what_cannot_be(command_of, words, error):
    with pytest.raises(error):
        command_of(*words)


def test_logs_specs_of_an_installed_package(run, names):
    group = MagicMock()
    group.__getitem__.return_value.load.return_value = names("multiprocessing").DefaultLogsSpecs
    with patch(names.path("run", "metadata")) as metadata:
        metadata.entry_points.return_value.select.return_value = group
        config = run.config_from_args(run.parse_args(["--logs-specs=theirs", "s"]))[0]
    assert isinstance(config.logs_specs, names("multiprocessing").DefaultLogsSpecs)


@pytest.mark.parametrize(("streams", "ranks"), [("0", set()), ("3", {0, 1}), ("0:1,1:2", {0})])
def test_logs_specs_that_are_built_on_torch_s_know_the_streams(run, streams, ranks):
    torchs = pytest.importorskip("torch.distributed.elastic.multiprocessing").DefaultLogsSpecs
    config = run.config_from_args(run.parse_args(["--logs-specs=default", "--redirects=2", f"--tee={streams}", "s"]))[0]
    assert type(config.logs_specs) is torchs  # torch offers it by that name, as other packages do theirs
    destinations = config.logs_specs.reify({0: {}, 1: {}})
    assert set(destinations.tee_stdouts) == ranks and all(destinations.stderrs.values())


def test_threads_are_limited_for_several_workers(config_of, monkeypatch, caplog):
    monkeypatch.delenv("OMP_NUM_THREADS")
    config_of()
    assert "OMP_NUM_THREADS" not in os.environ
    config_of("--nproc-per-node=2")
    assert (
        os.environ["OMP_NUM_THREADS"] == "1"
        and "OMP_NUM_THREADS" in caplog.text
        and "*****************************************" in caplog.text
    )


def test_flags_that_do_nothing_are_warned_of(config_of, caplog):
    config_of("--rdzv-backend=c10d", "--node-rank=1")
    assert "master_addr is only" in caplog.text and "node_rank is only" in caplog.text


# Which rendezvous.


@pytest.fixture
def launched(run):
    """The config that `run` hands to the launcher for a command line."""

    def launch(*words):
        with patch.object(run, "elastic_launch") as started:
            run.run(run.parse_args([*words, "s"]))
        return started.call_args.kwargs["config"]

    return launch


@pytest.mark.parametrize(
    ("words", "backend", "endpoint"),
    [
        ([], "c10d", "localhost:0"),
        (["--standalone", "--rdzv-backend=etcd", "--rdzv-endpoint=h:1"], "c10d", "localhost:0"),
        (["--nnodes=2"], "static", "127.0.0.1:29500"),
        (["--master-port=9"], "static", "127.0.0.1:9"),
        (["--rdzv-endpoint=h:1"], "static", "h:1"),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=h:1"], "c10d", "h:1"),
    ],
)
def test_which_rendezvous(launched, words, backend, endpoint):
    config = launched(*words)
    assert (config.rdzv_backend, config.rdzv_endpoint) == (backend, endpoint)


def test_one_node_keeps_the_name_it_was_given(ours):
    run = ours("run")
    for words, expected in (
        (["--rdzv-id=job7"], "job7"),
        (["--standalone", "--rdzv-id=job7"], "job7"),
        (["--standalone"], None),
    ):
        with patch.object(run, "elastic_launch") as started:
            run.run(run.parse_args([*words, "s"]))
        name = started.call_args.kwargs["config"].run_id
        assert name == expected if expected else len(name) == 36


# Jobs.


TOUCH = "import os, sys; open(os.path.join(sys.argv[1], os.environ['RANK']), 'w').write(os.environ['TORCHELASTIC_RUN_ID'])"


@pytest.mark.parametrize(
    "words",
    [
        ["--standalone"],
        ["--master-addr=localhost", "--master-port={port}", "--node-rank=0"],
        ["--run-path", "--start-method=fork"],
    ],
)
def test_a_job(run, script, tmp_path, free_port, words):
    (tmp_path / "out").mkdir()
    run.main(
        ["--nproc-per-node=2", *(word.format(port=free_port) for word in words), str(script(TOUCH)), str(tmp_path / "out")]
    )
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"0", "1"}


def test_a_job_that_fails(run, names, script):
    errors = names("multiprocessing.errors")
    with patch(names.path("events", "record")) as record, pytest.raises(errors.ChildFailedError, match=r"script\.py FAILED"):
        run.main(["--nproc-per-node=2", str(script("raise SystemExit(3)"))])
    record.assert_called_once()


def test_an_agent_that_fails(run, names, script):
    class Broken(Exception): ...

    agent = names.path("agent.server.local_elastic_agent", "LocalElasticAgent", "run")
    with patch(names.path("events", "record")) as record, patch(agent, side_effect=Broken), pytest.raises(Broken):
        run.main([str(script(""))])
    record.assert_called_once()


def test_the_rendezvous_is_shut_down(run, names):
    server, handler = names("agent.server.api"), MagicMock()
    with patch(names.path("launcher.api", "LocalElasticAgent")) as agent:
        agent.return_value.run.return_value = server.RunResult(server.WorkerState.SUCCEEDED)
        with patch(names.path("rendezvous.registry", "get_rendezvous_handler"), return_value=handler):
            run.main(["s"])
    handler.shutdown.assert_called_once()


@pytest.mark.filterwarnings("ignore:Unable to enable fault handler")  # pytest has taken stderr
def test_tee_is_prefixed(run, script, monkeypatch):
    monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "[rank${rank}]: ")
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        run.main(["--nproc-per-node=2", "--redirect=3", "--tee=3", str(script("print('here')"))])
    assert {"[rank0]: here", "[rank1]: here"} <= set(out.getvalue().splitlines())


@pytest.mark.parametrize("words", [[], ["--use-env"]])
def test_the_command_before_torchrun(names, script, tmp_path, words):
    launch = names("launch")
    with pytest.warns(FutureWarning):
        launch.main(
            [
                *words,
                "--nproc-per-node=2",
                str(script(f"import sys, os; open(f'{tmp_path}/' + os.environ['RANK'], 'w').write(repr(sys.argv[1:]))")),
                "a",
            ]
        )
    expected = [["a"]] * 2 if words else [["--local-rank=0", "a"], ["--local-rank=1", "a"]]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == [repr(each) for each in expected]
    with pytest.raises(ValueError, match="--use-env"):
        launch.launch(launch.parse_args(["--no-python", "s"]))


# As a program: every mistake in the command line exits with 2.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--standalone", "--nnodes=2"], "--standalone runs on one node, and --nnodes 2 needs 2"),
        (["--nnodes=1:2:3"], 'not in "MIN:MAX" format'),
        (["--nnodes=0"], "min_nodes must be > 0"),
        (["--max-restarts=-1"], "max_restarts must be >= 0"),
        (["--no-python", "-m"], "--no-python and --module"),
        (["--rdzv-conf=a"], "'a' must have a value"),
        (["--tee=7"], "7"),
        (["--numa-binding=auto"], "invalid choice: 'auto'"),
        (["--shutdown-timeout=-1"], "shutdown_timeout must be non-negative"),
        (["--monitor-interval=0"], "monitor_interval"),
        (["--nproc-per-node=0"], "local_world_size"),
        (["--rdzv-backend=nobodys"], "'nobodys' is not registered"),
        (["--event-log-handler=nobodys"], "no event log handler is called 'nobodys'"),
        (["--rdzv-backend=c10d", "--rdzv-endpoint=h:port"], "must be an integer between 0 and 65536"),
        (["--start-method=x"], "invalid choice"),
    ],
)
def test_mistakes_exit_with_2(words, said):
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast.elastic.run", *words, "s.py"], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 2 and said in ran.stderr and "Traceback" not in ran.stderr, ran


def test_a_failing_job_exits_with_1_and_the_box(script):
    ran = subprocess.run(
        [sys.executable, "-m", "holdfast.elastic.run", str(script("raise SystemExit(7)"))],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 1 and "script.py FAILED" in ran.stderr and "exitcode  : 7 (pid: " in ran.stderr
    assert ran.stderr.rstrip().endswith("====="), ran.stderr


@pytest.mark.parametrize("words", [[], ["--standalone"], ["--rdzv-backend=c10d"]])
def test_a_job_that_succeeds_leaves_nothing_in_the_temporary_directory(script, tmp_path, words):
    (tmp_path / "t").mkdir()
    subprocess.run(
        [sys.executable, "-m", "holdfast.elastic.run", *words, str(script("pass"))],
        env=os.environ | {"TMPDIR": str(tmp_path / "t")},
        check=True,
        timeout=60,
    )
    assert list((tmp_path / "t").iterdir()) == []
