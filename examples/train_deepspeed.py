"""A training loop of DeepSpeed (ZeRO 1), which goes on from its last checkpoint.

    holdfast wrap --max-restarts 3 -- deepspeed --num_gpus 2 train_deepspeed.py --output /tmp/demo/deepspeed

The model is tiny and the data made up: what matters is that the job goes on after a rank was lost (`--fail-at`).
"""

import argparse
import os
import signal

import deepspeed
import torch

CONFIG = {
    "train_micro_batch_size_per_gpu": 8,
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="output", help="directory for checkpoints")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--fail-at", type=int, default=0, help="the last rank kills itself before it saves this step, once")
    parser.add_argument("--local_rank", type=int, default=0, help="given by `deepspeed`")
    options = parser.parse_args()

    model = torch.nn.Linear(4, 1)
    engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=CONFIG)
    _, kept = engine.load_checkpoint(options.output)  # the newest that is whole; there may be none
    done = kept["step"] if kept else 0
    last = engine.global_rank == engine.world_size - 1
    if engine.global_rank == 0:
        print(f"{engine.world_size} ranks: begins at step {done}", flush=True)

    for step in range(done + 1, options.steps + 1):
        engine.backward(engine(torch.randn(8, 4, device=engine.device)).square().mean())
        engine.step()
        if step == options.fail_at and last and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
            os.kill(os.getpid(), signal.SIGKILL)
        engine.save_checkpoint(options.output, client_state={"step": step})
    if engine.global_rank == 0:
        print(f"finished: {options.steps} steps")


if __name__ == "__main__":
    main()
