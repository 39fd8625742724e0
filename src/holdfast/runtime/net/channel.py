"""What does one side of a link say and hear, in bytes? Handshake, seals and TLS, once for every kind of link; no sockets.

The owner of the socket sends what is in `unsent`, and feeds what comes. `runtime.net.wire` does so without blocking,
`runtime.net.blocking_link` waits.
"""

from __future__ import annotations

import os

from holdfast.core.errors import ProtocolError
from holdfast.runtime.net import frames
from holdfast.runtime.secrets import Shelter

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.runtime.net.tls import Tunnel  # `ssl` is heavy, and most jobs use none

TLS_RECORDS = (0x15, 0x16)  # First bytes of TLS: an alert, a handshake.


class Channel:
    """One side. It has slots, and its parts are in it, as all that is held for each of thousands of links."""

    __slots__ = ("_frames", "_handshake", "_is_known", "_seals", "_tunnel", "ours", "unsent")

    def __init__(self, identity: frames.Identity, shelter: Shelter | None, *, ours: bool) -> None:
        """`ours`: we asked for the link."""
        self.ours = ours
        self.unsent = bytearray()
        self._frames = frames.Frames()
        self._handshake = frames.Handshake(identity, os.urandom(frames.NONCE_BYTES).hex(), ours=ours)
        self._seals: tuple[frames.Seal, frames.Seal] | None = None  # Of what we send, of what comes; None before the proof.
        self._is_known = False  # Its first bytes have been looked at.
        self._tunnel: Tunnel | None = None if shelter is None else shelter(ours)
        if self._tunnel is not None:
            self.unsent += self._tunnel.begin()
        for payload in self._handshake.opening():
            self.say(payload)

    @property
    def is_proven(self) -> bool:
        """Both sides have proved that they belong to the job."""
        return self._seals is not None

    @property
    def uses_tls(self) -> bool:
        """Whether all goes through TLS."""
        return self._tunnel is not None

    @property
    def names(self) -> tuple[str, ...]:
        """Host names for which the CA has signed the other side's certificate."""
        return self._tunnel.names() if self._tunnel is not None else ()

    def allow(self, size: int) -> None:
        """The other side's frames may be so large, now that it has proved itself."""
        self._frames.allow(size + frames.SEAL_BYTES)

    @property
    def held(self) -> int:
        """Bytes that have come of a frame that is not whole."""
        return len(self._frames.buffer)

    def say(self, payload: bytes) -> None:
        """One frame more to send."""
        framed = frames.frame(payload if self._seals is None else self._seals[0].put(payload))
        self.unsent += framed if self._tunnel is None else self._tunnel.send(framed)

    def feed(self, data: bytes) -> None:
        """Take in what came. ProtocolError: it is not one of us; what is in `unsent` then tells it why."""
        if self._tunnel is None:
            self._frames.feed(data)
            if not self._is_known and len(self._frames.buffer) >= 4:
                self._is_known = True
                self._look(bytes(self._frames.buffer[:4]))
            return
        if not self._is_known:
            self._is_known = True
            self._look(data[:4])
        try:
            self._frames.feed(self._tunnel.received(data))
        finally:
            self.unsent += self._tunnel.answer()  # of TLS's own handshake; or an alert, which says why

    def shake_hands(self) -> bool:
        """Go on with the handshake by what has come: whether it is done. ProtocolError: see `feed`."""
        while self._seals is None and (payload := self._frames.next()) is not None:
            self._answer(payload)
        return self._seals is not None

    def next(self) -> bytes | None:
        """What the other side says next, once it has proved itself; None: nothing more has come. ProtocolError: see `feed`."""
        assert self._seals is not None, "nothing is heard before the proof"
        payload = self._frames.next()
        return None if payload is None else self._seals[1].take(payload)

    def _answer(self, payload: bytes) -> None:
        try:
            answers = self._handshake.take(payload)
        except frames.Turned as turned:
            for answer in turned.answer:
                self.say(answer)
            raise
        for answer in answers:
            self.say(answer)
        if self._handshake.done:
            self._frames.allow(frames.FRAME_BYTES)
            self._seals = self._handshake.seals()

    def _look(self, first: bytes) -> None:
        """Recognise other protocols, where that is easy."""
        if what := frames.stranger(first):
            raise ProtocolError(what)
        if self._tunnel is None and first.startswith(frames.TLS_HELLO):
            raise ProtocolError("it speaks TLS, and this node does not (--tls-cert, --tls-key, --tls-ca)")
        if self._tunnel is None or first[0] in TLS_RECORDS:
            return
        self._tunnel = None
        if self.ours:
            raise frames.Turned("the other side does not use TLS, and this node does (--tls-cert)", [])
        self.unsent[:] = frames.refusal("this job uses TLS: give --tls-cert, --tls-key and --tls-ca")
        raise frames.Turned("it does not use TLS, and this job does (--tls-cert, --tls-key, --tls-ca)", [])

    # --- frames that are too large to be copied: only where `is_bulky` --------------------------------------------------

    @property
    def is_bulky(self) -> bool:
        """Whether a payload may go as it is, behind its head: it is sealed, and not encrypted."""
        return self._seals is not None and self._tunnel is None

    def head(self, payload: memoryview) -> bytes:
        """What goes before this payload."""
        assert self._seals is not None
        return (frames.SEAL_BYTES + len(payload)).to_bytes(4, "big") + self._seals[0].mark(payload)

    def take_buffered(self, room: memoryview) -> int:
        """Move what has come already to the beginning of `room`: how many bytes that were."""
        return self._frames.take_buffered(room)

    def check(self, mark: bytes, payload: memoryview) -> None:
        """ProtocolError: that payload is not what the other side sealed with `mark`."""
        assert self._seals is not None
        self._seals[1].check(mark, payload)
