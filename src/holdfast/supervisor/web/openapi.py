"""What can be asked by HTTP, by whom, and what comes back? The table of routes, and OpenAPI 3.1 made of it and of `view`."""

from __future__ import annotations

from inspect import get_annotations
from typing import Any

from holdfast.core.value import Required, Value
from holdfast.core.wire import fleet
from holdfast.supervisor.web import view
from holdfast.supervisor.web.auth import OPERATE, READ


class Route(Value):
    """One thing that can be asked for."""

    name: str
    """Of the function that answers (`app.Api`)."""
    method: str
    path: str
    role: str
    """Which whoever asks must have. Empty: nobody is asked."""
    says: str
    answer: str
    """A shape, `[a shape]`, or a media type."""
    body: str = ""
    """The shape of what is sent."""


def _order(name: str, whose: str, says: str) -> Route:
    """What an operator may have done, for a reason."""
    return Route(name=name, method="POST", path=f"{whose}/{name}", role=OPERATE, says=says, answer="Told", body="Reason")


HTML, EVENTS, TEXT, ANY = "text/html", "text/event-stream", "text/plain", "application/octet-stream"

ROUTES = (
    Route(name="index", method="GET", path="/", role="", says="the dashboard", answer=HTML),
    Route(name="static", method="GET", path="/static/{file}", role="", says="a file of it", answer=ANY),
    Route(name="login", method="POST", path="/login", role="", says="a cookie for the form field `token`", answer="Told"),
    Route(name="logout", method="POST", path="/logout", role="", says="take the cookie back", answer="Told", body="Reason"),
    Route(name="role", method="GET", path="/api/role", role=READ, says="what you may do", answer="Permission"),
    Route(name="fleet", method="GET", path="/api/fleet", role=READ, says="all that the supervisor knows", answer="FleetShown"),
    Route(
        name="live",
        method="GET",
        path="/api/live",
        role=READ,
        says="server-sent events: `fleet` (FleetShown), then `change` (FleetChanged) as it happens; `silent` when the "
        "supervisor is gone, and `fleet` or `change` when it is back; `beat` (Beat) after 10 s without news",
        answer=EVENTS,
    ),
    Route(name="node", method="GET", path="/api/nodes/{node}", role=READ, says="one node", answer="NodeStory"),
    Route(
        name="incident",
        method="GET",
        path="/api/jobs/{job}/incidents/{id}",
        role=READ,
        says="one failure of a job whose folder is on this host",
        answer="Incident",
    ),
    Route(name="job", method="GET", path="/api/jobs/{job}", role=READ, says="one job", answer="JobStory"),
    Route(
        name="deeds",
        method="GET",
        path="/api/deeds",
        role=READ,
        says="what was done and why, the newest 200; `?node=NAME` or `?job=NAME`: about that one",
        answer="[Deed]",
    ),
    _order("drain", "/api/nodes/{node}", "take a node out of use"),
    _order("uncordon", "/api/nodes/{node}", "let it be used again"),
    _order("restart", "/api/jobs/{job}", "start all its ranks anew"),
    _order("stop", "/api/jobs/{job}", "end it"),
    Route(name="metrics", method="GET", path="/metrics", role=READ, says="for Prometheus", answer=TEXT),
    Route(name="openapi", method="GET", path="/openapi.json", role="", says="this, for programs", answer="OpenAPI"),
    Route(name="healthz", method="GET", path="/healthz", role="", says="whether the supervisor answers", answer="Told"),
)

SHAPES = {
    kind.__name__: kind
    for module in (fleet, view)
    for kind in vars(module).values()
    if isinstance(kind, type) and issubclass(kind, Value) and not issubclass(kind, fleet.FleetMessage) and kind is not Value
}
"""By name: what is kept, and what is made of it."""

PLAIN = {"str": "string", "int": "integer", "float": "number", "bool": "boolean", "None": "null"}

WRONG = {
    "400": "it is asked for wrongly",
    "401": "a token is needed",
    "403": "the token has not that role",
    "404": "there is no such thing",
    "409": "the supervisor refuses",
    "503": "the supervisor does not answer",
}


def document(version: str) -> dict[str, Any]:
    """The whole of it."""
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Holdfast supervisor",
            "version": version,
            "description": "Times are unix seconds, durations seconds.",
        },
        "paths": paths,
        "components": {
            "schemas": {name: schema(kind) for name, kind in sorted(used().items())} | {"OpenAPI": {"type": "object"}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def schema(kind: type[Value]) -> dict[str, Any]:
    """One shape as JSON Schema: exactly its fields, all of them where it is an answer."""
    hints = {field: hint for base in reversed(kind.__mro__) for field, hint in get_annotations(base).items()}
    fields = {field: _typed(str(hints[field])) for field in kind.__fields__}
    needed = [field for field, default in kind.__fields__.items() if default is Required or kind is not view.Reason]
    said = " ".join((kind.__doc__ or "").split())
    return {"type": "object", "description": said, "properties": fields, "required": needed, "additionalProperties": False}


def used() -> dict[str, type[Value]]:
    """Those that a route names, or sends as an event, with those that they name."""
    found: dict[str, type[Value]] = {}
    left = ["Refusal", "FleetChanged", "Beat", *(shape.strip("[]") for route in ROUTES for shape in (route.answer, route.body))]
    while left:
        name = left.pop()
        if name in SHAPES and name not in found:
            found[name] = SHAPES[name]
            named = {word for hint in _hints(SHAPES[name]) for word in hint.replace("[", " ").replace(",", " ").split()}
            left += sorted(named)
    return found


def _hints(kind: type[Value]) -> list[str]:
    return [str(hint) for base in kind.__mro__ for hint in get_annotations(base).values()]


def _typed(hint: str) -> dict[str, Any]:
    if " | " in hint and not hint.endswith("]"):
        return {"anyOf": [_typed(one) for one in hint.split(" | ")]}
    kind, _, rest = hint.partition("[")
    if kind == "tuple":
        return {"type": "array", "items": _typed(rest.removesuffix(", ...]"))}
    if kind == "dict":
        return {"type": "object", "additionalProperties": _typed(rest.removesuffix("]").partition(", ")[2])}
    if kind == fleet.SwapStep.__name__:
        return {"type": "string", "enum": [str(step) for step in fleet.SwapStep]}
    return {"type": PLAIN[kind]} if kind in PLAIN else {"$ref": f"#/components/schemas/{kind}"}


def _operation(route: Route) -> dict[str, Any]:
    shape = route.answer.strip("[]")
    found: dict[str, Any] = {"$ref": f"#/components/schemas/{shape}"}
    content = (
        {route.answer: {}}
        if "/" in route.answer
        else {"application/json": {"schema": {"type": "array", "items": found} if route.answer.startswith("[") else found}}
    )
    refusal = {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}}
    answers = {"200": {"description": route.says, "content": content}}
    answers |= {status: {"description": said, "content": refusal} for status, said in WRONG.items()}
    names = [part[1:-1] for part in route.path.split("/") if part.startswith("{")]
    asked = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
    if route.name == "deeds":
        asked += [{"name": name, "in": "query", "schema": {"type": "string"}} for name in ("node", "job")]
    made: dict[str, Any] = {"operationId": route.name, "summary": route.says, "parameters": asked, "responses": answers}
    if route.role:
        made["security"] = [{"token": [route.role]}]
    if route.body:
        made["requestBody"] = {"content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{route.body}"}}}}
    if route.name == "login":
        form = {"type": "object", "properties": {"token": {"type": "string"}}, "required": ["token"]}
        made["requestBody"] = {"content": {"application/x-www-form-urlencoded": {"schema": form}}}
    return made
