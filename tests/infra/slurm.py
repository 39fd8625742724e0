"""A real Slurm for tests: its controller and several nodes on this host, with files and ports of their own; nothing in /etc.

Its nodes are called n1, n2, …: names that do not resolve, as on some real clusters. Each has two GPUs that do not exist.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from infra.etcd import _free_ports

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
MISSING = "Slurm is not installed: apt-get install slurm-wlm munge"
PATIENCE_S = 20.0
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmdSpoolDir={folder}/spool.%n
SlurmdLogFile={folder}/slurmd.%n.log
SlurmctldLogFile={folder}/slurmctld.log
StateSaveLocation={folder}/state
MailProg=/bin/true
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=1
ReturnToService=2
SlurmdTimeout=5
KillWait=10
SlurmdParameters=config_overrides
GresTypes=gpu
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def is_installed() -> bool:
    return all(shutil.which(program, path=PATH) for program in NEEDED)


class Slurm:
    """A cluster of `size` nodes. `env`: what commands need in their environment to find it."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.folder, self.names = folder, [f"n{number}" for number in range(1, size + 1)]
        self.env = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": PATH}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "state").mkdir(parents=True)
        self._write_config()
        try:
            self._munge()
            self._start("slurmctld", "slurmctld", "-D")
            for name in self.names:
                self.start(name)
            self.wait_until_idle(size)
        except BaseException:
            self.stop()
            raise

    def start(self, name: str) -> None:
        """Start a node's daemon."""
        (self.folder / f"spool.{name}").mkdir(exist_ok=True)
        self._start(name, "slurmd", "-D", "-N", name)

    def lose(self, name: str) -> None:
        """The power of a node fails: its daemon and all that it has started are gone at once."""
        daemon = self.processes.pop(name)
        for pid in [daemon.pid, *_steps(name)]:
            for victim in [*_below(pid), pid]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
        daemon.wait()

    @property
    def alive(self) -> list[str]:
        """The nodes that have not been lost."""
        return [name for name in self.names if name in self.processes]

    def ask(self, *command: object) -> str:
        """What one of Slurm's commands prints."""
        done = subprocess.run(list(map(str, command)), env=self._env(), capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    def wait_until_idle(self, size: int) -> None:
        """Until so many nodes are ready and without work."""
        deadline = time.monotonic() + PATIENCE_S
        while self._idle() < size:
            assert time.monotonic() < deadline, f"Slurm is not ready:\n{(self.folder / 'slurmctld.log').read_text()[-3000:]}"
            time.sleep(0.05)

    def stop(self) -> None:
        """End all jobs, and then the daemons."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self.ask("scancel", "--user", getpass.getuser())
            self.wait_until_idle(len(self.alive))
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _idle(self) -> int:
        asked = subprocess.run(["sinfo", "-h", "-t", "idle", "-o", "%D"], env=self._env(), capture_output=True, text=True)
        return int(asked.stdout.strip() or 0) if asked.returncode == 0 else 0

    def _write_config(self) -> None:
        host, ports = socket.gethostname().partition(".")[0], _free_ports(len(self.names) + 1)
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=1000 Gres=gpu:2"
            for name, port in zip(self.names, ports[1:])
        ]
        text = CONF.format(host=host, controller=ports[0], user=getpass.getuser(), folder=self.folder, nodes="\n".join(nodes))
        (self.folder / "slurm.conf").write_text(text)
        for gpu in range(2):
            (self.folder / f"gpu{gpu}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-1]\n")

    def _munge(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        files = [f"--{what}={self.folder}/munge.{kind}" for what, kind in (("pid-file", "pid"), ("log-file", "log"))]
        files += [f"--seed-file={self.folder}/munge.seed", f"--key-file={key}", f"--socket={self.folder}/munge.socket"]
        self._start("munged", "munged", "--foreground", "--force", *files)
        deadline = time.monotonic() + PATIENCE_S
        while not (self.folder / "munge.socket").exists():
            assert time.monotonic() < deadline, (self.folder / "munged.out").read_text()
            time.sleep(0.01)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self.processes[name] = subprocess.Popen(command, env=self._env(), stdout=log, stderr=log, start_new_session=True)

    def _env(self) -> dict[str, str]:
        # Without the test's mark: the daemons serve several tests, and are ended by their own fixture.
        return {name: value for name, value in os.environ.items() if name != "HOLDFAST_TEST_MARK"} | self.env


def _steps(node: str) -> list[int]:
    """Pids of the slurmstepd processes that a node's daemon has left to themselves, each of which watches over a step."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and (entry / "comm").read_text().strip() == "slurmstepd":
                below = _below(int(entry.name))
                if any(f"SLURMD_NODENAME={node}".encode() in Path(f"/proc/{pid}/environ").read_bytes() for pid in below):
                    found.append(int(entry.name))
    return found


def _below(pid: int) -> list[int]:
    """All that descends from a process, children last."""
    children = [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
    return [below for child in children for below in (*_below(child), child)]
