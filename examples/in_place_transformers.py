"""A Hugging Face trainer whose ranks keep their processes when another fails: `train_in_place`, and `run_in_place` around it.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/in_place_transformers.py --fail-at 5

The model is tiny and the data made up: what matters is that the loss is the same with --fail-at and without.
"""

import argparse
import os
import signal

import torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments

from holdfast import client
from holdfast.integrations.transformers_in_place import train_in_place

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--output", default="output", help="directory that the trainer wants")
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--fail-at", type=int, default=-1, help="the last rank kills itself in this step, once")
options = parser.parse_args()


class Line(nn.Module):
    """Four numbers in, one out; in a trainer's words a model returns a loss if it is told the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.weights(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


class Fails(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        is_last = args.process_index == args.world_size - 1
        if state.global_step == options.fail_at and is_last and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)


def data(count: int) -> list[dict[str, torch.Tensor]]:
    """What there is to learn: the sum of four numbers."""
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return [{"inputs": row, "labels": row.sum(dim=0, keepdim=True)} for row in inputs]


def train(life: client.Life) -> None:
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=options.output,
        num_train_epochs=options.epochs,
        save_strategy="no",
        per_device_train_batch_size=4,
        learning_rate=0.05,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(model=Line(), args=arguments, train_dataset=data(64), eval_dataset=data(16), callbacks=[Fails()])
    print(f"life {life.number} of process {os.getpid()}, rank {arguments.process_index}", flush=True)
    train_in_place(trainer, life)
    loss = trainer.evaluate()["eval_loss"]  # by all ranks together
    if trainer.is_world_process_zero():
        print(f"finished: step {trainer.state.global_step}, loss {loss:.12f}", flush=True)


client.run_in_place(train)
