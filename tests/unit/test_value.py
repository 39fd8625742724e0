"""Values: what those are that are made so often that they have an `__init__` of their own; and JSON without `json`."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.value import Value, as_json, quicken, replace


class Plain(Value):
    """As usual."""

    name: str
    size: int = 3
    parts: tuple[str, ...] = ()


class Quick(Value):
    """The same."""

    name: str
    size: int = 3
    parts: tuple[str, ...] = ()


class Empty(Value):
    """Has no field."""


quicken(Quick, Empty)
quicken(Quick)  # once more does no harm


@pytest.mark.parametrize("given", [{"name": "a"}, {"name": "a", "size": 0}, {"size": 1, "name": "b", "parts": ("x",)}])
def test_a_quick_value_is_as_any_other(given):
    plain, quick = Plain(**given), Quick(**given)
    assert [getattr(plain, field) for field in Plain.__fields__] == [getattr(quick, field) for field in Quick.__fields__]
    assert quick == Quick(**given) and replace(quick, size=7) == Quick(**given | {"size": 7})
    with pytest.raises(AttributeError):
        quick.size = 4


@pytest.mark.parametrize("given", [{}, {"size": 1}, {"name": "a", "colour": "red"}])
def test_a_quick_value_refuses_what_any_other_does(given):
    for kind in (Plain, Quick):
        with pytest.raises(TypeError):
            kind(**given)


def test_a_value_without_fields_can_be_quick_too():
    assert Empty() == Empty()


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(ANYTHING)
def test_json_is_what_json_makes_of_it(plain):
    assert as_json(plain) == json.dumps(plain, default=str)
