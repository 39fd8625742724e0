"""A real supervisor repairs a node by its real daemon: a command of the operator's, the checks, and a probation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc", reason="grpcio is not installed: pip install 'holdfast[grpc]'")

from kit.fleet.supervised import Supervised
from kit.hosts.checked_host import CheckedHost
from kit.jobs.ranks import Cluster
from kit.ports import ports

BOOT = "proc/sys/kernel/random/boot_id"


class Repaired(Supervised):
    """A job on a and b, for which c waits. b has a host of its own, whose GPU can be broken, and a daemon."""

    def __init__(self, holdfast: Any, job: Cluster, tmp_path: Path, wait_until: Any) -> None:
        super().__init__(holdfast, job, f"127.0.0.1:{ports(1)[0]}", tmp_path, wait_until)
        self.host = CheckedHost(tmp_path / "host")
        self.host.put(BOOT, "first\n")
        self.home, self.log = tmp_path / "home", tmp_path / "log"
        self.env = {"HOLDFAST_CHECK_ROOT": str(self.host.root), "HOLDFAST_STATE_DIR": str(self.home)}

    def daemon(self, act: str, script: Path) -> Any:
        """That of b, which can do that by that script; it is told where its host and its log are."""
        where = "--port", 0, "--state-dir", self.home, "--node-name", "b", "--supervisor", self.where
        command = f"{act}=python3 {script} {self.host.root} {self.log}"
        started = self.holdfast.start("daemon", *where, "--repair-with", command, "--repair-check", "memory", env=self.env)
        started.wait_for_output("listening at")
        return started

    def begin(self) -> list[Any]:
        checks = "--allow-inject", "--check-during", "xid", "--check-every", "0.3"
        told = "--supervisor", self.where, "--max-restarts", "3", *checks
        agents = [self.job.agent(name, "2", *told, nproc=1, env=self.env if name == "b" else None) for name in "ab"]
        self.job.rank(1, 0, 1)
        agents.append(self.job.agent("c", "2", *told, nproc=1))
        self.wait_until(lambda: self.states() == {"a": "fit", "b": "fit", "c": "spare"})
        return agents

    def break_gpu(self, code: int) -> None:
        told = self.holdfast.run("inject", "xid", "b", "--code", code, "--for", "1", "--state", self.state)
        assert told.returncode == 0, told.output

    def said(self) -> list[str]:
        """What the script has written."""
        return self.log.read_text().split() if self.log.exists() else []

    def acts(self) -> list[tuple[str, str]]:
        """What was done to repair b, and what came of it."""
        return [(deed["act"], deed["outcome"]) for deed in self.why("b") if deed["trouble"] == "repair"]


@pytest.fixture
def fleet(holdfast: Any, job: Cluster, tmp_path: Path, wait_until: Any) -> Repaired:
    return Repaired(holdfast, job, tmp_path, wait_until)


WRITES = "import sys; open(sys.argv[2], 'a').write('reset\\n')"

BOOTS = f"""
import os, sys
open(os.path.join(sys.argv[1], {BOOT!r}), "w").write("second\\n")
open(sys.argv[2], "a").write("booted\\n")
"""


def test_a_gpu_is_reset_while_an_agent_waits_there_and_its_node_is_fit_after_its_probation(fleet, script):
    fleet.start("--repair", "reset-gpu", "--probation", "2")
    fleet.daemon("reset-gpu", script(WRITES, "reset.py"))
    agents = fleet.begin()
    fleet.break_gpu(119)
    fleet.wait_until(lambda: fleet.acts() == [("reset-gpu", "its checks find it fit"), ("probation", "it is fit")])
    assert fleet.said() == ["reset"] and fleet.states() == {"a": "fit", "b": "spare", "c": "fit"}
    why = fleet.holdfast.run("why", "b", "--state", fleet.state).stdout
    assert "done: reset-gpu: python3 " in why and "exit code 0" in why and "done: check: fit by memory" in why
    assert "b is noted as drained" in why and "it is a spare again, for 2 s" in why
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]


def test_a_host_is_booted_once_though_all_die_meanwhile_and_is_reported_when_it_fails_again(fleet, script):
    rules = "--repair", "reboot", "--probation", "600"
    boots = script(BOOTS, "boot.py")
    supervisor, daemon = fleet.start(*rules), fleet.daemon("reboot", boots)
    agents = fleet.begin()
    fleet.break_gpu(79)
    fleet.wait_until(lambda: fleet.said() == ["booted"], what="the reboot")
    for one in (daemon, supervisor):
        one.kill()
        one.process.wait()
    fleet.start(*rules)
    fleet.daemon("reboot", boots)
    fleet.wait_until(lambda: fleet.acts() == [("reboot", "its checks find it fit"), ("probation", "")])
    assert fleet.said() == ["booted"]
    fleet.wait_until(lambda: fleet.states()["b"] == "spare")
    shown = fleet.holdfast.run("nodes", "--state", fleet.state).stdout
    assert "on probation until" in shown
    assert fleet.drain("c").returncode == 0  # so that it works again, with c to take over from it
    fleet.wait_until(lambda: fleet.states() == {"a": "fit", "b": "fit", "c": "unfit"})
    assert fleet.holdfast.run("uncordon", "c", "--state", fleet.state).returncode == 0
    fleet.wait_until(lambda: fleet.states()["c"] == "spare")
    fleet.break_gpu(79)
    fleet.wait_until(lambda: fleet.acts()[-1] == ("report", "it stays out until `holdfast uncordon b`"))
    assert fleet.said() == ["booted"] and "failed again within its probation" in fleet.nodes()["b"]["reason"]
    fleet.job.finish()
    assert [agent.wait().returncode for agent in agents] == [0, 0, 0]
