"""What can be asked by HTTP, by whom, and what comes back? The table of routes, and OpenAPI 3.1 made of it and of `view`."""

from __future__ import annotations

from inspect import get_annotations
from typing import Any, NamedTuple

from holdfast.core.value import Required, Value
from holdfast.core.wire import fleet
from holdfast.supervisor.web import view
from holdfast.supervisor.web.auth import OPERATE, READ


class Route(NamedTuple):
    """One thing that can be asked for."""

    name: str
    """Of the method of `app.Api` that answers."""
    method: str
    path: str
    role: str
    """Which the request must have. Empty: none."""
    says: str
    answer: str
    """A shape, `[a shape]`, or a media type."""
    body: str = ""
    """The shape of what is sent."""


HTML, EVENTS, TEXT, ANY = "text/html", "text/event-stream", "text/plain", "application/octet-stream"
NODE, JOB = "/api/nodes/{node}", "/api/jobs/{job}"
LIVE = (
    "server-sent events: `fleet` (FleetShown), then `change` (FleetChanged) as it happens; `silent` when the "
    "supervisor is gone, and `fleet` or `change` when it is back; `beat` (Beat) after 10 s without news"
)
DEEDS = "actions and their reasons, the newest 200; `?node=NAME` or `?job=NAME`: only of that node or job"

ROUTES = (
    Route("index", "GET", "/", "", "the dashboard", HTML),
    Route("static", "GET", "/static/{file}", "", "a file of the dashboard", ANY),
    Route("login", "POST", "/login", "", "returns a cookie for the form field `token`", "Told"),
    Route("logout", "POST", "/logout", "", "revokes the cookie", "Told", "Reason"),
    Route("role", "GET", "/api/role", READ, "what you are allowed to do", "Permission"),
    Route("fleet", "GET", "/api/fleet", READ, "everything that the supervisor knows", "FleetShown"),
    Route("live", "GET", "/api/live", READ, LIVE, EVENTS),
    Route("node", "GET", NODE, READ, "one node", "NodeStory"),
    Route("incident", "GET", f"{JOB}/incidents/{{id}}", READ, "one failure of a job whose folder is on this host", "Incident"),
    Route("log", "GET", f"{JOB}/incidents/{{id}}/logs/{{rank}}", READ, "the end, 4 MiB at most, of a failed rank's log", TEXT),
    Route("job", "GET", JOB, READ, "one job", "JobStory"),
    Route("deeds", "GET", "/api/deeds", READ, DEEDS, "[Deed]"),
    Route("history", "GET", "/api/history", READ, "incidents, restarts and goodput by the hour", "History"),
    Route("drain", "POST", f"{NODE}/drain", OPERATE, "take a node out of use", "Told", "Reason"),
    Route("uncordon", "POST", f"{NODE}/uncordon", OPERATE, "let the node be used again", "Told", "Reason"),
    Route("restart", "POST", f"{JOB}/restart", OPERATE, "restart all ranks of the job", "Told", "Reason"),
    Route("stop", "POST", f"{JOB}/stop", OPERATE, "stop the job", "Told", "Reason"),
    Route("metrics", "GET", "/metrics", READ, "metrics for Prometheus", TEXT),
    Route("openapi", "GET", "/openapi.json", "", "this API as OpenAPI", "OpenAPI"),
    Route("healthz", "GET", "/healthz", "", "whether the supervisor answers", "Told"),
)

WORDS = {kind.__name__: kind for kind in (fleet.Act, fleet.RepairStep, fleet.SwapStep)}

SHAPES = {
    kind.__name__: kind
    for module in (fleet, view)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Value) and not issubclass(kind, fleet.FleetMessage) and kind is not Value
}
"""By name: what is kept, and what is made of it."""

PLAIN = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "None": "null"}

WRONG = {
    "400": "the request is wrong",
    "401": "a token is needed",
    "403": "the token does not have that role",
    "404": "there is no such thing",
    "409": "the supervisor refuses",
    "503": "the supervisor does not answer",
}


def document(version: str) -> dict[str, Any]:
    """The OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    schemas = {name: schema(kind) for name, kind in sorted(used().items())} | {"OpenAPI": {"type": "object"}}
    told = "Times are unix seconds, durations seconds."
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast supervisor", "version": version, "description": told},
        "paths": paths,
        "components": {"schemas": schemas, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def schema(kind: type[Value]) -> dict[str, Any]:
    """One shape as JSON Schema: exactly its fields, all of them where it is an answer."""
    hints = {field: hint for base in reversed(kind.__mro__) for field, hint in get_annotations(base).items()}
    fields = {field: _typed(str(hints[field])) for field in kind.__fields__}
    needed = [field for field, default in kind.__fields__.items() if default is Required or kind is not view.Reason]
    said = " ".join((kind.__doc__ or "").split())
    return {"type": "object", "description": said, "properties": fields, "required": needed, "additionalProperties": False}


def used() -> dict[str, type[Value]]:
    """Those that a route names, or sends as an event, with those that they name or extend."""
    found: dict[str, type[Value]] = {}
    left = ["Refusal", "FleetChanged", "Beat", *(shape.strip("[]") for route in ROUTES for shape in (route.answer, route.body))]
    while left:
        name = left.pop()
        if name in SHAPES and name not in found:
            found[name] = SHAPES[name]
            named = {word for hint in _hints(SHAPES[name]) for word in hint.replace("[", " ").replace(",", " ").split()}
            left += sorted(named | {base.__name__ for base in SHAPES[name].__bases__})
    return found


def _hints(kind: type[Value]) -> list[str]:
    return [str(hint) for base in kind.__mro__ for hint in get_annotations(base).values()]


def _typed(hint: str) -> dict[str, Any]:
    if " | " in hint and not hint.endswith("]"):
        return {"anyOf": [_typed(one) for one in hint.split(" | ")]}
    outer, _, rest = hint.partition("[")
    if outer == "tuple":
        return {"type": "array", "items": _typed(rest.removesuffix(", ...]"))}
    if outer == "dict":
        return {"type": "object", "additionalProperties": _typed(rest.removesuffix("]").partition(", ")[2])}
    if outer in WORDS:
        return {"type": "string", "enum": [str(word) for word in WORDS[outer]]}
    return {"type": PLAIN[outer]} if outer in PLAIN else {"$ref": f"#/components/schemas/{outer}"}


def _operation(route: Route) -> dict[str, Any]:
    answers = {"200": {"description": route.says, "content": _content(route.answer)}}
    answers |= {status: {"description": said, "content": _content("Refusal")} for status, said in WRONG.items()}
    asked = [_parameter(part[1:-1], "path", required=True) for part in route.path.split("/") if part.startswith("{")]
    if route.name == "deeds":
        asked += [_parameter("node", "query"), _parameter("job", "query")]
    made: dict[str, Any] = {"operationId": route.name, "summary": route.says, "parameters": asked, "responses": answers}
    if route.role:
        made["security"] = [{"token": [route.role]}]
    if route.body:
        made["requestBody"] = {"content": _content(route.body)}
    if route.name == "login":
        form = {"type": "object", "properties": {"token": {"type": "string"}}, "required": ["token"]}
        made["requestBody"] = {"content": {"application/x-www-form-urlencoded": {"schema": form}}}
    return made


def _content(shape: str) -> dict[str, Any]:
    """Of an answer or a body: a shape, `[a shape]`, or a media type."""
    if "/" in shape:
        return {shape: {}}
    found: dict[str, Any] = {"$ref": f"#/components/schemas/{shape.strip('[]')}"}
    return {"application/json": {"schema": {"type": "array", "items": found} if shape.startswith("[") else found}}


def _parameter(name: str, place: str, **more: bool) -> dict[str, Any]:
    return {"name": name, "in": place, "schema": {"type": "string"}, **more}
