"""How does a state become a file, and bytes for a peer? A `BasicTensorAwareStateDict` of plain values and tensors: no pickle.

    MAGIC   length and checksum of the header   header: JSON (`client.stash_code`)   arrays, as they lie in memory

Nothing in such a file is run. Any other state, of a class of the script's own, is left to torch.save, and read by torch.load:
that runs what the file says, so keep others out of the folder.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import torch

from holdfast.checkpointing.local.base_state_dict import TensorAwareStateDict
from holdfast.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict, TensorPlaceholder
from holdfast.client.stash_code import BYTES, NUMBER, TENSOR, Coder, Unstashable, decode, dtype_of, loaded

MAGIC = b"holdfast state 1"
_PREFIX = struct.Struct("<16sQQI")  # The magic, the header's size, the arrays' size, the header's checksum.
ALIGN = 4096


class BadFile(Exception):
    """What is there is no whole state."""


def write(state: TensorAwareStateDict, file: BinaryIO) -> None:
    """Write it, and have it on the disk. Its tensors are on the CPU."""
    try:
        parts = list(_parts(state)) if type(state) is BasicTensorAwareStateDict else None
    except Unstashable:
        parts = None
    if parts is None:
        torch.save(state, file)
    for part in parts or ():
        file.write(part)
    file.flush()
    os.fsync(file.fileno())


def read(path: str | os.PathLike[str]) -> Any:
    """What was written there; its tensors are on the CPU. BadFile: it is not whole."""
    with open(path, "rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return torch.load(path, map_location="cpu", weights_only=False)
        try:
            # A mapping of its own: what is written to the tensors does not reach the file.
            area = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except ValueError as error:
            raise BadFile(f"{path}: {error}") from error
    return _state(area, str(path))


def to_bytes(state: TensorAwareStateDict) -> bytes | None:
    """A hollow or a whole state for a peer. None: it cannot be told without pickle."""
    try:
        return b"".join(_parts(state)) if type(state) is BasicTensorAwareStateDict else None
    except Unstashable:
        return None


def from_bytes(told: bytes | bytearray) -> BasicTensorAwareStateDict:
    """What a peer has told."""
    return _state(bytearray(told), "what a rank has sent")


def _parts(state: BasicTensorAwareStateDict) -> Iterator[Any]:
    coder = Coder()
    fields = {"state": state.state_dict, "devices": state._devices, "hollow": state._is_hollow}
    header = json.dumps({name: coder.code(_told(value), name) for name, value in fields.items()}).encode()
    begin = -(-(_PREFIX.size + len(header)) // ALIGN) * ALIGN
    yield _PREFIX.pack(MAGIC, len(header), coder.size, zlib.crc32(header)) + header.ljust(begin - _PREFIX.size, b"\0")
    end = 0
    for at, size, source in coder.sources:
        yield b"\0" * (at - end)
        if isinstance(source, torch.Tensor):
            source = source.cpu()
        yield source if isinstance(source, (bytes, bytearray)) else bytes_of(source, size)
        end = at + size
    yield b"\0" * (coder.size - end)


_PLACEHOLDER = "\0tensor"  # The key of a dict that stands for a tensor which is not there.


def _told(value: Any) -> Any:
    """With what the code has no word for said by dicts."""
    if isinstance(value, TensorPlaceholder):
        return {_PLACEHOLDER: [list(value.shape), value.dtype, value.device]}
    return _mapped(value, _told)


def _heard(value: Any) -> Any:
    if isinstance(value, dict) and value.keys() == {_PLACEHOLDER}:
        shape, dtype, device = value[_PLACEHOLDER]
        return TensorPlaceholder(tuple(shape), dtype, device)
    return _mapped(value, _heard)


def _mapped(value: Any, made: Callable[[Any], Any]) -> Any:
    """What `made` makes of all in it: in another dict or list of the same kind."""
    if type(value) in (dict, OrderedDict):
        found = type(value)((name, made(one)) for name, one in value.items())
        if hasattr(value, "_metadata"):
            found._metadata = value._metadata
        return found
    return [made(one) for one in value] if type(value) is list else value


def bytes_of(source: Any, size: int) -> memoryview:
    """The bytes of a tensor or an array, where they are."""
    address = source.data_ptr() if isinstance(source, torch.Tensor) else source.ctypes.data
    return memoryview((ctypes.c_char * size).from_address(address))


def _state(area: Any, where: str) -> BasicTensorAwareStateDict:
    if len(area) < _PREFIX.size:
        raise BadFile(f"{where}: it is not whole")
    _, header_size, size, crc = _PREFIX.unpack(area[: _PREFIX.size])
    header = bytes(area[_PREFIX.size : _PREFIX.size + header_size])
    begin = -(-(_PREFIX.size + header_size) // ALIGN) * ALIGN
    if len(area) < begin + size or zlib.crc32(header) != crc:
        raise BadFile(f"{where}: it is not whole")

    def array(told: list[Any], into: Any) -> Any:
        kind, at, length, *rest = told
        if kind == TENSOR:
            dtype, shape = getattr(torch, rest[0]), rest[1]
            if not length:
                return torch.empty(shape, dtype=dtype)
            return torch.frombuffer(area, dtype=torch.uint8, count=length, offset=begin + at).view(dtype).view(shape)
        found = bytes(area[begin + at : begin + at + length])
        if kind == BYTES:
            return found
        return bytearray(found) if len(rest) == 0 else _numpy(kind, found, rest)

    fields = {name: _heard(decode(told, array)) for name, told in json.loads(header).items()}
    made = BasicTensorAwareStateDict(fields["state"])
    made._devices, made._is_hollow = fields["devices"], fields["hollow"]
    return made


def _numpy(kind: str, found: bytes, told: list[Any]) -> Any:
    name, shape = told
    array = loaded("numpy").frombuffer(bytearray(found), dtype_of(name))
    return array[0] if kind == NUMBER else array.reshape(shape)
