"""Where do a rank's local checkpoints lie? In a folder of its own, `ROOT/SESSION/RANK`, a file for each part that it keeps.

A part is written beside its place and moved there when it is whole and on the disk.
"""

from __future__ import annotations

import fcntl
import logging
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from holdfast.checkpointing.local import state_file
from holdfast.checkpointing.local.base_state_dict import TensorAwareStateDict
from holdfast.checkpointing.local.ckpt_managers.base_manager import (
    BaseCheckpointManager,
    CheckpointingException,
    CkptID,
    SameMachineReplicationException,
)
from holdfast.checkpointing.local.replication.strategies import ReplicationStrategy

logger = logging.getLogger(__name__)

DIGITS = 7  # Of an iteration in a file's name, so that names sort.


class LocalCheckpointManager(BaseCheckpointManager):
    """In `root_local_ckpt_dir`, on a disk of this node's or in its memory (/dev/shm). `session_id` tells apart the trainings
    that use one folder."""

    def __init__(
        self,
        root_local_ckpt_dir: str | os.PathLike[str],
        session_id: str = "",
        repl_strategy: ReplicationStrategy | None = None,
    ) -> None:
        super().__init__(session_id, repl_strategy)
        self.root_local_ckpt_dir = root_local_ckpt_dir

    @property
    def local_ckpt_dir(self) -> Path:
        return Path(self.root_local_ckpt_dir, self.session_id, str(self.rank))

    def _my_ckpt_ids(self) -> Iterable[CkptID]:
        return [self._filename_to_id(path.name) for path in self._files() if re.fullmatch(r"iter_\d+_\d+_local\.pt", path.name)]

    def _files(self) -> list[Path]:
        self.local_ckpt_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        return [path for path in self.local_ckpt_dir.iterdir() if path.is_file()]

    def _load(self, ckpt_id: CkptID) -> TensorAwareStateDict:
        path = self._local_ckpt_path_from_id(ckpt_id)
        try:
            state: TensorAwareStateDict = state_file.read(path)
        except (OSError, state_file.BadFile) as error:
            raise CheckpointingException(f"the local checkpoint {path} cannot be read: {error}") from error
        return state

    def _save(self, state_dict: TensorAwareStateDict, ckpt_id: CkptID) -> None:
        self.local_ckpt_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
        beside, path = (self._local_ckpt_path_from_id(ckpt_id, is_dirty) for is_dirty in (True, False))
        with open(beside, "ab") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # one that a killed rank has left is nobody's
            except OSError as error:
                raise SameMachineReplicationException(ckpt_id) from error
            file.truncate(0)
            state_file.write(state_dict, file)
            logger.info("Renaming %s to %s", beside, path)
            beside.rename(path)

    def _cleanup(self, iteration: int) -> None:
        self._remove(lambda saved: saved < iteration)

    def _cleanup_failed_save(self, iteration: int) -> None:
        self._remove(lambda saved: saved == iteration)

    def _remove(self, is_old: Any) -> None:
        for path in self._files():
            if re.fullmatch(r"iter_\d+_\d+_local.*\.pt", path.name) and is_old(self._filename_to_id(path.name)[0]):
                path.unlink(missing_ok=True)

    def _filename_from_template(self, iteration: int | str, rank: int | str, extra_suffix: str = "") -> str:
        return f"iter_{str(iteration).zfill(DIGITS) if isinstance(iteration, int) else iteration}_{rank}_local{extra_suffix}.pt"

    def _local_ckpt_path_from_id(self, ckpt_id: CkptID, is_dirty: bool = False) -> Path:
        iteration, rank, session_id = ckpt_id
        assert session_id == self.session_id
        return self.local_ckpt_dir / self._filename_from_template(iteration, rank, ".dirty" if is_dirty else "")

    def _filename_to_id(self, filename: str) -> CkptID:
        _, iteration, rank, _ = filename.split("_", 3)
        return int(iteration), int(rank), self.session_id
