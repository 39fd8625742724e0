"""Who is told what the supervisor does? Webhooks and an OTLP receiver, by a process of its own that only listens.

    supervisor ──its socket──▶ Feed ──▶ a Courier for each receiver, each with a thread and an Outbox

So nothing that a receiver does, and no mistake of ours here, reaches the supervisor's loop. Where no supervisor answers, it is
looked for again; what it did meanwhile is told then.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from holdfast.core.errors import HoldfastError, ProtocolError, UsageError
from holdfast.supervisor.feed import Feed
from holdfast.supervisor.notify.webhook import Webhook
from holdfast.supervisor.notify.webhook_sender import Courier

Say = Callable[[str], None]

WAIT_S = 30.0
"""How long a question waits for news."""

AGAIN_S = 1.0
"""Before a supervisor that does not answer is asked again."""


class Notify:
    """The process's work."""

    def __init__(self, folder: str, webhooks: Sequence[str], secret: bytes, otlp: str | None, say: Say) -> None:
        """`folder`: the supervisor's state directory; `otlp` None: to nobody. UsageError."""
        self.feed, self.say, self.otlp = Feed(folder), say, open_otlp(otlp) if otlp is not None else None
        kept, source = os.path.join(folder, "told"), socket.gethostname()
        receivers: list[Any] = [webhook(url, secret, source) for url in webhooks]
        try:
            os.makedirs(kept, 0o700, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--state: {kept} cannot be used: {error.strerror}") from error
        self.couriers = [Courier(one, os.path.join(kept, _file(one.url)), say) for one in receivers]
        if self.otlp is not None:
            self.couriers.append(Courier(self.otlp, os.path.join(kept, _file(f"otlp {otlp}")), say, ("ended",)))

    def run(self) -> None:
        """Listen, for ever."""
        for one in (*self.couriers, *([self.otlp] if self.otlp is not None else [])):
            one.start()
        said, never = "", threading.Event()
        while True:
            try:
                news = self.feed.wait(WAIT_S)
            except (OSError, ProtocolError, HoldfastError) as error:
                if str(error) != said:
                    self.say(f"the supervisor does not answer ({error}): it is asked again and again")
                said = str(error)
                never.wait(AGAIN_S)
                continue
            said = ""
            self.tell(news)

    def tell(self, news: dict[str, Any]) -> None:
        """Pass on what is new."""
        fleet = self.feed.fleet
        if self.otlp is not None:
            self.otlp.hear(fleet, news.get("jobs") or ())
        for one in self.couriers:
            one.hear(news.get("deeds") or (), fleet.get("deeds") or ())


def open_otlp(url: str) -> Any:
    """The receiver at that URL; empty: as OpenTelemetry's variables say. UsageError: its SDK is not there."""
    check_otlp(url)
    try:
        return import_module("holdfast.integrations.otlp").Otlp(url)
    except ImportError as error:
        raise UsageError(f"--otlp: OpenTelemetry is not there ({error})", hint="pip install 'holdfast[otel]'") from error


def check_otlp(url: str) -> None:
    """UsageError: it is no URL for OTLP over HTTP."""
    if url and not url.startswith(("http://", "https://")):
        raise UsageError(f"--otlp: {url!r} is no http://host:port", hint="OTLP over HTTP listens at port 4318 as a rule")


def webhook(url: str, secret: bytes = b"", source: str = "") -> Webhook:
    """The receiver at that URL. UsageError: it is none."""
    try:
        return Webhook(url, secret, source)
    except ValueError as error:
        raise UsageError(f"--webhook: {error}") from error


def _file(name: str) -> str:
    """Where it is kept what somebody has been told: the name says nothing, since a URL may be a secret."""
    return hashlib.sha256(name.encode()).hexdigest()[:16] + ".json"
