"""Which secret do the nodes of a job share? The one that is given, else one beside their records, if these are in one place.

    --token-file FILE · HOLDFAST_TOKEN · HOME/secret, where HOME is on a file system that hosts share · none, but munge's word

The first node that looks for `HOME/secret` makes it; all jobs with that home have it in common. Only this user may read the
file, or write to its folder: else it counts as none, since another user could have put it there.
"""

from __future__ import annotations

import os
from contextlib import suppress

from holdfast.core.errors import UsageError
from holdfast.runtime.munge import voucher
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.private_files import is_private, make_folder, new_file
from holdfast.runtime.secrets import secret_in, take_secret
from holdfast.telemetry.record.io_thread import IoThread

NAME, MOUNTS = "secret", "/proc/self/mountinfo"
PATIENCE_S = 20.0
"""How long a file server is waited for at the start: the others would turn a node away that went without the secret."""
SHARED = frozenset(
    "nfs nfs4 lustre gpfs beegfs ceph fuse.ceph fuse.ceph-fuse glusterfs fuse.glusterfs cifs smb3 afs pvfs2 orangefs panfs "
    "wekafs quobyte fuse.quobyte fuse.juicefs fuse.sshfs fuse.moosefs fuse.mfs ocfs2 gfs2".split()
)
"""Types of file systems that several hosts have in common. Not `9p` and `virtiofs`: what a virtual machine has of its host."""


def job_identity(job: str, path: str | None, flag: str, home: str) -> Identity:
    """What proves that a node belongs to the job: its secret, or else munge, where Slurm trusts it. UsageError."""
    secret = job_secret(path, flag, home)
    return Identity(job, secret, None if secret else voucher(os.environ))


def job_secret(path: str | None, flag: str, home: str) -> bytes:
    """The secret in the file that `flag` names, in the environment, or beside the records. Empty: there is none. UsageError."""
    given = take_secret(b"HOLDFAST_TOKEN")
    if path is not None:
        return secret_in(path, flag)
    if given == b"":
        raise UsageError("HOLDFAST_TOKEN is set but empty", hint="`holdfast token` makes one; unset it to go without")
    thread = IoThread(PATIENCE_S)
    found = given or thread.value(lambda: shared_secret(home))
    if thread.is_late:
        what = f"{home} has not answered for {PATIENCE_S:g} s: whether this job's nodes share a secret there is not known"
        raise UsageError(what, hint="see its file server, or give each node --token-file FILE or HOLDFAST_TOKEN")
    return found or b""


def shared_secret(home: str, mounts: str = MOUNTS) -> bytes:
    """The secret in `home`, made where it is missing. Empty: other hosts do not see it, or others may write there. OSError."""
    home = os.path.realpath(home)
    if not is_shared(home, mounts):
        return b""
    make_folder(home)
    if not is_private(home):
        return b""
    path = os.path.join(home, NAME)
    if not os.path.exists(path):
        with suppress(FileExistsError):  # another node was quicker
            new_file(path, os.urandom(32).hex() + "\n")
    with open(path, "rb") as file:
        seen = os.fstat(file.fileno())
        return file.read().strip() if seen.st_uid == os.geteuid() and not seen.st_mode & 0o077 else b""


def is_shared(folder: str, mounts: str = MOUNTS) -> bool:
    """Whether a folder, by its real path, is on a file system that other hosts have too. OSError: nobody can tell."""
    path = os.path.join(folder, "")
    kind, longest = "", 0
    with open(mounts, encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            place, _, rest = line.partition(" - ")
            point = os.path.join(place.split(" ")[4].encode().decode("unicode_escape"), "")
            if path.startswith(point) and len(point) >= longest:  # the last one of a place hides those before
                kind, longest = rest.split(" ")[0], len(point)
    return kind in SHARED
