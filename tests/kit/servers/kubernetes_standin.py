"""The tests' own API server of Kubernetes: objects by path over HTTPS, with what our parts rely on.

Versions and conflicts, selectors, watches, evictions and budgets, pods that end only when their kubelet says so, rights by
account.
What it keeps is held to Kubernetes' own schemas; the same tests run against a real API server where there is one.
"""

from __future__ import annotations

import contextlib
import copy
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import trustme
import yaml
from kit.ports import ports
from kit.servers.kubernetes import IN_PLACE, SUPERVISOR, WITNESS, Kubernetes

VERSION = "1.31"
OF_ONE = re.compile(r"/namespaces/[^/]+(?=/)")

PATH = re.compile(r"/apis?(/[^/]+){1,2}?(/namespaces/[^/]+)?/(?P<kind>[a-z]+)(/(?P<name>[^/]+))?(/(?P<sub>[a-z]+))?")
WITHOUT_STATUS = ("poddisruptionbudgets", "configmaps", "leases")
ROOM = 1 << 20
"""Bytes that a ConfigMap's values may have."""
SINCE = "2026-01-01T00:00:00Z"


class Standin(Kubernetes):
    """See the module's text. A token is the name of a service account. `asked`: (account, verb, resource) of each request."""

    def __init__(self, folder: Path) -> None:
        ca = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("127.0.0.1").configure_cert(context)
        self.context = context
        self.things: dict[str, dict[str, Any]] = {}
        self.may_see = ["pods", "nodes", "jobsets"]
        """Of the agents' rights, what is left of them."""
        self.rights = {
            "holdfast": rights_of(WITNESS) | rights_of(IN_PLACE),
            "holdfast-supervisor": rights_of(SUPERVISOR),
        }
        self.asked: list[tuple[str, str, str]] = []
        self.troubles: list[tuple[int, str]] = []
        """(HTTP status, words) of the next answers, whatever is asked."""
        self.selects_custom = True
        """Field selectors are for objects that are not Kubernetes' own, too."""
        self.version = 0
        self.history: list[tuple[int, str, str, dict[str, Any]]] = []
        """(version, kind of event, path, object) of each change that a watch may still ask for."""
        self.forgotten = 0
        """The version of the last of those that are gone."""
        self.ends = 0
        """How often all watches have been ended."""
        self.connections: list[ssl.SSLSocket] = []
        """All that were made since the last start."""
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.port = ports(1)[0]  # not the kernel's choice: while it is stopped, somebody's connection could be given that
        self.start()
        super().__init__(folder, self.port, ca.cert_pem.bytes())

    def start(self) -> None:
        """Be there; again, after `stop`."""
        self.http = ThreadingHTTPServer(("127.0.0.1", self.port), self._handler())
        self.http.daemon_threads = True
        self.http.socket = self.context.wrap_socket(self.http.socket, server_side=True, do_handshake_on_connect=False)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()

    def pod_env(self, account: str) -> dict[str, str]:
        env = super().pod_env(account)
        Path(env["HOLDFAST_SERVICE_ACCOUNT"], "token").write_text(account)
        return env

    def stop(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()
        self.end_watches()
        self.end_connections()

    def end_connections(self) -> None:
        """As when nobody has asked for long, or its process is gone."""
        while self.connections:
            with contextlib.suppress(OSError):  # whoever asked may have ended it
                self.connections.pop().shutdown(socket.SHUT_RDWR)

    def end_watches(self, *, forget: bool = False) -> None:
        """As when their time is over. `forget`: whoever goes on from what it has seen comes too late."""
        with self.changed:
            self.ends += 1
            if forget:
                self.version += 1
                self.history, self.forgotten = [], self.version
            self.changed.notify_all()

    # --- answers --------------------------------------------------------------------------------------------------------

    def answer(self, method: str, url: str, token: str, what: Any) -> tuple[int, Any]:
        """(HTTP status, object) for a request."""
        query = {key: values[0] for key, values in parse_qs(urlsplit(url).query, keep_blank_values=True).items()}
        path = urlsplit(url).path
        if (found := PATH.fullmatch(path)) is None:
            return status(404, f"there is no {path}")
        kind, name, sub = found["kind"], found["name"] or "", found["sub"] or ""
        read = "get" if name else "watch" if "watch" in query else "list"
        verb = {"GET": read, "POST": "create", "PATCH": "patch", "DELETE": "delete"}[method]
        resource = f"{kind}/{sub}" if sub else kind
        if token not in ("admin", *self.rights):
            return status(401, "Unauthorized")
        if token != "admin":
            self.asked.append((token, verb, resource))
            if (verb, resource) not in self.rights[token] or (token == "holdfast" and kind not in self.may_see):
                return status(403, f"{kind} is forbidden: {token} cannot {verb} {resource}")
            if self.troubles:
                return status(*self.troubles.pop(0))
        where = path.removesuffix("/status")
        if kind == "jobsets" and "fieldSelector" in query and not self.selects_custom:
            return status(400, f"field label not supported: {query['fieldSelector']}")
        if verb == "watch":
            return 200, self._events(path, query)
        if verb == "list":
            return 200, {"metadata": {"resourceVersion": str(self.version)}, "items": list(self._found(path, query))}
        if verb == "create" and not sub:
            if f"{path}/{what['metadata']['name']}" in self.things:
                return status(409, f"{kind} \"{what['metadata']['name']}\" already exists")
            what = what if kind in WITHOUT_STATUS else {"status": {}, **what}
            return self._keep(f"{path}/{what['metadata']['name']}", what)
        where = where.removesuffix("/eviction").removesuffix("/binding")
        if where not in self.things:
            return status(404, f'{kind} "{name}" not found', name=name, kind=kind)
        if sub == "eviction":
            return self._evict(where, what)
        if sub == "binding":
            return self._keep(where, _merged(self.things[where], {"spec": {"nodeName": what["target"]["name"]}}))
        if verb == "delete":
            return self._delete(where, query.get("gracePeriodSeconds"))
        return self._patch(where, what) if verb == "patch" else (200, self.things[where])

    def _found(self, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        """Of a namespace, or where the path names none, of all."""
        things = [(at if "/namespaces/" in path else OF_ONE.sub("", at), thing) for at, thing in self.things.items()]
        return (thing for where, thing in things if where.startswith(path + "/") and _selected(thing, query))

    def _events(self, path: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
        """What a watch sees. Runs without the lock."""
        seen, ends = int(query["resourceVersion"]), self.ends
        until = time.monotonic() + int(query["timeoutSeconds"])
        if seen < self.forgotten:
            yield {"type": "ERROR", "object": status(410, f"too old resource version: {seen} ({self.forgotten})")[1]}
            return

        def is_news() -> bool:
            return self.version > seen or self.ends > ends

        while True:
            with self.changed:
                if not self.changed.wait_for(is_news, until - time.monotonic()) or self.ends > ends:
                    return
                fresh, seen = [change for change in self.history if change[0] > seen], self.version
            yield from (
                {"type": kind, "object": thing}
                for _, kind, where, thing in fresh
                if where.startswith(path + "/") and _selected(thing, query)
            )
            yield {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(seen)}}}

    def _keep(self, where: str, thing: dict[str, Any]) -> tuple[int, Any]:
        self.version += 1
        thing["metadata"] = {"uid": f"uid-{self.version}", "creationTimestamp": SINCE, **thing["metadata"]}
        thing["metadata"]["resourceVersion"] = str(self.version)
        if thing["kind"] != "JobSet" and (schemas := _schemas()) is not None:
            schemas.validate(thing, VERSION, strict=True)
        self._note("MODIFIED" if where in self.things else "ADDED", where, thing)
        self.things[where] = thing
        return 200, thing

    def _note(self, kind: str, where: str, thing: dict[str, Any]) -> None:
        self.history.append((self.version, kind, where, copy.deepcopy(thing)))
        self.changed.notify_all()

    def _patch(self, where: str, what: dict[str, Any]) -> tuple[int, Any]:
        old = self.things[where]
        if what.get("metadata", {}).get("resourceVersion") not in (None, old["metadata"]["resourceVersion"]):
            return status(409, "the object has been modified; please apply your changes to the latest version")
        new = _merged(old, what)
        if new["kind"] == "ConfigMap" and sum(map(len, (new.get("data") or {}).values())) > ROOM:
            return status(422, f"ConfigMap is invalid: []: Too long: must have at most {ROOM} bytes")
        return self._keep(where, new)

    def _evict(self, where: str, what: dict[str, Any]) -> tuple[int, Any]:
        pod = self.things[where]
        if what.get("deleteOptions", {}).get("preconditions", {}).get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
            return status(409, "Precondition failed: UID in precondition differs")
        labels = pod["metadata"].get("labels", {}).items()
        for budget in [thing for thing in self.things.values() if thing["kind"] == "PodDisruptionBudget"]:
            if budget["spec"]["selector"]["matchLabels"].items() <= labels:
                if budget["status"]["disruptionsAllowed"] < 1:
                    cause = {"reason": "DisruptionBudget", "message": f"{budget['metadata']['name']} needs 1 healthy pod"}
                    return status(429, "Cannot evict pod as it would violate the pod's disruption budget.", causes=[cause])
                budget["status"]["disruptionsAllowed"] -= 1
        self._delete(where, None)
        return 201, {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def _delete(self, where: str, grace: str | None) -> tuple[int, Any]:
        thing = self.things[where]
        running = thing["kind"] == "Pod" and thing["spec"].get("nodeName") and grace != "0"
        if running and thing.get("status", {}).get("phase") not in ("Succeeded", "Failed"):
            thing["metadata"].setdefault("deletionTimestamp", SINCE)
            return 200, thing
        self.version += 1
        thing["metadata"]["resourceVersion"] = str(self.version)
        self._note("DELETED", where, thing)
        return 200, self.things.pop(where)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        standin = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 20
            disable_nagle_algorithm = True

            def setup(self) -> None:
                super().setup()
                standin.connections.append(self.connection)

            def _serve(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                what = json.loads(self.rfile.read(size)) if size else None
                with standin.lock:
                    code, thing = standin.answer(self.command, self.path, token, what)
                    body = b"" if isinstance(thing, Iterator) else json.dumps(thing).encode()
                if isinstance(thing, Iterator):
                    return self._stream(thing)
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _stream(self, events: Iterator[dict[str, Any]]) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                with contextlib.suppress(OSError):  # whoever watches may be gone
                    for event in events:
                        line = json.dumps(event).encode() + b"\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.write(b"0\r\n\r\n")

            do_GET = do_POST = do_PATCH = do_DELETE = _serve

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def status(code: int, message: str, **details: Any) -> tuple[int, Any]:
    """An answer that is none."""
    told = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
    return code, {**told, "message": message, "code": code, "details": details}


def rights_of(manifest: Path) -> set[tuple[str, str]]:
    """(verb, resource) of each rule in it."""
    roles = [thing for thing in yaml.safe_load_all(manifest.read_text()) if thing["kind"] in ("Role", "ClusterRole")]
    return {
        (verb, resource) for role in roles for rule in role["rules"] for verb in rule["verbs"] for resource in rule["resources"]
    }


def _selected(thing: dict[str, Any], query: dict[str, str]) -> bool:
    """Whether the selectors of a query mean it."""
    meta, node = thing["metadata"], thing.get("spec", {}).get("nodeName", "")
    has_labels = all(label in meta.get("labels", {}) for label in filter(None, query.get("labelSelector", "").split(",")))
    return has_labels and query.get("fieldSelector") in (None, f"spec.nodeName={node}", f"metadata.name={meta['name']}")


def _merged(old: Any, new: Any) -> Any:
    """JSON merge patch (RFC 7386)."""
    if not isinstance(new, dict) or not isinstance(old, dict):
        return copy.deepcopy(new)
    merged = {**old, **{key: _merged(old.get(key), value) for key, value in new.items()}}
    return {key: value for key, value in merged.items() if value is not None}


def _schemas() -> Any:
    """Kubernetes' own published schemas: what the stand-in keeps is what the API server could say. None: not installed."""
    try:
        import kubernetes_validate
    except ImportError:
        return None
    return kubernetes_validate
