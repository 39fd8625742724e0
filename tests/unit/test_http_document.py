"""Is the table of routes whole: does somebody answer each, is its OpenAPI sound, and is the page made of it?"""

from __future__ import annotations

import json

import pytest
from kit import ROOT
from tools.reference import http_api

from holdfast.supervisor.web import openapi, view


def test_each_route_has_somebody_who_answers():
    pytest.importorskip("starlette", reason="the extra `supervisor` is not installed")
    from holdfast.supervisor.web.app import Api

    assert all(callable(getattr(Api, route.name)) for route in openapi.ROUTES)


def test_whatever_changes_something_needs_the_role_that_may():
    assert {route.role for route in openapi.ROUTES if route.method == "POST" and route.path.startswith("/api/")} == {"operate"}
    assert {route.role for route in openapi.ROUTES if route.method == "GET" and route.path.startswith("/api/")} == {"read"}


def test_each_shape_that_is_named_is_there():
    document = openapi.document("1")
    named = {word for word in json.dumps(document).split('"') if word.startswith("#/components/schemas/")}
    assert {name.rpartition("/")[2] for name in named} <= document["components"]["schemas"].keys()
    assert "RankSaid" in document["components"]["schemas"]


def test_a_shape_has_exactly_its_fields():
    shape = openapi.schema(view.Culprit)
    assert shape["properties"] == {"rank": {"type": "integer"}, "node": {"type": "string"}, "what": {"type": "string"}}
    assert shape["required"] == ["rank", "node", "what"] and shape["additionalProperties"] is False
    assert openapi.schema(view.Round)["properties"]["ended_unix"] == {"anyOf": [{"type": "number"}, {"type": "null"}]}
    assert openapi.schema(view.Reason)["required"] == []


def test_the_page_is_made_of_it():
    made = http_api.page()
    there = (ROOT / "docs/reference/http-api.md").read_text()
    assert there == made, "run: make reference"
