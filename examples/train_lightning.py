"""A Lightning trainer under Holdfast: one callback, by NVRx's name, and every batch and every checkpoint is seen.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/train_lightning.py --output /tmp/demo/lightning

With --sections the phases are watched, each with a limit of its own, which the job is given:

    holdfast run --ft-rank-section-timeouts setup:600,step:60,checkpointing:300 --ft-rank-out-of-section-timeout 300 \\
        --nproc-per-node 2 --max-restarts 3 examples/train_lightning.py --output /tmp/demo/lightning --sections

The model is tiny and the data made up: what matters is that the trainer goes on from its last checkpoint, and that limits are
calculated from what was seen, and loaded by the next run.
"""

import argparse
import logging
import os

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from holdfast.fault_tolerance import WorkloadAction, WorkloadControlRequest
from holdfast.ptl_resiliency import FaultToleranceCallback, FaultToleranceSectionsCallback, SimulatedFaultParams


class Line(LightningModule):
    """Learns the sum of four numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = torch.nn.Linear(4, 1)

    def loss(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.weights(batch[0]), batch[0].sum(dim=1, keepdim=True))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.05)


def data(count: int) -> DataLoader:
    return DataLoader(TensorDataset(torch.randn(count, 4, generator=torch.Generator().manual_seed(0))), batch_size=4)


def judge(error: BaseException) -> WorkloadControlRequest:
    """What an exception asks of the job: a wrong number is wrong again after a restart."""
    action = WorkloadAction.ShutdownWorkload if isinstance(error, ArithmeticError) else WorkloadAction.Continue
    return WorkloadControlRequest(action, description=f"{type(error).__name__}: {error}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="output", help="directory for checkpoints and limits; the last one is gone on from")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10, help="steps between two checkpoints")
    parser.add_argument("--sections", action="store_true", help="watch phases instead of heartbeats")
    parser.add_argument("--fault", default="", help="rank_killed, rank_hung or random: to see what becomes of it")
    parser.add_argument("--fault-after", type=float, default=3.0, help="seconds until then, in the job's first life")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")

    os.makedirs(options.output, exist_ok=True)
    fault = None
    if options.fault and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        fault = SimulatedFaultParams(options.fault, base_delay=options.fault_after)
    shared = {
        "autoresume": "FAULT_TOL_FINISHED_FLAG_FILE" in os.environ,
        "calculate_timeouts": True,
        "exp_dir": options.output,
        "simulated_fault_params": fault,
    }
    watched = (
        FaultToleranceSectionsCallback(**shared, exc_handling_policy=judge)
        if options.sections
        else FaultToleranceCallback(**shared)
    )
    trainer = Trainer(
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=int(os.environ["LOCAL_WORLD_SIZE"]),
        num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
        strategy="ddp",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_steps=options.steps,
        max_epochs=-1,
        callbacks=[watched, ModelCheckpoint(options.output, save_last=True, every_n_train_steps=options.save_every)],
    )
    last = os.path.join(options.output, "last.ckpt")
    trainer.fit(Line(), data(128), data(16), ckpt_path=last if os.path.exists(last) else None)
    if trainer.is_global_zero:
        print(f"finished: step {trainer.global_step}, loss {trainer.callback_metrics['loss']:.6f}", flush=True)


if __name__ == "__main__":
    main()
