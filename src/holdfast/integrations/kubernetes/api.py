"""How is the API server asked from within a pod? With the pod's service account and the standard library: the programs beside
this need a few requests, and no client to install.
"""

from __future__ import annotations

import http.client
import io
import json
import os
import select
import ssl
import threading
import urllib.error
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes gives a pod its token, the API server's CA and the name of its namespace."""

WRONG = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError)
"""What asking raises where there is no API server, or something else answers."""

Thing = dict[str, Any]  # An object of Kubernetes' API, as it comes in JSON.


class Refused(OSError):
    """The API server does not let us."""


class _OfThread(threading.local):
    """The connection that a thread keeps, if it has one: to make one costs more than a request. It goes with its thread."""

    def __init__(self) -> None:
        self.kept: list[http.client.HTTPSConnection] = []


class Api:
    """The API server of this cluster."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
        self.account = environ.get("HOLDFAST_SERVICE_ACCOUNT", ACCOUNT)
        self.at, self.url = (host, int(port)), f"https://{f'[{host}]' if ':' in host else host}:{port}"
        self.context = ssl.create_default_context(cafile=os.path.join(self.account, "ca.crt"))
        self.of_thread = _OfThread()
        self.namespace = self._read("namespace")

    def ask(
        self, what: str, path: str, patch: Thing | None = None, *, make: Thing | None = None, timeout_s: float | None = None
    ) -> Thing:
        """What it has at `path`; with a `patch` (RFC 7386), after that has been merged into it; or what was made of `make`.
        Raises as `open` does."""
        connection = self._kept(timeout_s)
        try:
            found: Thing = json.load(self._sent(connection, what, path, patch, make))
            return found
        except (urllib.error.HTTPError, Refused):
            raise
        except BaseException:
            connection.close()  # the next request makes another
            raise

    def open(self, what: str, path: str, *, timeout_s: float | None = None) -> http.client.HTTPResponse:
        """The answer itself, which is to be closed. `timeout_s`: the longest silence; None: any. Raises Refused, which says
        that we may not do `what`, HTTPError, or another OSError."""
        connection = self._connection(timeout_s)
        try:
            return self._sent(connection, what, path)
        finally:
            if connection.sock is not None:
                connection.sock.close()  # once the answer is closed

    def _connection(self, timeout_s: float | None) -> http.client.HTTPSConnection:
        return http.client.HTTPSConnection(*self.at, timeout=timeout_s, context=self.context)

    def _kept(self, timeout_s: float | None) -> http.client.HTTPSConnection:
        for connection in self.of_thread.kept:
            if connection.sock is not None and not _is_readable(connection.sock):
                connection.sock.settimeout(timeout_s)
                return connection
            connection.close()  # the API server has ended it meanwhile
        self.of_thread.kept[:] = [connection := self._connection(timeout_s)]
        return connection

    def _sent(
        self,
        connection: http.client.HTTPSConnection,
        what: str,
        path: str,
        patch: Thing | None = None,
        make: Thing | None = None,
    ) -> http.client.HTTPResponse:
        method, kind, given = ("GET", "", None) if make is None else ("POST", "application/json", make)
        if patch is not None:
            method, kind, given = "PATCH", "application/merge-patch+json", patch
        headers = {"Authorization": f"Bearer {self._read('token')}"}  # Kubernetes renews it every hour
        body = None if given is None else json.dumps(given).encode()
        connection.request(method, path, body, headers | ({"Content-Type": kind} if kind else {}))
        answer = connection.getresponse()
        if answer.status < HTTPStatus.BAD_REQUEST:
            return answer
        says = io.BytesIO(answer.read())
        error = urllib.error.HTTPError(self.url + path, answer.status, answer.reason, answer.headers, says)
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise Refused(f"the service account may not {what} ({answer.status})") from error
        raise error

    def _read(self, name: str) -> str:
        with open(os.path.join(self.account, name), encoding="utf-8") as file:
            return file.read().strip()


def words(error: BaseException) -> str:
    """What went wrong, on one line: one of `WRONG`."""
    if isinstance(error, urllib.error.HTTPError):
        return f"{urllib.parse.urlsplit(error.url).path}: {error.code} {error.reason}"
    return " ".join(str(error).split()) or type(error).__name__


def _is_readable(sock: ssl.SSLSocket) -> bool:
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return bool(poll.poll(0))
