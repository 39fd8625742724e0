"""What does docs/reference/http-api.md say?

Made from the table of routes (`supervisor.web.openapi`), and the sources of the shapes that they answer with.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from holdfast.core.wire import fleet
from holdfast.supervisor.web import openapi, view
from tools.reference.events import classes, section

HEAD = """\
# HTTP API of the supervisor

<!-- Made from supervisor/web/openapi.py by `make reference`. Do not edit. -->

`holdfast supervisor` serves this API at `--http HOST:PORT` (127.0.0.1:29180) if the extra `supervisor` is installed. Programs
get the same description from `GET /openapi.json` (OpenAPI 3.1). Times are unix seconds, and durations are seconds.
[Security](../explanation/security.md#the-supervisors-http-api) says who may use the API.

| request | role | | answer |
|---|---|---|---|
"""

TAIL = """
`POST` requests need `Content-Type: application/json`; the supervisor keeps their `{"reason": "…"}` with the decision.
`/login` needs a form. A failed request returns a `Refusal`: 400 (wrong request), 401 (no token), 403 (the token does not
allow it), 404 (not found), 409 (the supervisor refuses), 503 (the supervisor does not answer).

```text
curl http://127.0.0.1:29180/api/fleet
curl -N http://127.0.0.1:29180/api/live
curl -H 'Content-Type: application/json' -d '{"reason": "its fan is loud"}' http://127.0.0.1:29180/api/nodes/n7/drain
```

`/api/live` first sends `event: fleet` with the whole fleet, then `event: change` for each change, at most five per second. A
slow reader gets fewer events, but misses nothing. After 10 s without news, `event: beat` gives the time of the supervisor's
last report. `event: silent` says that the supervisor is gone. The stream continues when the supervisor is back.
"""


def page() -> str:
    """The whole page."""
    rows = [
        f"| `{one.method} {one.path}` | {one.role or '–'} | {one.says} | {_shape(one.answer)} |\n" for one in openapi.ROUTES
    ]
    used = openapi.used()
    shapes = [_section(node, used) for module in (view, fleet) for node in classes(module) if node.name in used]
    return "\n".join([HEAD + "".join(rows) + TAIL, *shapes])


def _section(node: ast.ClassDef, used: Collection[str]) -> str:
    """A shape, with a word of the one whose fields it has too."""
    head, text, table = section(node, "##").split("\n\n", 2)
    also = "".join(f" With all fields of `{base.id}`." for base in node.bases if isinstance(base, ast.Name) and base.id in used)
    return f"{head}\n\n{text}{also}\n\n{table}"


def _shape(name: str) -> str:
    return f"`{name}`"
