"""What plain values does a pickle hold? It is read, never unpickled: no name is looked up, and little more is held than it has.

`pickle.Unpickler` makes nine bytes a table of gigabytes, whatever names it knows. Here are the few words of it that tell of
dicts, lists, tuples, text and numbers, as torch writes them; any other ends the reading.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

from holdfast.core.value import Value


class _Mark(Value):
    """Where on the stack the parts of something begin."""


MARK = _Mark()

VALUES = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}

NEW: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}

SAYS_ITSELF = (
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
)

TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}

MOST_AGAIN = 200  # Values of a list that stands in the pickle more than once.

FRAMING = ("PROTO", "FRAME")


class _Reader:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def read(self, data: bytes) -> Any:
        for code, argument, _ in pickletools.genops(data):
            name = code.name
            if name == "STOP":
                return self.stack.pop()
            if name in SAYS_ITSELF:
                self.stack.append(argument)
            elif name in NEW:
                self.stack.append(NEW[name]())
            elif name in VALUES:
                self.stack.append(VALUES[name])
            elif name in TUPLES:
                self.stack[-TUPLES[name] :] = [tuple(self.stack[-TUPLES[name] :])]
            elif name not in FRAMING:
                self._do(name, argument)
        raise ValueError("it has no end")

    def _do(self, name: str, argument: Any) -> None:
        stack = self.stack
        match name:
            case "MARK":
                stack.append(MARK)
            case "TUPLE":
                stack.append(tuple(self._since_mark()))
            case "APPEND":
                self._list(-2).append(stack.pop())
            case "APPENDS":
                items = self._since_mark()
                self._list(-1).extend(items)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                self._dict().update({key: value})
            case "SETITEMS":
                items = self._since_mark()
                self._dict().update(zip(items[::2], items[1::2]))
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(self._again(argument))
            case _:
                raise ValueError(f"it has {name}, which plain values do not need")

    def _since_mark(self) -> list[Any]:
        at = len(self.stack) - 1 - self.stack[::-1].index(MARK)
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def _list(self, at: int) -> list[Any]:
        found = self.stack[at]
        if not isinstance(found, list):
            raise ValueError("it adds to what is no list")
        return found

    def _dict(self) -> dict[Any, Any]:
        found = self.stack[-1]
        if not isinstance(found, dict):
            raise ValueError("it sets an item of what is no dict")
        return found

    def _again(self, number: int) -> Any:
        """A copy of what was there before: lists of the same lists would be as large as they like when they are shown."""
        found = self.memo[number]
        if not isinstance(found, (list, tuple, dict)):
            return found
        copy, left = _copy(found, MOST_AGAIN)
        if left < 0:
            raise ValueError(f"it has more than {MOST_AGAIN} values twice")
        return copy


def _copy(value: Any, left: int) -> tuple[Any, int]:
    """It, and how many values more there may be; negative: there were too many."""
    if not isinstance(value, (list, tuple, dict)) or left < 0:
        return value, left - 1
    copies = []
    for one in value.items() if isinstance(value, dict) else value:
        copy, left = _copy(one, left - 1)
        copies.append(copy)
    return type(value)(copies), left


def read(data: bytes) -> Any:
    """The values in it. ValueError: it is no pickle, or has more than plain values."""
    try:
        return _Reader().read(data)
    except (IndexError, KeyError, TypeError, OverflowError, MemoryError) as error:
        raise ValueError(f"it is no pickle of plain values: {error}") from error
