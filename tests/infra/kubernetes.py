"""A Kubernetes without kubelets for tests: nodes and pods are what the test says they are.

`Real` is an API server with an etcd of its own; `Standin` a small HTTPS server that keeps and patches objects as that one does,
as far as the tests go. Both are driven by the same requests, so that what passes with one says something of the other.
Kubernetes' API server is not packaged by Debian; `apiserver.sh` builds one from Debian's sources within minutes.
"""

from __future__ import annotations

import copy
import json
import os
import shutil
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import trustme
import yaml
from infra.etcd import Etcd, _free_ports

MISSING = "no kube-apiserver on the PATH, and Debian has none: tests/infra/apiserver.sh FOLDER builds FOLDER/bin/kube-apiserver"
MANIFEST = Path(__file__).parents[2] / "examples" / "kubernetes" / "witness.yaml"
PATIENCE_S = 60.0
NAMESPACE = "default"
VERSION = "1.31"
SINCE = "2026-01-01T00:00:00Z"
"""When the pods of a test began."""


class Kubernetes:
    """What a test does with a cluster. `env`: what a pod's programs find in their environment."""

    def __init__(self, folder: Path, port: int, ca: bytes) -> None:
        self.url, self.ca = f"https://127.0.0.1:{port}", ca
        self.account = folder / "account"
        self.account.mkdir(parents=True)
        (self.account / "ca.crt").write_bytes(ca)
        (self.account / "namespace").write_text(NAMESPACE)
        self.env = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(port),
            "HOLDFAST_SERVICE_ACCOUNT": str(self.account),
        }

    def ask(self, method: str, path: str, what: Any = None) -> Any:
        """A request of an administrator's."""
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        headers = {"Authorization": "Bearer admin", "Content-Type": kind}
        body = None if what is None else json.dumps(what).encode()
        request = urllib.request.Request(self.url + path, body, headers, method=method)
        with urllib.request.urlopen(request, context=ssl.create_default_context(cadata=self.ca.decode()), timeout=10) as answer:
            return json.load(answer)

    def add_node(self, name: str) -> None:
        """A node that is Ready."""
        self.ask("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": {}})
        self.set_ready(name, True)

    def set_ready(self, name: str, ready: bool) -> None:
        """What the node controller finds: a node that does not answer is Unknown."""
        condition = {"type": "Ready", "status": "True" if ready else "Unknown", "reason": "Test", "message": ""}
        self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [condition]}})

    def taint(self, name: str, *keys: str) -> None:
        """Give a node these taints, and no others."""
        taints = [{"key": key, "effect": "NoExecute"} for key in keys]
        self.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": taints}})

    def delete_node(self, name: str) -> None:
        self.ask("DELETE", f"/api/v1/nodes/{name}")

    def add_pod(self, name: str, node: str, ip: str, *, hostname: str = "", subdomain: str = "") -> None:
        """A pod whose kubelet has said that it runs. Without a node: nobody has said anything of it."""
        spec: dict[str, Any] = {"containers": [{"name": "train", "image": "train:1"}]}
        spec |= {key: value for key, value in (("nodeName", node), ("hostname", hostname), ("subdomain", subdomain)) if value}
        meta = {"name": name, "namespace": NAMESPACE}
        self.ask("POST", self._pods, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        if not node:
            return
        self._say(name, "Running", {"running": {"startedAt": SINCE}}, podIP=ip, podIPs=[{"ip": ip}], startTime=SINCE)

    def end_pod(self, name: str, at: str = "2026-01-02T00:00:00Z") -> None:
        """Its kubelet has seen its container end."""
        self._say(name, "Failed", {"running": None, "terminated": {"exitCode": 137, "startedAt": SINCE, "finishedAt": at}})

    def fail_pod(self, name: str) -> None:
        """A controller calls it failed; its kubelet has said nothing."""
        self.ask("PATCH", f"{self._pods}/{name}/status", {"status": {"phase": "Failed", "reason": "NodeLost"}})

    def delete_pod(self, name: str) -> None:
        """By force: nobody asks its kubelet."""
        self.ask("DELETE", f"{self._pods}/{name}?gracePeriodSeconds=0")

    def _say(self, name: str, phase: str, state: dict[str, Any], **more: Any) -> None:
        container = {"name": "train", "image": "train:1", "imageID": "", "ready": False, "restartCount": 0}
        state = {key: value for key, value in state.items() if value is not None}
        status = {"phase": phase, "containerStatuses": [{**container, "state": state}], **more}
        self.ask("PATCH", f"{self._pods}/{name}/status", {"status": status})

    @property
    def _pods(self) -> str:
        return f"/api/v1/namespaces/{NAMESPACE}/pods"


class Real(Kubernetes):
    """A real API server, with the rights that the example's manifest gives."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        (port,) = _free_ports(1)
        ca = trustme.CA()
        issued = ca.issue_cert("127.0.0.1")
        issued.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
        super().__init__(folder, port, ca.cert_pem.bytes())
        (folder / "tokens.csv").write_text("admin,admin,1,system:masters\n")
        self.etcd = Etcd(folder / "etcd")
        self.log = (folder / "apiserver.log").open("wb")
        words = {
            "etcd-servers": f"http://{self.etcd.endpoints}",
            "bind-address": "127.0.0.1",
            "advertise-address": "127.0.0.1",
            "secure-port": port,
            "cert-dir": folder / "certs",
            "tls-cert-file": folder / "server.pem",
            "tls-private-key-file": folder / "server.pem",
            "service-cluster-ip-range": "10.96.0.0/16",
            "service-account-key-file": folder / "server.pem",
            "service-account-signing-key-file": folder / "server.pem",
            "service-account-issuer": "https://kubernetes.default.svc",
            "token-auth-file": folder / "tokens.csv",
            "authorization-mode": "RBAC",
            "disable-admission-plugins": "ServiceAccount",
            "endpoint-reconciler-type": "none",
        }
        command = ["kube-apiserver", *(f"--{name}={value}" for name, value in words.items())]
        # Without the test's mark: it serves several tests, and is ended by its own fixture.
        env = {name: value for name, value in os.environ.items() if name != "HOLDFAST_TEST_MARK"}
        self.server = subprocess.Popen(command, env=env, stdout=self.log, stderr=self.log)
        try:
            self._wait()
            for thing in yaml.safe_load_all(MANIFEST.read_text()):
                self.apply(thing)
            self._be_the_agents_account()
        except BaseException:
            self.stop()
            raise

    def _wait(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.ask("GET", "/api/v1/namespaces/default")
                return self.ask("GET", "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin") and None
            except (OSError, urllib.error.HTTPError):
                assert self.server.poll() is None and time.monotonic() < deadline, Path(self.log.name).read_text()[-3000:]
                time.sleep(0.1)

    def apply(self, thing: dict[str, Any]) -> None:
        """Create an object of the example's."""
        group = "/api/v1" if thing["apiVersion"] == "v1" else f"/apis/{thing['apiVersion']}"
        kind = thing["kind"].lower() + "s"
        where = "" if kind.startswith("cluster") else f"/namespaces/{NAMESPACE}"
        self.ask("POST", f"{group}{where}/{kind}", thing)

    def _be_the_agents_account(self) -> None:
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/holdfast/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
        (self.account / "token").write_text(self.ask("POST", path, asked)["status"]["token"])

    def stop(self) -> None:
        self.server.kill()
        self.server.wait()
        self.log.close()
        self.etcd.stop()


class Standin(Kubernetes):
    """Objects by path, as the API server answers for them. The token `agent` may only read, and hears of pods and nodes."""

    def __init__(self, folder: Path) -> None:
        ca = trustme.CA()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        ca.issue_cert("127.0.0.1").configure_cert(context)
        self.things: dict[str, dict[str, Any]] = {}
        self.may_see = ["pods", "nodes"]
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.http.socket = context.wrap_socket(self.http.socket, server_side=True)
        self.thread = threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02})
        self.thread.start()
        super().__init__(folder, self.http.server_address[1], ca.cert_pem.bytes())
        (self.account / "token").write_text("agent")

    def stop(self) -> None:
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def answer(self, method: str, path: str, token: str, what: Any) -> tuple[int, Any]:
        """(HTTP status, object) for a request."""
        path = path.partition("?")[0].removesuffix("/status")
        kind = "pods" if "/pods" in path else "nodes"
        if token != "admin" and (token != "agent" or method != "GET" or kind not in self.may_see):
            return (403 if token == "agent" else 401), {"kind": "Status", "status": "Failure"}
        if method == "POST":
            path = f"{path}/{what['metadata']['name']}"
            self.things[path] = {"status": {}, **what}
        elif method == "GET" and path.endswith(kind):
            return 200, {"items": [thing for where, thing in self.things.items() if where.startswith(path + "/")]}
        elif path not in self.things:
            return 404, {"kind": "Status", "status": "Failure", "details": {"name": path.rpartition("/")[2], "kind": kind}}
        elif method == "DELETE":
            return 200, self.things.pop(path)
        elif method == "PATCH":
            self.things[path] = _merged(self.things[path], what)
        if method != "GET" and (schemas := _schemas()) is not None:
            schemas.validate(self.things[path], VERSION, strict=True)
        return 200, self.things[path]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        answer = self.answer

        class Handler(BaseHTTPRequestHandler):
            def _serve(self) -> None:
                size = int(self.headers.get("Content-Length", 0))
                token = self.headers.get("Authorization", "").removeprefix("Bearer ")
                code, thing = answer(self.command, self.path, token, json.loads(self.rfile.read(size)) if size else None)
                body = json.dumps(thing).encode()
                self.send_response(code)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_GET = do_POST = do_PATCH = do_DELETE = _serve

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


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


def has_api_server() -> bool:
    return shutil.which("kube-apiserver") is not None and shutil.which("etcd") is not None
