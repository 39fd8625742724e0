"""How does one rank's state reach another? Over the script's own process group: no connection and no port of ours.

What each rank has is gathered from all. A state goes from one rank to one other: first its shape as text with all that is
small, then each large tensor as it lies in memory, received where it is to be. Nothing is pickled (`client.stash_code`).
"""

from __future__ import annotations

import json
import sys

from holdfast.client.stash_code import BYTEARRAY, BYTES, NUMBER, TENSOR, Coder, decode, dtype_of, loaded, torch_dtype

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

SMALL = 1 << 20
"""Bytes of a tensor that goes with the others in one message; a larger one goes by itself, and is not copied before."""


def gather(mine: Sequence[int]) -> list[list[int]]:
    """The same few numbers of every rank, by rank. Without a process group: one's own."""
    dist = _group()
    if dist is None:
        return [list(mine)]
    torch = loaded("torch")
    own = torch.tensor(mine, dtype=torch.int64, device=_carrier(dist))
    found = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(found, own)
    return [one.tolist() for one in found]


def has_group() -> bool:
    """Whether the script has joined its process group."""
    return _group() is not None


def _group() -> Any:
    """torch.distributed, where the script has a process group."""
    dist = sys.modules.get("torch.distributed")
    return dist if dist is not None and dist.is_available() and dist.is_initialized() else None


def _carrier(dist: Any) -> Any:
    """The device whose tensors the group carries: the CPU, or this rank's GPU."""
    torch = loaded("torch")
    kinds = {device.type for device in dist.group.WORLD._device_types}
    return torch.device("cpu") if "cpu" in kinds else torch.device("cuda", torch.cuda.current_device())


def send(state: Any, to: int) -> None:
    """Give `state` to the rank `to`, which calls `receive`. Unstashable: something in it is neither tensor nor plain value."""
    dist, torch = _group(), loaded("torch")
    device = _carrier(dist)
    coder = Coder()
    told = coder.code(state)
    large = [(at, size, source) for at, size, source in coder.sources if _is_large(source, size)]
    small = [(at, size, source) for at, size, source in coder.sources if not _is_large(source, size)]
    text = json.dumps({"state": told, "small": [one[:2] for one in small], "large": [one[0] for one in large]}).encode()
    packed = bytearray(text + b"".join(_bytes_of(source) for _, _, source in small))
    dist.send(torch.tensor([len(text), len(packed)], dtype=torch.int64, device=device), to)
    dist.send(torch.frombuffer(packed, dtype=torch.uint8).to(device), to)
    for _, _, tensor in large:
        dist.send(_flat(tensor).to(device), to)


def receive(source: int, into: Any) -> Any:
    """The state that the rank `source` sends. A tensor of `into` that fits is filled; `into` is torn while this goes on."""
    dist, torch = _group(), loaded("torch")
    device = _carrier(dist)
    sizes = torch.empty(2, dtype=torch.int64, device=device)
    dist.recv(sizes, source)
    text_bytes, all_bytes = sizes.tolist()
    packed = torch.empty(all_bytes, dtype=torch.uint8, device=device)
    dist.recv(packed, source)
    content = memoryview(_bytes_of(packed))
    header = json.loads(bytes(content[:text_bytes]))
    arrays = _Arrays(content[text_bytes:], header["small"])
    state = decode(header["state"], arrays.array, into)
    for at in header["large"]:
        first, *others = arrays.awaited[at]
        flat = _flat(first)
        if flat.device.type == device.type:
            dist.recv(flat, source)
        else:
            carried = torch.empty_like(flat, device=device)
            dist.recv(carried, source)
            flat.copy_(carried)
        for other in others:
            _flat(other).copy_(flat)
    return state


class _Arrays:
    """Makes the arrays of a state that is received."""

    def __init__(self, content: memoryview, small: list[list[int]]) -> None:
        self.awaited: dict[int, list[Any]] = {}  # Large tensors that are still to come, by where they lie in the state.
        self._small: dict[int, memoryview] = {}
        begin = 0
        for at, size in small:
            self._small[at] = content[begin : begin + size]
            begin += size

    def array(self, told: list[Any], into: Any) -> Any:
        """The array, bytes or number that `told` tells, `into` being what is there for it."""
        kind, at, size, *rest = told
        if kind == TENSOR:
            return self._tensor(at, size, rest, into)
        content = bytes(self._small[at]) if size else b""
        if kind in (BYTES, BYTEARRAY):
            return content if kind == BYTES else bytearray(content)
        numpy, (name, shape) = loaded("numpy"), rest
        found = numpy.frombuffer(content, dtype_of(name)).reshape(shape)
        return found[()] if kind == NUMBER else found.copy()

    def _tensor(self, at: int, size: int, told: list[Any], into: Any) -> Any:
        torch = loaded("torch")
        name, shape, was_on = told
        dtype = torch_dtype(name)
        fits = isinstance(into, torch.Tensor) and list(into.shape) == shape and into.dtype == dtype and into.is_contiguous()
        made = into if fits else torch.empty(shape, dtype=dtype, device=torch.device(was_on).type)
        if size and at in self._small:
            _flat(made).copy_(torch.frombuffer(bytearray(self._small[at]), dtype=torch.uint8))
        elif size:
            self.awaited.setdefault(at, []).append(made)
        return made


def _is_large(source: Any, size: int) -> bool:
    return size >= SMALL and isinstance(source, loaded("torch").Tensor)


def _flat(tensor: Any) -> Any:
    """Its bytes, as a view."""
    torch = loaded("torch")
    return tensor.detach().reshape(-1).view(torch.uint8)


def _bytes_of(source: Any) -> bytes | bytearray:
    if isinstance(source, loaded("torch").Tensor):
        content = bytearray(source.numel() * source.element_size())
        if content:
            loaded("torch").frombuffer(content, dtype=loaded("torch").uint8).copy_(_flat(source))
        return content
    return bytes(source) if isinstance(source, (bytes, bytearray)) else source.tobytes()
