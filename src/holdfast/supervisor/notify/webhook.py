"""How is one deed told to one URL? A POST of JSON, once, with a time limit; when it is tried again is the outbox's to say."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any

from holdfast.core.value import Value
from holdfast.supervisor.notify.delivery_queue import Letter
from holdfast.telemetry.report.safe_text import one_line

TRY_S = 10.0
"""All that one attempt may take, from the name's resolution to the answer's first line. GitHub allows 10 s."""

AGAIN = (408, 425, 429)
"""Refusals that pass; any other of 300 to 499 does not, and the message is given up."""

TEXT = 2000
"""Characters of the sentence."""


class Answer(Value):
    """What came of an attempt."""

    taken: bool
    text: str = ""
    """Why it was not, in words."""
    is_final: bool = False
    """It never will be."""
    wait_s: float = 0.0
    """How long the receiver wants to be left alone."""


class Webhook:
    """One URL. `source`: who tells, such as this host's name."""

    def __init__(self, url: str, secret: bytes, source: str) -> None:
        """ValueError: it is no http or https URL."""
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError(f"{url!r} is no http://host/path or https://host/path")
        self.url, self.secret, self.source = url, secret, source
        self._parts = parts
        self.name = f"{parts.scheme}://{parts.hostname}/…"
        """For people. Whoever knows the rest of Slack's URLs may post there."""

    def deliver(self, letter: Letter) -> Answer:
        """Try once."""
        try:
            status, wait_s = self._post(body(letter, self.source), letter.id)
        except Exception as error:  # whatever a server says, and however broken: it is one attempt that has failed
            return Answer(taken=False, text=one_line(f"{type(error).__name__}: {error}"))
        if 200 <= status < 300:
            return Answer(taken=True)
        return Answer(taken=False, text=f"status {status}", is_final=300 <= status < 500 and status not in AGAIN, wait_s=wait_s)

    def _post(self, said: bytes, id: str) -> tuple[int, float]:
        from http.client import HTTPConnection, HTTPSConnection

        from holdfast import __version__

        to = self._parts
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"holdfast/{__version__}",
            "Idempotency-Key": id,
        }
        if self.secret:
            headers["Holdfast-Signature"] = signature(self.secret, said)
        link = (HTTPSConnection if to.scheme == "https" else HTTPConnection)(to.hostname or "", to.port, timeout=TRY_S)
        with _Limit(link):
            link.request("POST", (to.path or "/") + (f"?{to.query}" if to.query else ""), said, headers)
            response = link.getresponse()
            asked = response.headers.get("Retry-After", "")
            return response.status, float(asked) if asked.isascii() and asked.isdigit() else 0.0


class _Limit:
    """An end for an attempt as a whole: a socket's own timeout begins anew with each byte, and some servers drip."""

    def __init__(self, link: Any) -> None:
        self.link = link

    def __enter__(self) -> None:
        import threading

        self.timer = threading.Timer(TRY_S, self._cut)
        self.timer.daemon = True
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()
        self.link.close()

    def _cut(self) -> None:
        import socket
        from contextlib import suppress

        with suppress(OSError, AttributeError):
            self.link.sock.shutdown(socket.SHUT_RDWR)


def signature(secret: bytes, said: bytes) -> str:
    """What the header Holdfast-Signature says of a body: `sha256=` and HMAC-SHA256 in hexadecimal digits."""
    import hmac

    return "sha256=" + hmac.digest(secret, said, "sha256").hex()


def body(letter: Letter, source: str) -> bytes:
    """What is posted: the deed, and a sentence of it."""
    deed = letter.deed
    told = {
        "id": letter.id,
        "phase": letter.phase,
        "text": sentence(letter, source),
        "source": source,
        "sent_at_unix": time.time(),
        "deed": str(deed.get("id")),
        "cause": deed.get("seen", ""),
    }
    same = ("node", "job", "trouble", "act", "reason", "policy", "done", "outcome", "at_unix", "ended_at_unix")
    return json.dumps(told | {field: deed.get(field) for field in same}).encode()


def sentence(letter: Letter, source: str) -> str:
    """For a chat. What came from a reporter can neither call people nor hide a link: `<` and `&` are as Slack wants them."""
    deed: Mapping[str, Any] = letter.deed
    job = f" (job {deed['job']})" if deed.get("job") else ""
    what = f"{deed.get('act')} {deed.get('node')}{job}: "
    what += f"{deed.get('outcome')}" if letter.phase == "ended" else f"{deed.get('reason')}; seen: {deed.get('seen')}"
    line = one_line(f"{source}: {what}", TEXT)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
