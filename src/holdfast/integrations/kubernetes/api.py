"""How is the API server asked from within a pod? With the pod's service account and the standard library: the programs beside
this need a few requests, and no client to install.
"""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
"""Where Kubernetes gives a pod its token, the API server's CA and the name of its namespace."""

WRONG = (OSError, http.client.HTTPException, ValueError, KeyError, TypeError, AttributeError)
"""What asking raises where there is no API server, or something else answers."""

Thing = dict[str, Any]  # An object of Kubernetes' API, as it comes in JSON.


class Refused(OSError):
    """The API server does not let us."""


class Api:
    """The API server of this cluster."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
        self.account = environ.get("HOLDFAST_SERVICE_ACCOUNT", ACCOUNT)
        self.url = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        context = ssl.create_default_context(cafile=os.path.join(self.account, "ca.crt"))
        trusted = urllib.request.HTTPSHandler(context=context)
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), trusted)  # no proxy knows the cluster
        self.namespace = self._read("namespace")

    def ask(
        self, what: str, path: str, patch: Thing | None = None, *, make: Thing | None = None, timeout_s: float | None = None
    ) -> Thing:
        """What it has at `path`; with a `patch` (RFC 7386), after that has been merged into it; or what was made of `make`.
        Raises as `open` does."""
        with self.open(what, path, patch, make=make, timeout_s=timeout_s) as answer:
            found: Thing = json.load(answer)
            return found

    def open(
        self, what: str, path: str, patch: Thing | None = None, *, make: Thing | None = None, timeout_s: float | None = None
    ) -> Any:
        """The answer itself, which is to be closed. `timeout_s`: the longest silence; None: any. Raises Refused, which says
        that we may not do `what`, HTTPError, or another OSError."""
        headers = {"Authorization": f"Bearer {self._read('token')}"}  # Kubernetes renews it every hour
        body = None
        if patch is not None:
            body, headers["Content-Type"] = json.dumps(patch).encode(), "application/merge-patch+json"
        elif make is not None:
            body, headers["Content-Type"] = json.dumps(make).encode(), "application/json"
        method = "PATCH" if patch is not None else "GET" if make is None else "POST"
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        try:
            return self.opener.open(request, timeout=timeout_s)
        except urllib.error.HTTPError as error:
            if error.code in (401, 403):
                raise Refused(f"the service account may not {what} ({error.code})") from error
            raise

    def _read(self, name: str) -> str:
        with open(os.path.join(self.account, name), encoding="utf-8") as file:
            return file.read().strip()


def words(error: BaseException) -> str:
    """What went wrong, on one line: one of `WRONG`."""
    if isinstance(error, urllib.error.HTTPError):
        return f"{urllib.parse.urlsplit(error.url).path}: {error.code} {error.reason}"
    return " ".join(str(getattr(error, "reason", error)).split()) or type(error).__name__
