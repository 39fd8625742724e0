"""ft_launcher's settings: every row of the table, by every spelling, from the file and the command line, and what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from kit.stages.command_lines import error, host, told
from tools.reference.ft_launcher import page

from holdfast.cli.run import parser
from holdfast.cli.run.help import full_help
from holdfast.core.config.draft import Resolved
from holdfast.core.config.fault_tolerance import FaultTolerance, section
from holdfast.core.config.flags import ALL_FLAGS, FT_LAUNCHER, NVRX_FLAGS, flags_of
from holdfast.core.config.option import WORKS, Option
from holdfast.core.errors import UsageError
from holdfast.core.resolve.resolve_fault_tolerance import DESTS

TEXTS = {
    # kind: a text, its value, a text that is wrong and what is said of it
    "limit": ("90", 90.0, "soon", "is not a number of seconds"),
    "limits": ("step:60,a:b:none", {"step": 60.0, "a:b": None}, "step", "is not NAME:SECONDS"),
    "seconds": ("2.5", 2.5, "-1", "is negative"),
    "number": ("3", 3.0, "0", "is not above zero"),
    "amount": ("0", 0.0, "-1", "is below zero"),
    "whole": ("7", 7, "x", "is not a whole number"),
    "yes": ("true", True, "maybe", "is neither yes nor no"),
    "signal": ("sigterm", 15, "SIGBUT", "did you mean SIGHUP?|there is no signal"),
    "level": ("warn", "WARNING", "loud", "there is no level"),
    "path": ("some/file", "/home/me/some/file", "", ""),
    "paths": ("/a,/b", ("/a", "/b"), "a", "a is not absolute"),
    "folder": ("/shared/health", "/shared/health", "health", "health is not absolute"),
    "text": ("here", "here", "", ""),
}
ANYTHING = ("path", "text")
"""Kinds for which every text will do."""
FIELDS = [row for row in NVRX_FLAGS if row.field]


def sample(row: Option) -> tuple[str, object]:
    """A text for a row, and what it is to become."""
    return (row.choices[-1], row.choices[-1]) if row.kind == "word" else TEXTS[row.kind][:2]


def value(resolved: Resolved, row: Option) -> object:
    return getattr(resolved.config.ft, row.field)


# --- the table ------------------------------------------------------------------------------------------------------------


def test_every_field_has_one_row_and_every_row_a_field_of_its_own():
    fields = [option.field for option in FaultTolerance.__options__ if option.field]
    assert sorted(fields) == sorted(set(FaultTolerance.__fields__) - {"gpus_per_numa"})  # that one is a variable's


def test_no_spelling_is_two_flags():
    names = [name for flag in ALL_FLAGS for name in flag.names]
    assert len(names) == len(set(names))


def test_what_is_not_acted_on_says_why():
    assert [row.field for row in NVRX_FLAGS if (row.state != WORKS) != bool(row.said)] == []


# --- each row -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: row.field)
def test_every_spelling_sets_the_field_and_is_named_as_its_origin(row):
    text, wanted = sample(row)
    assert value(told(row.name, text), row) == wanted != row.usual or row.kind == "yes" or row.choices
    for name in row.names:
        assert value(told(name, text), row) == wanted
        assert value(told(f"{name}={text}"), row) == wanted
    assert told(row.name, text).origins[f"ft.{row.field}"] == row.name


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: row.field)
def test_ft_launcher_takes_it_and_leaves_the_default_where_nobody_says_it(row):
    text, wanted = sample(row)
    assert value(told(row.name, text, command="ft_launcher"), row) == wanted
    assert value(told(command="ft_launcher"), row) == row.usual


@pytest.mark.parametrize("row", FIELDS, ids=lambda row: row.field)
def test_the_file_sets_it_by_each_key_and_the_command_line_goes_before_the_file(row):
    text, wanted = sample(row)
    for key in row.keys:
        on = host(yaml={"/home/me/ft.yaml": {"fault_tolerance": {key: text}}})
        from_file = told("--ft-cfg-path", "ft.yaml", on=on)
        assert value(from_file, row) == wanted
        assert from_file.origins[f"ft.{row.field}"] == f"ft.yaml fault_tolerance.{key}"
    other = {"fault_tolerance": {row.keys[0]: "nonsense that nobody may read"}}
    assert value(told("--ft-cfg-path", "/f", row.name, text, on=host(yaml={"/f": other})), row) == wanted


@pytest.mark.parametrize("row", [row for row in FIELDS if row.env], ids=lambda row: row.field)
def test_its_variable_sets_it_too(row):
    text, wanted = sample(row)
    assert value(told(env={row.env: text}), row) == wanted


@pytest.mark.parametrize("row", [row for row in FIELDS if row.kind not in ANYTHING], ids=lambda row: row.field)
def test_a_wrong_value_names_the_flag_or_the_key(row):
    wrong, said = ("nobody", "there is no 'nobody'") if row.kind == "word" else TEXTS[row.kind][2:]
    assert row.name in (text := error(f"{row.name}={wrong}")) and any(word in text for word in said.split("|"))
    on = host(yaml={"/f": {"fault_tolerance": {row.keys[0]: wrong}}})
    assert f"/f fault_tolerance.{row.keys[0]}" in error("--ft-cfg-path", "/f", on=on)


@pytest.mark.parametrize("row", [row for row in FIELDS if row.state != WORKS], ids=lambda row: row.field)
def test_what_has_no_effect_is_told_when_it_is_asked_for(row):
    text, _ = sample(row)
    notices = told(row.name, text).notices
    levels = [notice.level for notice in notices if row.name in notice.text and row.said in notice.text]
    assert levels == ["INFO"]
    assert not any(row.said in notice.text for notice in told().notices)


def test_one_line_tells_of_all_that_are_not_acted_on_for_one_reason():
    notices = told("--ft-attribution-llm-model", "m", "--ft-attribution-llm-base-url", "http://h").notices
    assert [notice.text.count("--ft-attribution-llm-") for notice in notices] == [2]


# --- flags without a value --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ((), True),
        (("true",), True),
        (("False",), False),
        (("0",), False),
        (("no",), False),
    ],
)
def test_a_yes_or_no_may_stand_alone_and_never_takes_the_script(words, wanted):
    typed = parser.read(["--ft-skip-section-response", *words, "true.py", "true"], ALL_FLAGS)
    assert (typed.script, typed.script_args) == ("true.py", ("true",))
    assert told("--ft-skip-section-response", *words).config.ft.skip_section_response is wanted


def test_it_may_stand_before_another_flag_or_a_double_dash():
    typed = parser.read(["--ft-skip-section-response", "--nnodes", "2", "--ft-enable-nic-monitor", "--", "yes"], ALL_FLAGS)
    assert typed.given == {"ft_skip_section_response": "true", "nnodes": "2", "ft_enable_nic_monitor": "true"}
    assert typed.script == "yes"


# --- limits ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["none", "None", "null", "", "inf"])
def test_no_limit_is_another_thing_than_none_given(text):
    assert told("--ft-rank-heartbeat-timeout", text).config.ft.rank_heartbeat_timeout is None
    assert told().config.ft.rank_heartbeat_timeout == "auto"


@pytest.mark.parametrize("text", ["256", "-1"])
def test_an_exit_code_that_the_kernel_would_make_another_is_refused(text):
    with pytest.raises(UsageError, match=f"exit-code: {text}"):
        told("--ft-no-restart-exit-code", text)


def test_no_limit_in_the_file_is_null():
    sections = {"step": None, "setup": 600, "eval": float("inf")}
    limits = {"rank_heartbeat_timeout": None, "still_limit": None, "rank_section_timeouts": sections}
    found = told("--ft-cfg-path", "/f", on=host(yaml={"/f": {"fault_tolerance": limits}})).config.ft
    assert found.rank_heartbeat_timeout is None and found.still_limit is None
    assert found.rank_section_timeouts == {"step": None, "setup": 600.0, "eval": None}


def test_null_for_what_is_no_limit_leaves_the_default():
    on = host(yaml={"/f": {"fault_tolerance": {"safety_factor": None, "cycle_info_dir": None}}})
    assert told("--ft-cfg-path", "/f", on=on).config.ft == FaultTolerance()


NUMBERS = """
gpu_memory_poll_interval gpu_memory_reclaim_timeout gpu_memory_tolerance_mb node_health_check_interval rank_section_timeouts
restart_check_interval safety_factor workload_check_interval
""".split()
"""What ft_launcher's help calls `Use 'null'|'none'|'' for None`, beside the limits."""


@pytest.mark.parametrize("text", ["none", "None", "null", ""])
@pytest.mark.parametrize("row", [row for row in FIELDS if row.field in NUMBERS], ids=lambda row: row.field)
def test_none_for_a_number_that_is_no_limit_is_its_default(row, text):
    assert value(told(row.name, text), row) == row.usual
    on = host(yaml={"/f": {"fault_tolerance": {row.field: text}}})
    assert value(told("--ft-cfg-path", "/f", on=on), row) == row.usual


# --- the file -------------------------------------------------------------------------------------------------------------


def test_the_section_is_found_depth_first_wherever_it_is():
    deep = {"a": [1, {"b": {"fault_tolerance": {"safety_factor": 2}}}], "fault_tolerance_not": {}}
    assert section(deep) == {"safety_factor": 2}
    first = {"x": {"fault_tolerance": {"safety_factor": 3}}, "y": {"fault_tolerance": {"safety_factor": 4}}}
    assert section(first) == {"safety_factor": 3}
    assert section({"fault_tolerance": True, "deeper": {"fault_tolerance": {}}}) == {}
    assert section({"fault_tolerance": None}) == {}
    assert section([1, "fault_tolerance"]) is None and section(None) is None


def test_a_file_without_the_section_is_told_unless_that_is_fine():
    on = host(yaml={"/home/me/f.yaml": {"trainer": {"lr": 1}}})
    assert [
        "f.yaml has no mapping fault_tolerance" in notice.text for notice in told("--ft-cfg-path", "f.yaml", on=on).notices
    ] == [True]
    assert not told("--ft-cfg-path", "f.yaml", "--ft-ignore-missing-cfg", on=on).notices
    assert not told("--fault-tol-cfg-path", "f.yaml", "--ignore-missing-fault-tol-cfg", on=on).notices


def test_a_file_that_is_not_there_is_an_error_unless_that_is_fine():
    assert "--ft-cfg-path: gone.yaml cannot be read: No such file" in error("--ft-cfg-path", "gone.yaml")
    assert "PET_FT_CFG_PATH: gone.yaml" in error(env={"PET_FT_CFG_PATH": "gone.yaml"})
    assert told("--ft-cfg-path", "gone.yaml", "--ft-ignore-missing-cfg").config.ft == FaultTolerance()


def test_a_key_that_is_nearly_one_of_ours_is_an_error_and_a_foreign_one_is_told():
    nearly = host(yaml={"/f": {"fault_tolerance": {"rank_heartbeat_timout": 3}}})
    assert "did you mean rank_heartbeat_timeout?" in error("--ft-cfg-path", "/f", on=nearly)
    foreign = host(yaml={"/f": {"fault_tolerance": {"zzz": 3}}})
    assert "/f: nothing reads fault_tolerance.zzz" in told("--ft-cfg-path", "/f", on=foreign).notices[0].text


def test_the_health_log_s_keys_may_stand_in_mappings_of_their_own_as_in_the_newest_versions():
    nested = {"health_logging": {"prefix": "/x.log", "dmesg": {"enabled": True}, "fact_result": {"enabled": False}}}
    found = told("--ft-cfg-path", "/f", on=host(yaml={"/f": {"fault_tolerance": nested}}))
    ft = found.config.ft
    assert (ft.health_log_prefix, ft.enable_health_log_dmesg, ft.enable_fact_result_artifact) == ("/x.log", True, False)
    assert found.origins["ft.health_log_prefix"] == "/f fault_tolerance.health_logging.prefix"
    more = {"health_logging": {"syslog": {"enabled": True}}, "rank_section_timeouts": {"a.b": 3}}
    found = told("--ft-cfg-path", "/f", on=host(yaml={"/f": {"fault_tolerance": more}}))
    assert "nothing reads fault_tolerance.health_logging.syslog.enabled" in found.notices[0].text
    assert found.config.ft.rank_section_timeouts == {"a.b": 3.0}


def test_our_own_flags_may_stand_in_the_file():
    ours = {"monitor": False, "progress_regex": r"step (?P<step>\d+)", "on_straggler": "ignore", "segment": 2}
    found = told(
        "--nnodes", "2", "--rdzv-backend", "c10d", "--ft-cfg-path", "/f", on=host(yaml={"/f": {"fault_tolerance": ours}})
    )
    assert (found.config.ft.monitor, found.config.ft.on_straggler, found.config.segment) == ("off", "ignore", 2)
    assert found.config.ft.progress_regex == ours["progress_regex"]
    assert found.origins["ft.monitor"] == "/f fault_tolerance.monitor"
    assert set(DESTS.values()) <= {flag.dest for flag in ALL_FLAGS}


# --- our own, and the variables -------------------------------------------------------------------------------------------


def test_the_monitor_is_on_unless_it_is_switched_off():
    assert told().config.ft.monitor == "auto"
    assert told("--monitor", "off").config.ft.monitor == "off"
    assert told(env={"HOLDFAST_MONITOR": "off"}).config.ft.monitor == "off"
    assert told(env={"NVRX_DISABLE_RANK_MONITORS": "1"}).config.ft.monitor == "off"
    assert "did you mean off?" in error("--monitor", "of")
    assert "--monitor-interval" in error("--monitor", "0.5")


def test_a_regular_expression_that_is_none_is_an_error():
    assert "--progress-regex: '(' is not a regular expression" in error("--progress-regex", "(")


def test_lines_that_are_gathered_anyway_are_searched_without_being_shown():
    assert told("--progress-regex", "step").config.tee == {0: 3}
    assert told("--progress-regex", "step", "--ft-per-cycle-applog-prefix", "/l/job.log").config.tee == {0: 0}


def test_the_gpus_of_a_numa_node_are_a_variable():
    assert told(env={"NVRX_GPUS_PER_NUMA": "4"}, on=host(programs=("numactl",))).config.ft.gpus_per_numa == 4
    assert "NVRX_GPUS_PER_NUMA" in error(env={"NVRX_GPUS_PER_NUMA": "many"})


def test_the_log_level_is_ours_unless_verbose_or_quiet_is_said():
    assert told("--ft-log-level", "debug", env={"LOGLEVEL": "ERROR"}).config.log_level == "DEBUG"
    assert told("--ft-log-level", "10").config.log_level == "DEBUG"
    assert told(env={"NVRX_LOG_DEBUG": "1", "LOGLEVEL": "ERROR"}).config.log_level == "DEBUG"
    assert told(env={"NVRX_LOG_DEBUG": "0"}).config.log_level == "WARNING"
    assert told("--ft-log-level", "debug", "--quiet").config.log_level == "ERROR"


@pytest.mark.parametrize("other", [("--rdzv-backend", "zoo"), ("--logs-specs", "mylogs")])
def test_what_other_packages_rendezvous_or_logs_leave_out_is_told(other):
    nodes = ("--nnodes", "2", "--rdzv-endpoint", "a:1", *other)
    notices = [notice.text for notice in told(*nodes, "--ft-rank-heartbeat-timeout", "9", "--monitor", "off").notices]
    assert any(text.startswith("--monitor, --ft-rank-heartbeat-timeout ignored: " + other[0]) for text in notices)
    assert not any("ignored" in notice.text for notice in told(*nodes).notices)


# --- ft_launcher's defaults -----------------------------------------------------------------------------------------------


def test_ft_launchers_defaults_are_its_own():
    plain = told(command="ft_launcher").config
    assert (plain.membership, plain.monitor_interval, plain.shutdown_timeout_s, plain.term_timeout_s) == (
        "fixed",
        0.3,
        15.0,
        1800.0,
    )
    assert (plain.join_timeout_s, plain.last_call_s, plain.max_restarts) == (300.0, 1.0, 0)
    assert plain.rdzv_backend == "memory"  # one node, which nobody has to meet
    assert set(FT_LAUNCHER) <= {flag.dest for flag in ALL_FLAGS}
    run = told().config
    assert (run.membership, run.shutdown_timeout_s, run.term_timeout_s, run.join_timeout_s) == ("elastic", 30.0, None, 600.0)


@pytest.mark.parametrize("said", [("--ft-restart-policy", "min-healthy"), ("--restart-policy=Min-Healthy",)])
def test_with_min_healthy_its_spares_run_too_since_they_are_what_may_be_lost(said):
    several = ("--nnodes", "2:3", "--rdzv-endpoint", "a:1")
    found = told(*several, *said, command="ft_launcher").config
    assert (found.membership, found.min_nodes, found.most_nodes, found.last_call_s) == ("fixed", 2, 3, 30.0)
    usual = told(*several, command="ft_launcher").config
    assert (usual.most_nodes, usual.last_call_s) == (2, 1.0)
    assert told(*several, *said, "--rdzv-conf", "last_call_timeout=2", command="ft_launcher").config.last_call_s == 2.0


def test_its_stop_timeouts_are_flags_of_both():
    for command in ("run", "ft_launcher"):
        found = told("--workers-stop-timeout", "3", "--term_timeout", "60", command=command).config
        assert (found.shutdown_timeout_s, found.term_timeout_s) == (3.0, 60.0)
        env = {"PET_WORKERS_STOP_TIMEOUT": "3", "PET_TERM_TIMEOUT": "60"}
        assert told(env=env, command=command).config.term_timeout_s == 60.0
    assert told(env={"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "7"}, command="ft_launcher").config.shutdown_timeout_s == 7.0


def test_its_nodes_meet_by_c10d_at_the_endpoint_or_the_master():
    several = told("--nnodes", "2:3", "--rdzv-endpoint", "head:29400", command="ft_launcher").config
    assert (several.rdzv_backend, several.rdzv_endpoint, several.min_nodes, several.max_nodes) == (
        "embedded",
        "head:29400",
        2,
        3,
    )
    assert told("--nnodes", "2", "--rdzv-endpoint", "head", command="ft_launcher").config.rdzv_endpoint == "head:29500"
    master = told("--nnodes", "2", "--master-addr", "head", "--node-rank", "1", command="ft_launcher")
    assert (master.config.rdzv_backend, master.config.rdzv_endpoint) == ("embedded", "head:29500")
    assert told("--nnodes", "2", "--master-port", "1234", command="ft_launcher").config.rdzv_endpoint == "127.0.0.1:1234"


def test_every_key_of_its_rendezvous_is_known():
    keys = "join_timeout=9,last_call_timeout=2,close_timeout=3,read_timeout=4,store_connect_wait_seconds=5,is_host=true"
    more = "use_libuv=1,segment_check_interval=5,replacement_group_size=2"
    found = told("--nnodes", "2", "--rdzv-endpoint", "a:1", "--rdzv-conf", f"{keys},{more}", command="ft_launcher")
    assert not [notice for notice in found.notices if "nothing reads" in notice.text]
    assert (found.config.join_timeout_s, found.config.last_call_s, found.config.is_host) == (9.0, 2.0, True)


# --- what is made from the table ------------------------------------------------------------------------------------------


def test_the_reference_page_is_made_from_the_table():
    written = Path(__file__).parents[2] / "docs" / "reference" / "ft_launcher.md"
    assert written.read_text() == page(), "run: make reference"


def test_help_shows_every_flag_once():
    flags = flags_of("ft_launcher")
    text = full_help("ft_launcher", width=100)
    assert all(flag.name in text for flag in flags)
    assert "(default c10d)" in text and "(default fixed)" in text
    assert "--ft-param" not in text


# --- what ft_launcher has had ---------------------------------------------------------------------------------------------

WORDS = """
attribution-analysis-backend attribution-compute-timeout attribution-endpoint attribution-export-url
attribution-llm-api-key-file attribution-llm-base-url attribution-llm-model attribution-log-level attribution-startup-timeout
attribution-stop-action attrsvc-host attrsvc-port cfg-path check-remaining-processes checkpoint-iteration-file cycle-info-dir
enable-dist-storage-healthcheck enable-log-server enable-nic-healthcheck enable-nic-monitor gpu-memory-poll-interval
gpu-memory-reclaim-timeout gpu-memory-tolerance-mb ignore-missing-cfg initial-rank-heartbeat-timeout install-exception-hook
link-down-path-template link-state-path-template log-aggregator-count log-leaf-max-queue-chunks log-level
log-server-graceful-shutdown-timeout log-server-log-prefix log-server-port max-no-progress-cycles min-progress-iterations
no-restart-exit-code node-health-check-endpoint node-health-check-interval numa-bind-strict nvrx-logfile pci-topo-file
per-cycle-applog-prefix rank-heartbeat-timeout rank-out-of-section-timeout rank-section-timeouts rank-termination-signal
rdzv-impl restart-check-interval restart-policy safety-factor segment-health-check-dir skip-section-response
storage-health-check-path use-infra-group-rank workload-check-interval
""".split()
"""Each was or is `--ft-WORD` in some version up to 0.7, with one or both of the other spellings."""
OLDEST = """
initial_rank_heartbeat_timeout log_level node_health_check_interval rank_heartbeat_timeout rank_out_of_section_timeout
rank_section_timeouts rank_termination_signal restart_check_interval safety_factor workload_check_interval
""".split()
"""Those were `--ft-param-WORD`."""
OTHERS = """
--ft-param-enable-nic-monitor --ft-param-pci-topo-file --ft-param-link-down-path-template --ft_param_enable_nic_monitor
--ft_param_pci_topo_file --ft_param_link_down_path_template --ft-segment --ft_segment --fault-tol-cfg-path --restart-policy
--ignore-missing-fault-tol-cfg --term-timeout --term_timeout --workers-stop-timeout --workers_stop_timeout
--ft-fact-policy-ready-timeout
""".split()


def test_every_flag_that_a_version_of_ft_launcher_had_is_taken():
    known = {name for flag in flags_of("ft_launcher") for name in flag.names}
    under = [word.replace("-", "_") for word in WORDS]
    spelled = [f"{start}{word}" for start, words in (("--ft-", WORDS), ("--ft-", under), ("--ft_", under)) for word in words]
    assert {*spelled, *(f"--ft-param-{word}" for word in OLDEST), *OTHERS} <= known


def test_one_name_for_both_logs_as_ft_launcher_had_it_stands_for_each_that_is_not_given() -> None:
    for spelling in ("--ft-base-logfile", "--ft_base_logfile"):
        both = told(spelling, "/logs/job.log", command="ft_launcher").config.ft
        assert (both.per_cycle_applog_prefix, both.nvrx_logfile) == ("/logs/job.log", "/logs/job.log")
    one = told("--ft-base-logfile", "/logs/job.log", "--ft-nvrx-logfile", "/own.log").config.ft
    assert (one.per_cycle_applog_prefix, one.nvrx_logfile) == ("/logs/job.log", "/own.log")


def test_a_log_server_without_a_log_is_warned_of_on_one_node_too() -> None:
    [notice] = told("--ft-enable-log-server", "true", "--standalone").notices
    assert notice.level == "WARNING" and "gathers nothing without --ft-per-cycle-applog-prefix" in notice.text


@pytest.mark.parametrize("word", ["none", "null", "false"])
def test_a_flag_of_yes_or_no_takes_none_for_no_and_not_for_the_script(word: str) -> None:
    made = told("--ft-enable-nic-monitor", word, command="ft_launcher").config
    assert not made.ft.enable_nic_monitor and made.training_script != word


def test_newer_flags_of_nvidia_s_fact_are_taken_and_said_to_do_nothing() -> None:
    words = ("--ft-fact-url", "http://fact/latest", "--ft-health-log-prefix", "/x.log", "--ft-enable-health-log-dmesg", "true")
    [notice] = told(*words, command="ft_launcher").notices
    assert notice.level == "INFO" and all(flag in notice.text for flag in words[::2]) and "holdfast incidents" in notice.text
