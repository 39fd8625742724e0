"""How does holdfast.elastic reach etcd? By the client of Holdfast's etcd backend: version 3 of etcd's API, over HTTP.

Keys and values here are plain text and bytes; base64, which etcd's JSON gateway wants, is between here and there.
"""

from __future__ import annotations

import hashlib
import time
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .api import RendezvousConnectionError, RendezvousParameters
from .backend import read_timeout_of
from .utils import parse_rendezvous_endpoint

DEFAULT_PORT = 2379  # etcd's own, for clients
AT_ONCE = 100  # operations in one transaction; etcd allows 128 by default

_credentials: dict[str, str] = {}
"""From the environment. They are not left to the workers, but a second handler of this process finds them."""


def client_for(endpoints: str, conf: Mapping[str, Any]) -> Any:
    """A client of the etcd whose members are at `endpoints`, separated by commas. Nothing is asked yet."""
    if find_spec("etcd3gw") is None:
        raise RendezvousConnectionError("The client of etcd is not installed: pip install 'holdfast[etcd]'")
    protocol = str(conf.get("protocol", "http")).strip().lower()
    if protocol not in ("http", "https"):
        raise ValueError("The protocol must be HTTP or HTTPS.")
    module = import_module("holdfast.integrations.etcd.client")
    _credentials.update({key: word for key, word in module.access({}, "").items() if word})
    told = _credentials | {key: str(value) for key, value in conf.items() if value is not None} | {"protocol": protocol}
    members = [parse_rendezvous_endpoint(each, DEFAULT_PORT) for each in endpoints.split(",")]
    return module.Client(members, module.access(told, "rendezvous settings:"))


def connect(params: RendezvousParameters) -> Any:
    """A client for what `params` say, which has had an answer."""
    read_timeout_of(params)
    client = client_for(params.endpoint, params.config)
    try:
        read(client, ["/"])
    except Exception as error:
        raise no_connection() from error
    return client


def no_connection() -> RendezvousConnectionError:
    """What is raised when etcd does not answer, or refuses."""
    return RendezvousConnectionError("The connection to etcd has failed. See inner exception for details.")


def text(plain: str | bytes) -> str:
    """As etcd's gateway wants it."""
    return b64encode(plain.encode() if isinstance(plain, str) else plain).decode()


def plain(gateways: str) -> bytes:
    """The other way."""
    return b64decode(gateways)


def after(prefix: str) -> str:
    """The first key that no longer begins with `prefix`: the end of its range."""
    return text(prefix.encode()[:-1] + bytes([prefix.encode()[-1] + 1]))


def read(client: Any, keys: Sequence[str]) -> tuple[dict[str, tuple[bytes, int]], int]:
    """Those of `keys` that are there, each with its value and the revision of its last change; and the revision seen."""
    found: dict[str, tuple[bytes, int]] = {}
    revision = 0
    for begin in range(0, len(keys), AT_ONCE):
        some = keys[begin : begin + AT_ONCE]
        kvs, seen = client.look(*map(text, some))
        revision = revision or seen
        found |= {key: (plain(kv.get("value", "")), int(kv["mod_revision"])) for key, kv in zip(some, kvs) if kv is not None}
    return found, revision


def write(client: Any, pairs: Iterable[tuple[str, bytes]], lease: str, *, unchanged: int | None = None) -> int:
    """Write; returns the revision. With `unchanged` only if that was the revision of the first key's last change (0: it must
    not be there); 0: it was not."""
    wanted = list(pairs)
    revision = 0
    for begin in range(0, len(wanted), AT_ONCE):
        some = wanted[begin : begin + AT_ONCE]
        puts = [{"request_put": {"key": text(key), "value": text(value), "lease": lease}} for key, value in some]
        condition = {"key": text(some[0][0]), "target": "MOD", "mod_revision": str(unchanged), "result": "EQUAL"}
        answer = client.transact([] if unchanged is None else [condition], puts)
        if not answer.get("succeeded"):
            return 0
        revision = int(answer["header"]["revision"])
    return revision


class Lease:
    """A lease that all who name it `name` share: what is written under it goes `ttl_s` seconds after the last of them has."""

    def __init__(self, client: Any, name: str, ttl_s: int) -> None:
        self.client, self.ttl_s = client, ttl_s
        self.id = str(int.from_bytes(hashlib.sha256(name.encode()).digest()[:7], "big") + 1)
        self.renewed_at = float("-inf")

    def hold(self, *, anew: bool = False) -> str:
        """Its id, good for some time. `anew`: whatever we believed, renew it now."""
        now = time.monotonic()
        if anew or now > self.renewed_at + self.ttl_s / 10:
            if not self.client.renew(self.id):
                try:
                    self.client.ask("/lease/grant", {"TTL": self.ttl_s, "ID": self.id})
                except Exception as error:
                    if not self.client.renew(self.id):  # else another client was faster
                        raise RendezvousConnectionError("etcd grants no lease") from error
            self.renewed_at = now
        return self.id

    def doubt(self) -> None:
        """Etcd may have lost it: renew it before the next use."""
        self.renewed_at = float("-inf")
