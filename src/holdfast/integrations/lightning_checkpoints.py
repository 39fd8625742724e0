"""How does a Lightning trainer save checkpoints that stay whole and new? By `client.commit`.

trainer = Trainer(plugins=[CommittedCheckpointIO()])
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.client import commit

if TYPE_CHECKING:

    class TorchCheckpointIO:
        """Lightning's."""

        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None: ...

else:
    # Lightning goes by two names, and a trainer of the one takes no plugins of the other.
    _found = "pytorch_lightning" if "pytorch_lightning" in sys.modules else "lightning.pytorch"
    TorchCheckpointIO = importlib.import_module(f"{_found}.plugins.io").TorchCheckpointIO

__all__ = ["CommittedCheckpointIO"]


class CommittedCheckpointIO(TorchCheckpointIO):
    """Lightning's own way to save, aside. What goes to no folder of this host's (`s3://…`) is saved as always."""

    def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
        """Replace `path` in one step."""
        if "://" in str(path):
            super().save_checkpoint(checkpoint, path, storage_options)
            return
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with commit(path) as aside:
            super().save_checkpoint(checkpoint, aside, storage_options)
