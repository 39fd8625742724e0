"""Does a path lie on a disk of this host? Any other may stop answering for minutes, and block its readers."""

from __future__ import annotations

import os

LOCAL = ("ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "f2fs", "bcachefs", "tmpfs", "ramfs", "rootfs", "overlay")

ESCAPED = (r"\040", " "), (r"\011", "\t"), (r"\012", "\n"), (r"\043", "#"), (r"\134", "\\")
"""How the kernel writes some characters of a path."""


def is_local(path: str, mounts: str = "/proc/self/mountinfo") -> bool:
    """Whether the file system there is one of `LOCAL`. False where nobody can tell."""
    real, kind, longest = os.path.realpath(path), "", -1
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return False
    for line in lines:  # proc(5): `36 35 98:0 /root /where options - type source options`, fields in the middle may be missing
        before, _, after = line.partition(" - ")
        where = before.split()[4]
        for code, character in ESCAPED:
            where = where.replace(code, character)
        if len(where) >= longest and (real == where or real.startswith(where.rstrip("/") + "/")):
            kind, longest = after.split()[0], len(where)
    return kind in LOCAL
