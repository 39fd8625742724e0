"""A job whose coordinator listens on a real port, and somebody who comes to it with raw bytes."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.core.wire.messages import Message
from holdfast.runtime.net.codec import decode, encode
from holdfast.runtime.net.frames import FRAME_BYTES, Frames, Handshake, Identity, frame

WAITS = """
import os, sys, time
folder = sys.argv[1]
secrets = [name for name in os.environ if name.startswith("HOLDFAST_TOKEN")]
open(f"{folder}/{os.environ['RANK']}.{os.environ['HOLDFAST_ROUND']}", "w").write(" ".join(secrets))
deadline = time.time() + 120
while not os.path.exists(f"{folder}/finish") and time.time() < deadline:
    time.sleep(0.02)
"""
TOKEN = "a secret of enough characters"


class Peer:
    """Somebody who has connected to the port."""

    def __init__(self, port: int, source: str = "", host: str = "localhost") -> None:
        """`source`: an address of this host to come from."""
        self.sock = socket.create_connection((host, port), timeout=30, source_address=(source, 0) if source else None)
        self.frames = Frames()
        self.frames.limit = FRAME_BYTES
        self.handshake: Handshake | None = None

    def send(self, data: bytes) -> None:
        self.sock.sendall(data)

    def until_closed(self) -> bytes:
        """All that comes until the other side closes."""
        said = b""
        try:
            while data := self.sock.recv(1 << 16):
                said += data
        except ConnectionError:
            pass
        self.sock.close()
        return said

    def hear(self) -> bytes:
        """The next frame."""
        while (payload := self.frames.next()) is None:
            data = self.sock.recv(1 << 16)
            if not data:
                raise EOFError("closed")
            self.frames.feed(data)
        return payload

    def prove(self, job: str, token: str = TOKEN, nonce: str = "ab" * 16) -> None:
        """Be a member, as far as the handshake goes."""
        self.handshake = Handshake(Identity(job, token.encode()), nonce, ours=True)
        for payload in self.handshake.opening():
            self.send(frame(payload))
        while not self.handshake.done:
            for payload in self.handshake.take(self.hear()):
                self.send(frame(payload))
        self.seals = self.handshake.seals()

    def say(self, what: Message | bytes) -> None:
        """Say a message, or anything else, sealed as a member does."""
        self.send(frame(self.seals[0].put(what if isinstance(what, bytes) else encode(what))))

    def told(self) -> Message:
        """The coordinator's next message."""
        return decode(self.seals[1].take(self.hear()))


class Job:
    """`holdfast run --nnodes 1:2` on this host, under way; `finish` shows that nothing was lost."""

    def __init__(self, holdfast: Any, port: int, folder: Path, program: Path, wait_until: Callable[..., Any]) -> None:
        self.holdfast, self.port, self.folder, self.program, self.wait_until = holdfast, port, folder, program, wait_until
        self.peers: list[Peer] = []
        self.agent: Any = None

    def start_agent(self, *options: object, name: str = "a", nnodes: str = "1:2", env: dict[str, str] | None = None) -> Any:
        return self.holdfast.start(
            *("run", "--nnodes", nnodes, "--nproc-per-node", 1, "--node-name", name),
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{self.port}", "--rdzv-id", "secure"),
            *("--rdzv-conf", "last_call_timeout=0.1", *options, self.program, self.folder),
            env={"HOLDFAST_TOKEN": TOKEN} if env is None else env,
        )

    def begin(self, *options: object, **how: Any) -> Job:
        self.agent = self.start_agent(*options, **how)
        self.running(0, 1)
        return self

    def running(self, rank: int, round: int) -> str:
        """What a worker left, once it runs."""
        path = self.folder / f"{rank}.{round}"
        self.wait_until(path.exists, what=f"rank {rank} of round {round}")
        return path.read_text()

    def peer(self) -> Peer:
        self.peers.append(Peer(self.port))
        return self.peers[-1]

    def said(self, text: str, times: int = 1) -> None:
        """Wait until the agent has said it so often."""
        self.wait_until(lambda: self.agent.stderr.count(text) >= times, what=f"{text!r} in:\n{self.agent.stderr}")

    def finish(self, rounds: int = 1) -> str:
        """Let the workers go on to their end: it is a good one, of the round that was running. Returns what the agent said."""
        assert not self.agent.ended, self.agent.stderr
        (self.folder / "finish").touch()
        ended = self.agent.wait()
        assert ended.returncode == 0, ended.stderr
        assert {event["round"] for event in self.holdfast.events("RoundFormed")} == set(range(1, rounds + 1))
        assert "Traceback" not in ended.stderr
        return str(ended.stderr)
