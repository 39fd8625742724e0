"""The table of flags is torchrun's: same spellings, attribute names, defaults, variables, and the same way to read a line."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.reference.torchrun import page

from holdfast.cli.run import parser
from holdfast.cli.run.help import full_help, main_help
from holdfast.core.config.flags import ALL_FLAGS, FLAGS, USE_ENV, flags_of
from holdfast.core.errors import UsageError

THEIRS = {
    # dest: (short, default, variable, kind), from torchrun 2.13
    "nnodes": ("", "1:1", "PET_NNODES", "text"),
    "nproc_per_node": ("", "1", "PET_NPROC_PER_NODE", "text"),
    "rdzv_backend": ("", "static", "PET_RDZV_BACKEND", "text"),
    "rdzv_endpoint": ("", "", "PET_RDZV_ENDPOINT", "text"),
    "rdzv_id": ("", "none", "PET_RDZV_ID", "text"),
    "rdzv_conf": ("", "", "PET_RDZV_CONF", "text"),
    "standalone": ("", None, "PET_STANDALONE", "switch"),
    "max_restarts": ("", "0", "PET_MAX_RESTARTS", "whole"),
    "monitor_interval": ("", "0.1", "PET_MONITOR_INTERVAL", "number"),
    "start_method": ("", "spawn", "PET_START_METHOD", "text"),
    "event_log_handler": ("", "null", "PET_EVENT_LOG_HANDLER", "text"),
    "role": ("", "default", "PET_ROLE", "text"),
    "module": ("-m", None, "PET_MODULE", "switch"),
    "no_python": ("", None, "PET_NO_PYTHON", "switch"),
    "run_path": ("", None, "PET_RUN_PATH", "switch"),
    "log_dir": ("", None, "PET_LOG_DIR", "text"),
    "redirects": ("-r", "0", "PET_REDIRECTS", "text"),
    "tee": ("-t", "0", "PET_TEE", "text"),
    "local_ranks_filter": ("", "", "PET_LOCAL_RANKS_FILTER", "text"),
    "duplicate_stdout_filters": ("", None, "PET_DUPLICATE_STDOUT_FILTERS", "list"),
    "duplicate_stderr_filters": ("", None, "PET_DUPLICATE_STDERR_FILTERS", "list"),
    "node_rank": ("", "0", "PET_NODE_RANK", "whole"),
    "master_addr": ("", "127.0.0.1", "PET_MASTER_ADDR", "text"),
    "master_port": ("", None, "PET_MASTER_PORT", "whole"),
    "local_addr": ("", None, "PET_LOCAL_ADDR", "text"),
    "logs_specs": ("", None, "PET_LOGS_SPECS", "text"),
    "numa_binding": ("", None, "PET_NUMA_BINDING", "text"),
    "signals_to_handle": ("", "SIGTERM,SIGINT,SIGHUP,SIGQUIT", "PET_SIGNALS_TO_HANDLE", "text"),
    "shutdown_timeout": ("", None, "PET_SHUTDOWN_TIMEOUT", "number"),
    "virtual_local_rank": ("", None, "PET_VIRTUAL_LOCAL_RANK", "switch"),
}
CHOICES = {"start_method": ("spawn", "fork", "forkserver"), "numa_binding": ("node", "socket", "exclusive", "core-complex")}


def given(*argv: str) -> dict[str, str | bool]:
    return parser.read([*argv, "train.py"]).given


def test_every_flag_of_torchrun_is_there_in_its_order_and_none_besides():
    assert [flag.dest for flag in FLAGS if flag.torchrun] == list(THEIRS)


@pytest.mark.parametrize("dest", THEIRS)
def test_a_flag_has_torchruns_spellings_default_and_variable(dest):
    short, default, variable, kind = THEIRS[dest]
    (flag,) = (flag for flag in ALL_FLAGS if flag.dest == dest)
    dashed, underscored = f"--{dest.replace('_', '-')}", f"--{dest}"
    assert flag.names == tuple(dict.fromkeys(name for name in (short, dashed, underscored) if name))
    assert (flag.default, flag.env, flag.kind) == (default, variable, kind)
    if dest in CHOICES:
        assert flag.choices[: len(CHOICES[dest])] == CHOICES[dest]  # ours come after torchrun's


@pytest.mark.parametrize("dest", THEIRS)
def test_every_spelling_of_a_flag_is_read(dest):
    (flag,) = (flag for flag in ALL_FLAGS if flag.dest == dest)
    for name in flag.names:
        if flag.kind == "switch":
            assert given(name) == {dest: True}
        else:
            assert given(name, "7") == {dest: "7"}
            assert given(f"{name}=7") == {dest: "7"}


OWN = [flag for flag in FLAGS if not flag.torchrun and flag.dest not in ("print_config", "dry_run")]
"""Our settings. The two left out are no settings: they are told apart, and tested below."""


@pytest.mark.parametrize("flag", OWN, ids=lambda flag: flag.dest)
def test_our_own_flags_are_read_in_full_only(flag):
    words = (flag.name,) if flag.kind == "switch" else (flag.name, "7")
    assert given(*words) == {flag.dest: True if flag.kind == "switch" else "7"}
    with pytest.raises(UsageError):
        given(flag.name[:-1], *words[1:])


def test_print_config_does_not_swallow_the_script():
    assert parser.read(["--print-config", "train.py"]).print_config == "text"
    assert parser.read(["--print-config=json", "train.py"]).print_config == "json"
    assert parser.read(["--print_config", "train.py"]).script == "train.py"
    assert parser.read(["--dry-run", "train.py"]).dry_run
    with pytest.raises(UsageError, match="--print-config takes no value"):
        parser.read(["--print-config=yaml", "train.py"])


def test_what_follows_the_script_belongs_to_the_script():
    typed = parser.read(["--nproc-per-node", "2", "s.py", "a", "--nproc-per-node", "3", "--", "x", "--help"])
    assert typed.given == {"nproc_per_node": "2"}
    assert (typed.script, typed.script_args) == ("s.py", ("a", "--nproc-per-node", "3", "--", "x", "--help"))


def test_a_double_dash_before_the_script_is_swallowed():
    typed = parser.read(["--", "s.py", "--", "q"])
    assert (typed.script, typed.script_args) == ("s.py", ("--", "q"))


def test_short_flags_can_be_glued():
    assert given("-r3", "-t", "0:1,1:2") == {"redirects": "3", "tee": "0:1,1:2"}
    assert given("-mr", "3") == {"module": True, "redirects": "3"}


def test_help_before_the_script_is_ours():
    assert parser.read(["--nnodes", "2", "-h"]).help and parser.read(["--h"]).help


PREFIXES = {
    "--nproc-p": "nproc_per_node",
    "--nproc_": "nproc_per_node",
    "--re": "redirects",
    "--te": "tee",
    "--rdzv-e": "rdzv_endpoint",
    "--node-": "node_rank",
    "--master-p": "master_port",
    "--max-": "max_restarts",
    "--ro": "role",
}


@pytest.mark.parametrize(("prefix", "dest"), PREFIXES.items())
def test_a_prefix_works_where_it_does_in_torchrun(prefix, dest):
    assert given(prefix, "7") == {dest: "7"}


@pytest.mark.parametrize(
    ("prefix", "says"),
    [("--nproc", "too short"), ("--st", "could be --standalone"), ("--rdzv-", "could be --rdzv-backend")],
)
def test_an_ambiguous_prefix_is_an_error_that_names_what_it_could_be(prefix, says):
    with pytest.raises(UsageError, match=says):
        given(prefix, "1")


@pytest.mark.parametrize(
    ("argv", "what", "hint"),
    [
        (["--nprocs-per-node", "2", "t.py"], "there is no flag --nprocs-per-node", "did you mean --nproc-per-node?"),
        (["--max_restart=2", "--max_restart-s=3", "t.py"], "no flag --max_restart-s", "--max-restarts"),
        (["--bogus", "t.py"], "no flag --bogus", "--help"),
        (["--bogus"], "no flag --bogus", "--help"),
        (["-x", "t.py"], "no flag -x", ""),
        ([], "no script to run", "SCRIPT"),
        (["--nnodes", "2"], "no script to run", "SCRIPT"),
        (["--role", "--", "t.py"], "--role needs a value", ""),
        (["--nnodes"], "--nnodes needs a value", ""),
        (["--max-restarts", "--standalone", "t.py"], "--max-restarts needs a value", ""),
        (["--standalone=1", "t.py"], "--standalone takes no value, but got '1'", ""),
    ],
)
def test_a_wrong_line_says_what_is_wrong(argv, what, hint):
    with pytest.raises(UsageError) as caught:
        parser.read(argv)
    assert what in str(caught.value) and hint in str(caught.value)


def test_use_env_exists_for_launch_only():
    assert parser.read(["--use_env", "t.py"], (*FLAGS, USE_ENV)).given == {"use_env": True}
    with pytest.raises(UsageError):
        given("--use-env")


def test_help_shows_every_flag_and_variable_and_keeps_to_the_width():
    text = full_help(width=80)
    assert all(flag.name in text for flag in FLAGS)
    assert all(f"[{flag.env}]" in text for flag in FLAGS if flag.env)
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("command", ["run", "launch", "ft_launcher"])
def test_the_short_help_is_two_screens(command: str):
    lines = main_help(command).splitlines()
    assert len(lines) <= 2 * 24 and max(map(len, lines)) <= 100


def test_the_reference_page_is_made_from_the_table():
    written = Path(__file__).parents[2] / "docs" / "reference" / "torchrun.md"
    assert written.read_text() == page(), "run: make reference"


@pytest.mark.parametrize(
    ("line", "said", "script"),
    [
        ("--ft-param-numa-bind-strict=1 --ft-param-numa-bind-strict t.py", "true", "t.py"),
        ("--ft-param-numa-bind-strict no --ft-param-numa-bind-strict=1 t.py", "1", "t.py"),
        ("--ft-param-numa-bind-strict=1 --ft-param-numa-bind-strict no t.py", "no", "t.py"),
        ("--ft-param-numa-bind-strict=1 --ft-param-numa-bind-strict=off t.py", "off", "t.py"),
    ],
)
def test_a_yes_that_is_said_twice_is_the_last(line, said, script):
    found = parser.read(line.split(), flags_of("ft_launcher"))
    assert found.script == script
    (given,) = (value for dest, value in found.given.items() if "strict" in dest)
    assert given == said


@pytest.mark.parametrize("argument", ["--n", "--log", "--r", "--max", "--nproc", "--help", "-h"])
def test_an_argument_of_the_scripts_is_never_taken_for_a_flag(argument):
    """Python 3.11's argparse refuses `torchrun train.py --n 3`: `--n` could be several flags of its own."""
    for before in (["--nproc-per-node", "2"], ["-r3"], ["--role=--x", "--"]):
        typed = parser.read([*before, "train.py", argument, "3"])
        assert (typed.script, typed.script_args) == ("train.py", (argument, "3"))


@pytest.mark.parametrize("argv", [[], ["--bogus"]])
def test_a_hint_names_the_command_that_was_typed(argv):
    with pytest.raises(UsageError) as caught:
        parser.read(argv, flags_of("ft_launcher"), "ft_launcher")
    assert "holdfast ft_launcher" in str(caught.value) and "holdfast run" not in str(caught.value)
