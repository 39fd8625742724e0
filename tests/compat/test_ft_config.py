"""A job's configuration: made, read and written as NVRx's."""

from __future__ import annotations

import argparse
import dataclasses
import logging
import signal
from pathlib import Path

import pytest


@pytest.fixture
def config(ft):
    return ft().FaultToleranceConfig


@pytest.fixture
def ours(ours_ft):
    return ours_ft().FaultToleranceConfig


@pytest.fixture
def yaml_file(tmp_path: Path):
    def written(text: str) -> str:
        path = tmp_path / "cfg.yaml"
        path.write_text(text)
        return str(path)

    return written


def test_limits_have_sensible_defaults(config):
    made = config()
    assert (made.initial_rank_heartbeat_timeout, made.rank_heartbeat_timeout) == (3600.0, 2700.0)
    assert made.rank_section_timeouts == {} and made.rank_out_of_section_timeout is None
    assert made.safety_factor == 5.0 and made.rank_termination_signal is signal.SIGKILL and made.log_level == logging.INFO


def test_every_field_of_theirs_is_there_with_its_default(nvrx, ours):
    differs = {"enable_nic_monitor"}  # off since their 0.5
    made = ours()
    for each in dataclasses.fields(nvrx().FaultToleranceConfig):
        theirs = getattr(nvrx().FaultToleranceConfig(), each.name)
        assert each.name in differs or getattr(made, each.name) == theirs, each.name


def test_every_field_of_the_core_is_there(ours):
    from holdfast.core.config.fault_tolerance import FaultTolerance

    assert {each.name for each in dataclasses.fields(ours)} == FaultTolerance.__fields__.keys() | {"segment"}


def test_two_have_each_their_own_sections(config):
    config().rank_section_timeouts["step"] = 1.0
    assert config().rank_section_timeouts == {}


def test_fields_by_name(config):
    made = config.from_kwargs(rank_heartbeat_timeout=7, ignore_not_recognized=False)
    assert made.rank_heartbeat_timeout == 7 and made.safety_factor == config().safety_factor
    assert config.from_kwargs(ignore_not_recognized=False) == config()
    assert config.from_kwargs(an_unknown_one=True) == config()


def test_an_unknown_field_is_an_error_if_it_is_to_be(config):
    with pytest.raises(ValueError, match="an_unknown_one"):
        config.from_kwargs(an_unknown_one=True, ignore_not_recognized=False)


@pytest.mark.parametrize("given", [9, "SIGKILL", "sigkill", signal.SIGKILL])
def test_a_signal_is_a_number_or_a_name(config, given):
    assert config(rank_termination_signal=given).rank_termination_signal is signal.SIGKILL


@pytest.mark.parametrize("given", [None, -999, "no signal"])
def test_what_is_no_signal_is_an_error(config, given):
    with pytest.raises(ValueError):
        config(rank_termination_signal=given)


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ("deBUG", 10),
        ("dbg", 10),
        ("Info", 20),
        ("WARNING", 30),
        ("warn", 30),
        ("error", 40),
        ("critical", 50),
        (20, 20),
        (35, 35),
    ],
)
def test_a_log_level_is_a_number_or_a_name(config, given, level):
    assert config(log_level=given).log_level == level


@pytest.mark.parametrize("given", [None, -999, 9, 51, "no level"])
def test_what_is_no_log_level_is_an_error(config, given):
    with pytest.raises(ValueError):
        config(log_level=given)


SECTION = """
fault_tolerance:
    initial_rank_heartbeat_timeout: 987
    rank_heartbeat_timeout: null
    rank_termination_signal: SIGUSR2
    rank_section_timeouts:
        custom1: 111.0
        custom2:
    rank_out_of_section_timeout: 333.0
"""


@pytest.mark.parametrize("around", ["{}", "other:\n  - 1\n  - deep:\n{}"], ids=["at the top", "somewhere"])
def test_a_file_is_read(config, yaml_file, around):
    text = SECTION if around == "{}" else around.format(SECTION.replace("\n", "\n      "))
    made = config.from_yaml_file(yaml_file(text))
    assert (made.initial_rank_heartbeat_timeout, made.rank_heartbeat_timeout) == (987, None)
    assert made.rank_termination_signal is signal.SIGUSR2
    assert made.rank_section_timeouts == {"custom1": 111.0, "custom2": None} and made.rank_out_of_section_timeout == 333.0


def test_a_file_without_the_section_is_an_error(config, yaml_file):
    with pytest.raises(ValueError):
        config.from_yaml_file(yaml_file("other:\n  almost_like_fault_tolerance:\n    rank_heartbeat_timeout: 1\n"))


def test_a_file_with_an_unknown_field_is_an_error_if_it_is_to_be(config, yaml_file):
    path = yaml_file("fault_tolerance:\n  unknown: 1\n  rank_heartbeat_timeout: 3\n")
    assert config.from_yaml_file(path).rank_heartbeat_timeout == 3
    with pytest.raises(ValueError):
        config.from_yaml_file(path, ignore_not_recognized=False)


def test_what_is_written_is_read_as_the_same(config, tmp_path):
    made = config(rank_heartbeat_timeout=123.0, rank_section_timeouts={"a": 1.0, "b": None}, rank_out_of_section_timeout=None)
    made.rank_termination_signal, made.log_level = signal.SIGUSR2, logging.FATAL
    path = tmp_path / "out.yaml"
    made.to_yaml_file(str(path))
    assert config.from_yaml_file(str(path), ignore_not_recognized=False) == made
    assert "rank_termination_signal: SIGUSR2" in path.read_text() and "log_level: 50" in path.read_text()


def _args(**said):
    return argparse.Namespace(**({"ft_cfg_path": None} | {f"ft_{name}": value for name, value in said.items()}))


SAID = {
    "safety_factor": (0.567, 0.567),
    "rank_termination_signal": ("SIGUSR2", signal.SIGUSR2),
    "log_level": ("DEBUG", logging.DEBUG),
    "rank_out_of_section_timeout": (123.0, 123.0),
    "rank_section_timeouts": ("custom1:111.1,custom2:222.2", {"custom1": 111.1, "custom2": 222.2}),
    "rank_heartbeat_timeout": (None, 2700.0),
}


def test_a_command_line_is_read(config):
    made = config.from_args(_args(**{name: said for name, (said, _) in SAID.items()}))
    assert {name: getattr(made, name) for name in SAID} == {name: meant for name, (_, meant) in SAID.items()}


def test_a_command_line_goes_before_the_file(config, yaml_file):
    args = _args(rank_out_of_section_timeout=5.0)
    args.ft_cfg_path = yaml_file(SECTION)
    made = config.from_args(args)
    assert (made.rank_out_of_section_timeout, made.initial_rank_heartbeat_timeout) == (5.0, 987)


@pytest.mark.parametrize(("text", "limit"), [("none", None), ("Null", None), ("", None), ("12.5", 12.5)])
def test_a_limit_may_be_text_on_a_command_line(ours, text, limit):
    assert ours.from_args(_args(rank_heartbeat_timeout=text)).rank_heartbeat_timeout == limit


def test_text_that_means_nothing_is_an_error(ours):
    with pytest.raises(ValueError, match="rank_heartbeat_timeout"):
        ours.from_args(_args(rank_heartbeat_timeout="soon"))


def test_older_names_are_fields_too(ours):
    assert ours.from_kwargs(max_no_progress_restarts=9, ignore_not_recognized=False).max_no_progress_cycles == 9


def test_it_goes_to_the_core_and_back(ours):
    from holdfast.core.value import to_plain

    made = ours(rank_section_timeouts={"step": 1.5}, storage_healthcheck_path="/a,/b", log_level="error")
    core = made.to_core()
    assert (core.rank_termination_signal, core.log_level, core.storage_healthcheck_path) == (9, "ERROR", ("/a", "/b"))
    assert ours.from_core(to_plain(core)) == made


def test_what_is_learned_is_no_limit_that_could_be_named(ours):
    made = ours.from_core({"safety_factor": 3.0})
    assert made.safety_factor == 3.0 and made.rank_heartbeat_timeout is made.initial_rank_heartbeat_timeout is None
