"""Which control groups are we in? Those of version 2; a limit of any of them is ours."""

from __future__ import annotations

from holdfast.runtime.hardware.gpus import text


def folders(root: str = "/") -> list[str]:
    """Folders below `root` of our own group and of those that it is part of, our own first."""
    own = next((line.split(":", 2)[2] for line in text(root, "proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    parts = [part for part in own.split("/") if part and part != ".."]
    return ["/".join(("sys/fs/cgroup", *parts[:depth])) for depth in range(len(parts), -1, -1)]
