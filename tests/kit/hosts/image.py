"""The image that deploy/Dockerfile makes, over a root file system of Debian's packages, and `holdfast` in containers of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kit import ROOT
from kit.command import Holdfast

MADE = Path(sys.prefix) / "image"
"""Where `make image` keeps Debian's root file system, and the wheels that a build in it needs."""
BASE = "localhost/python:debian"
BUILDAH = ("buildah", "--root", str(MADE / "store"), "--runroot", str(MADE / "run"), "--storage-driver", "vfs")

CONTAINER = """
root=$1 volume=$2; shift 2
mount --bind "$root" "$root" && mount --rbind /dev "$root/dev" && mount --bind /proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp" && mkdir -p "$root$volume" && mount --bind "$volume" "$root$volume"
mount -o remount,bind,ro "$root" && exec chroot "$@"
"""
"""In a mount namespace of its own: all but /tmp and the volume is read-only, as in our manifests. The network is the host's."""


def missing() -> str:
    """Why there can be no image here. Empty: there can."""
    if os.getuid() != 0:
        return "only root can make it"
    if not (MADE / ".done").exists():
        return "its base is not here: make image"
    if sys.version_info[:2] != tuple(map(int, (MADE / ".done").read_text().split("."))):
        return "the base's Python is another version, so that the wheels do not fit"
    return "" if shutil.which("buildah") else "buildah is not installed"


def buildah(*args: object) -> str:
    """What it prints."""
    return subprocess.run((*BUILDAH, *map(str, args)), cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@contextmanager
def built(folder: Path) -> Iterator[tuple[Path, dict[str, list[str]]]]:
    """The root file system of a container of the image as it is built now, and what the image says of how it is run."""
    pip = folder / "pip.conf"
    pip.write_text("[global]\nno-index = true\nfind-links = /wheels\n")
    volumes = ("-v", f"{MADE}/wheels:/wheels:ro", "-v", f"{pip}:/etc/pip.conf:ro")
    how = ("-q", "--isolation", "chroot", "--build-arg", f"PYTHON={BASE}", *volumes, "-f", "deploy/Dockerfile", ".")
    image = buildah("bud", *how).splitlines()[-1]
    container = buildah("from", image)
    try:
        config = json.loads(buildah("inspect", "--type", "image", image))["OCIv1"]["config"]
        yield Path(buildah("mount", container)), config
    finally:
        buildah("rm", container)
        buildah("rmi", image)


class InImage(Holdfast):
    """`holdfast` in a container of the image: its user, its variables, its entry point. `folder` is its volume."""

    def __init__(self, folder: Path, root: Path, config: dict[str, list[str]]) -> None:
        super().__init__(folder)
        self.root, self.config = str(root), config
        os.chown(folder, *map(int, str(config["User"]).split(":")))

    def program(self, own: dict[str, str]) -> tuple[str, ...]:
        unshared = ("unshare", "--mount", "--propagation", "private", "sh", "-ec", CONTAINER, "sh")
        variables = (*self.config["Env"], *(f"{name}={value}" for name, value in own.items()))
        changed = (f"--userspec={self.config['User']}", self.root)
        return (*unshared, self.root, str(self.folder), *changed, "/usr/bin/env", "-i", *variables, *self.config["Entrypoint"])
