"""What changed between two nested states, and how is the change put in? For dicts, lists, argparse namespaces and tensors.

A tensor counts as changed when it is another object: comparing contents would cost a copy from the device.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any


def dict_list_map_inplace(f: Callable[[Any], Any], x: Any) -> Any:
    """Put `f` of each value of nested dicts and lists in its place. Returns `x`, or `f` of it where it is neither."""
    if not isinstance(x, (dict, list)):
        return f(x)
    for at, one in list(x.items() if isinstance(x, dict) else enumerate(x)):
        x[at] = dict_list_map_inplace(f, one)
    return x


def dict_list_map_outplace(f: Callable[[Any], Any], x: Any) -> Any:
    """The same in new dicts and lists: `x` stays as it is."""
    if isinstance(x, dict):
        return {key: dict_list_map_outplace(f, one) for key, one in x.items()}
    return [dict_list_map_outplace(f, one) for one in x] if isinstance(x, list) else f(x)


def merge_state_dicts_(current: dict[Any, Any], incoming: dict[Any, Any]) -> None:
    """Put `incoming` into `current`: dicts and namespaces key by key, everything else in place of what was there."""
    for key, new in incoming.items():
        old = current.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            merge_state_dicts_(old, new)
        elif isinstance(old, Namespace) and isinstance(new, Namespace):
            merge_namespaces_(old, new)
        else:
            current[key] = new


def merge_namespaces_(ns1: Namespace, ns2: Namespace) -> None:
    """Put the attributes of `ns2` into `ns1`."""
    vars(ns1).update(vars(ns2))


def compare_namespaces(ns1: Namespace, ns2: Namespace) -> Namespace | None:
    """The attributes of `ns2` that `ns1` has otherwise or not at all; None: there are none."""
    changed = compare_state_dicts_and_get_new_values(vars(ns1), vars(ns2))
    return Namespace(**changed) if changed else None


def merge_namespace_changes(original_ns: Namespace, changes: Namespace | None) -> None:
    """Put into `original_ns` what `compare_namespaces` found."""
    if changes is not None:
        merge_namespaces_(original_ns, changes)


def compare_state_dicts_and_get_new_values(curr_state: dict[Any, Any], new_state: dict[Any, Any]) -> dict[Any, Any]:
    """What of `new_state` is not so in `curr_state`: of dicts and namespaces only the keys concerned, lists as a whole."""
    changed: dict[Any, Any] = {}
    for key, new in new_state.items():
        old = curr_state.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            if inner := compare_state_dicts_and_get_new_values(old, new):
                changed[key] = inner
        elif isinstance(old, Namespace) and isinstance(new, Namespace):
            if (namespace := compare_namespaces(old, new)) is not None:
                changed[key] = namespace
        elif key not in curr_state or not _same(old, new):
            changed[key] = new
    return changed


def _same(old: Any, new: Any) -> bool:
    if old is new:
        return True
    torch = sys.modules.get("torch")
    if type(old) is not type(new) or (torch is not None and isinstance(new, torch.Tensor)):
        return False
    if isinstance(new, (list, tuple)):
        return len(old) == len(new) and all(map(_same, old, new))
    if isinstance(new, dict):
        return old.keys() == new.keys() and all(_same(old[key], value) for key, value in new.items())
    return bool(old == new)
