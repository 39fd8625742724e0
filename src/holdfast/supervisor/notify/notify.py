"""Who is told what the supervisor does? Webhooks and an OTLP receiver, by a process of its own that only listens.

    supervisor ──its socket──▶ Feed ──▶ a WebhookSender for each receiver, each with a thread and a DeliveryQueue

So nothing that a receiver does, and no mistake of ours here, reaches the supervisor's loop. Where no supervisor answers, it is
asked again; what it did meanwhile is told then.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

from holdfast.core.errors import HoldfastError, ProtocolError, UsageError
from holdfast.runtime.private_files import make_folder
from holdfast.supervisor.feed import Feed
from holdfast.supervisor.notify.delivery_queue import Phase
from holdfast.supervisor.notify.webhook import Webhook, http_parts
from holdfast.supervisor.notify.webhook_sender import WebhookSender

WAIT_S = 30.0
"""How long a question waits for news."""

AGAIN_S = 1.0
"""Before a supervisor that does not answer is asked again."""


class Notify:
    """The process's work."""

    def __init__(
        self, folder: str, webhooks: Sequence[str], secret: bytes, otlp: str | None, say: Callable[[str], None]
    ) -> None:
        """`folder`: the supervisor's state directory; `otlp` None: to nobody. UsageError."""
        if not os.path.isdir(folder):
            raise UsageError(f"--state: {folder}: no supervisor keeps its state there", hint="`holdfast supervisor` makes it")
        self.feed, self.say, self.otlp = Feed(folder), say, open_otlp(otlp) if otlp is not None else None
        kept, source, now_unix = os.path.join(folder, "told"), socket.gethostname(), time.time()
        receivers = [Webhook(url, secret, source) for url in webhooks]
        try:
            make_folder(kept)
        except OSError as error:
            raise UsageError(f"--state: {kept} cannot be used: {error.strerror}") from error
        self.senders = [WebhookSender(one, os.path.join(kept, _file(one.url)), say, now_unix) for one in receivers]
        if self.otlp is not None:
            path = os.path.join(kept, _file(f"otlp {otlp}"))
            self.senders.append(WebhookSender(self.otlp, path, say, now_unix, (Phase.ENDED,)))

    def run(self) -> None:
        for one in (*self.senders, *([self.otlp] if self.otlp is not None else [])):
            one.start()
        said, never = "", threading.Event()
        while True:
            try:
                news = self.feed.wait(WAIT_S)
            except (OSError, ProtocolError, HoldfastError) as error:
                if str(error) != said:
                    self.say(f"the supervisor does not answer ({error}): retrying")
                said = str(error)
                never.wait(AGAIN_S)
                continue
            said, fleet = "", self.feed.fleet
            if self.otlp is not None:
                self.otlp.hear(fleet, news.get("jobs") or ())
            for one in self.senders:
                one.hear(news.get("deeds") or (), fleet.get("deeds") or ())


def open_otlp(url: str) -> Any:
    """The receiver at that URL; empty: as OpenTelemetry's variables say. UsageError: its SDK is not there."""
    check_otlp(url)
    try:
        return import_module("holdfast.integrations.otlp").Otlp(url)
    except ImportError as error:
        raise UsageError(f"--otlp: OpenTelemetry is not installed ({error})", hint="pip install 'holdfast[otel]'") from error


def check_otlp(url: str) -> None:
    """UsageError: it is no URL for OTLP over HTTP."""
    if url and http_parts(url) is None:
        raise UsageError(f"--otlp: {url!r} is not http://host:port", hint="OTLP/HTTP usually listens at port 4318")


def _file(name: str) -> str:
    """Where it is kept what a receiver has been told: the name says nothing, since a URL may be a secret."""
    return hashlib.sha256(name.encode()).hexdigest()[:16] + ".json"
