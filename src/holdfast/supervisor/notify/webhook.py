"""How is one deed told to one URL? A POST of JSON, once, with a time limit; the delivery queue says when it is tried again."""

from __future__ import annotations

import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import SplitResult, urlsplit

from holdfast import __version__
from holdfast.core.errors import UsageError
from holdfast.core.value import Value
from holdfast.supervisor.notify.delivery_queue import Notification, Phase
from holdfast.telemetry.report.safe_text import one_line

TRY_S = 10.0
"""All that one attempt may take, from the name's resolution to the answer's first line. GitHub allows 10 s."""

AGAIN = (408, 425, 429)
"""Refusals that pass; any other of 300 to 499 does not, and the message is given up."""

TEXT = 2000
"""Characters of the sentence."""

FIELDS = ("node", "job", "trouble", "act", "reason", "policy", "done", "outcome", "at_unix", "ended_at_unix")
"""Of a deed, that are posted as they are."""


LONG_WORD = 16
"""Characters of a part of a URL's path that may well be a key, as in Slack's."""


def tells_a_secret(url: str) -> bool:
    """Whether who sees that URL may well be able to use it: it has a password, a query, or a long word in its path."""
    parts = urlsplit(url)
    return "@" in parts.netloc or bool(parts.query) or any(len(word) >= LONG_WORD for word in parts.path.split("/"))


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

    def __init__(self, url: str, secret: bytes = b"", source: str = "", unix: Callable[[], float] = time.time) -> None:
        """UsageError: it is no http or https URL."""
        if (parts := http_parts(url)) is None:
            hint = "give the whole address, as the receiver shows it"
            raise UsageError(f"--webhook: {url!r} is not http://host/path or https://host/path", hint=hint)
        self.url, self.secret, self.source, self.unix = url, secret, source, unix
        self._parts = parts
        self.name = f"{parts.scheme}://{parts.hostname}/…"
        """For people. Who knows the rest of a Slack URL may post there."""

    def deliver(self, notification: Notification) -> Answer:
        try:
            status, wait_s = self._post(body(notification, self.source, self.unix()), notification.id)
        except TimeoutError:
            return Answer(taken=False, text=f"no answer within {TRY_S:g} s")
        except Exception as error:  # however broken a server's answer is: one attempt has failed
            return Answer(taken=False, text=one_line(f"{type(error).__name__}: {error}"))
        if 200 <= status < 300:
            return Answer(taken=True)
        return Answer(taken=False, text=f"status {status}", is_final=300 <= status < 500 and status not in AGAIN, wait_s=wait_s)

    def _post(self, said: bytes, id: str) -> tuple[int, float]:
        to = self._parts
        headers = {"Content-Type": "application/json", "User-Agent": f"holdfast/{__version__}", "Idempotency-Key": id}
        if self.secret:
            headers["Holdfast-Signature"] = "sha256=" + hmac.digest(self.secret, said, "sha256").hex()
        link = (HTTPSConnection if to.scheme == "https" else HTTPConnection)(to.hostname or "", to.port, timeout=TRY_S)
        with _limited(link):
            link.request("POST", (to.path or "/") + (f"?{to.query}" if to.query else ""), said, headers)
            response = link.getresponse()
            asked = response.headers.get("Retry-After", "")
            return response.status, float(asked) if asked.isascii() and asked.isdigit() else 0.0


def http_parts(url: str) -> SplitResult | None:
    """None: it is no http or https URL of a host."""
    with suppress(ValueError):  # its port is no number, or its IPv6 address does not end
        parts = urlsplit(url)
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0:
            return parts
    return None


@contextmanager
def _limited(link: HTTPConnection) -> Iterator[None]:
    """An end for an attempt as a whole: a socket's own timeout begins anew with each byte, and some servers drip."""
    done, is_cut = threading.Event(), threading.Event()

    def cut() -> None:
        if not done.wait(TRY_S):
            is_cut.set()
            with suppress(OSError, AttributeError):
                link.sock.shutdown(socket.SHUT_RDWR)

    threading.Thread(target=cut, daemon=True).start()
    try:
        yield
    except (OSError, HTTPException) as error:
        if is_cut.is_set():  # it was we who closed the connection
            raise TimeoutError from error
        raise
    finally:
        done.set()
        link.close()


def body(notification: Notification, source: str, sent_at_unix: float) -> bytes:
    """What is posted: the deed, and a sentence of it."""
    deed = notification.deed
    told = {
        "id": notification.id,
        "phase": notification.phase,
        "text": sentence(notification, source),
        "source": source,
        "sent_at_unix": sent_at_unix,
        "deed": str(deed.get("id")),
        "cause": deed.get("seen", ""),
    }
    return json.dumps(told | {field: deed.get(field) for field in FIELDS}).encode()


def sentence(notification: Notification, source: str) -> str:
    """For a chat. What came from a reporter can neither call people nor hide a link: `<` and `&` are as Slack wants them."""
    deed: Mapping[str, Any] = notification.deed
    job = f" (job {deed['job']})" if deed.get("job") else ""
    what = f"{deed.get('act')} {deed.get('node')}{job}: "
    what += f"{deed.get('outcome')}" if notification.phase == Phase.ENDED else f"{deed.get('reason')}; seen: {deed.get('seen')}"
    line = one_line(f"{source}: {what}", TEXT)
    return line.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
