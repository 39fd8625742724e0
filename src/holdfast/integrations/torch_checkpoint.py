"""How does a script that uses torch.distributed.checkpoint leave its state in memory? By a storage for `save` and `load`.

    from holdfast.integrations.torch_checkpoint import StashReader, StashWriter, latest_step

    dcp.save(state, storage_writer=StashWriter(step))
    if latest_step() is not None:
        dcp.load(state, storage_reader=StashReader())

Each rank keeps all that it would itself load again, shards of FSDP and DTensor included, and what other ranks have too: so
no rank needs another's memory. It is for the next life of the same ranks; to start with other ranks, or sharded otherwise, load
a checkpoint from disk. What is no tensor is encoded by torch's planner, as in any of its checkpoints.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import torch
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from holdfast.client import stash

if TYPE_CHECKING:
    import os

__all__ = ["StashReader", "StashWriter", "latest_step"]


def latest_step() -> int | None:
    """The newest step that all ranks can load. None: there is none, so load a checkpoint, or begin."""
    return stash.latest_step()


def _key(index: MetadataIndex) -> tuple[str, tuple[int, ...]]:
    """Which piece of which tensor."""
    return index.fqn, tuple(index.offset or ())


class StashWriter(StorageWriter):
    """Keeps the state as that of `step`. `blocking`, and what becomes of it, are as in `stash.save`; `kept` says whether it
    was kept: if not, training goes on all the same."""

    def __init__(self, step: int, *, blocking: bool = False) -> None:
        self.step, self.blocking = step, blocking
        self.kept = False
        self._own: list[WriteItem] = []

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """There is no place to choose."""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Remember all that this rank has: the global plan leaves out what another rank has, too."""
        if getattr(plan, "usable", True):
            self._own = list(plan.items)
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """As they are."""
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Stash this rank's whole state."""
        pieces = [_piece(item, planner) for item in self._own or plan.items]
        self.kept = stash.save(self.step, {"pieces": pieces}, blocking=self.blocking)
        done: Future[list[WriteResult]] = Future()
        done.set_result([WriteResult(index=item.index, size_in_bytes=0, storage_data=None) for item in plan.items])
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Each rank's part tells by itself what it holds."""

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """It is never chosen by a path."""
        return False


def _piece(item: WriteItem, planner: SavePlanner) -> dict[str, Any]:
    found = planner.resolve_data(item)
    name, offset = _key(item.index)
    if isinstance(found, io.BytesIO):
        return {"name": name, "bytes": found.getvalue()}
    told = item.tensor_data
    assert told is not None
    chunk = told.chunk
    sizes, whole = list(chunk.sizes), list(told.size)
    return {"name": name, "key": list(offset), "offsets": list(chunk.offsets), "sizes": sizes, "whole": whole, "tensor": found}


class StashReader(StorageReader):
    """Loads `latest_step()`. RuntimeError: there is none, or this rank wants what it did not have when it was saved."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[str, tuple[int, ...]], Any] = {}

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """There is no place to choose."""

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """What this rank has: with the same ranks and shards as before it is all that it asks for."""
        found = stash.latest(map_location="cpu")
        if found is None or not isinstance(found[1], dict) or "pieces" not in found[1]:
            raise RuntimeError("no stashed state that all ranks can load: call `latest_step()` first")
        known: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {}
        for piece in found[1]["pieces"]:
            name = piece["name"]
            if "bytes" in piece:
                known[name] = BytesStorageMetadata()
                self._pieces[name, ()] = piece["bytes"]
                continue
            tensor = piece["tensor"]
            chunk = ChunkStorageMetadata(offsets=torch.Size(piece["offsets"]), sizes=torch.Size(piece["sizes"]))
            if name not in known:
                properties = TensorProperties(dtype=tensor.dtype)
                known[name] = TensorStorageMetadata(properties=properties, size=torch.Size(piece["whole"]), chunks=[])
            about = known[name]
            assert isinstance(about, TensorStorageMetadata)
            about.chunks.append(chunk)
            self._pieces[name, tuple(piece["offsets"])] = tensor
        return Metadata(state_dict_metadata=known)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Nothing to set up."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """As it is."""
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """As they are."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fill the state."""
        for item in plan.items:
            piece = self._pieces.get(_key(item.storage_index))
            if piece is None:
                raise RuntimeError(f"{item.storage_index.fqn}: this rank did not have that part when its state was stashed")
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(piece))
                continue
            for dimension, (begin, length) in enumerate(zip(item.storage_offsets, item.lengths)):
                piece = piece.narrow(dimension, begin, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(piece)
            planner.commit_tensor(item, target)
        self._pieces = {}
        done: Future[None] = Future()
        done.set_result(None)
        return done

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """It is never chosen by a path."""
        return False
