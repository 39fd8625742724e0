"""The same story as train.py without any framework: Python alone, for machines that have no PyTorch.

    holdfast run --nproc-per-node 2 --max-restarts 3 examples/train_plain.py --checkpoint /tmp/demo/checkpoint.json

The ranks fit a line together. Each step every rank adds its share of the gradient, and all get the sum: a small
all-reduce over sockets that meet at MASTER_ADDR:MASTER_PORT, as any framework's do.
"""

import argparse
import json
import os
import random
import socket
import struct
import time

from holdfast.client import commit

SAMPLES_PER_RANK = 32
TRUE_SLOPE, TRUE_OFFSET = 3.0, -1.0


class Ranks:
    """All ranks of the job, connected through rank 0."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.peers: dict[int, socket.socket] = {}
        where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        if self.rank == 0:
            with socket.create_server(("", where[1]), backlog=self.size) as server:
                while len(self.peers) < self.size - 1:
                    peer, _ = server.accept()
                    self.peers[struct.unpack("!q", receive(peer, 8))[0]] = peer
        else:
            self.peers[0] = connect(where)
            self.peers[0].sendall(struct.pack("!q", self.rank))

    def sum(self, values: list[float]) -> list[float]:
        """Each rank's `values` added up, position by position, always in the order of ranks: so always the same result."""
        form = f"!{len(values)}d"
        length = struct.calcsize(form)
        if self.rank:
            self.peers[0].sendall(struct.pack(form, *values))
            return list(struct.unpack(form, receive(self.peers[0], length)))
        rows = [values, *(struct.unpack(form, receive(self.peers[rank], length)) for rank in range(1, self.size))]
        total = [sum(column) for column in zip(*rows)]
        for peer in self.peers.values():
            peer.sendall(struct.pack(form, *total))
        return total


def connect(where: tuple[str, int], patience_s: float = 60.0) -> socket.socket:
    """Rank 0 may come later than we: try until it listens."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return socket.create_connection(where)
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def receive(peer: socket.socket, length: int) -> bytes:
    """Exactly `length` bytes. A peer that is gone is an error, and Holdfast will want to know."""
    whole = b""
    while len(whole) < length:
        part = peer.recv(length - len(whole))
        if not part:
            raise ConnectionError("another rank is gone")
        whole += part
    return whole


def share(step: int, rank: int, slope: float, offset: float) -> list[float]:
    """This rank's part of the step: loss and gradient over its samples, which depend on `step` and `rank` alone."""
    numbers = random.Random(1_000_003 * step + rank)
    loss = by_slope = by_offset = 0.0
    for _ in range(SAMPLES_PER_RANK):
        x = numbers.uniform(-1, 1)
        error = slope * x + offset - (TRUE_SLOPE * x + TRUE_OFFSET + numbers.gauss(0, 0.1))
        loss, by_slope, by_offset = loss + error**2, by_slope + 2 * error * x, by_offset + 2 * error
    return [loss, by_slope, by_offset]


def save(path: str, content: dict) -> None:
    """Write the checkpoint beside the old one, then swap: whoever is killed or stopped meanwhile leaves the old one whole."""
    with commit(path) as aside, open(aside, "w") as file:
        json.dump(content, file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--checkpoint", default="checkpoint.json", help="file to save to and to start from")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=20, help="steps between two checkpoints")
    parser.add_argument("--step-s", type=float, default=0.0, help="seconds that each step takes at least")
    options = parser.parse_args()

    ranks = Ranks()
    state = {"step": 0, "loss": 0.0, "slope": 0.0, "offset": 0.0}
    if ranks.rank == 0 and os.path.exists(options.checkpoint):
        with open(options.checkpoint) as file:
            state = json.load(file)
    # Only rank 0 reads the checkpoint; the others add zeros, and so all start from the same numbers.
    first, loss, slope, offset = ranks.sum(list(map(float, state.values())) if ranks.rank == 0 else [0.0] * 4)
    if ranks.rank == 0:
        print(f"{ranks.size} ranks, starting at step {int(first)}", flush=True)

    for step in range(int(first), options.steps):
        begun = time.monotonic()
        samples = SAMPLES_PER_RANK * ranks.size
        loss, by_slope, by_offset = (total / samples for total in ranks.sum(share(step, ranks.rank, slope, offset)))
        slope, offset = slope - 0.1 * by_slope, offset - 0.1 * by_offset
        done = step + 1
        if ranks.rank == 0 and (done % options.save_every == 0 or done == options.steps):
            save(options.checkpoint, {"step": done, "loss": loss, "slope": slope, "offset": offset})
            print(f"step {done} loss {loss:.12f}", flush=True)
        time.sleep(max(0.0, begun + options.step_s - time.monotonic()))

    if ranks.rank == 0:
        print(f"finished: final loss {loss:.12f}", flush=True)


if __name__ == "__main__":
    main()
