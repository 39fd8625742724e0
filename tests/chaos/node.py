"""One node of a job: where its launcher runs, which processes are its, and what is left of them.

As root each node has a cgroup (version 2), by which its processes are known whatever they do to their environment; a /dev/shm
of its own; and, if the job has a network, a namespace with an address. As anybody else it has its mark in the environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kit import ROOT, orphans
from kit.network.netns import Place

IN_CGROUPS = 'for g in $1; do echo $$ > "$g/cgroup.procs" || exit 97; done; shift; exec "$@"'
ENDED = "ZX"
FALLBACK = f"/tmp/holdfast-{os.geteuid()}"
"""A folder of all jobs of this user: as root each node has its own there."""
GRACE_S = 5.0
"""How long processes may take to go: a second is promised, on a machine that is not as busy as a campaign makes it."""
TORCHS = ("torchinductor_", "torchelastic_")
"""What PyTorch makes in the folder for temporary files: whoever has started it, and torchrun for its logs."""


class Node:
    """Named `name`; all that is its lies in `folder`. `shm`: what it sees at /dev/shm. `cgroup`: its own, if there is one."""

    def __init__(
        self, name: str, folder: Path, mark: str, *, cgroup: Path | None, shm: Path | None, place: Place | None
    ) -> None:
        self.name, self.folder, self.mark = name, folder, mark
        self.cgroup, self.shm, self.place = cgroup, shm, place
        self.state, self.temporary = folder / "state", folder / "tmp"
        self.limits: list[Path] = []
        """Further cgroups that its launchers start in."""
        self.mounts: list[str] = []
        """Shell lines, run in the mount namespace of each launcher that starts from now on."""
        self.env: dict[str, str] = {}
        self.fallback = folder / "fallback"
        """Where its agents keep the record if they cannot write to the state directory."""
        self.launched: list[subprocess.Popen[bytes]] = []
        self.is_lost = False
        """It is not expected to come to a good end."""
        for path in (self.state, self.temporary, self.fallback):
            path.mkdir(parents=True, mode=0o700)
        if cgroup:
            cgroup.mkdir()
        if shm:
            shm.mkdir()
            self.mounts.append(f"mount --bind {shlex.quote(str(shm))} /dev/shm")
            self.mounts.append(f"mkdir -p -m 700 {FALLBACK} && mount --bind {shlex.quote(str(self.fallback))} {FALLBACK}")

    @property
    def address(self) -> str:
        return self.place.address if self.place else "127.0.0.1"

    # --- its launcher ---------------------------------------------------------------------------------------------------

    def command(self, words: Sequence[object]) -> list[str]:
        """What runs these words here."""
        through = ["sh", "-c", IN_CGROUPS, "sh", " ".join(map(str, filter(None, [self.cgroup, *self.limits])))]
        through += self.place.through if self.place else ()
        if os.geteuid() == 0:
            lines = "; ".join([*(f"{line} || exit 98" for line in self.mounts), 'exec "$@"'])
            through += ["unshare", "--mount", "--propagation", "private", "sh", "-c", lines, "sh"]
        return [*through, *map(str, words)]

    def environment(self) -> dict[str, str]:
        own = {orphans.MARK: self.mark, "HOLDFAST_STATE_DIR": str(self.state), "TMPDIR": str(self.temporary)}
        own |= {"CHAOS_NODE": self.name, "CHAOS_ADDR": self.address, "PYTHONDONTWRITEBYTECODE": "1"}
        kept = {
            name: value for name, value in os.environ.items() if not name.startswith(("HOLDFAST_", "PET_", "TORCHELASTIC_"))
        }
        return kept | own | self.env

    def start(self, words: Sequence[object], env: Mapping[str, str], **how: object) -> subprocess.Popen[bytes]:
        """Start its launcher; what it says goes to files of its own."""
        number = len(self.launched)
        with open(self.folder / f"{number}.out", "wb") as out, open(self.folder / f"{number}.err", "wb") as err:
            given = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err, "cwd": self.folder} | how
            launched = subprocess.Popen(self.command(words), env=self.environment() | dict(env), **given)  # type: ignore[call-overload]
        self.launched.append(launched)
        self.is_lost = False
        return launched  # type: ignore[no-any-return]

    @property
    def launcher(self) -> subprocess.Popen[bytes]:
        """The newest: the process that a user sees, which with Holdfast is the guardian."""
        return self.launched[-1]

    @property
    def runs(self) -> bool:
        return bool(self.launched) and self.launcher.poll() is None

    def agent_pid(self) -> int:
        """Of the newest launcher's agent: its child of the same command line. With torchrun there is no other process."""
        words = _command_line(self.launcher.pid)
        for pid in children(self.launcher.pid):
            if _command_line(pid) == words:
                return pid
        return self.launcher.pid

    def said(self) -> str:
        """All that its launchers have said, on stdout and stderr."""
        files = sorted(self.folder.glob("*.out")) + sorted(self.folder.glob("*.err"))
        return "\n".join(path.read_text(errors="replace")[-200_000:] for path in files)

    def said_by_launchers(self) -> str:
        """Without what goes to stdout, where ranks write."""
        return "\n".join(path.read_text(errors="replace")[-200_000:] for path in sorted(self.folder.glob("*.err")))

    def ask(self, *words: str) -> str:
        """What a command of Holdfast's, typed here, says."""
        env = self.environment() | {"HOLDFAST_STATE_DIR": str(self.state)}
        command = self.command([str(ROOT / ".venv/bin/python"), "-m", "holdfast", *words])
        done = subprocess.run(command, env=env, cwd=self.folder, capture_output=True, text=True, errors="replace", timeout=60)
        return done.stdout + done.stderr

    # --- its processes --------------------------------------------------------------------------------------------------

    def pids(self) -> list[int]:
        """All that live, zombies left out."""
        found = self._in_cgroup() if self.cgroup else [pid for pid in orphans.marked(self.mark) if self._is_here(pid)]
        return [pid for pid in found if state_of(pid) not in ENDED]

    def _in_cgroup(self) -> list[int]:
        found: list[int] = []
        for path in [self.cgroup, *self.cgroup.rglob("*/")] if self.cgroup else []:
            with contextlib.suppress(OSError):
                found += map(int, (path / "cgroup.procs").read_text().split())
        return found

    def _is_here(self, pid: int) -> bool:
        with contextlib.suppress(OSError):
            return f"CHAOS_NODE={self.name}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return False

    def signal(self, signum: int) -> None:
        """To all its processes, those too that begin meanwhile."""
        reached: set[int] = set()
        while new := set(self.pids()) - reached:
            for pid in new:
                send(pid, signum)
            reached |= new

    def kill(self) -> None:
        """All of it, in one moment."""
        self.is_lost = True
        self.end()

    def end(self) -> None:
        if self.cgroup:
            with contextlib.suppress(OSError):
                (self.cgroup / "cgroup.freeze").write_text("0")
                (self.cgroup / "cgroup.kill").write_text("1")
        self.signal(signal.SIGKILL)
        for launched in self.launched:
            with contextlib.suppress(subprocess.TimeoutExpired):
                launched.wait(10)

    # --- what is left ---------------------------------------------------------------------------------------------------

    def remains(self) -> list[str]:
        """Processes, temporary files, shared memory and sockets, some seconds after the end of its launchers."""
        deadline = time.monotonic() + GRACE_S
        while (left := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.02)
        found = [f"process {pid}: {_command_line(pid)[:80]}" for pid in left]
        if self.is_lost:  # Nobody was left who could have removed its files.
            return [f"{self.name}: {one}" for one in found]
        for folder in filter(None, (self.temporary, self.shm)):
            found += [str(path) for path in _tree(folder) if not path.relative_to(folder).parts[0].startswith(TORCHS)]
        found += [f"socket {path}" for path in _tree(self.state) if _is_socket(path)]
        if self.cgroup:
            found += [f"cgroup {path}" for path in self.cgroup.glob("*/")]
        return [f"{self.name}: {one}" for one in found]

    def records(self) -> Iterator[dict[str, object]]:
        """Its events of all jobs."""
        for path in sorted(self.state.glob("jobs/*/events-*.jsonl")):
            for line in path.read_text(errors="replace").splitlines():
                with contextlib.suppress(ValueError):
                    yield json.loads(line)


def _tree(folder: Path) -> list[Path]:
    with contextlib.suppress(OSError):
        return sorted(folder.rglob("*"))
    return []


def _is_socket(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return stat.S_ISSOCK(path.lstat().st_mode)
    return False


def send(pid: int, signum: int) -> None:
    """A signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signum)


def state_of(pid: int) -> str:
    """R, S, D, T, Z …; X: there is none."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    return "X"


def children(pid: int) -> list[int]:
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            found += map(int, path.read_text().split())
    return found


def _command_line(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""
