"""A training loop of Hugging Face Accelerate, which goes on from its last checkpoint.

    holdfast wrap --max-restarts 3 -- accelerate launch --num_processes 2 train_accelerate.py --output /tmp/demo/accelerate

The model is tiny and the data made up: what matters is that the job goes on after a rank was lost (`--fail-at`).
"""

import argparse
import os
import signal
from pathlib import Path

import torch
from accelerate import Accelerator

from holdfast import client


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=Path("output"), help="directory for checkpoints")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--fail-at", type=int, default=0, help="the last rank kills itself before it saves this step, once")
    options = parser.parse_args()

    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)

    newest = options.output / "newest"  # the name of the last checkpoint that is whole
    done = 0
    if newest.exists():
        accelerator.load_state(options.output / newest.read_text())
        done = int(newest.read_text())
    ranks, last = accelerator.num_processes, accelerator.process_index == accelerator.num_processes - 1
    accelerator.print(f"{ranks} ranks, {accelerator.mixed_precision}: begins at step {done}", flush=True)

    for step in range(done + 1, options.steps + 1):
        accelerator.backward(model(torch.randn(8, 4, device=accelerator.device)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
        if step == options.fail_at and last and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        accelerator.save_state(options.output / str(step))
        accelerator.wait_for_everyone()
        if accelerator.is_main_process:
            with client.commit(newest) as file:
                Path(file).write_text(str(step))
    accelerator.end_training()
    accelerator.print(f"finished: {options.steps} steps")


if __name__ == "__main__":
    main()
