"""Which control groups are we in? Those of version 2, a limit of any of which is ours; and those of version 1."""

from __future__ import annotations

from holdfast.runtime.hardware.gpus import text


def folders(root: str = "/") -> list[str]:
    """Folders below `root` of our own group and of those that it is part of, our own first."""
    own = next((line.split(":", 2)[2] for line in text(root, "proc/self/cgroup").splitlines() if line.startswith("0::")), "")
    parts = [part for part in own.split("/") if part and part != ".."]
    return ["/".join(("sys/fs/cgroup", *parts[:depth])) for depth in range(len(parts), -1, -1)]


def version_1(root: str, controller: str) -> list[str]:
    """Where below `root` our own group of version 1 for that controller may be: a container shows it as the first of all."""
    for line in text(root, "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controller in controllers.split(","):
            return [f"sys/fs/cgroup/{controller}{path}".rstrip("/"), f"sys/fs/cgroup/{controller}"]
    return []
