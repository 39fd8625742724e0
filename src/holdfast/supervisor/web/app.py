"""Who answers which request, and with what? A method of `Api` for each route of `openapi`, over the mirror and jobs' folders.

Every request passes `Api.serve`, which checks the role that its route needs, where it comes from, and what it sends. Everything
that goes wrong becomes `view.Refusal`. Names in paths are looked up among the known ones, and never become part of a path.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial, partialmethod
from typing import Any, TypeVar
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route as Served

from holdfast import __version__
from holdfast.agent.control.control_socket import text_of
from holdfast.core.errors import UsageError
from holdfast.core.value import to_plain
from holdfast.runtime.peer_user import user_between
from holdfast.supervisor.metrics import CONTENT_TYPE, exposition
from holdfast.supervisor.web import openapi, view
from holdfast.supervisor.web.auth import COOKIE, Gate, Refused, refuse_a_forgery
from holdfast.supervisor.web.compression import SHORTEST, takes_gzip, whole
from holdfast.supervisor.web.live import MOST_WATCHERS, Mirror
from holdfast.supervisor.web.story import Story, story
from holdfast.telemetry.report.safe_text import one_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import Receive, Scope, Send

T = TypeVar("T")

STATIC = os.path.join(os.path.dirname(os.path.abspath(__file__)), "static")

MOST_BODY = 16 << 10
"""Bytes of a request's body."""

MOST_READERS = 2
"""Job folders that are read at a time."""

JSON, FORM = "application/json", "application/x-www-form-urlencoded"

COMPRESSED = {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}

GUARDS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
"""On every answer: no script but ours, and in no frame."""


class Api:
    def __init__(self, socket: str, known: dict[str, str], *, secure: bool = False) -> None:
        """`socket`: the supervisor's; `known`: token → role; `secure`: the cookie goes over TLS only."""
        self.mirror, self.gate, self.secure = Mirror(socket), Gate(known), secure
        self.readers = asyncio.Semaphore(MOST_READERS)
        self.files = {name: os.path.join(STATIC, name) for name in os.listdir(STATIC)}
        """By name: no other file is served."""

    def app(self) -> Starlette:
        routes = []
        for route in sorted(openapi.ROUTES, key=lambda route: -route.path.count("/")):  # names may hold slashes
            path = route.path.replace("{node}", "{node:path}").replace("{job}", "{job:path}")
            routes.append(Served(path, partial(self.serve, route), methods=[route.method]))
        return Starlette(routes=routes, exception_handlers={HTTPException: _refused, Exception: _refused})

    async def serve(self, route: openapi.Route, request: Request) -> Response:
        headers = request.headers
        try:
            self.gate.admit(route.role, headers, lambda: user_between(request.scope["server"], request.scope["client"]))
            if request.method == "POST":
                refuse_a_forgery(headers, FORM if route.name == "login" else JSON)
            answer: Callable[[Request], Awaitable[Response]] = getattr(self, route.name)
            response = await answer(request)
        except Refused as refused:
            response = _refusal(refused.status, refused.what, refused.hint)
        for name, value in GUARDS.items():
            response.headers.setdefault(name, value)
        response.headers.setdefault("Cache-Control", "no-store")
        if not isinstance(response, StreamingResponse) and len(response.body) >= SHORTEST and takes_gzip(headers):
            response.body = await asyncio.to_thread(whole, bytes(response.body))
            response.headers.update(COMPRESSED | {"Content-Length": str(len(response.body))})
        return response

    async def index(self, request: Request) -> Response:
        return self._file("index.html")

    async def static(self, request: Request) -> Response:
        return self._file(request.path_params["file"])

    def _file(self, name: str) -> Response:
        if name not in self.files:
            raise Refused(404, "there is no such file")
        with open(self.files[name], "rb") as file:
            content = file.read()
        kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
        return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    async def login(self, request: Request) -> Response:
        form = parse_qs((await _body(request)).decode("utf-8", "replace"))
        if not (cookie := self.gate.cookie(form.get("token", [""])[0])):
            raise Refused(401, "there is no such token", hint="tokens stand in the file of --http-token-file")
        answer = RedirectResponse("/", status_code=303)
        answer.set_cookie(COOKIE, cookie, httponly=True, samesite="strict", secure=self.secure)
        return answer

    async def logout(self, request: Request) -> Response:
        answer = JSONResponse({"text": "logged out"})
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict", secure=self.secure)
        return answer

    async def role(self, request: Request) -> Response:
        shown = view.Permission(role=self.gate.role(request.headers), logged_in=self.gate.logged_in(request.headers))
        return JSONResponse(to_plain(shown))

    async def fleet(self, request: Request) -> Response:
        await self.mirror.fresh()
        return JSONResponse(self.mirror.shown())

    async def live(self, request: Request) -> Response:
        await self.mirror.fresh()
        if self.mirror.watchers >= MOST_WATCHERS:
            raise Refused(503, f"{MOST_WATCHERS} dashboards are open", hint="close one, or ask for /api/fleet")
        small = takes_gzip(request.headers)
        stream, how = (self.mirror.compressed(), COMPRESSED) if small else (self.mirror.watch(), {})
        return Watching(self.mirror, stream, how)

    async def node(self, request: Request) -> Response:
        told = await self.mirror.ask({"ask": "why", "node": await self._known("nodes", request)})
        return JSONResponse({**told["node"], "deeds": told["deeds"]})

    async def job(self, request: Request) -> Response:
        name = await self._known("jobs", request)
        deeds = (await self.mirror.ask({"ask": "deeds", "job": name}))["deeds"]
        told: dict[str, Any] | None = await self._read(name, _told_of)
        rest = told or {"rounds": [], "goodput": None, "incidents": []}
        return JSONResponse({**self.mirror.snapshot.tables["jobs"][name], "deeds": deeds, **rest})

    async def incident(self, request: Request) -> Response:
        id = request.path_params["id"]
        if (found := await self._read(await self._known("jobs", request), lambda story: story.incident(id))) is None:
            raise Refused(404, "this job has no such incident here", hint="its folder may be on another host")
        return JSONResponse(to_plain(found))

    async def log(self, request: Request) -> Response:
        id, rank = request.path_params["id"], request.path_params["rank"]
        number = int(rank) if rank.isascii() and rank.isdecimal() and len(rank) < 10 else -1
        text = await self._read(await self._known("jobs", request), lambda story: story.log(id, number))
        if text is None:
            raise Refused(404, "the log of that rank is not here", hint="it may be on another host, or was not kept")
        return Response(text, media_type="text/plain; charset=utf-8")

    async def deeds(self, request: Request) -> Response:
        await self.mirror.fresh()
        asked = {name: value for name, value in request.query_params.items() if name in ("node", "job") and value}
        if not asked:
            return JSONResponse(self.mirror.shown()["deeds"])
        return JSONResponse((await self.mirror.ask({"ask": "deeds", **asked}))["deeds"])

    async def history(self, request: Request) -> Response:
        told = await self.mirror.ask({"ask": "history"})
        return JSONResponse({name: told[name] for name in view.History.__fields__})

    async def metrics(self, request: Request) -> Response:
        await self.mirror.fresh()
        return Response(exposition(self.mirror.shown()), media_type=CONTENT_TYPE)

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi.document(__version__))

    async def healthz(self, request: Request) -> Response:
        await self.mirror.fresh()
        return JSONResponse({"text": "the supervisor answers"})

    async def _wish(self, ask: str, table: str, request: Request) -> Response:
        about = {table[:-1]: await self._known(table, request)}
        try:
            said = json.loads(await _body(request) or b"{}")
            reason = text_of(said, "reason")
        except UsageError as error:
            raise Refused(400, str(error), hint='send {"reason": "…"}') from error
        except (ValueError, AttributeError, RecursionError):
            raise Refused(400, "the request's body is not a JSON object", hint='send {"reason": "…"}') from None
        told = await self.mirror.wish({"ask": ask, "reason": one_line(reason, 400), **about})
        if not told.get("ok"):
            raise Refused(409, str(told.get("error")))
        return JSONResponse({"text": told["text"]})

    drain, uncordon = partialmethod(_wish, "drain", "nodes"), partialmethod(_wish, "uncordon", "nodes")
    restart, stop = partialmethod(_wish, "restart", "jobs"), partialmethod(_wish, "stop", "jobs")

    async def _known(self, table: str, request: Request) -> str:
        """The name in the path, which must be one that is known."""
        await self.mirror.fresh()
        name = str(request.path_params["node" if table == "nodes" else "job"])
        if name not in self.mirror.snapshot.tables[table]:
            raise Refused(404, f"no {table[:-1]} of that name is known", hint=f"/api/fleet lists all {table}")
        return name

    async def _read(self, job: str, ask: Callable[[Story], T]) -> T | None:
        """Of a job's folder, in a thread: its disk may be slow."""

        def read() -> T | None:
            found = story(job)
            return None if found is None else ask(found)

        async with self.readers:
            return await asyncio.to_thread(read)


class Watching(StreamingResponse):
    """What a dashboard watches. It is counted before anything else happens on the loop."""

    def __init__(self, mirror: Mirror, stream: AsyncIterator[bytes], headers: dict[str, str]) -> None:
        super().__init__(stream, media_type=openapi.EVENTS, headers={"X-Accel-Buffering": "no", **headers})
        self.mirror = mirror

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.mirror.watched():
            await super().__call__(scope, receive, send)


def _told_of(found: Story) -> Any:
    told = {"rounds": found.rounds(), "goodput": found.goodput(time.time()), "incidents": found.incidents()}
    return to_plain(told)


async def _body(request: Request) -> bytes:
    found = b""
    try:
        async for piece in request.stream():
            found += piece
            if len(found) > MOST_BODY:
                raise Refused(400, f"the request's body is longer than {MOST_BODY} bytes")
    except ClientDisconnect:
        raise Refused(400, "the request's body ends too early") from None  # nobody reads this
    return found


def _refusal(status: int, what: str, hint: str) -> Response:
    shown = view.Refusal(error=one_line(what, 500), hint=one_line(hint, 500))
    return JSONResponse(to_plain(shown), status_code=status)


async def _refused(request: Request, error: Exception) -> Response:
    """No route answers, or we have failed."""
    if isinstance(error, HTTPException):
        response = _refusal(error.status_code, error.detail, "see /openapi.json")
    else:
        response = _refusal(500, f"the web process failed ({type(error).__name__})", "its stderr tells more")
    response.headers.update(GUARDS)
    return response
