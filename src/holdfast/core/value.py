"""Values: frozen, keyword-only, slotted, compared by content.

Why not dataclasses or msgspec: importing either costs 16-30 ms, more than everything else the launcher does before it
starts its first worker. A `Value` costs nothing to import and next to nothing to define. Where a value crosses a wire
it is validated by msgspec (`holdfast.runtime.net.codec`), which a one-node job never loads.
"""

from __future__ import annotations

# Here, because what is loaded at its first use may find no descriptor left to be read by.
from _json import encode_basestring_ascii, make_encoder

TYPE_CHECKING = False  # typing costs 10 ms; type checkers read this name as True
if TYPE_CHECKING:
    import sys
    from collections.abc import Callable
    from typing import Any, ClassVar, TypeVar

    T = TypeVar("T")
    V = TypeVar("V", bound="Value")
    if sys.version_info >= (3, 11):
        from typing import dataclass_transform
    else:

        def dataclass_transform(**_: bool) -> Callable[[T], T]: ...
else:

    def dataclass_transform(**_):
        return lambda cls: cls


class Required:
    """A field without a default."""


@dataclass_transform(kw_only_default=True, frozen_default=True)
class ValueType(type):
    """Makes a kind of value: its fields become slots, and their defaults are kept beside."""

    def __new__(meta, name: str, bases: tuple[type, ...], namespace: dict[str, Any], *, mixin: bool = False) -> ValueType:
        """`mixin`: no value of this kind is made, and a value may take over the fields of several."""
        own = [field for field, hint in namespace.get("__annotations__", {}).items() if not hint.startswith("ClassVar")]
        fields: dict[str, Any] = {}
        for base in bases:
            for field, default in getattr(base, "__fields__", {}).items():
                fields.setdefault(field, default)
        held = {field for base in bases for field in fields if hasattr(base, field)}
        for field in own:
            fields[field] = namespace.pop(field, Required)
        namespace["__slots__"] = () if mixin else tuple(field for field in fields if field in own or field not in held)
        namespace["__fields__"] = fields
        made = super().__new__(meta, name, bases, namespace)
        slots = () if mixin else fields.items()
        steps = tuple((field, default, getattr(made, field).__set__) for field, default in slots)
        type.__setattr__(made, "__steps__", steps)
        return made


class Value(metaclass=ValueType):
    """Base of every value. Fields are the annotations (written under `from __future__ import annotations`)."""

    __fields__: ClassVar[dict[str, Any]]
    __steps__: ClassVar[tuple[tuple[str, Any, Callable[[object, Any], None]], ...]]
    """Each field, its default, and what sets it: worked out once, since a coordinator of thousands of nodes makes a hundred
    thousand values a second."""

    def __init__(self, **given: Any) -> None:
        take = given.pop
        for field, default, put in self.__steps__:
            value = take(field, default)
            if value is Required:
                raise TypeError(f"{type(self).__name__} needs {field!r}")
            put(self, value)
        if given:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(map(repr, given))}")

    def __setattr__(self, field: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is a value: use replace(it, {field}=...)")

    def __delattr__(self, field: str) -> None:
        raise AttributeError(f"{type(self).__name__} is a value")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return all(getattr(self, field) == getattr(other, field) for field in self.__fields__)

    def __hash__(self) -> int:
        return hash((type(self).__name__, *(getattr(self, field) for field in self.__fields__)))

    def __repr__(self) -> str:
        shown = ", ".join(f"{field}={getattr(self, field)!r}" for field in self.__fields__)
        return f"{type(self).__name__}({shown})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), fields_of(self))


def quicken(*kinds: type[Value]) -> None:
    """Give each of these an `__init__` without a loop: a third of the time, for 0.1 ms once. For values made thousands of times
    a second."""
    for kind in kinds:
        if "__init__" in kind.__dict__:
            continue
        known = {f"put_{field}": put for field, _, put in kind.__steps__}
        known |= {f"default_{field}": default for field, default, _ in kind.__steps__ if default is not Required}
        taken = (f"{field}=default_{field}" if default is not Required else field for field, default, _ in kind.__steps__)
        lines = [f"def __init__(self, *, {', '.join(taken)}):" if kind.__steps__ else "def __init__(self):"]
        lines += [f"    put_{field}(self, {field})" for field, _, _ in kind.__steps__] or ["    pass"]
        exec("\n".join(lines), known)
        type.__setattr__(kind, "__init__", known["__init__"])


def _rebuild(cls: type[Value], fields: dict[str, Any]) -> Value:
    return cls(**fields)


def fields_of(value: Value) -> dict[str, Any]:
    """Its fields by name, as they are."""
    return {field: getattr(value, field) for field in value.__fields__}


def replace(value: V, **changes: Any) -> V:
    """A copy of `value` with some fields changed."""
    kind, take = type(value), changes.pop
    made = kind.__new__(kind)  # machines make their next state by this, each time that anything is seen
    for field, _, put in kind.__steps__:
        put(made, take(field) if field in changes else getattr(value, field))
    if changes:
        raise TypeError(f"{kind.__name__} has no field {', '.join(map(repr, changes))}")
    return made


def to_plain(value: Any) -> Any:
    """`value` as dicts, lists, strings, numbers, booleans and None: ready for JSON."""
    if isinstance(value, Value):
        return {field: to_plain(getattr(value, field)) for field in value.__fields__}
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return str(value) if isinstance(value, str) else value  # of an enumeration's member its text: YAML knows no other


def as_json(plain: object) -> str:
    """As `json.dumps(plain, default=str)`, by the C half of `json`: the other loads `re`, and the first workers would wait."""
    return "".join(make_encoder({}, str, encode_basestring_ascii, None, ": ", ", ", False, False, True)(plain, 0))
