"""Which paths lie on a disk of this host?"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from kit.hosts import fuse

from holdfast.runtime.hardware.mounts import is_local

MOUNTS = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
30 22 0:40 / /home rw - nfs4 nas:/home rw
31 30 8:2 / /home/my\040disk\134 rw shared:2 master:1 - xfs /dev/sdb rw
32 22 0:41 / /scratch rw - lustre mds@tcp:/scratch rw
33 22 0:42 / /later rw - ext4 /dev/sdc rw
34 33 0:43 / /later rw - fuse.sshfs host: rw
"""


@pytest.mark.parametrize(
    ("path", "local"),
    [
        ("/", True),
        ("/homeless", True),
        ("/home", False),
        ("/home/you/jobs", False),
        ("/home/my disk\\/jobs", True),
        ("/scratch/x", False),
        ("/later/x", False),
    ],
)
def test_the_innermost_file_system_counts_and_of_those_at_one_place_the_last(tmp_path: Path, path: str, local: bool) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS.lstrip())
    assert is_local(path, str(tmp_path / "mountinfo")) is local


def test_where_nobody_can_tell_it_is_not_taken_for_granted(tmp_path: Path) -> None:
    assert not is_local("/", str(tmp_path / "none"))


def test_a_links_end_counts(tmp_path: Path) -> None:
    (tmp_path / "mountinfo").write_text(MOUNTS.lstrip())
    os.symlink("/scratch", tmp_path / "link")
    assert not is_local(str(tmp_path / "link" / "x"), str(tmp_path / "mountinfo"))


@pytest.mark.skipif(bool(fuse.why_not()), reason=fuse.why_not())
def test_a_real_one_of_another_kind_is_seen(tmp_path: Path) -> None:
    (tmp_path / "mount").mkdir()
    mount = fuse.LogMount(tmp_path / "mount")
    try:
        assert is_local("/tmp") and not is_local(str(tmp_path / "mount"))
    finally:
        mount.close()
