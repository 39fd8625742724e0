"""How do a state's arrays get into a slot, and out of it? By memcpy from the CPU's memory, by its own stream from a GPU's.

New arrays are views of the slot, copied on write: page faults, not copying, dominate a restore, and a script that copies them
into its model never needs that memory. Before the slot is written again, a thread makes the script's own what it still has of
them (`Loan`).

torch and numpy are those that the script has loaded (`client.stash_code`); bytes need neither.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from _thread import allocate_lock
from math import prod
from weakref import ref

from holdfast.client.stash_code import BYTEARRAY, BYTES, NUMBER, TENSOR, dtype_of, loaded, torch_dtype
from holdfast.client.stash_memory import STEP_BYTES, can_populate, copy, in_large_pages, make_own, populate, read

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from holdfast.client.stash_memory import Slot


class Sender:
    """What is to be copied into a slot: `(at, size, array)` each."""

    def __init__(self, sources: list[tuple[int, int, Any]]) -> None:
        self.sources = sources
        self.is_late = any(_device_of(source) == "cuda" for _, _, source in sources)
        """Some of it comes later, by a GPU's stream."""
        self._events: list[Any] = []

    def send(self, slot: Slot, begin: int) -> None:
        """Copy them. What comes later has come when `wait` returns."""
        assert slot.map is not None
        moves = []
        devices = set()
        for at, size, source in self.sources:
            if (device := _device_of(source)) == "cpu":
                moves.append((slot.address + begin + at, _address(source), size))
            elif not device:
                slot.map[begin + at : begin + at + size] = source
            else:
                if device == "cuda":
                    slot.pin(lambda: _registered(slot))
                target = _bytes_of(slot.map, begin + at, size).view(source.dtype).view(source.shape)
                target.copy_(source, non_blocking=device == "cuda")
                devices.add(source.device)
        torch = sys.modules.get("torch")
        for device in devices:
            if device.type == "cuda" and torch is not None:
                event = torch.cuda.Event()
                event.record(torch.cuda.current_stream(device))
                self._events.append(event)
        copy(moves)
        self.sources = []

    def wait(self) -> None:
        for event in self._events:
            event.synchronize()


def _registered(slot: Slot) -> Callable[[], object]:
    """Let GPUs write to the slot by themselves: about ten times as fast, and the CPU goes on. Returns what ends that."""
    runtime, address = loaded("torch").cuda.cudart(), slot.address
    code = runtime.cudaHostRegister(address, slot.capacity, 0)
    if int(getattr(code, "value", code)):
        return lambda: None  # it goes without
    return lambda: runtime.cudaHostUnregister(address)


def _device_of(source: Any) -> str:
    """cpu · cuda · … ; empty: it is plain bytes."""
    if isinstance(source, (bytes, bytearray)):
        return ""
    device = getattr(source, "device", None)
    return getattr(device, "type", "cpu")


def _address(source: Any) -> int:
    return int(source.data_ptr() if hasattr(source, "data_ptr") else source.ctypes.data)


def _bytes_of(area: mmap.mmap, at: int, size: int) -> Any:
    """A part of `area` as a torch tensor of bytes."""
    torch = loaded("torch")
    return torch.frombuffer(area, dtype=torch.uint8, count=size, offset=at)


class Damaged(ValueError):
    """What a stashed state says of itself cannot be. Nothing has been copied for it."""


def _compare(size: int, shape: Any, element_bytes: int) -> None:
    """Damaged: an array of that shape has another size, or there is no such shape."""
    is_one = isinstance(shape, list) and all(type(one) is int and one >= 0 for one in shape)
    if not is_one or prod(shape) * element_bytes != size:
        raise Damaged(f"{size} bytes are no array of the shape {shape!r} and {element_bytes} bytes each")


class Fetcher:
    """Makes arrays of a slot's bytes. Those of the CPU have their content when `finish` returns."""

    def __init__(self, slot: Slot, begin: int, end: int, map_location: Any) -> None:
        assert slot.map is not None
        self.area, self.begin = slot.map, begin
        self.slot, self.end = slot, end
        self.map_location = map_location
        self.moves: list[tuple[int, int, int]] = []
        """What is to be copied into arrays that are there: to which address, from where in the file, how much."""
        self.loan: Loan | None = None  # What is lent to new arrays. None: nothing has been.

    def fetch(self, told: list[Any], into: Any) -> Any:
        """The array, bytes or number that `told` tells."""
        kind, at, size, *rest = told
        if not (type(at) is type(size) is int and at >= 0 and size >= 0 and self.begin + at + size <= self.end):
            raise Damaged(f"it tells of {size!r} bytes at {at!r}, of {self.end - self.begin}")
        if kind in (BYTES, BYTEARRAY):
            found = self.area[self.begin + at : self.begin + at + size]
            return found if kind == BYTES else bytearray(found)
        if kind == TENSOR:
            return self._tensor(at, size, rest, into)
        return self._array(kind, at, size, rest, into)

    def _tensor(self, at: int, size: int, told: list[Any], into: Any) -> Any:
        torch = loaded("torch")
        name, shape, was_on = told
        dtype, device = torch_dtype(name), torch.device(was_on if self.map_location is None else self.map_location)
        _compare(size, shape, torch.empty(0, dtype=dtype).element_size())
        fits = isinstance(into, torch.Tensor) and list(into.shape) == shape and into.dtype == dtype
        if not size:
            return into if fits else torch.empty(shape, dtype=dtype, device=device)
        if fits and into.device.type == "cpu" and into.is_contiguous() and not into.is_conj() and not into.is_neg():
            self.moves.append((into.data_ptr(), self.slot.at + self.begin + at, size))
            return into
        if fits or device.type != "cpu":
            there = _bytes_of(self.area, self.begin + at, size).view(dtype).view(shape)
            if not fits:
                return there.to(device)
            with torch.no_grad():
                into.copy_(there)
            return into
        return _bytes_of(self._lent(at, size), self.begin + at, size).view(dtype).view(shape)

    def _array(self, kind: str, at: int, size: int, told: list[Any], into: Any) -> Any:
        numpy = loaded("numpy")
        name, shape = told
        dtype = dtype_of(name)
        _compare(size, shape, -1 if dtype.hasobject else dtype.itemsize)
        if kind == NUMBER:
            return numpy.frombuffer(self.area[self.begin + at : self.begin + at + size], dtype)[0]
        fits = isinstance(into, numpy.ndarray) and list(into.shape) == shape and into.dtype == dtype
        if fits and into.flags.c_contiguous and into.flags.writeable:
            self.moves.append((into.ctypes.data, self.slot.at + self.begin + at, size))
            return into
        if not size:
            return numpy.empty(shape, dtype)
        return numpy.frombuffer(self._lent(at, size), dtype, size // dtype.itemsize, self.begin + at).reshape(shape)

    def _lent(self, at: int, size: int) -> mmap.mmap:
        """Where a new array of so many bytes lies."""
        if self.loan is None:
            self.loan = Loan(self.slot, self.end)
        self.loan.parts.append((self.begin + at, size))
        return self.loan.area

    def finish(self) -> Loan | None:
        """Copy what there is to copy. What is lent from here on, if anything."""
        read(self.slot.fd, self.moves)
        if self.loan is not None:
            self.loan.begin()
        return self.loan


class Loan:
    """A slot's memory as new arrays have it: theirs as soon as they write to it, or `settle` does. One mapping for all, and the
    last of them takes it along."""

    def __init__(self, slot: Slot, end: int) -> None:
        self.lends = can_populate()
        """Or the kernel cannot make it theirs behind their back (before 5.14), and it is copied at once."""
        flags, fd, at = (mmap.MAP_PRIVATE, slot.fd, slot.at) if self.lends else (mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self.area = mmap.mmap(fd, end, flags=flags, offset=at)
        in_large_pages(self.area)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.area))
        self.slot, self.end = slot, end
        self.parts: list[tuple[int, int]] = []
        """What arrays have of it: where it begins, from the slot's beginning, and its size."""
        self.still = ref(self.area)
        self.settling = allocate_lock()
        self.is_over = not self.lends

    def begin(self) -> None:
        """All arrays are made: only they keep the mapping from here on."""
        if self.lends:
            populate(self.address, self.end, to_write=False)
        else:
            read(self.slot.fd, ((self.address + at, self.slot.at + at, size) for at, size in self.parts))
        del self.area

    def settle(self) -> bool:
        """Have all that arrays still have of it be their own. False: there is no memory for that, and it stays lent."""
        with self.settling:
            try:
                while self.parts and not self.is_over:
                    at, size = self.parts[-1]
                    area = self.still()  # not to go meanwhile
                    if area is None:
                        break
                    make_own(self.address + at, min(size, STEP_BYTES))
                    del area
                    self.parts[-1:] = [(at + STEP_BYTES, size - STEP_BYTES)] if size > STEP_BYTES else []
                self.is_over = True
            except OSError:
                pass
            return self.is_over
