"""`holdfast token`, and what is said about a token that protects less than its owner thinks."""

from __future__ import annotations

import os
import socket

import pytest
from kit.network.security_peer import TOKEN

from holdfast.runtime.net.frames import TOKEN_BYTES, Identity
from holdfast.runtime.net.network import open_doors


def test_a_token_is_printed_and_always_another(holdfast):
    one, two = holdfast("token"), holdfast("token")
    assert (one.returncode, one.stderr) == (0, "") and one.stdout != two.stdout
    assert len(one.stdout.strip()) >= 2 * TOKEN_BYTES and one.stdout.strip().isascii()


def test_a_token_file_is_its_owner_s_alone(holdfast, tmp_path):
    file = tmp_path / "token"
    done = holdfast("token", "--write", file)
    assert done.returncode == 0 and done.stdout == "" and str(file) in done.stderr
    assert file.stat().st_mode & 0o777 == 0o600 and file.read_text().strip() not in done.stderr
    assert os.listdir(tmp_path).count("token") == 1 and not [name for name in os.listdir(tmp_path) if name.endswith(".new")]


def test_a_token_file_is_replaced_only_by_force(holdfast, tmp_path):
    file = tmp_path / "token"
    file.write_text("old")
    refused = holdfast("token", "--write", file)
    assert refused.returncode == 2 and "exists" in refused.stderr and file.read_text() == "old"
    file.chmod(0o644)
    assert holdfast("token", "--write", file, "--force").returncode == 0
    assert file.read_text() != "old" and file.stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(holdfast, tmp_path):
    target, link = tmp_path / "target", tmp_path / "token"
    target.write_text("precious")
    link.symlink_to(target)
    assert holdfast("token", "--write", link).returncode == 2
    assert holdfast("token", "--write", link, "--force").returncode == 0
    assert target.read_text() == "precious" and not link.is_symlink()


@pytest.mark.parametrize(
    ("args", "message"),
    [(("--write", "/nowhere/token"), "cannot write /nowhere/token"), (("--force",), "there is no FILE to replace")],
)
def test_a_token_that_cannot_be_written_is_a_mistake_of_the_user_s(holdfast, args, message):
    done = holdfast("token", *args)
    assert done.returncode == 2 and message in done.stderr and done.stdout == ""


def test_a_token_file_is_enough_and_its_line_end_does_not_count(job, tmp_path):
    file = tmp_path / "token"
    file.write_text(f"  {TOKEN}\n\n")
    file.chmod(0o600)
    job.begin("--token-file", file, env={})
    peer = job.peer()
    peer.prove("secure", TOKEN)
    peer.sock.close()
    stderr = job.finish()
    assert "chmod" not in stderr and "turned away" not in stderr


@pytest.mark.parametrize(("mode", "who"), [(0o644, "every user of this host"), (0o640, "its group")])
def test_a_token_file_that_others_can_read_is_warned_of_with_the_remedy(job, tmp_path, mode, who):
    file = tmp_path / "token"
    file.write_text(TOKEN)
    file.chmod(mode)
    job.begin("--token-file", file, env={})
    stderr = job.finish()
    assert stderr.count(f"{file} is open to {who}") == 1 and f"chmod 600 {file}" in stderr


@pytest.mark.parametrize("text", ["", "  \n"])
def test_an_empty_token_is_an_error_and_not_no_token(job, tmp_path, text):
    file = tmp_path / "token"
    file.write_text(text)
    file.chmod(0o600)
    for options, env in ((("--token-file", file), {}), ((), {"HOLDFAST_TOKEN": text})):
        ended = job.start_agent(*options, env=env).wait()
        assert ended.returncode == 2 and "empty" in ended.stderr and "holdfast token" in ended.stderr


def test_a_job_that_requires_a_token_does_not_start_without_one(job, holdfast, script, tmp_path):
    ended = job.start_agent("--require-token", env={}).wait()
    assert ended.returncode == 2 and "has no token" in ended.stderr and "holdfast token --write" in ended.stderr
    job.begin("--require-token")
    job.finish()
    alone = holdfast("run", "--require-token", script("print('alone')"))
    assert (alone.returncode, alone.stdout) == (0, "alone\n"), "a job of one node has nobody to keep out"


@pytest.mark.parametrize(("flag", "text"), [("--node-name", "n" * 256), ("--rdzv-id", "j" * 513), ("--role", "r" * 256)])
def test_a_name_that_others_would_refuse_is_refused_at_once(job, flag, text):
    ended = job.start_agent(flag, text).wait()
    assert ended.returncode == 2 and flag in ended.stderr and "at most" in ended.stderr


# --- what is said by the node that others come to ---------------------------------------------------------------------------


class Open:
    def __init__(self, token: bytes, host: str = "node0", *, listening: bool = True, shelter: object = None) -> None:
        self.identity = Identity("job", token)
        self.endpoint = host, 29400
        self.listeners = [socket.AF_INET] if listening else []
        self.shelter = shelter


def doors(token: bytes, host: str = "node0", **how: object) -> str:
    return open_doors(Open(token, host, **how), 2, token_by="--token-file FILE")  # type: ignore[arg-type]


def test_who_can_join_without_a_token_is_said_by_the_node_that_listens():
    assert "anyone who reaches node0:29400 and knows the run id can join" in doors(b"")
    assert doors(b"").startswith("unauthenticated: ") and "orders from other hosts are refused" in doors(b"")
    assert "anyone who holds a certificate of the CA" in doors(b"", shelter=object())
    assert "unauthenticated" not in doors(b"", shelter=object()), "a certificate proves who comes"
    assert "only 5 characters and can be guessed" in doors(b"right")
    assert doors(b"x" * TOKEN_BYTES) == doors(b"", listening=False) == doors(b"", host="localhost") == ""


def test_no_secret_of_ours_reaches_a_worker_of_a_job_of_one_node(holdfast, script):
    env = {f"HOLDFAST_{whose}TOKEN": "s3cret-" + "x" * 20 for whose in ("", "SUPERVISOR_", "ATTRIBUTION_")}
    done = holdfast("run", script("import os; print([name for name in os.environ if 's3cret' in os.environ[name]])"), env=env)
    assert (done.returncode, done.stdout) == (0, "[]\n")
