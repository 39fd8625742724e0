"""`holdfast diagnose --ask`: a server with OpenAI's API is asked where the rules are not sure, and told no secrets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.diagnosis.opinions.language_model import without_secrets

UNKNOWN = """\
step 117 loss 2.1
connecting to postgres://trainer:hunter22@db:5432/runs
WANDB_API_KEY=0123456789abcdef0123456789abcdef01234567 hf_abcdefghijklmnopqrst
the frobnicator lost its grip
"""
KNOWN = "Traceback (most recent call last):\nNameError: name 'lr' is not defined\n"


class Server:
    """Answers as such servers do, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None, Any]] = []
        self.status, self.answer = 200, "hardware: the frobnicator of rank 3.\n\x1b[31mReplace it.\n"
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._answer(None, {"data": [{"id": "small-model"}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self._answer(body, {"choices": [{"message": {"content": server.answer}}]})

            def _answer(self, body: Any, answer: Any) -> None:
                server.asked.append((self.path, self.headers["Authorization"], body))
                self.send_response(server.status)
                self.send_header("Location", "/elsewhere")
                self.end_headers()
                self.wfile.write(json.dumps(answer).encode())

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/v1"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def test_who_is_asked_hears_no_secret_and_its_answer_is_marked_as_such(holdfast: Any, server: Server, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(UNKNOWN)
    done = holdfast("diagnose", "--ask", server.url, log, env={"HOLDFAST_ASK_KEY": "sesame"})
    assert "second opinion, of small-model, which nobody has checked and nothing acts on:" in done.stdout
    assert "  hardware: the frobnicator of rank 3." in done.stdout and "\x1b" not in done.stdout
    (_, _, _), (path, key, body) = server.asked
    assert (path, key, body["model"]) == ("/v1/chat/completions", "Bearer sesame", "small-model")
    sent = body["messages"][1]["content"]
    assert "the frobnicator lost its grip" in sent and "@db:5432/runs" in sent
    assert not any(secret in sent for secret in ("hunter22", "0123456789abcdef", "hf_abc"))
    assert all(line in done.stderr for line in sent.splitlines() if line), "it is shown what is sent"
    told = json.loads(holdfast("diagnose", "--json", "--ask", server.url, "--ask-model", "other", log).stdout)
    assert told["second_opinion"]["model"] == "other" and told["class"] == "unknown"


def test_of_a_folder_eight_logs_are_sent_the_telling_ones_first(holdfast: Any, server: Server, tmp_path: Path) -> None:
    for rank in range(10):
        (tmp_path / f"rank{rank}.log").write_text(f"step 1 of {rank}\n")
    (tmp_path / "rank9.log").write_text("socket: Connection reset by peer\n")
    (tmp_path / "rank0.trace").write_bytes(b"\x80\0\0\0")
    holdfast("diagnose", "--ask", server.url, tmp_path)
    sent = server.asked[-1][2]["messages"][1]["content"]
    assert [line for line in sent.splitlines() if line.startswith("step")] == [f"step 1 of {rank}" for rank in range(7)]
    assert "the end of a log:\nsocket: Connection reset" in sent and sent.count("the end of a log:") == 8


def test_nobody_is_asked_where_the_rules_are_sure(holdfast: Any, server: Server, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(KNOWN)
    done = holdfast("diagnose", "--ask", server.url, log)
    assert done.returncode == 0 and "not asked: the rules are" in done.stderr and server.asked == []


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [(500, "", "answers 500"), (302, "", "answers 302"), (200, None, "does not answer like OpenAI's")],
)
def test_without_an_answer_the_diagnosis_is_shown_all_the_same(
    holdfast: Any, server: Server, tmp_path: Path, status: int, answer: Any, said: str
) -> None:
    server.status = status
    if answer is None:
        server.http.RequestHandlerClass._answer = lambda handler, *_: (handler.send_response(200), handler.end_headers())  # type: ignore[attr-defined]
    log = tmp_path / "job.log"
    log.write_text(UNKNOWN)
    done = holdfast("diagnose", "--ask", server.url, log)
    assert done.returncode == 1 and "class: unknown" in done.stdout
    assert f"no second opinion: {server.url} {said}" in done.stderr and "second opinion, of" not in done.stdout


def test_no_key_crosses_a_network_in_clear(holdfast: Any, tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(UNKNOWN)
    done = holdfast("diagnose", "--ask", "http://models.example/v1", log, env={"HOLDFAST_ASK_KEY": "sesame"})
    assert done.returncode == 2 and "would cross the network to models.example in clear" in done.stderr
    for url in ("models.example", "http://[::1", "https://user:sesame@models.example"):
        refused = holdfast("diagnose", "--ask", url, log)
        assert refused.returncode == 2 and "no address of a server" in refused.stderr and "sesame" not in refused.stderr


@pytest.mark.parametrize(
    "secret",
    [
        "Authorization: Bearer abc.def.ghi123",
        "token='a b c'",
        '"aws_secret_access_key": "wJalrXUtnFEMI/K7MDENG"',
        "password=hunter22",
        "s3://key:hunter22@bucket",
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----",
        "AKIAIOSFODNN7EXAMPLE",
        "sk-proj-abcdefghijklmnop",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc",
        "?X-Amz-Signature=fe5f80f77d5fa3beca038a248ff027",
    ],
)
def test_what_looks_like_a_secret_is_removed(secret: str) -> None:
    said = without_secrets(f"before {secret}")
    assert said.startswith("before ") and "[removed]" in said
    kept = ("abc.def", "a b c", "wJalr", "hunter22", "MIIE", "AKIA", "sk-proj", "eyJ", "fe5f80")
    assert not any(part in said for part in kept), said


@pytest.mark.parametrize(
    "line",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "/opt/conda/lib/python3.11/site-packages/torch/distributed/elastic/multiprocessing/api.py:874",
        "NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev mlx5_0:1, local GID fe80::1",
        "tokens per second: 1200, num_tokens=8192, KeyError: 'layer.0'",
    ],
)
def test_what_a_log_needs_to_be_understood_stays(line: str) -> None:
    assert without_secrets(line) == line
