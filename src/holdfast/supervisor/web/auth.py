"""Who may see, and who may act? Roles by token; without tokens only this host's own user.

    read      all that is shown          operate   drain, uncordon, restart, stop as well

A token comes as `Authorization: Bearer TOKEN`, or once in a form, which is answered with a cookie made of it that no script can
read. Without tokens we listen on the loopback interface only, answer to its names only (a foreign page whose name points here
is refused), and ask the kernel which user's socket asks.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Callable, Mapping

from holdfast.core.errors import HoldfastError, UsageError
from holdfast.runtime.net.addresses import is_loopback
from holdfast.runtime.peer_user import is_ours
from holdfast.runtime.readable import CHECK_FILE

READ, OPERATE = "read", "operate"
ROLES = (READ, OPERATE)
"""Each may what those before it may."""

COOKIE = "holdfast"

SHORTEST = 16
"""Characters of a token: fewer can be guessed."""


class Refused(HoldfastError):
    """A request that is answered with an error."""

    def __init__(self, status: int, what: str, *, hint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.status = status


def tokens(path: str | None) -> dict[str, str]:
    """Token → role, of a file with lines `read TOKEN` and `operate TOKEN`. UsageError: that is not what is there."""
    if path is None:
        return {}
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file if line.strip() and not line.startswith("#")]
    except OSError as error:
        raise UsageError(f"--http-token-file: {path} cannot be read: {error.strerror}", hint=CHECK_FILE) from error
    hint = "give lines `read TOKEN` and `operate TOKEN`; `holdfast token` makes tokens"
    found: dict[str, str] = {}
    for words in lines:
        if len(words) != 2 or words[0] not in ROLES:
            raise UsageError(f"--http-token-file: {path} has a line that is not ROLE TOKEN", hint=hint)
        role, token = words
        if len(token) < SHORTEST or not token.isascii():
            raise UsageError(f"--http-token-file: {path} has a token of fewer than {SHORTEST} ASCII characters", hint=hint)
        found[token] = role
    if not found:
        raise UsageError(f"--http-token-file: {path} holds no token", hint=hint)
    return found


def refuse_an_open_door(host: str, known: Mapping[str, str]) -> None:
    """UsageError: anybody who reaches that address could act."""
    if not known and not is_loopback(host):
        raise UsageError(
            f"--http: without tokens, anybody who reaches {host} could see everything and stop jobs",
            hint="give --http-token-file FILE with lines `read TOKEN` and `operate TOKEN`, or listen on 127.0.0.1",
        )


_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[\w.-]+))(?::\d{1,5})?", re.ASCII)  # A Host header.


class Gate:
    """Judges requests by their headers; names of headers are in small letters."""

    def __init__(self, known: Mapping[str, str]) -> None:
        self.known = known

    def admit(self, needed: str, headers: Mapping[str, str], user: Callable[[], int | None]) -> None:
        """Let a request pass that needs that role (empty: none); `user`: whose process sends it. Refused."""
        if not self.known:
            return self._by_host(headers, user)
        if not needed:
            return None
        role = self._role(headers)
        if not role:
            raise Refused(401, "the request needs a token", hint="send Authorization: Bearer TOKEN, or log in")
        if ROLES.index(role) < ROLES.index(needed):
            hint = f"ask your administrator for a token with the role {needed}"
            raise Refused(403, f"the token's role is {role}; the request needs {needed}", hint=hint)

    def role(self, headers: Mapping[str, str]) -> str:
        """The role of a request with these headers. Empty: none."""
        return self._role(headers) if self.known else OPERATE

    def logged_in(self, headers: Mapping[str, str]) -> bool:
        """Whether they hold a valid cookie."""
        shown = _cookie(headers)
        return any(_same(_made_of(known), shown) for known in self.known)

    def cookie(self, token: str) -> str:
        """What a browser gets for a token. Empty: there is no such token."""
        return next((_made_of(known) for known in self.known if _same(known, token)), "")

    def _role(self, headers: Mapping[str, str]) -> str:
        kind, _, token = headers.get("authorization", "").partition(" ")
        shown = token.strip() if kind.lower() == "bearer" else ""
        cookie = _cookie(headers)
        for known, role in self.known.items():
            if _same(known, shown) or _same(_made_of(known), cookie):
                return role
        return ""

    def _by_host(self, headers: Mapping[str, str], user: Callable[[], int | None]) -> None:
        if not is_loopback(_name(headers.get("host", ""))):
            hint = "ask for 127.0.0.1 or localhost, or start the supervisor with --http-token-file"
            raise Refused(400, "without tokens the supervisor answers only to this host's own names", hint=hint)
        if not is_ours(uid := user()):
            hint = "start the supervisor with --http-token-file, and send a token"
            who = "who asks" if uid is None else f"uid {uid}"
            raise Refused(403, f"the supervisor belongs to another user than {who}", hint=hint)


def refuse_a_forgery(headers: Mapping[str, str], kind: str) -> None:
    """Refused: a page of another origin could have sent this, or it is not of the media type `kind`, which such a page can send
    only after a preflight, or without harm."""
    if headers.get("content-type", "").partition(";")[0].strip().lower() != kind:
        raise Refused(400, f"the request's Content-Type is not {kind}")
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise Refused(403, "the request comes from another page", hint="act from the dashboard, or without an Origin")
    if headers.get("sec-fetch-site", "none") not in ("same-origin", "none"):
        raise Refused(403, "the request comes from another page", hint="act from the dashboard")


def _cookie(headers: Mapping[str, str]) -> str:
    pairs = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")


def _made_of(token: str) -> str:
    return hmac.new(token.encode(), b"holdfast web: cookie", hashlib.sha256).hexdigest()


def _same(known: str, shown: str) -> bool:
    return hmac.compare_digest(known.encode(), shown.encode("utf-8", "replace"))


def _name(host: str) -> str:
    """Of `name:port`, IPv6 in brackets. Empty: it is no such thing."""
    found = _HOST.fullmatch(host)
    return "" if found is None else found["v6"] or found["name"]
