"""Nodes that keep their records in one folder have the secret in it in common; nobody else's file counts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.core.errors import UsageError
from holdfast.telemetry.record import job_secret as module
from holdfast.telemetry.record.job_secret import is_shared, job_secret, shared_secret


@pytest.fixture
def mounts(tmp_path: Path) -> str:
    """As the kernel lists them: this test's folder is on NFS."""
    path = tmp_path / "mountinfo"
    path.write_text(f"22 1 8:1 / / rw - ext4 /dev/a rw\n23 22 0:40 / {tmp_path}/nfs rw shared:1 - nfs4 server:/home rw\n")
    return str(path)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "nfs" / "state"


def test_however_many_come_at_once_there_is_one_secret_and_it_is_this_user_s_alone(home: Path, mounts: str) -> None:
    with ThreadPoolExecutor(16) as nodes:
        found = set(nodes.map(lambda _: shared_secret(str(home), mounts), range(64)))
    (secret,) = found
    assert len(secret) == 64 and [path.name for path in home.iterdir()] == ["secret"]
    assert ((home / "secret").stat().st_mode & 0o777, home.stat().st_mode & 0o777) == (0o600, 0o700)


def test_a_slow_file_server_is_waited_for_and_one_that_does_not_answer_is_no_reason_to_go_without(monkeypatch, home) -> None:
    """The other nodes have the secret, and would turn this one away."""
    monkeypatch.delenv("HOLDFAST_TOKEN", raising=False)
    answers = threading.Event()
    monkeypatch.setattr(module, "shared_secret", lambda home: b"secret" if answers.wait(60) else b"")
    threading.Timer(0.3, answers.set).start()
    assert job_secret(None, "--token-file", str(home)) == b"secret"
    answers.clear()
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    try:
        with pytest.raises(UsageError, match=r"state has not answered for 0\.05 s"):
            job_secret(None, "--token-file", str(home))
    finally:
        answers.set()


def test_a_home_that_is_a_link_into_a_shared_folder_is_shared(home: Path, mounts: str, tmp_path: Path) -> None:
    home.mkdir(parents=True, mode=0o700)
    (tmp_path / "link").symlink_to(home)
    assert shared_secret(str(tmp_path / "link"), mounts) == shared_secret(str(home), mounts) != b""


def test_on_a_disk_of_the_host_s_own_there_is_none_and_none_is_made(tmp_path: Path, mounts: str) -> None:
    assert shared_secret(str(tmp_path / "own"), mounts) == b"" and not (tmp_path / "own").exists()


def test_where_others_may_write_there_is_none(home: Path, mounts: str) -> None:
    home.mkdir(parents=True)
    home.chmod(0o770)
    assert shared_secret(str(home), mounts) == b"" and list(home.iterdir()) == []


def test_one_that_others_may_read_does_not_count(home: Path, mounts: str) -> None:
    shared_secret(str(home), mounts)
    (home / "secret").chmod(0o640)
    assert shared_secret(str(home), mounts) == b""


@pytest.mark.parametrize(
    ("kinds", "shared"),
    [
        ({"/": "ext4"}, False),
        ({"/": "nfs"}, True),
        ({"/": "nfs", "/home": "xfs"}, False),
        ({"/": "ext4", "/home": "lustre", "/home/user/x": "tmpfs", "/home/us": "tmpfs"}, True),
        ({"/": "ext4", "/home/user/my\\040state": "fuse.sshfs"}, True),
        ({"/": "ext4", "/home": "virtiofs"}, False),
        ({"/": "ext4", "/home": "9p"}, False),
    ],
)
def test_the_innermost_mount_tells(kinds: dict[str, str], shared: bool, tmp_path: Path) -> None:
    lines = [f"1 1 0:1 / {point} rw,noatime shared:1 master:2 - {kind} what rw" for point, kind in kinds.items()]
    (tmp_path / "mounts").write_text("\n".join(lines) + "\n")
    assert is_shared("/home/user/my state/jobs", str(tmp_path / "mounts")) is shared


def test_of_two_mounts_at_one_place_the_last_one_is_seen(tmp_path: Path) -> None:
    lines = [f"1 1 0:1 / /home rw - {kind} what rw\n" for kind in ("nfs", "ext4")]
    (tmp_path / "mounts").write_text("".join(lines))
    assert not is_shared("/home/user", str(tmp_path / "mounts"))
