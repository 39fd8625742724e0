"""Changes between nested states, and how they are put in."""

from __future__ import annotations

from argparse import Namespace

import pytest


@pytest.fixture
def utils(ft):
    return ft("dict_utils")


@pytest.mark.parametrize(
    ("into", "put", "expected"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 0}, {"a": 1}, {"a": 1}),
        ({"a": 0}, {"b": 1}, {"a": 0, "b": 1}),
        ({"a": {"aa": 1}}, {"a": 5}, {"a": 5}),
        ({"a": {}}, {"a": 5}, {"a": 5}),
        ({"a": {"aa": 1}}, {"a": {"aa": 2, "bb": {"c": 3}}}, {"a": {"aa": 2, "bb": {"c": 3}}}),
        ({"n": Namespace(a=1, b=-1)}, {"n": Namespace(b=2)}, {"n": Namespace(a=1, b=2)}),
        ({"n": Namespace(a=1)}, {"n": Namespace(b=2)}, {"n": Namespace(a=1, b=2)}),
    ],
)
def test_a_change_is_put_in(utils, into, put, expected):
    utils.merge_state_dicts_(into, put)
    assert into == expected


@pytest.mark.parametrize(
    ("old", "new", "changed"),
    [
        ({}, {"a": 1}, {"a": 1}),
        ({"a": 0}, {"a": 1}, {"a": 1}),
        ({"a": 1}, {"a": 1}, {}),
        ({"a": 0, "b": 1}, {"a": {"aa": 1}, "c": 3}, {"a": {"aa": 1}, "c": 3}),
        ({"a": {"aa": 1, "x": 2}, "c": 0}, {"a": {"aa": 4, "bb": 9, "x": 2}, "b": 0}, {"a": {"aa": 4, "bb": 9}, "b": 0}),
        ({"n": Namespace(a=1, b=2)}, {"n": Namespace(a=1, b=2)}, {}),
        ({"n": Namespace(a=1, b=2)}, {"n": Namespace(a=1, b=3)}, {"n": Namespace(b=3)}),
        ({"n": Namespace(a=1)}, {"n": Namespace(b=2)}, {"n": Namespace(b=2)}),
        ({"a": [1, [2]]}, {"a": [1, [2]]}, {}),
        ({"a": [1, [2]]}, {"a": [1, [3]]}, {"a": [1, [3]]}),
    ],
)
def test_a_change_is_found(utils, old, new, changed):
    assert utils.compare_state_dicts_and_get_new_values(old, new) == changed


@pytest.mark.torch
def test_another_tensor_is_a_change_whatever_it_holds(utils):
    import torch

    same, other = torch.ones(4), torch.ones(4)
    state = {"a": same, "l": [0, [same]], "d": {"x": 0, "y": same}}
    assert utils.compare_state_dicts_and_get_new_values(state, dict(state)) == {}
    changed = utils.compare_state_dicts_and_get_new_values(state, {"a": other, "l": [0, [other]], "d": {"x": 0, "y": other}})
    assert changed.keys() == {"a", "l", "d"} and changed["d"].keys() == {"y"}
    assert changed["a"] is other and changed["l"][1][0] is other
