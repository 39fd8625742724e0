"""How do nodes of a Slurm cluster prove to one another whose they are, where nobody gave the job a secret? By munge.

The side of a link that listens has a secret of its own, and shows it in a credential that munge opens for this user only. The
other side opens it: so it is this user's, and sees that the one who listens is too. From there on the handshake goes as with a
token. How old a credential is, and how often it was opened, does not matter: who shows it must know what is in it.
"""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Mapping, Sequence

CONFIGS = ("/run/slurm/conf/slurm.conf", "/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf")
PATIENCE_S = 2.0
"""How long munge is waited for: it takes 2 ms, and meanwhile the agent does nothing else."""
PURPOSE = b"holdfast listens with the secret "
"""What a credential says beside the secret: of another one of this user's somebody may know the content."""
ANYWAY = (0, 15, 16, 17)
"""Results of `unmunge` with a content: good, expired, of a clock that is ahead, opened before."""
CREDENTIAL = re.compile(r"MUNGE:[A-Za-z0-9+/=]{1,2000}:")
KEPT, MOST = 64, 1 << 16


class Voucher:
    """What this process shows where it listens, and opens where it asks."""

    def __init__(self, socket: Sequence[str]) -> None:
        """`socket`: arguments that name munge's."""
        self.socket = socket
        self.secret = os.urandom(32).hex().encode()
        restricted = ("munge", f"--restrict-uid={os.geteuid()}", *socket)
        self.shown = _run(restricted, PURPOSE + self.secret)[1].decode(errors="replace").strip()
        """Empty: munge does not work here."""
        self.opened: dict[str, bytes] = {}

    def open(self, credential: object) -> bytes:
        """The secret of who shows this. Empty: it is not this user, or not on this cluster."""
        if not isinstance(credential, str) or not CREDENTIAL.fullmatch(credential):
            return b""
        if credential not in self.opened:
            code, said = _run(("unmunge", "--keys=UID", "--numeric", *self.socket), credential.encode())
            whose, _, content = said.partition(b"\n\n")
            is_ours = code in ANYWAY and whose.split() == [b"UID:", b"%d" % os.geteuid()] and content.startswith(PURPOSE)
            if not is_ours:
                return b""
            if len(self.opened) >= KEPT:
                self.opened.clear()
            self.opened[credential] = content.removeprefix(PURPOSE)
        return self.opened[credential]


def voucher(environ: Mapping[str, str]) -> Voucher | None:
    """How this process proves whose it is. None: this is no job of a Slurm that trusts munge, or munge does not work here."""
    if not environ.get("SLURM_JOB_ID"):
        return None
    given = environ.get("SLURM_CONF")
    socket = next(filter(None, map(_socket, (given,) if given else CONFIGS)), None)
    made = None if socket is None else Voucher([] if socket == "default" else [f"--socket={socket}"])
    return made if made is not None and made.shown else None


def _socket(path: str) -> str:
    """The socket of the munge that a Slurm trusts; `default`: munge's own. Empty: it does not say so."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            settings = dict(re.findall(r"(?im)^\s*(AuthType|AuthInfo)\s*=\s*(\S+)", file.read().replace("\\\n", "")))
    except OSError:
        return ""
    named = {name.lower(): value for name, value in settings.items()}
    if named.get("authtype", "auth/munge").lower() != "auth/munge":
        return ""
    return next((one[7:] for one in named.get("authinfo", "").split(",") if one.startswith("socket=")), "default")


def _run(command: tuple[str, ...], said: bytes) -> tuple[int, bytes]:
    """The exit code and output of a program that reads `said`. Nothing: it cannot be run, or does not answer."""
    given, out = os.memfd_create("munge", os.MFD_CLOEXEC), os.memfd_create("munge", os.MFD_CLOEXEC)
    try:
        os.pwrite(given, said, 0)
        files = [(os.POSIX_SPAWN_DUP2, given, 0), (os.POSIX_SPAWN_DUP2, out, 1)]
        quiet = (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)
        pid = os.posix_spawnp(command[0], command, os.environ, file_actions=[*files, quiet], setsigmask=())
        pidfd = os.pidfd_open(pid)
        if not select.select([pidfd], [], [], PATIENCE_S)[0]:
            os.kill(pid, signal.SIGKILL)
        os.close(pidfd)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), os.pread(out, MOST, 0)
    except OSError:
        return -1, b""
    finally:
        os.close(given)
        os.close(out)
