"""A Lightning trainer whose ranks keep their processes when another fails: `InPlaceCallback`, and `run_in_place` around it.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/in_place_lightning.py --fail-at 5

The model is tiny and the data made up: what matters is that the loss is the same with --fail-at and without.
"""

import argparse
import os
import signal

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch.utils.data import DataLoader, TensorDataset

from holdfast import client
from holdfast.integrations.lightning_in_place import InPlaceCallback

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--fail-at", type=int, default=-1, help="the last rank kills itself in this step, once")
options = parser.parse_args()


class Line(LightningModule):
    """Learns the sum of four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Linear(4, 1)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        is_last = self.global_rank == self.trainer.world_size - 1
        if self.global_step == options.fail_at and is_last and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.nn.functional.mse_loss(self.weights(batch[0]), batch[0].sum(dim=1, keepdim=True))

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("loss", self.training_step(batch, index), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.05)


def data(count: int, shuffle: bool) -> DataLoader:
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(inputs), batch_size=4, shuffle=shuffle)


def train(life: client.Life) -> None:
    seed_everything(0, verbose=False)
    trainer = Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", 1)),
        strategy="ddp",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_epochs=options.epochs,
        callbacks=[InPlaceCallback(life)],
    )
    print(f"life {life.number} of process {os.getpid()}, rank {trainer.global_rank}", flush=True)
    trainer.fit(Line(), data(64, shuffle=True), data(16, shuffle=False))
    if trainer.is_global_zero:
        print(f"finished: step {trainer.global_step}, loss {trainer.callback_metrics['loss']:.12f}", flush=True)


client.run_in_place(train)
