"""What a rank of the campaign writes down, and the orders that it takes. Used by `light.py` and `ddp.py` beside it.

lives/ROUND.RANK.PID.json   who it is; beside it `.stamps`: its first and last moment (monotonic, one kernel)
saves                       one line for each checkpoint: when, step, round, pid
order.RANK                  what a rank is to do to itself: {"what": "segfault", "arguments": [], "number": 0}
finish                      the job may end
"""

import json
import os
import struct
import time

ITEMS = 12
RATE = 0.05


def item(step, number):
    """One item of the step's batch: what is seen, and what it should give."""
    x = 1.0 + number / ITEMS
    return x, 3.0 * x + ((step * 7 + number * 5) % 11) / 50.0


def gradient(weight, step, numbers):
    """(gradient, loss) of these items, each a share of the batch's mean."""
    slope = loss = 0.0
    for number in numbers:
        x, y = item(step, number)
        slope += 2.0 * (weight * x - y) * x / ITEMS
        loss += (weight * x - y) ** 2 / ITEMS
    return slope, loss


def undisturbed(steps):
    """(weight, loss) of a job to which nothing happens, after so many steps."""
    weight = loss = 0.0
    for step in range(steps):
        slope, loss = gradient(weight, step, range(ITEMS))
        weight -= RATE * slope
    return weight, loss


class Ledger:
    """This rank's."""

    def __init__(self, folder):
        self.folder, self.checkpoint = folder, os.environ.get("CHAOS_CHECKPOINTS", folder)
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.round = os.environ.get("HOLDFAST_ROUND") or os.environ["TORCHELASTIC_RESTART_COUNT"]
        self.key = f"{self.round}.{os.environ['MASTER_PORT']}"
        name = f"{folder}/lives/{self.round}.{self.rank}.{os.getpid()}"
        self._stamps = os.open(f"{name}.stamps", os.O_CREAT | os.O_RDWR)
        os.pwrite(self._stamps, struct.pack("dd", time.monotonic(), time.monotonic()), 0)
        life = {"rank": self.rank, "world": self.world, "round": self.round, "pid": os.getpid()}
        life |= {"node": os.environ.get("CHAOS_NODE", ""), "at": time.monotonic()}
        with open(f"{name}.tmp", "w") as file:
            json.dump(life, file)
        os.rename(f"{name}.tmp", f"{name}.json")
        self._saves = os.open(f"{folder}/saves", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._order = f"{folder}/order.{self.rank}"

    def stamp(self):
        """It runs."""
        os.pwrite(self._stamps, struct.pack("d", time.monotonic()), 8)

    def load(self):
        """(step, weight, loss) of the newest checkpoint."""
        try:
            with open(f"{self.checkpoint}/checkpoint") as file:
                state = json.load(file)
        except FileNotFoundError:
            return 0, 0.0, 0.0
        return state["step"], state["weight"], state["loss"]

    def save(self, step, weight, loss):
        """Aside, and then in its place."""
        aside = f"{self.checkpoint}/checkpoint.{os.getpid()}"
        with open(aside, "w") as file:
            json.dump({"step": step, "weight": weight, "loss": loss, "round": self.round}, file)
        os.rename(aside, f"{self.checkpoint}/checkpoint")
        os.write(self._saves, f"{time.monotonic():.4f} {step} {self.round} {os.getpid()}\n".encode())

    def is_over(self):
        """The job may end."""
        return os.path.exists(f"{self.folder}/finish")

    def obey(self):
        """Take the order that is for this rank, if there is one, and do it."""
        try:
            with open(self._order) as file:
                order = json.load(file)
        except FileNotFoundError:
            return
        os.rename(self._order, f"{self.folder}/taken.{order['number']}")
        import misdeeds

        getattr(misdeeds, order["what"])(self, *order["arguments"])
