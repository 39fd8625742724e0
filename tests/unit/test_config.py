"""Options become a configuration: every row of torchrun's table, from the command line and from its variable."""

from __future__ import annotations

import signal

import pytest
from kit.stages.command_lines import TWO, config, error, host, told, warnings

from holdfast.cli.run import parser
from holdfast.core.config.draft import gather
from holdfast.core.config.flags import FLAGS
from holdfast.core.errors import UsageError
from holdfast.core.resolve.resolve import resolve

ROWS = [
    # words before the flag, flag, text, field, value
    ((), "--nnodes", "1", "max_nodes", 1),
    (("--rdzv-backend", "c10d"), "--nnodes", "2:4", "min_nodes", 2),
    (("--rdzv-backend", "c10d"), "--nnodes", "2:4", "max_nodes", 4),
    ((), "--nproc-per-node", "3", "nproc_per_node", 3),
    (("--nnodes", "2"), "--rdzv-backend", "c10d", "rdzv_backend", "embedded"),
    (("--nnodes", "2", "--rdzv-backend", "c10d"), "--rdzv-endpoint", "host:1234", "rdzv_endpoint", "host:1234"),
    ((), "--rdzv-id", "job7", "rdzv_id", "job7"),
    ((), "--rdzv-conf", "join_timeout=5, x = a=b", "rdzv_conf", {"join_timeout": "5", "x": "a=b"}),
    ((), "--max-restarts", "3", "max_restarts", 3),
    ((), "--monitor-interval", "5", "monitor_interval", 5.0),
    ((), "--start-method", "forkserver", "start_method", "forkserver"),
    ((), "--event-log-handler", "console", "event_log_handler", "console"),
    ((), "--role", "trainer", "role", "trainer"),
    ((), "--log-dir", "logs", "log_dir", "/home/me/logs"),
    ((), "--log-dir", "/dev/null", "log_dir", "/dev/null"),
    ((), "--redirects", "3", "redirects", {0: 3}),
    (("--nproc-per-node", "2"), "--tee", "1:2", "tee", {0: 0, 1: 2}),
    ((), "--local-ranks-filter", "0,2", "local_ranks_filter", frozenset((0, 2))),
    ((), "--duplicate-stdout-filters", "a,b,,c", "duplicate_stdout_filters", ("a", "b,c")),
    ((), "--duplicate-stderr-filters", "oom", "duplicate_stderr_filters", ("oom",)),
    (("--nnodes", "2"), "--node-rank", "1", "node_rank", 1),
    (("--nnodes", "2"), "--master-addr", "[::1]", "master_addr", "::1"),
    ((), "--master-port", "1234", "master_port", 1234),
    ((), "--local-addr", "10.0.0.7", "local_addr", "10.0.0.7"),
    ((), "--logs-specs", "mylogs", "logs_specs", "mylogs"),
    ((), "--signals-to-handle", "SIGTERM, SIGUSR1", "signals_to_handle", (signal.SIGTERM, signal.SIGUSR1)),
    ((), "--shutdown-timeout", "5", "shutdown_timeout_s", 5.0),
    ((), "--restart-period", "60", "restart_period_s", 60.0),
    ((), "--backoff", "0", "backoff_s", 0.0),
    ((), "--lease", "1.5", "lease_s", 1.5),
    ((), "--state-dir", "/var/hf", "state_dir", "/var/hf"),
    ((), "--node-name", "n07", "node_name", "n07"),
    ((), "--token-file", "secret", "token_file", "/home/me/secret"),
    ((), "--witness", "shared", "witness", "/home/me/shared"),
    ((), "--witness", "slurm", "witness", "slurm"),
    ((), "--on-split", "continue", "on_split", "continue"),
]
SWITCHES = [("standalone", ()), ("module", ()), ("no_python", ()), ("run_path", ()), ("virtual_local_rank", ())]
VARIABLES = {flag.name: flag.env for flag in FLAGS}


@pytest.mark.parametrize(("before", "flag", "text", "field", "value"), ROWS)
def test_a_flag_sets_its_value_and_is_named_as_its_origin(before, flag, text, field, value):
    resolved = told(*before, flag, text)
    assert getattr(resolved.config, field) == value
    assert resolved.origins[field].startswith(flag)


@pytest.mark.parametrize(("before", "flag", "text", "field", "value"), ROWS)
def test_so_does_its_variable(before, flag, text, field, value):
    resolved = told(*before, env={VARIABLES[flag]: text})
    assert getattr(resolved.config, field) == value
    assert resolved.origins[field].startswith(VARIABLES[flag])


@pytest.mark.parametrize(("dest", "before"), SWITCHES)
def test_a_switch_is_set_by_flag_or_variable(dest, before):
    assert getattr(config(*before), dest) is False
    assert getattr(config(*before, f"--{dest.replace('_', '-')}"), dest) is True
    assert getattr(config(*before, env={f"PET_{dest.upper()}": "1"}), dest) is True
    assert getattr(config(*before, env={f"PET_{dest.upper()}": "0"}), dest) is False
    assert f"PET_{dest.upper()}: 'yes' is not a whole number" in error(env={f"PET_{dest.upper()}": "yes"})
    assert "PET_" in error(env={f"PET_{dest.upper()}": ""})


def test_the_flag_goes_before_its_variable_even_a_wrong_one():
    assert config("--max-restarts", "1", env={"PET_MAX_RESTARTS": "x"}).max_restarts == 1


def test_a_variable_that_is_set_but_empty_counts():
    assert "PET_MAX_RESTARTS: '' is not a whole number" in error(env={"PET_MAX_RESTARTS": ""})
    assert config(env={"PET_DUPLICATE_STDOUT_FILTERS": ""}).duplicate_stdout_filters == ("",)


def test_the_defaults_are_torchruns():
    plain = config()
    assert (plain.min_nodes, plain.max_nodes, plain.nproc_per_node, plain.max_restarts) == (1, 1, 1, 0)
    assert (plain.role, plain.start_method, plain.event_log_handler, plain.monitor_interval) == (
        "default",
        "spawn",
        "null",
        0.1,
    )
    assert plain.signals_to_handle == (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    assert (plain.shutdown_timeout_s, plain.join_timeout_s, plain.last_call_s) == (30.0, 600.0, 30.0)
    assert (plain.redirects, plain.tee, plain.local_ranks_filter, plain.log_dir) == ({0: 0}, {0: 0}, None, None)
    assert (plain.training_script, plain.training_script_args) == ("train.py", ("--lr", "3"))
    assert plain.state_dir == "/home/ann/.local/state/holdfast" and plain.python == "/usr/bin/python3"


def test_nproc_counts_what_the_host_has():
    assert config("--nproc-per-node", "cpu").nproc_per_node == 6
    assert config("--nproc-per-node", "gpu", on=host(gpus=8)).nproc_per_node == 8
    assert config("--nproc-per-node", "xpu", on=host(xpus=4)).nproc_per_node == 4
    assert config("--nproc-per-node", "auto", on=host(gpus=8, xpus=1)).nproc_per_node == 8
    assert config("--nproc-per-node", "auto", on=host(xpus=2)).nproc_per_node == 2
    assert config("--nproc-per-node", "auto").nproc_per_node == 6
    assert config("--nproc-per-node", " 2 ").nproc_per_node == 2


def test_more_than_one_worker_gets_one_openmp_thread_each():
    several = ("--nproc-per-node", "2")
    typed = parser.read([*several, "t.py"])
    resolved = resolve(gather(typed.given, {}), "t.py", (), {}, host())
    assert resolved.config.omp_num_threads == "1"
    (notice,) = resolved.notices
    assert notice.level == "WARNING" and "\n" not in notice.text
    assert notice.text.startswith("Setting OMP_NUM_THREADS environment variable for each process to be 1")
    assert config(*several, env={"OMP_NUM_THREADS": ""}).omp_num_threads is None
    assert resolve(gather({}, {}), "t.py", (), {}, host()).config.omp_num_threads is None


def test_other_variables_that_torchrun_reads():
    found = config(
        env={
            "PYTHON_EXEC": "/opt/py",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7",
            "TORCHELASTIC_ENABLE_FILE_TIMER": "1",
            "TORCHELASTIC_TIMER_FILE": "/tmp/t",
            "TORCHELASTIC_HEALTH_CHECK_PORT": "8080",
            "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "${rank}|",
            "TORCHELASTIC_ERROR_FILE": "/tmp/e.json",
            "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "9",
            "LOGLEVEL": "info",
        }
    )
    assert (found.python, found.shutdown_timeout_s, found.watchdog, found.timer_file) == ("/opt/py", 7.0, True, "/tmp/t")
    assert (found.health_check_port, found.log_line_prefix_template, found.error_file) == (8080, "${rank}|", "/tmp/e.json")
    assert (found.uninterruptible_timeout_s, found.log_level) == (9.0, "INFO")
    assert config("--shutdown-timeout", "3", env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}).shutdown_timeout_s == 3.0
    assert config(env={"TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT": "soon"}).uninterruptible_timeout_s is None
    assert config("--verbose").log_level == "INFO" and config("--quiet").log_level == "ERROR"
    assert "WARNING" in warnings(env={"LOGLEVEL": "INFOO"})


def test_streams_of_local_ranks_above_nine_can_be_named():
    chosen = config("--nproc-per-node", "12", "-r", "10:1,0:3").redirects
    assert (chosen[0], chosen[1], chosen[10], len(chosen)) == (3, 0, 1, 12)
    assert config("-t", "7:3").tee == {0: 0}  # beyond the workers there are: nothing to do


def test_a_module_and_no_python_exclude_each_other_unless_run_path_beats_both():
    assert "a module needs Python" in error("-m", "--no-python")
    assert config("-m", "--no-python", "--run-path").run_path


def test_launch_gives_the_local_rank_as_an_argument_unless_told_otherwise():
    assert config().use_env
    assert not told(command="launch").config.use_env
    assert told("--use-env", command="launch").config.use_env
    with pytest.raises(UsageError, match="--local-rank"):
        told("--no-python", command="launch")


def test_virtual_local_rank_needs_a_device_for_each_worker():
    devices = {"CUDA_VISIBLE_DEVICES": "0,1"}
    assert config("--virtual-local-rank", "--nproc-per-node", "2", env=devices).virtual_local_rank
    assert "CUDA_VISIBLE_DEVICES=0,1" in error("--virtual-local-rank", "--nproc-per-node", "3", env=devices)


MISTAKES = [
    (("--nnodes", "two"), "--nnodes: 'two' is not a number of nodes", "MIN:MAX"),
    (("--nnodes", "1:2:3"), "--nnodes: '1:2:3' is not", "MIN:MAX"),
    (("--nnodes", "0"), "--nnodes: 0: a job needs at least one node", ""),
    (("--nnodes", "4:2"), "--nnodes: 4:2: the least, 4, is more than the most, 2", "did you mean 2:4?"),
    (("--max-restarts", "-1"), "--max-restarts: -1 is too small", "0 or more"),
    (("--max-restarts", "x"), "--max-restarts: 'x' is not a whole number", ""),
    (("--monitor-interval", "0"), "--monitor-interval: 0 is not above zero", ""),
    (("--monitor-interval", "nan"), "--monitor-interval: nan", ""),
    (("--nproc-per-node", "0"), "--nproc-per-node: 0 is too small", "1 or more"),
    (("--nproc-per-node", "gpus"), "--nproc-per-node: 'gpus' is neither", "did you mean gpu?"),
    (("--nproc-per-node", "gpu"), "--nproc-per-node: gpu: no GPU is visible", "auto"),
    (("--nproc-per-node", "xpu"), "--nproc-per-node: xpu: no XPU is visible", ""),
    (("--start-method", "frok"), "--start-method: there is no 'frok'", "did you mean fork?"),
    (("--event-log-handler", "consol"), "--event-log-handler: there is no 'consol'", "did you mean console?"),
    (("--numa-binding", "node"), "--numa-binding node: 1 workers, but no GPUs are visible", "--numa-binding auto"),
    (("--numa-binding", "nodes"), "--numa-binding: there is no 'nodes'", "did you mean node?"),
    (
        ("--rdzv-backend", "c10"),
        "--rdzv-backend: there is no rendezvous backend 'c10'",
        "did you mean c10d? known: static, c10d",
    ),
    (("--rdzv-backend", "zo"), "there is no rendezvous backend 'zo'", "zoo"),
    (("--rdzv-backend", "etcd"), "--rdzv-backend: etcd: where is etcd?", "--rdzv-endpoint HOST:2379"),
    (("--rdzv-backend", "etcd", "--rdzv-endpoint", "a,b:x"), "--rdzv-endpoint: 'x' is not a port", ""),
    (("--rdzv-backend", "memory", "--nnodes", "2"), "memory is for one node", "c10d"),
    (("--rdzv-conf", "a"), "--rdzv-conf: 'a' is not KEY=VALUE", "join_timeout=600"),
    (("--rdzv-conf", "a="), "is not KEY=VALUE", ""),
    (("--rdzv-conf", "a=1,,b=2"), "is not KEY=VALUE", ""),
    (("--rdzv-conf", "join_timeout=0"), "--rdzv-conf join_timeout: 0 is not above zero", ""),
    (("--rdzv-conf", "is_host=maybe"), "--rdzv-conf is_host: 'maybe' is neither yes nor no", ""),
    ((*TWO, "--rdzv-conf", "store_type=file"), "store_type=file is not supported", ""),
    (("--local-ranks-filter", "0,x"), "--local-ranks-filter: '0,x' is not a list of local ranks", "0,1,2"),
    (("--logs-specs", "mylog"), "--logs-specs: no entry point torchrun.logs_specs[mylog]", "did you mean mylogs?"),
    (("--logs-specs", "else"), "--logs-specs: no entry point torchrun.logs_specs[else]", "known: default, mylogs"),
    (("-r", "4"), "--redirects: '4' names no streams", "0:1,10:3"),
    (("-t", "0:1,1"), "--tee: '1' names no streams", "stdout"),
    (("--shutdown-timeout", "-1"), "--shutdown-timeout: -1 is negative", ""),
    (("--signals-to-handle", "SIGTERM,USR1"), "--signals-to-handle: there is no signal USR1", "did you mean SIGUSR1?"),
    (("--signals-to-handle", "SIGTREM"), "there is no signal SIGTREM", "did you mean SIGTERM?"),
    (("--signals-to-handle", "SIGKILL"), "SIGKILL cannot be handled", ""),
    (("--standalone", "--nnodes", "2"), "--standalone: one node, but --nnodes asks for 2", ""),
    (("--nnodes", "2", "--node-rank", "2"), "--node-rank: 2 is not below the number of nodes, 2", "0 to 1"),
    (("--node-rank", "-1"), "--node-rank: -1 is too small", ""),
    (("--master-port", "70000"), "--master-port: 70000 is too large", "65535"),
    (("--nnodes", "2", "--master-port", "0"), "port 0: 2 nodes cannot meet", ""),
    (("--rdzv-endpoint", "host"), "--rdzv-endpoint: 'host' has no port", "host:29500"),
    (("--rdzv-backend", "c10d", "--rdzv-endpoint", "h:99999"), "--rdzv-endpoint: '99999' is not a port", "65535"),
    (("--rdzv-backend", "c10d", "--rdzv-endpoint", "h:"), "ends before the port", ""),
    (("--rdzv-backend", "c10d", "--rdzv-endpoint", "http://h:1"), "is not a host name or address", ""),
    (
        ("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h:0"),
        "port 0: the other nodes would not know",
        "h:29400",
    ),
    (("--lease", "0"), "--lease: 0 is not above zero", ""),
    (("--lease", "0.01"), "--lease: 0.01 s is too short", "0.1 seconds or more"),
    (("--rdzv-conf", "keep_alive_interval=0.02"), "keep_alive_interval x 3: 0.06 s is too short", "0.1 seconds or more"),
    (("--nproc-per-node", "100000"), "--nproc-per-node: 100000 is too large", "10000 or less"),
    (("--lease", "inf"), "--lease: inf is too long", "31 years"),
    (("--on-split", "contine"), "--on-split: there is no 'contine'", "continue"),
    (("--restart-period", "0"), "--restart-period: 0 is not above zero", ""),
    (("--backoff", "-1"), "--backoff: -1 is negative", ""),
]


@pytest.mark.parametrize(("argv", "what", "hint"), MISTAKES, ids=[" ".join(row[0]) for row in MISTAKES])
def test_a_mistake_is_named_with_its_flag_and_a_way_out(argv, what, hint):
    message = error(*argv)
    assert what in message and hint in message


def test_a_mistake_in_a_variable_is_named_with_the_variable():
    assert "PET_TEE: '9' names no streams" in error(env={"PET_TEE": "9"})
    assert "PET_START_METHOD: there is no 'frok'" in error(env={"PET_START_METHOD": "frok"})
    assert "TORCH_ELASTIC_SHUTDOWN_TIMEOUT: 'x'" in error(env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "x"})
    assert "TORCHELASTIC_HEALTH_CHECK_PORT: 'x'" in error(env={"TORCHELASTIC_HEALTH_CHECK_PORT": "x"})


def test_the_first_mistake_in_torchruns_order_is_the_one_reported():
    assert "--nnodes" in error("-r", "9", "--nnodes", "x", "--max-restarts", "-1")
    assert "--max-restarts" in error("-r", "9", "--max-restarts", "-1", "--nproc-per-node", "x")
    assert "--rdzv-conf" in error("-r", "9", "--rdzv-conf", "x", "--local-ranks-filter", "x")
