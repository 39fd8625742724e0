"""How do two agents prove that they belong to one job, and where does a message end? Bytes in, frames out; no sockets.

A frame is four bytes of length (big-endian) and that many bytes of JSON. The first three are the handshake:

    coordinator: {"holdfast": 1, "nonce": C}
    member:      {"job": J, "nonce": M, "proof": HMAC(token, "member", J, C, M)}
    coordinator: {"proof": HMAC(token, "coordinator", J, M, C)}      or {"refused": why}

Each proves that it knows the job's token without sending it. Without a token the key is empty: then only the job's name
keeps strangers out, which guards against mistakes and not against malice.
"""

from __future__ import annotations

import hmac
import json

from holdfast.core.errors import ProtocolError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

VERSION = 1
HELLO_BYTES = 4096
"""Longest frame before the handshake is done: a stranger cannot make us hold more."""
FRAME_BYTES = 16 << 20
"""Longest frame after it. The largest message is a report with the failures of every rank, about 2 KB each."""


class Frames:
    """The bytes of one link, cut into frames."""

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.limit = HELLO_BYTES

    def feed(self, data: bytes) -> None:
        """Take in what came."""
        self.buffer += data

    def next(self) -> bytes | None:
        """The next whole frame, if it is there. Raises ProtocolError when one is too long."""
        if len(self.buffer) < 4:
            return None
        size = int.from_bytes(self.buffer[:4], "big")
        if size > self.limit:
            raise ProtocolError(f"a frame of {size} bytes (at most {self.limit} allowed here)")
        if len(self.buffer) < 4 + size:
            return None
        payload = bytes(self.buffer[4 : 4 + size])
        del self.buffer[: 4 + size]
        return payload


def frame(payload: bytes) -> bytes:
    """`payload` as it goes over the wire."""
    return len(payload).to_bytes(4, "big") + payload


class Identity:
    """The job we belong to and the token that proves it."""

    def __init__(self, job: str, token: bytes) -> None:
        self.job = job
        self.token = token

    def proof(self, role: str, first: str, second: str) -> str:
        """What only somebody with the token can say."""
        return hmac.new(self.token, "\0".join((role, self.job, first, second)).encode(), "sha256").hexdigest()


class Handshake:
    """One side of a handshake: frames in, frames to send back. `done` once both sides have proved themselves."""

    def __init__(self, identity: Identity, nonce: str, *, ours: bool) -> None:
        self.identity = identity
        self.nonce = nonce
        self.ours = ours  # we asked for the link, so we are the member
        self.theirs = ""
        self.done = False

    def opening(self) -> list[bytes]:
        """What to send first."""
        return [] if self.ours else [_json({"holdfast": VERSION, "nonce": self.nonce})]

    def take(self, payload: bytes) -> list[bytes]:
        """Answer one frame. Raises ProtocolError, or `Turned` with what to send before closing."""
        said = _parsed(payload)
        if not self.ours:
            return self._admit(said)
        if "refused" in said:
            raise Turned(str(said["refused"])[:200], [])
        if not self.theirs:
            if said.get("holdfast") != VERSION:
                raise Turned(f"it speaks version {said.get('holdfast')!r} of the protocol, we speak {VERSION}", [])
            self.theirs = str(said.get("nonce"))
            proof = self.identity.proof("member", self.theirs, self.nonce)
            return [_json({"job": self.identity.job, "nonce": self.nonce, "proof": proof})]
        if not _same(said.get("proof"), self.identity.proof("coordinator", self.nonce, self.theirs)):
            raise Turned("it could not prove that it knows the job's token", [])
        self.done = True
        return []

    def _admit(self, said: dict[str, Any]) -> list[bytes]:
        if "proof" not in said:
            raise ProtocolError("not a Holdfast agent")
        if said.get("job") != self.identity.job:
            why = f"this is job {self.identity.job!r}, not {str(said.get('job'))[:100]!r} (--rdzv-id)"
            raise Turned(why, [_json({"refused": why})])
        theirs = str(said.get("nonce"))
        if not _same(said["proof"], self.identity.proof("member", self.nonce, theirs)):
            why = "wrong job token (--token-file, HOLDFAST_TOKEN)"
            raise Turned(why, [_json({"refused": why})])
        self.done = True
        return [_json({"proof": self.identity.proof("coordinator", theirs, self.nonce)})]


class Turned(ProtocolError):
    """The other side is not one of us; `answer` is to be sent before closing."""

    def __init__(self, what: str, answer: list[bytes]) -> None:
        super().__init__(what)
        self.answer = answer


def _same(said: object, wanted: str) -> bool:
    return isinstance(said, str) and hmac.compare_digest(said.encode(), wanted.encode())


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _parsed(payload: bytes) -> dict[str, Any]:
    try:
        said = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("not a Holdfast agent: no JSON") from error
    if not isinstance(said, dict):
        raise ProtocolError("not a Holdfast agent: no JSON object")
    return said
