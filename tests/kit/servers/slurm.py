"""A real Slurm for tests: its controller and several nodes on this host, with files and ports of their own; nothing in /etc.

Its nodes are called n1, n2, …: names that do not resolve, as on some real clusters. Each has two GPUs that do not exist.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import random
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from kit.ports import claim, ports

NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "scontrol")
PATIENCE_S = 20.0
PATH = os.environ["PATH"] + ":/usr/sbin:/sbin"
JOBS_APART, JOBS = 288, 48
"""Jobs so far apart have the same port (`core.resolve.slurm.port`); and so many a cluster may have here."""
CONF = """
ClusterName=tests
FirstJobId={first}
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
TopologyPlugin=topology/{topology}
{nodes}
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def why_not() -> str:
    """Why there can be no Slurm here, or nothing."""
    if not all(shutil.which(program, path=PATH) for program in NEEDED):
        return "Slurm is not installed: apt-get install slurm-wlm munge"
    try:  # as Slurm asks, also for 127.0.0.1: the C library then says no where loopback is all there is
        socket.getaddrinfo("127.0.0.1", None, socket.AF_INET, flags=socket.AI_ADDRCONFIG)
    except socket.gaierror:
        return "Slurm finds no address, not even 127.0.0.1, where there is no network beside loopback"
    return ""


def munged(folder: Path) -> list[str]:
    """The command of a munge of the test's own, with a new key; its socket is `munge.socket` in the folder."""
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    files = [f"--{what}={folder}/munge.{kind}" for what, kind in (("pid-file", "pid"), ("log-file", "log"))]
    files += [f"--seed-file={folder}/munge.seed", f"--key-file={key}", f"--socket={folder}/munge.socket"]
    return ["munged", "--foreground", "--force", *files]


class Slurm:
    """A cluster of `size` nodes. `env`: what commands need in their environment to find it.

    `switches`: nodes under each switch of a tree, as in `("n1,n3", "n2")`; nothing: Slurm knows no topology.
    """

    def __init__(self, folder: Path, size: int = 3, switches: tuple[str, ...] = ()) -> None:
        self.switches = switches
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
        tasks = _with_in_environment(f"SLURM_CONF={self.env['SLURM_CONF']}", f"SLURMD_NODENAME={name}")
        watchers = {_parent(task) for task in tasks} - {0, 1, os.getpid()}  # slurmstepd, which is not in its own environment
        for pid in [daemon.pid, *watchers, *tasks]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
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
        """Until so many nodes are ready, and no job is left: one that completes still holds its nodes."""
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
        for pid in _with_in_environment(f"SLURM_CONF={self.env['SLURM_CONF']}"):  # such as a slurmstepd without its daemon
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if self.claimed is not None:
            self.claimed.close()

    def _idle(self) -> int:
        jobs, nodes = (
            subprocess.run(command, env=self._env(), capture_output=True, text=True)
            for command in (["squeue", "-h", "-o", "%i"], ["sinfo", "-h", "-t", "idle", "-o", "%D"])
        )
        return int(nodes.stdout.strip() or 0) if not jobs.stdout and jobs.returncode == nodes.returncode == 0 else 0

    def _first_job(self) -> int:
        """Its number. Another cluster of ours on this host has other numbers, by which its jobs' agents meet at other ports."""
        for lot in range(JOBS_APART // JOBS):
            if (claimed := claim(f"slurm-jobs-{lot}")) is not None:
                break
        self.claimed = claimed
        return JOBS_APART * random.randrange(4, 1000) + JOBS * lot

    def _write_config(self) -> None:
        host, (controller, *others) = socket.gethostname().partition(".")[0], ports(len(self.names) + 1)
        nodes = [
            f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=1000 Gres=gpu:2"
            for name, port in zip(self.names, others)
        ]
        known = {"host": host, "first": self._first_job(), "controller": controller, "user": getpass.getuser()}
        known["topology"] = "tree" if self.switches else "none"
        text = CONF.format(**known, folder=self.folder, nodes="\n".join(nodes))
        (self.folder / "slurm.conf").write_text(text)
        leaves = [f"SwitchName=leaf{at} Nodes={nodes}\n" for at, nodes in enumerate(self.switches)]
        root = f"SwitchName=root Switches=leaf[0-{len(leaves) - 1}]\n"
        (self.folder / "topology.conf").write_text("".join([*leaves, root] if leaves else []))
        for gpu in range(2):
            (self.folder / f"gpu{gpu}").touch()
        (self.folder / "gres.conf").write_text(f"Name=gpu File={self.folder}/gpu[0-1]\n")

    def _munge(self) -> None:
        self._start("munged", *munged(self.folder))
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


def _with_in_environment(*entries: str) -> list[int]:
    """Pids of the processes that have all of these in their environment."""
    wanted, found = {entry.encode() for entry in entries}, []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and wanted <= set((entry / "environ").read_bytes().split(b"\0")):
                found.append(int(entry.name))
    return found


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0
