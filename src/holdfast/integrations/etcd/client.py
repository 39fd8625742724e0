"""Requests to etcd's JSON gateway: whichever member answers, with credentials, and errors told apart by what can be done."""

from __future__ import annotations

import json
import os
import threading
from base64 import b64decode, b64encode
from typing import Any

from holdfast.core.errors import UsageError
from holdfast.runtime.secrets import secret_in

PORT = 2379  # etcd's port for clients.

REQUEST_S = 1.0
"""Longest wait for one answer of one member of etcd; then the next is asked. A write waits for a disk, some 10 ms."""

WATCH_S = 10.0  # How long to watch before reading again: nothing is heard of a member of etcd that lost its power.

HINT = "--rdzv-conf user=NAME,password_file=FILE; or the variables HOLDFAST_ETCD_USER and HOLDFAST_ETCD_PASSWORD"


Kv = dict[str, Any]  # A key as the gateway gives it, or a part of a transaction.


class Refused(Exception):
    """etcd answered, and trying again cannot help."""

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


class Unanswered(Exception):
    """No member of etcd gave an answer."""


class Client:
    """Requests to whichever member of etcd answers, with credentials."""

    def __init__(self, endpoints: list[tuple[str, int]], conf: dict[str, str]) -> None:
        from etcd3gw.client import Etcd3Client

        self.members = [
            Etcd3Client(
                host,
                port,
                protocol=conf.get("protocol", "http"),
                ca_cert=conf.get("cacert"),
                cert_cert=conf.get("cert"),
                cert_key=conf.get("key"),
                timeout=REQUEST_S,
                api_path="/v3/",
            )
            for host, port in endpoints
        ]
        for member in self.members:
            # No proxy, .netrc or CA of the environment: that CA would replace `cacert`.
            member.session.trust_env = False
        self.user, self.password = conf.get("user", ""), conf.get("password", "")
        self.lock = threading.RLock()
        """Threads may share the client: one request at a time, and any number of watches beside it."""

    def ask(self, path: str, what: dict[str, Any]) -> dict[str, Any]:
        """The answer of the first member that gives one. Raises Unanswered, or Refused."""
        said: list[str] = []
        with self.lock:
            for _ in self.members:
                member = self.members[0]
                try:
                    return self._asked(member, path, what)
                except (Refused, Gone):
                    raise
                except Exception as error:
                    said.append(f"{member.host}:{member.port}: {words(error)}")
                    self.members.append(self.members.pop(0))
        raise Unanswered("; ".join(said))

    def look(self, *keys: str) -> tuple[list[Kv | None], int]:
        """These keys as they are, None for one that is not there; and the revision at which they were so."""
        answer = self.transact([], [{"request_range": {"key": key}} for key in keys])
        found = [(part["response_range"].get("kvs") or [None])[0] for part in answer["responses"]]
        return found, int(answer["header"]["revision"])

    def transact(self, compare: list[Kv], then: list[Kv]) -> dict[str, Any]:
        """Do `then`, if all of `compare` is so: `succeeded` says whether."""
        return self.ask("/kv/txn", {"compare": compare, "success": then, "failure": []})

    def grant(self, ttl_s: float) -> tuple[str, float]:
        """A new lease, and the seconds that it has."""
        granted = self.ask("/lease/grant", {"TTL": int(ttl_s), "ID": 0})
        return str(granted["ID"]), float(granted["TTL"])

    def renew(self, lease: str) -> float:
        """Seconds that a lease has from now; 0: it is gone."""
        return float(self.ask("/lease/keepalive", {"ID": lease}).get("result", {}).get("TTL", 0))

    def revoke(self, lease: str) -> None:
        """End a lease, and all that is bound to it. Gone: it has ended already."""
        self.ask("/lease/revoke", {"ID": lease})

    @property
    def version(self) -> str:
        """etcd's own, of whichever member answers."""
        return str(self.ask("/maintenance/status", {})["version"])

    def watch(self, key: str, after: int, longest_s: float = WATCH_S) -> None:
        """Until something happens to `key` after revision `after`, or it is time to look again. Raises whatever goes wrong."""
        member = self.members[0]
        ordered: Any = {"create_request": {"key": key, "start_revision": after + 1}}
        url = member.get_url("/watch")
        with member.session.post(url, json=ordered, stream=True, timeout=(REQUEST_S, longest_s)) as answer:
            for line in answer.iter_lines(chunk_size=1):
                if line.strip() and not json.loads(line).get("result", {}).get("created"):
                    return  # an event, or a refusal (compacted): either way the key is read again

    def _asked(self, member: Any, path: str, what: dict[str, Any]) -> dict[str, Any]:
        if self.user and "Authorization" not in member.session.headers:
            self._log_in(member)
        try:
            answer: dict[str, Any] = member.post(member.get_url(path), json=what)
        except Exception as error:
            if "invalid auth token" in words(error) and self.user:  # etcd forgets them: after some minutes, or a restart
                self._log_in(member)
                answer = member.post(member.get_url(path), json=what)
            else:
                raise _understood(error) from error
        return answer

    def _log_in(self, member: Any) -> None:
        member.session.headers.pop("Authorization", None)
        try:
            answer = member.post(member.get_url("/auth/authenticate"), json={"name": self.user, "password": self.password})
        except Exception as error:
            if "authentication is not enabled" in words(error):
                self.user = ""
                return
            raise _understood(error) from error
        member.session.headers["Authorization"] = answer["token"]


class Gone(Exception):
    """The lease that was named is gone."""


def text(plain: str) -> str:
    """As the gateway takes keys and values."""
    return b64encode(plain.encode()).decode()


def value(kv: Kv) -> Any:
    """A key's value, which is JSON."""
    return json.loads(b64decode(kv["value"]))


def number(kv: Kv | None, field: str) -> int:
    """A field of a key; 0 where there is no key."""
    return 0 if kv is None else int(kv[field])


def created(key: str, revision: int) -> Kv:
    """A condition: `key` was created at `revision`; 0: it is not there."""
    return {"key": key, "target": "CREATE", "create_revision": str(revision), "result": "EQUAL"}


def changed(key: str, revision: int) -> Kv:
    """A condition: `key` was changed last at `revision`; 0: it is not there."""
    return {"key": key, "target": "MOD", "mod_revision": str(revision), "result": "EQUAL"}


def put(key: str, what: object, lease: str = "0") -> Kv:
    """A write of `what` as JSON."""
    return {"request_put": {"key": key, "value": text(json.dumps(what)), "lease": lease}}


def delete(key: str) -> Kv:
    """The removal of a key."""
    return {"request_delete_range": {"key": key}}


def access(conf: dict[str, str], flag: str) -> dict[str, str]:
    """How to come to etcd: `conf`, as given with `flag`, and what the environment adds. UsageError for what is wrong."""
    for key, variable in (("user", "HOLDFAST_ETCD_USER"), ("password", "HOLDFAST_ETCD_PASSWORD")):
        conf.setdefault(key, os.environ.pop(variable, ""))  # it is not left to the workers
    if path := conf.pop("password_file", ""):
        conf["password"] = secret_in(path, f"{flag} password_file").decode("utf-8", "replace")
    for ours, theirs in (("cert", "ssl_cert"), ("key", "ssl_cert_key"), ("cacert", "ca_cert")):
        if theirs in conf:
            conf.setdefault(ours, conf[theirs])
    if conf.get("protocol", "http") not in ("http", "https"):
        raise UsageError(f"{flag} protocol={conf['protocol']}: neither http nor https")
    for key in ("cert", "key", "cacert"):
        if key in conf and not os.access(conf[key], os.R_OK):
            raise UsageError(f"{flag} {key}: {conf[key]} cannot be read")
    return conf


def words(error: Exception) -> str:
    """What etcd itself said, or what the way to it did."""
    detail = getattr(error, "detail_text", None) or str(error) or type(error).__name__
    try:
        return str(json.loads(detail)["message"])
    except (ValueError, KeyError, TypeError):
        pass
    for known in ("Connection refused", "Name or service not known", "timed out", "certificate verify failed"):
        if known.lower() in detail.lower():
            return known
    return detail[:200]


def _understood(error: Exception) -> Exception:
    said = words(error)
    if "requested lease not found" in said:
        return Gone(said)
    if "authentication failed" in said or "user name is empty" in said:
        return Refused(f"etcd does not let us in: {said}", HINT)
    if "permission denied" in said:
        return Refused(f"etcd: {said}", "let this user read and write under the prefix (etcdctl role grant-permission)")
    if "request is too large" in said or "message larger than max" in said:
        return Refused("etcd takes no value of this size", "etcd --max-request-bytes (1.5 MiB, if nobody has changed it)")
    if "certificate verify failed" in said:
        return Refused("etcd's certificate is not signed by a CA that we know", "--rdzv-conf cacert=FILE")
    return error
