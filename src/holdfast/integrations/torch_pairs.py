"""How is the pair test carried out? By one process on each node, a rank of a small job that `holdfast check --pairs` starts.

Rank 0 holds the store and plans (`health.pairs`). In each round the two of a pair measure matrix products and an all-gather in
child processes, since a collective that hangs cannot be cancelled. Plans and results go through the store, as JSON. NCCL with
GPUs, else gloo. At the end every process writes all verdicts to HOLDFAST_PAIRS_OUT.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any

from holdfast.core.value import replace, to_plain
from holdfast.health.pairs import Measured, PairTest

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

OUT, NAME, DEADLINE, FAULT = "HOLDFAST_PAIRS_OUT", "HOLDFAST_PAIRS_NAME", "HOLDFAST_PAIRS_DEADLINE", "HOLDFAST_PAIRS_FAULT"
"""Variables: the file for the verdicts, this node's name, seconds for one pair, and (tests only) fails · hangs · slow."""

SIZE = {"cuda": 8192, "cpu": 256}
ROWS = {"cuda": 1 << 26, "cpu": 1 << 18}
"""Edge of the square matrices, and floats that each of the two gives to the all-gather (256 MiB with NCCL)."""

TIMES = 5  # Each is done once to warm up, and then so often; the median counts.
LOOK_S = 0.2  # How often to look whether the partner has failed already.
MARGIN_S = 10.0  # How much longer than its pair a node may take to say how it went.


def main() -> int:
    """This node's part."""
    dist: Any = import_module("torch.distributed")
    rank, world, deadline_s = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), float(os.environ.get(DEADLINE, "60"))
    where = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    patience = timedelta(seconds=2 * (deadline_s + MARGIN_S))
    store = dist.TCPStore(*where, None, is_master=rank == 0, timeout=patience)
    name = f"{rank}:{os.environ.get(NAME) or os.uname().nodename}"
    store.set(f"name/{rank}", name)
    if rank == 0:
        lead(store, world, deadline_s, name)
    else:
        follow(store, deadline_s, name)
    verdicts = store.get("verdicts")
    if path := os.environ.get(OUT):
        with open(f"{path}.tmp", "wb") as file:
            file.write(verdicts)
        os.rename(f"{path}.tmp", path)
    store.set(f"done/{rank}", b"")
    if rank == 0:
        heard(store, [f"done/{other}" for other in range(world)], MARGIN_S)
    return 0


def lead(store: Any, world: int, deadline_s: float, name: str) -> None:
    """Plan each round, take part in it, and hear what came of it."""
    names = [store.get(f"name/{rank}").decode() for rank in range(world)]
    test = PairTest(names)
    while pairs := test.plan():
        store.set(f"plan/{test.round}", json.dumps(pairs).encode())
        take_part(store, test.round, [list(pair) for pair in pairs], deadline_s, name)
        keys = [f"result/{test.round}/{node}" for pair in pairs for node in pair]
        told = heard(store, keys, deadline_s + MARGIN_S)
        test.hear(Measured(**json.loads(text)) for text in told)
    verdicts = {}
    for node, verdict in test.verdicts().items():
        reason = verdict.reason
        for full in names:
            reason = reason.replace(full, full.partition(":")[2])
        verdicts[node.partition(":")[2]] = replace(verdict, reason=reason)
    store.set(f"plan/{test.round + 1}", b"[]")
    store.set("verdicts", json.dumps({"rounds": test.round, "nodes": to_plain(verdicts)}).encode())


def follow(store: Any, deadline_s: float, name: str) -> None:
    """Take part in each round that is planned."""
    number = 1
    while pairs := json.loads(store.get(f"plan/{number}")):
        take_part(store, number, pairs, deadline_s, name)
        number += 1


def heard(store: Any, keys: list[str], within_s: float) -> list[bytes]:
    """What is there of these within that time."""
    until = now() + within_s
    found = []
    for key in keys:
        try:
            store.wait([key], timedelta(seconds=max(0.01, until - now())))
            found.append(store.get(key))
        except RuntimeError:  # torch's DistStoreError: a node that says nothing did not pass
            continue
    return found


def take_part(store: Any, number: int, pairs: list[list[str]], deadline_s: float, name: str) -> None:
    """Measure with this round's partner, in a child with a deadline, and say how it went."""
    index, pair = next(((i, pair) for i, pair in enumerate(pairs) if name in pair), (0, []))
    if not pair:
        return
    place = pair.index(name)
    forked = multiprocessing.get_context("fork")  # torch is loaded already, and has neither threads nor a GPU yet
    reader, writer = forked.Pipe(duplex=False)
    child = forked.Process(target=measure, args=(f"{number}/{index}", place, deadline_s, writer))
    child.start()
    writer.close()
    said = outcome(store, reader, f"result/{number}/{pair[1 - place]}", deadline_s)
    if child.pid is not None:
        os.kill(child.pid, signal.SIGKILL)
    child.join(1.0)
    result = Measured(node=name, partner=pair[1 - place], **said)
    store.set(f"result/{number}/{name}", json.dumps(to_plain(result)).encode())


def outcome(store: Any, reader: Connection, partner: str, deadline_s: float) -> dict[str, Any]:
    """What our child says; or that its partner has failed, and nobody will meet it any more; or that it says nothing."""
    until = now() + deadline_s
    while not reader.poll(LOOK_S):
        if store.check([partner]) and not (other := json.loads(store.get(partner)))["passed"] and not reader.poll(LOOK_S):
            return {"passed": False, "why": f"its partner failed: {other['why']}"}
        if now() > until:
            return {"passed": False, "why": f"no answer within {deadline_s:g} s"}
    try:
        said: dict[str, Any] = reader.recv()
    except EOFError:
        return {"passed": False, "why": "the process that measured ended without a word"}
    return said


def measure(key: str, place: int, deadline_s: float, writer: Connection) -> None:
    """In the child: matrix products alone, then the all-gather of the two."""
    try:
        writer.send(timed(key, place, deadline_s))
    except Exception as error:
        writer.send({"passed": False, "why": f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"})
    writer.close()


def timed(key: str, place: int, deadline_s: float) -> dict[str, Any]:
    """Seconds for both."""
    torch: Any = import_module("torch")
    dist: Any = import_module("torch.distributed")
    has_gpus = torch.cuda.is_available()
    kind = "cuda" if has_gpus else "cpu"
    fault = os.environ.get(FAULT, "")
    if fault == "fails":
        raise RuntimeError("CUDA error: uncorrectable ECC error encountered (made up)")
    if fault == "hangs":
        signal.pause()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), None, is_master=False)
    limit = timedelta(seconds=deadline_s + MARGIN_S)  # our own deadline is the one that counts
    dist.init_process_group(
        "nccl" if has_gpus else "gloo", store=dist.PrefixStore(key, store), rank=place, world_size=2, timeout=limit
    )
    devices = [torch.device(kind, i) for i in range(torch.cuda.device_count() if has_gpus else 1)]
    compute_s = max(median_of(lambda device=device: product(device), has_gpus) for device in devices)
    mine = torch.ones(ROWS[kind], device=devices[0])
    both = [torch.empty_like(mine) for _ in range(2)]
    gather_s = median_of(lambda: dist.all_gather(both, mine), has_gpus)
    if not all(bool((one == 1).all()) for one in both):
        raise RuntimeError("the all-gather returned wrong values")
    return {"passed": True, "compute_s": compute_s + (fault == "slow"), "gather_s": gather_s}


def product(device: Any) -> None:
    """One matrix product, of low precision on a GPU."""
    torch: Any = import_module("torch")
    size, precision = SIZE[device.type], torch.bfloat16 if device.type == "cuda" else torch.float32
    matrix = torch.ones(size, size, device=device, dtype=precision)
    torch.mm(matrix, matrix)


def now() -> float:
    """Monotonic seconds."""
    return time.perf_counter()


def median_of(work: Any, on_gpus: bool) -> float:
    """Median seconds of `TIMES` runs, after one to warm up."""
    torch: Any = import_module("torch")
    took = []
    for _ in range(TIMES + 1):
        began = now()
        work()
        if on_gpus:
            torch.cuda.synchronize()
        took.append(now() - began)
    return sorted(took[1:])[TIMES // 2]


if __name__ == "__main__":
    sys.exit(main())
