"""Where Slurm trusts munge, nodes of one user find together without a token; nobody else does, whatever credential it shows."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kit.servers.slurm import PATH, munged
from kit.waiting import wait_for

from holdfast.runtime.munge import PURPOSE, Voucher, voucher
from holdfast.runtime.net.frames import Handshake, Identity, Turned

pytestmark = pytest.mark.skipif(not shutil.which("munged", path=PATH), reason="munge is not installed: apt-get install munge")


@pytest.fixture(scope="module")
def socket() -> Iterator[Path]:
    """Of a munge that other users reach, too."""
    folder = Path(tempfile.mkdtemp(prefix="munge-"))
    folder.chmod(0o755)
    with open(folder / "out", "wb") as out:
        daemon = subprocess.Popen(munged(folder), env={"PATH": PATH}, stdout=out, stderr=out)
    try:
        wait_for((folder / "munge.socket").exists)
        yield folder / "munge.socket"
    finally:
        daemon.terminate()
        daemon.wait()
        shutil.rmtree(folder)


@pytest.fixture
def environ(socket: Path, tmp_path: Path) -> dict[str, str]:
    """A job of a Slurm that trusts this munge."""
    (tmp_path / "slurm.conf").write_text(f"ClusterName=c\nAuthType=auth/munge\nauthinfo=ttl=60,socket={socket}\n")
    return {"SLURM_JOB_ID": "7", "SLURM_CONF": str(tmp_path / "slurm.conf")}


def meet(asks: Identity, listens: Identity) -> bool:
    """Whether both prove themselves to each other. Turned: one does not."""
    member, server = Handshake(asks, "a" * 32, ours=True), Handshake(listens, "b" * 32, ours=False)
    (hello,), (greeting,) = member.opening(), server.opening()
    (proof,) = member.take(greeting)
    server.take(hello)
    (answer,) = server.take(proof)
    member.take(answer)
    return member.done and server.done


def credential(socket: Path, said: bytes, *options: str) -> str:
    made = subprocess.run(["munge", f"--socket={socket}", *options], input=said, capture_output=True, check=True)
    return made.stdout.decode().strip()


def test_any_two_nodes_of_one_user_find_together_and_nobody_who_has_no_credential(environ: dict[str, str]) -> None:
    one, two, three = (Identity("job", b"", voucher(environ)) for _ in range(3))
    assert one.is_secret and meet(one, two) and meet(two, one) and meet(three, two)
    with pytest.raises(Turned, match="another user or job"):
        meet(Identity("job", b""), one)
    with pytest.raises(Turned, match="no munge credential of this user"):
        meet(one, Identity("job", b""))
    with pytest.raises(Turned, match="another user or job"):
        meet(Identity("another", b"", voucher(environ)), one)


def test_a_credential_that_is_old_is_as_good(socket: Path) -> None:
    """Who listens makes one, and shows it for as long as the job lasts; clocks may differ."""
    ours = Voucher([f"--socket={socket}"])
    short = credential(socket, PURPOSE + b"x", "--ttl=1")
    opens = ["unmunge", f"--socket={socket}", "--keys=STATUS"]
    wait_for(lambda: b"Expired" in subprocess.run(opens, input=short.encode(), capture_output=True).stdout)
    assert ours.open(short) == b"x"


def test_a_credential_that_this_user_made_for_another_purpose_is_none(socket: Path) -> None:
    assert Voucher([f"--socket={socket}"]).open(credential(socket, b"for a web service, which knows it")) == b""


@pytest.mark.root
def test_another_user_s_credential_is_none(socket: Path) -> None:
    """It can be opened, and the attacker knows the secret in it."""
    theirs = credential(socket, PURPOSE + b"known", "--uid=12345")
    assert Voucher([f"--socket={socket}"]).open(theirs) == b""


@pytest.mark.root
def test_another_user_opens_no_credential_of_ours(socket: Path) -> None:
    shown = Voucher([f"--socket={socket}"]).shown
    other = ["setpriv", "--reuid", "12345", "--clear-groups", "unmunge", f"--socket={socket}"]
    done = subprocess.run(other, input=shown.encode(), capture_output=True)
    assert b"Unauthorized credential" in done.stderr and not done.stdout


@pytest.mark.parametrize("said", [None, 7, "", "MUNGE::", "MUNGE:AwQF:", "MUNGE:" + "A" * 4000 + ":", "-V", "MUNGE:A\n:"])
def test_what_is_no_credential_opens_nothing(socket: Path, said: object) -> None:
    assert Voucher([f"--socket={socket}"]).open(said) == b""


def test_where_slurm_does_not_trust_munge_or_it_does_not_work_it_is_not_used(environ: dict[str, str], tmp_path: Path) -> None:
    assert voucher(environ) is not None
    assert voucher({**environ, "SLURM_JOB_ID": ""}) is None
    assert voucher({**environ, "SLURM_CONF": str(tmp_path / "none")}) is None
    for conf in (f"AuthType=auth/slurm\nAuthInfo=socket={environ}\n", f"AuthInfo=socket={tmp_path}/nobody\n"):
        Path(environ["SLURM_CONF"]).write_text(conf)
        assert voucher(environ) is None


def test_a_munge_that_does_not_answer_is_waited_for_a_moment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "munge").write_text("#!/bin/sh\nexec sleep 60\n")
    (tmp_path / "munge").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr("holdfast.runtime.munge.PATIENCE_S", 0.05)
    assert Voucher([]).shown == ""
