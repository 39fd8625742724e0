"""A Hugging Face trainer under Holdfast: one callback, and every step, evaluation and save is seen.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/train_transformers.py --output /tmp/demo/transformers

The model is tiny and the data made up: what matters is that the trainer goes on from its last checkpoint.
"""

import argparse
import os

import torch
from torch import nn
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from holdfast.integrations.transformers import HoldfastCallback


class Line(nn.Module):
    """Four numbers in, one out; in a trainer's words a model returns a loss if it is told the labels."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.Linear(4, 1)

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = self.weights(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}


def data(count: int) -> list[dict[str, torch.Tensor]]:
    """What there is to learn: the sum of four numbers."""
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return [{"inputs": row, "labels": row.sum(dim=0, keepdim=True)} for row in inputs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="output", help="directory for checkpoints; the last one is gone on from")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10, help="steps between two checkpoints, and two evaluations")
    options = parser.parse_args()

    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        save_steps=options.save_every,
        eval_steps=options.save_every,
        eval_strategy="steps",
        per_device_train_batch_size=4,
        learning_rate=0.05,
        ddp_find_unused_parameters=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(
        model=Line(), args=arguments, train_dataset=data(64), eval_dataset=data(16), callbacks=[HoldfastCallback()]
    )
    last = get_last_checkpoint(options.output) if os.path.isdir(options.output) else None
    trainer.train(resume_from_checkpoint=last)
    loss = trainer.evaluate()["eval_loss"]  # by all ranks together
    if trainer.is_world_process_zero():
        print(f"finished: step {trainer.state.global_step}, loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
