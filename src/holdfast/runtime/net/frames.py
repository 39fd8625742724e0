"""How do two agents prove that they belong to one job, and where does a message end? Bytes in, frames out; no sockets.

A frame is four bytes of length (big-endian) and that many bytes of JSON. The first are the handshake:

    both, at once: {"holdfast": 1, "nonce": N}                              C the coordinator's nonce, M the member's
                   coordinator, where munge vouches for users: and {"munge": its secret, in a credential} (`runtime.munge`)
    member:        {"proof": MAC("proof", "member")}
    coordinator:   {"proof": MAC("proof", "coordinator")}                   or {"refused": why}

MAC(use, role) is HMAC-SHA256 over [use, role, version, C, M]. Its key is made of the job's token and its run id. Each side
proves that it knows both without sending either; a proof is good for one connection (the nonces), for one side of it (the
role), in one version.
From then on each frame begins with a seal, keyed BLAKE2b (RFC 7693) with the key MAC("seal", role) over the frame's number and
its bytes: a program between the two can neither add, change, repeat nor reorder frames, nor take over a proven connection.

Without a token the run id is all that is proved. Neither side ever says it, not even in a refusal; but who reads a proof can
try guesses, and a run id is often easy to guess. Reading along is prevented by TLS alone (`runtime.net.tls`).
"""

from __future__ import annotations

import hmac
import json
from hashlib import blake2b
from typing import Any

from holdfast.core.errors import ProtocolError
from holdfast.runtime.munge import Voucher

VERSION = 6
HELLO_BYTES = 4096  # Longest frame before the handshake is done: a stranger cannot make us hold more.
FRAME_BYTES = 16 << 20  # Longest frame after it. A report has about 2 KB for each rank.
NONCE_BYTES = 16
SEAL_BYTES = 16  # A forger has one try per connection.
TOKEN_BYTES = 16  # A shorter token is warned of: a member's proof lets a peer try guesses.
JOB_CHARS = 512  # Longest run id.

HTTP = (b"GET ", b"POST", b"HEAD", b"PUT ", b"OPTI", b"PRI ", b"CONN", b"DELE", b"PATC", b"HTTP")
TLS_HELLO = b"\x16\x03"


def stranger(first: bytes) -> str:
    """What begins with these bytes, if it is known to be no frame of ours."""
    if first.startswith(HTTP):
        return "it speaks HTTP, not Holdfast's protocol"
    if first.startswith(b"SSH-"):
        return "it speaks SSH, not Holdfast's protocol"
    return ""


class Frames:
    """The bytes of one link, cut into frames."""

    __slots__ = ("buffer", "limit")

    def __init__(self) -> None:
        self.buffer = bytearray()
        self.limit = HELLO_BYTES

    def allow(self, limit: int) -> None:
        """Frames may be so long from now on."""
        self.limit = limit

    def feed(self, data: bytes) -> None:
        """Take in what came."""
        self.buffer += data

    def take_buffered(self, room: memoryview) -> int:
        """Move what has come to the beginning of `room`: how many bytes that were."""
        size = min(len(room), len(self.buffer))
        room[:size] = self.buffer[:size]
        del self.buffer[:size]
        return size

    def next(self) -> bytes | None:
        """The next whole frame, if it is there. Raises ProtocolError when one is too long."""
        if len(self.buffer) < 4:
            return None
        size = int.from_bytes(self.buffer[:4], "big")
        if size > self.limit:
            raise ProtocolError(f"it announced a frame of {size} bytes (at most {self.limit} are allowed here)")
        if len(self.buffer) < 4 + size:
            return None
        payload = bytes(self.buffer[4 : 4 + size])
        del self.buffer[: 4 + size]
        return payload


def frame(payload: bytes) -> bytes:
    """`payload` as it goes over the wire."""
    return len(payload).to_bytes(4, "big") + payload


class Seal:
    """The marks of one direction's frames, in their order."""

    __slots__ = ("begun", "count")

    def __init__(self, key: bytes) -> None:
        # Not HMAC: BLAKE2b takes a key as it is, so one state is kept for each direction of thousands of links, and one copied.
        self.begun = blake2b(key=key, digest_size=SEAL_BYTES)
        self.count = 0

    def put(self, payload: bytes) -> bytes:
        """`payload` with the next mark before it."""
        return self.mark(payload) + payload

    def take(self, sealed: bytes) -> bytes:
        """The payload under the next mark. Raises ProtocolError when it is not what the other side sent."""
        payload = sealed[SEAL_BYTES:]
        self.check(sealed[:SEAL_BYTES], payload)
        return payload

    def check(self, mark: bytes, payload: bytes | memoryview) -> None:
        """As `take`, where the mark has been cut off."""
        if not hmac.compare_digest(self.mark(payload), mark):
            raise ProtocolError("a frame has a wrong seal: it was altered on its way, or has another sender")

    def mark(self, payload: bytes | memoryview) -> bytes:
        """The next mark, of this payload."""
        mark = self.begun.copy()
        mark.update(self.count.to_bytes(8, "big"))
        mark.update(payload)
        self.count += 1
        return mark.digest()


class Identity:
    """The job we belong to and what proves it: the token of all its nodes, or `voucher`, if each proves whose it is."""

    def __init__(self, job: str, token: bytes, voucher: Voucher | None = None) -> None:
        self.job, self.token, self.voucher = job, token, voucher
        self._key = hmac.digest(token if voucher is None else voucher.secret, json.dumps(job).encode(), "sha256")

    @property
    def is_secret(self) -> bool:
        """Whether it proves more than the run id."""
        return bool(self.token) or self.voucher is not None

    def mac(self, use: str, role: str, coordinator: str, member: str) -> bytes:
        """What only somebody with the token and the run id can compute: of one connection, for one use by one side."""
        said = json.dumps([use, role, VERSION, coordinator, member])  # unlike joined texts, never ambiguous
        return hmac.digest(self._key, said.encode(), "sha256")

    @property
    def name_proof(self) -> str:
        """What shows to others than the job's nodes that one is among them, and lets nobody guess the token or join. Empty: the
        job has no token."""
        return hmac.digest(self._key, b"who speaks for this job", "sha256").hex() if self.token else ""

    @property
    def wrong(self) -> str:
        """What may be wrong with a member whose proof is: said to it, so it tells neither the run id nor the token."""
        if self.voucher is not None:
            return "another user or job (--rdzv-id), or a token (--token-file, HOLDFAST_TOKEN) while this job's nodes use munge"
        if self.token:
            return "wrong job token (--token-file, HOLDFAST_TOKEN, a shared --state-dir), or another job (--rdzv-id)"
        return "another job (--rdzv-id), or a token (--token-file, HOLDFAST_TOKEN, a shared --state-dir) and this job has none"


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
        shown = {"munge": self.identity.voucher.shown} if self.identity.voucher is not None and not self.ours else {}
        return [_json({"holdfast": VERSION, "nonce": self.nonce, **shown})]

    def take(self, payload: bytes) -> list[bytes]:
        """Answer one frame. Raises ProtocolError, or `Turned` with what to send before closing."""
        said = _parsed(payload)
        if self.ours and isinstance(said.get("refused"), str):
            raise Turned(said["refused"][:300], [])
        if not self.theirs:
            return self._meet(said)
        proof = said.get("proof")
        if not isinstance(proof, str):
            raise ProtocolError("not a Holdfast agent: no proof")
        if not self.ours:
            if not _same(proof, self._proof("member")):
                raise Turned(self.identity.wrong, [_json({"refused": self.identity.wrong})])
            self.done = True
            return [_json({"proof": self._proof("coordinator")})]
        if not _same(proof, self._proof("coordinator")):
            raise Turned("it could not prove that it knows the run id (--rdzv-id) and the job's token (--token-file)", [])
        self.done = True
        return []

    def seals(self) -> tuple[Seal, Seal]:
        """(of the frames that we send, of those that we receive), once it is done."""
        assert self.done, "no key before the proof"
        member, coordinator = (Seal(self._mac("seal", role)) for role in ("member", "coordinator"))
        return (member, coordinator) if self.ours else (coordinator, member)

    def _meet(self, said: dict[str, Any]) -> list[bytes]:
        version, nonce = said.get("holdfast"), said.get("nonce")
        if type(version) is not int:
            raise ProtocolError("not a Holdfast agent: wrong first bytes")
        if version != VERSION:
            shown = str(version)[:20]
            they, we = ("the coordinator", "this agent") if self.ours else ("the agent", "the coordinator")
            why = f"{they} speaks version {shown} of the protocol, {we} {VERSION}: install the same Holdfast on every node"
            raise Turned(why, [] if self.ours else [_json({"refused": why})])
        if not isinstance(nonce, str) or not _is_nonce(nonce):
            raise ProtocolError("not a Holdfast agent: no nonce")
        if nonce == self.nonce:
            raise ProtocolError("it echoes our bytes")
        self.theirs = nonce
        if not self.ours:
            return []
        if (voucher := self.identity.voucher) is not None:
            if not (secret := voucher.open(said.get("munge"))):
                raise Turned("it shows no munge credential of this user, which is what this node knows the job's nodes by", [])
            self.identity = Identity(self.identity.job, secret)
        return [_json({"proof": self._proof("member")})]

    def _proof(self, role: str) -> str:
        return self._mac("proof", role).hex()

    def _mac(self, use: str, role: str) -> bytes:
        coordinator, member = (self.theirs, self.nonce) if self.ours else (self.nonce, self.theirs)
        return self.identity.mac(use, role, coordinator, member)


class Turned(ProtocolError):
    """The other side is not one of us; `answer` is to be sent before closing."""

    def __init__(self, what: str, answer: list[bytes]) -> None:
        super().__init__(what)
        self.answer = answer


def refusal(why: str) -> bytes:
    """A frame that tells a member, who may not have said anything yet, why it is not wanted."""
    return frame(_json({"refused": why}))


def _is_nonce(text: str) -> bool:
    return len(text) == 2 * NONCE_BYTES and not text.strip("0123456789abcdef")


def _same(said: str, wanted: str) -> bool:
    # A lone surrogate is text that JSON can carry and UTF-8 cannot.
    return hmac.compare_digest(said.encode(errors="replace"), wanted.encode())


def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _parsed(payload: bytes) -> dict[str, Any]:
    try:
        said = json.loads(payload.decode(), object_pairs_hook=_distinct, parse_constant=_no_number)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("not a Holdfast agent: no JSON") from error
    if not isinstance(said, dict):
        raise ProtocolError("not a Holdfast agent: no JSON object")
    return said


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    said = dict(pairs)
    if len(said) != len(pairs):
        raise ValueError("duplicate key")
    return said


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number in JSON")
