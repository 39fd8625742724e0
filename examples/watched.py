"""A plain training loop that says how it gets on: heartbeats, steps and sections, and what it asks of its job.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/watched.py

An ordinary PyTorch loop needs none of it: its steps are seen without a word. It is worth its few lines where a loop is not
ordinary: where a step takes minutes, where nothing is PyTorch, or where the script knows better what has gone wrong.
"""

import argparse
import os
import time

from holdfast.client import control, heartbeat, progress, section


@section("load", limit_s=300)
def load() -> list[float]:
    """A section may be a decorator, and have a limit of its own: longer than that is a hang."""
    return [0.1 * number for number in range(100)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=5, help="steps between two checkpoints")
    parser.add_argument("--give-up-at", type=int, default=0, help="step at which the loss makes no sense any more; 0: none")
    options = parser.parse_args()

    data, loss = load(), 1.0
    for step in range(1, options.steps + 1):
        for value in data:
            loss *= 1.0 - 0.001 * value
            heartbeat()  # within a long step: a store to shared memory, well below a microsecond
        if step == options.give_up_at:
            control.stop_job(f"the loss is {loss:.3f} at step {step}: no restart would help")
            time.sleep(60)  # it is acted on at once
        progress(step)  # a step is done; counts as a heartbeat, and is what `holdfast status` shows
        if step % options.save_every == 0:
            with section("checkpoint"):  # without a limit: one is learned from how long it takes
                pass  # save here
    if os.environ["RANK"] == "0":
        print(f"finished: {options.steps} steps, loss {loss:.6f}", flush=True)


if __name__ == "__main__":
    main()
