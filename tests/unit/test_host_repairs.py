"""A host is fit after a repair only if every check finds it so. A command that hangs leaves nothing, and each boot is told."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.health.check import Wanted, wanted
from holdfast.supervisor.daemon import host_repairs
from holdfast.supervisor.daemon.host_repairs import HostRepairs
from holdfast.supervisor.daemon.host_reports import HERE, HostReports
from holdfast.supervisor.daemon.host_table import HostRepair, HostTable, RepairEnded


def carried_out(repairs: HostRepairs, act: str) -> RepairEnded:
    ended = repairs.carry_out(HostRepair(order="1", act=act, boot=""), HostTable(5.0))
    assert ended is not None
    return ended


def exits(code: int) -> tuple[Wanted, ...]:
    """The check `command`, whose command ends with that code."""
    return wanted([f"command='{sys.executable}' -c \"raise SystemExit({code})\""], "/")


def state_of(pid: int) -> str:
    """As the kernel has it. Empty: there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return ""


@pytest.mark.parametrize(("code", "state"), [(1, "unfit"), (205, "degraded"), (127, "degraded")])
def test_a_check_that_does_not_find_the_host_fit_is_a_check_that_failed(code: int, state: str) -> None:
    ended = carried_out(HostRepairs({}, exits(code)), "check")
    assert not ended.ok and f": {state}: " in ended.text
    assert carried_out(HostRepairs({}, exits(0)), "check").ok


def test_a_command_that_hangs_is_killed_with_all_that_it_has_started(tmp_path: Path, monkeypatch: Any, wait_until: Any) -> None:
    monkeypatch.setattr(host_repairs, "COMMAND_S", 3.0)
    pids = tmp_path / "pids"
    hangs = tmp_path / "hangs.sh"
    hangs.write_text(f"sleep 600 & echo $$ $! > {pids}; wait")
    ended = carried_out(HostRepairs({"reset-gpu": f"sh {hangs}"}, ()), "reset-gpu")
    assert not ended.ok and "not over after" in ended.text
    command, its = map(int, pids.read_text().split())
    with pytest.raises(ProcessLookupError):
        os.kill(command, 0)
    wait_until(lambda: state_of(its) in ("", "Z"))


def test_a_daemon_says_which_boot_of_its_host_this_is() -> None:
    reports = HostReports("a", "a-1", ("127.0.0.1:1",), 0.5, ("reboot",), "second")
    reports.shows(HostTable(5.0), 0.0)
    told = reports.reporters[HERE].told
    assert told is not None and told.boot == "second"
