"""How does a host's daemon repair its host? By commands that its operator has allowed, and by the deep checks.

All of it runs in a thread, and only where nobody works: no rank of stock torchrun's, none of an agent of ours, and no process
on an NVIDIA GPU. The table notes the order before it is carried out, so that the daemon's next life knows what has ended it.
"""

from __future__ import annotations

import _thread
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence

from holdfast.agent.control.control_client import ask
from holdfast.core.errors import ProtocolError
from holdfast.core.wire.fleet import Act, ReporterState
from holdfast.health.check import Wanted
from holdfast.health.runner import Examination
from holdfast.health.verdict import FIT
from holdfast.runtime.hardware import nvidia
from holdfast.runtime.hardware.gpus import text
from holdfast.supervisor.daemon.host_table import HostRepair, HostTable, RepairEnded

COMMANDS = (Act.RESET_GPU, Act.RESTART_DAEMON, Act.REBOOT)
"""What a command may be given for."""

COMMAND_S = 300.0
"""How long a command may take: a reset of eight GPUs takes half a minute."""

ASK_S = 5.0
"""How long an agent has to say what runs there."""

USERS = ("--query-compute-apps=pid,process_name", "--format=csv,noheader")

BOOT = "proc/sys/kernel/random/boot_id"


class HostRepairs:
    """Of one host."""

    def __init__(self, commands: Mapping[str, str], checks: Sequence[Wanted], root: str = "/") -> None:
        """`commands`: by act. No `checks`: the daemon offers nothing."""
        self.commands, self.checks, self.root = dict(commands), tuple(checks), root
        self._turn = _thread.allocate_lock()

    @property
    def offers(self) -> tuple[str, ...]:
        return (Act.CHECK, *self.commands) if self.checks else ()

    def boot(self) -> str:
        """Which boot of the host this is."""
        return text(self.root, BOOT)

    def carry_out(self, repair: HostRepair, table: HostTable) -> RepairEnded | None:
        """What came of it. None: the host is about to be booted."""
        if not self._turn.acquire(blocking=False):
            return RepairEnded(order=repair.order, text="the order before it is not over", is_busy=True)
        try:
            if busy := occupied(table):
                return RepairEnded(order=repair.order, text=busy, is_busy=True)
            ok, said = self._checked() if repair.act == Act.CHECK else self._run(self.commands[repair.act])
        finally:
            self._turn.release()
        return None if ok and repair.act == Act.REBOOT else RepairEnded(order=repair.order, ok=ok, text=said)

    def _checked(self) -> tuple[bool, str]:
        verdicts = Examination(self.checks, root=self.root).take()
        bad = [f"{one.check}: {one.state}: {one.reason}" for one in verdicts if one.state != FIT]
        return not bad, "; ".join(bad) or f"fit by {', '.join(one.check for one in verdicts)}"

    def _run(self, command: str) -> tuple[bool, str]:
        out = os.memfd_create("said", os.MFD_CLOEXEC)  # no pipe: what the command leaves behind may hold it open
        try:
            words, null = shlex.split(command), subprocess.DEVNULL
            child = subprocess.Popen(words, stdin=null, stdout=out, stderr=out, start_new_session=True)
            code = child.wait(COMMAND_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            return False, f"{command}: not over after {COMMAND_S:g} s"
        except OSError as error:
            return False, f"{command}: {error.strerror}"
        finally:
            said = os.pread(out, 4096, max(0, os.fstat(out).st_size - 4096)).decode(errors="replace").split("\n")
            os.close(out)
        last = next((line.strip() for line in reversed(said) if line.strip()), "")
        return code == 0, f"{command}: exit code {code}{last and f': {last}'}"


def resumed(repair: HostRepair, boot: str) -> RepairEnded:
    """What came of one that has ended the daemon's last life, or was under way then. `boot`: of the host, now."""
    if repair.act == Act.CHECK:
        return RepairEnded(order=repair.order, text="the daemon ended meanwhile", is_busy=True)
    if repair.act == Act.REBOOT and boot == repair.boot:
        return RepairEnded(order=repair.order, text="the daemon was started again, and the host was not booted")
    what = "the host was booted" if repair.act == Act.REBOOT else "the daemon was started again meanwhile"
    return RepairEnded(order=repair.order, ok=True, text=what)


def occupied(table: HostTable) -> str:
    """Who works on this host, in words. Empty: nobody."""
    for worker in table.workers.values():
        if worker.is_awaited:
            return f"{worker} runs there"
    for agent in table.agents.values():
        try:
            said = ask(agent.job_dir, agent.node, {"ask": "status"}, ASK_S)
        except (OSError, ProtocolError):
            return f"the agent of {agent.job} there does not answer"
        if said.get("state") != ReporterState.JOINING:  # then it tells of workers that have ended
            return f"ranks of {agent.job} run there"
    users, _ = nvidia.query(arguments=USERS) if nvidia.is_here() else ("", "")
    return f"a process on a GPU there: {users.splitlines()[0]}" if users.strip() else ""
