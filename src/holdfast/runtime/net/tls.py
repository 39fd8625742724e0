"""How is a link encrypted? One `Tunnel` per link, between the bytes of a socket and the bytes of frames; no sockets here.

Both sides show a certificate and each checks the other's against the job's own CA. Host names are not checked: agents come
under changing addresses, and what counts is that the CA signed. So the CA must be one that signs for this job or cluster
only. Loaded only where TLS is configured: `ssl` costs more to import than the rest of the launcher.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable
from typing import Any

from holdfast.core.errors import ProtocolError, UsageError
from holdfast.runtime.readable import readable

ALERTS = {
    "UNKNOWN_CA": "its CA did not sign ours (--tls-ca there, --tls-cert here)",
    "CERTIFICATE_EXPIRED": "ours has expired (--tls-cert)",
    "CERTIFICATE_REVOKED": "ours has been revoked (--tls-cert)",
    "BAD_CERTIFICATE": "it finds ours broken (--tls-cert)",
    "UNSUPPORTED_CERTIFICATE": "ours is not meant for this use (--tls-cert: it must allow both server and client)",
    "CERTIFICATE_REQUIRED": "it wants one (--tls-cert)",
}
"""Ends of OpenSSL's names for what the other side can have against our certificate, and what to say."""


def shelter(cert: str, key: str | None, ca: str) -> Callable[[bool], Tunnel]:
    """What makes a tunnel for each link (`secrets.Shelter`). UsageError when the files are of no use."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for context in (server, client):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # both ends are ours: nothing older to talk to
        _load(context, cert, key, ca)
    server.num_tickets = 0  # links live as long as the job: nothing to resume
    return lambda ours: Tunnel(client if ours else server, ours=ours)


def https(cert: str, key: str | None) -> ssl.SSLContext:
    """What serves HTTPS with these files. UsageError: they are of no use."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _show(context, cert, key, "--http")
    return context


def _load(context: ssl.SSLContext, cert: str, key: str | None, ca: str) -> None:
    readable(ca, "--tls-ca")
    try:
        context.load_verify_locations(cafile=ca)
    except (ssl.SSLError, OSError) as error:
        raise UsageError(f"--tls-ca: {ca} holds no certificate: {_words(error)}", hint="it must be in PEM format") from error
    _show(context, cert, key, "--tls")


def _show(context: ssl.SSLContext, cert: str, key: str | None, flags: str) -> None:
    """Have `context` show this certificate. `flags`: start of the flags that named the files."""

    def no_password() -> str:
        hint = "give one that is not"
        raise UsageError(f"{flags}-key: the key is encrypted: give one without a password", hint=hint)

    readable(cert, f"{flags}-cert")
    if key is not None:
        readable(key, f"{flags}-key")
    try:
        context.load_cert_chain(cert, key, password=no_password)
    except (ssl.SSLError, OSError) as error:
        where = f"{cert} and {key}" if key else f"{cert} (which must hold the key too, without {flags}-key)"
        raise UsageError(
            f"{flags}-cert: {where} cannot be used together: {_words(error)}", hint="a PEM certificate and its own private key"
        ) from error


class Tunnel:
    """One side of one TLS connection: ciphertext in and out on one end, plain bytes on the other."""

    def __init__(self, context: ssl.SSLContext, *, ours: bool) -> None:
        self.coming, self.going = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.object = context.wrap_bio(self.coming, self.going, server_side=not ours)
        self.done = False
        self.held = bytearray()  # Plain bytes that wait for the end of TLS's own handshake.

    def names(self) -> tuple[str, ...]:
        """Host names for which the CA has signed the other side's certificate."""
        shown: dict[str, Any] = self.object.getpeercert() or {}
        return tuple(name for form, name in shown.get("subjectAltName", ()) if form == "DNS")

    def begin(self) -> bytes:
        """Ciphertext to send first."""
        self.received(b"")
        return self.going.read()

    def send(self, plain: bytes) -> bytes:
        """Ciphertext for `plain`; none yet while TLS shakes hands."""
        self.held += plain
        return self._flushed()

    def received(self, ciphertext: bytes) -> bytes:
        """The plain bytes in what came. What is to be sent back is in `answer`. Raises ProtocolError."""
        self.coming.write(ciphertext)
        plain = bytearray()
        try:
            if not self.done:
                self.object.do_handshake()
                self.done = True
            while piece := self.object.read(1 << 16):
                plain += piece
        except ssl.SSLWantReadError:
            return bytes(plain)
        except ssl.SSLZeroReturnError:
            pass  # as when `read` finds nothing more
        except ssl.SSLError as error:
            raise ProtocolError(_complaint(error)) from error
        if not plain:  # nobody looks at what comes after such a goodbye, so it would be kept
            raise ProtocolError("it has closed TLS")
        return bytes(plain)

    def answer(self) -> bytes:
        """Ciphertext that has become ready: of the handshake, an alert, or what had to wait."""
        return self._flushed()

    def _flushed(self) -> bytes:
        if self.done and self.held:
            self.object.write(self.held)
            self.held.clear()
        return self.going.read()


def _complaint(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message} (--tls-ca here, --tls-cert there)"
    reason = error.reason or ""
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return "it shows no certificate (--tls-cert there)"
    for end, words in ALERTS.items():
        if reason.endswith(end):
            return f"it does not accept our certificate: {words}"
    return f"TLS failed: {_words(error)}"


def _words(error: OSError) -> str:
    """OpenSSL's reason in lower case, without its number and place."""
    reason = getattr(error, "reason", None) or error.strerror or str(error)
    return str(reason).replace("_", " ").lower()
