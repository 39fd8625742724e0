"""How does a state become bytes, and a state again, without pickle? Its shape is JSON, its arrays are as they lie in memory.

A state is made of dicts, Counters, lists, tuples, sets, None, bool, int, float, complex, str, bytes, torch tensors, dtypes and
devices, numpy arrays and numbers. Anything else is refused, with its place in the state. torch and numpy are those that the
script has loaded; neither is imported.

A list in JSON stands for what JSON does not know, and for a list: its first item is the kind.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict

from holdfast.core.page.stash import ALIGN

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

PLAIN = (type(None), bool, int, float, str)

# Kinds of what is not JSON's own, as they stand in a stash.
DICT, ORDERED_DICT, COUNTER = "d", "o", "C"
LIST, TUPLE, SET, FROZENSET = "l", "t", "s", "f"
BYTES, BYTEARRAY, COMPLEX = "b", "B", "c"
TENSOR, SIZE, DTYPE, DEVICE = "T", "z", "y", "v"
NUMBER, ARRAY = "n", "N"

RECORD = "V"  # numpy's letter for types that are no plain numbers.

SEQUENCES: dict[type, str] = {list: LIST, tuple: TUPLE}
SETS: dict[type, str] = {set: SET, frozenset: FROZENSET}
MADE_OF_ITEMS: dict[str, Callable[[list[Any]], Any]] = {LIST: list, TUPLE: tuple, SET: set, FROZENSET: frozenset}
MAPPINGS = {DICT: dict, ORDERED_DICT: OrderedDict, COUNTER: Counter}


class Unstashable(TypeError):
    """Something in a state that cannot be told in bytes alone."""


class Coder:
    """Makes text of a state, and notes where each array is to lie."""

    def __init__(self) -> None:
        self.sources: list[tuple[int, int, Any]] = []
        """Of each array: where it is to lie, its size in bytes, and itself (contiguous)."""
        self.size = 0
        self._seen: dict[tuple[Any, ...], int] = {}
        self._torch: Any = sys.modules.get("torch")
        self._numpy: Any = sys.modules.get("numpy")

    def code(self, value: Any, path: str = "state") -> Any:
        """`value` as JSON can tell it. Unstashable: it, or something in it, cannot be told."""
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind in SEQUENCES:
            return [SEQUENCES[kind], [self.code(item, f"{path}[{at}]") for at, item in enumerate(value)]]
        if kind in SETS:
            return [SETS[kind], [self.code(item, path) for item in value]]
        if kind in (bytes, bytearray):
            return [BYTES if kind is bytes else BYTEARRAY, self._place(len(value), value), len(value)]
        if kind is complex:
            return [COMPLEX, value.real, value.imag]
        if kind in (dict, Counter):  # MultiStepLR's milestones are a Counter
            return [DICT if kind is dict else COUNTER, self._items(value, path)]
        if kind is OrderedDict:
            # A module's state_dict() carries the versions of its parts beside its items.
            return [ORDERED_DICT, self._items(value, path), self.code(getattr(value, "_metadata", None), f"{path}._metadata")]
        return self._foreign(value, kind, path)

    def _items(self, items: dict[Any, Any], path: str) -> list[Any]:
        return [[self.code(key, f"a key of {path}"), self.code(item, f"{path}[{key!r}]")] for key, item in items.items()]

    def _foreign(self, value: Any, kind: type, path: str) -> Any:
        torch, numpy = self._torch, self._numpy
        if torch is not None:
            if isinstance(value, torch.Tensor):
                return self._tensor(value, kind, path)
            if kind is torch.Size:
                return [SIZE, list(value)]
            if kind is torch.dtype:
                return [DTYPE, _short(value)]
            if kind is torch.device:
                return [DEVICE, str(value)]
        if numpy is not None and (kind in (numpy.ndarray, numpy.memmap) or isinstance(value, numpy.generic)):
            return self._array(numpy.asarray(value), isinstance(value, numpy.generic), path)
        told = f"{kind.__module__}.{kind.__qualname__}"
        raise Unstashable(
            f"{path} is a {told}: a stash holds dicts, lists, numbers, text, bytes, torch tensors and numpy arrays, no pickles"
        )

    def _tensor(self, tensor: Any, kind: type, path: str) -> Any:
        torch = self._torch
        is_plain = kind in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
        if not is_plain or tensor.is_quantized or tensor.is_nested:
            raise Unstashable(
                f"{path} is a {kind.__name__} ({tensor.layout}): give its local, dense part, or use the storage of "
                "holdfast.integrations.torch_checkpoint"
            )
        if tensor.device.type == "meta":
            raise Unstashable(f"{path} is a tensor on the meta device, where it has no content")
        tensor = tensor.detach()
        told = [_short(tensor.dtype), list(tensor.shape), str(tensor.device)]
        # The same memory twice, as where two layers share a weight, is copied once.
        known = (
            *(tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device),
            *(tensor.is_conj(), tensor.is_neg()),
        )
        size = tensor.numel() * tensor.element_size()
        if known not in self._seen or not size:
            self._seen[known] = self._place(size, tensor.contiguous().resolve_conj().resolve_neg())
        return [TENSOR, self._seen[known], size, *told]

    def _array(self, array: Any, is_number: bool, path: str) -> Any:
        dtype, descr = array.dtype, self._numpy.lib.format.dtype_to_descr
        if dtype.hasobject:
            raise Unstashable(f"{path} is an array of {dtype}: a stash holds arrays of numbers, text, times and their records")
        # bfloat16 and its like go by name
        name = dtype.name if dtype.kind == RECORD and not dtype.name.startswith("void") else descr(dtype)
        array = self._numpy.ascontiguousarray(array).reshape(array.shape)
        return [NUMBER if is_number else ARRAY, self._place(array.nbytes, array), array.nbytes, name, list(array.shape)]

    def _place(self, size: int, source: Any) -> int:
        at = self.size
        self.size = -(-(at + size) // ALIGN) * ALIGN
        if size:
            self.sources.append((at, size, source))
        return at


def decode(told: Any, array_of: Callable[[list[Any], Any], Any], into: Any = None) -> Any:
    """The state that `told` tells. `array_of(told, into)` makes its arrays and bytes, `into` being what stands at the same
    place of the state given as `into`, if anything."""
    if not isinstance(told, list):
        return told
    kind, *rest = told
    if kind in MAPPINGS:
        return _mapping(kind, rest, array_of, into)
    if kind in MADE_OF_ITEMS:
        others = into if isinstance(into, (list, tuple)) and kind in (LIST, TUPLE) else ()
        items = [decode(item, array_of, others[at] if at < len(others) else None) for at, item in enumerate(rest[0])]
        return items if kind == LIST else MADE_OF_ITEMS[kind](items)
    if kind == COMPLEX:
        return complex(*rest)
    if kind in (SIZE, DTYPE, DEVICE):
        torch = loaded("torch")
        return torch.Size(rest[0]) if kind == SIZE else torch_dtype(rest[0]) if kind == DTYPE else torch.device(rest[0])
    return array_of(told, into)


def _mapping(kind: str, rest: list[Any], array_of: Callable[[list[Any], Any], Any], into: Any) -> dict[Any, Any]:
    others = into if isinstance(into, dict) else {}
    made: Any = MAPPINGS[kind]()
    for told_key, told in rest[0]:
        key = decode(told_key, array_of)
        made[key] = decode(told, array_of, others.get(key))
    if kind == ORDERED_DICT and rest[1] is not None:
        made._metadata = decode(rest[1], array_of)
    return made  # type: ignore


def torch_dtype(name: str) -> Any:
    """torch's type of that name. ValueError: that is something else of torch's."""
    torch = loaded("torch")
    if not isinstance(dtype := getattr(torch, name), torch.dtype):
        raise ValueError(f"{name!r} is no type")
    return dtype


def dtype_of(told: Any) -> Any:
    """numpy's: by its name, or for records by their fields."""
    form = loaded("numpy").lib.format
    return form.descr_to_dtype([_as_field(field) for field in told] if isinstance(told, list) else told)


def _as_field(told: list[Any]) -> tuple[Any, ...]:
    name, kind, *shape = told
    if isinstance(name, list):  # its title, too
        name = tuple(name)
    return (name, [_as_field(one) for one in kind] if isinstance(kind, list) else kind, *map(tuple, shape))


def loaded(name: str) -> Any:
    """A library that the script must have loaded, since the state needs it."""
    if name not in sys.modules:
        raise ImportError(f"the stashed state holds values of {name}: import {name} before you ask for it")
    return sys.modules[name]


def _short(dtype: Any) -> str:
    return str(dtype).rsplit(".", 1)[-1]
