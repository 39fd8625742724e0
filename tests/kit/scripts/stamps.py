"""A rank that proves when it ran: python stamps.py FOLDER HOST [stubborn]

It writes the monotonic time, which is the same for all processes of one kernel, to a file of its own every few milliseconds,
and notes at its start which ranks of earlier rounds still lived, on any host. `stubborn`: it is deaf to SIGTERM.
It ends when FOLDER/finish is there.
"""

import json
import os
import signal
import struct
import sys
import time

EVERY_S = 0.005


def started_at(pid: int) -> str:
    """What tells a process from a later one with its id; empty: it has ended, or is stopped (if it goes on, stamps show it)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if words[0] in "ZXT" else words[19]


def main(folder: str, host: str, *words: str) -> None:
    if "stubborn" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    round, rank = int(os.environ["HOLDFAST_ROUND"]), int(os.environ["RANK"])
    beside = []
    for name in os.listdir(folder):
        if name.endswith(".life"):
            with open(f"{folder}/{name}") as file:
                other = json.load(file)
            if other["round"] < round and started_at(other["pid"]) == other["started_at"]:
                beside.append(name)
    path = f"{folder}/{round}.{rank}.{host}"
    stamps = os.open(f"{path}.stamps", os.O_CREAT | os.O_WRONLY | os.O_TRUNC)
    os.pwrite(stamps, struct.pack("dd", time.monotonic(), time.monotonic()), 0)
    life = {"round": round, "rank": rank, "host": host, "pid": os.getpid(), "started_at": started_at(os.getpid())}
    life |= {"world": int(os.environ["WORLD_SIZE"]), "attempt": int(os.environ["TORCHELASTIC_RESTART_COUNT"])}
    life |= {"master": os.environ["MASTER_ADDR"], "port": int(os.environ["MASTER_PORT"]), "beside": beside}
    with open(f"{path}.tmp", "w") as file:
        json.dump(life, file)
    os.rename(f"{path}.tmp", f"{path}.life")
    deadline = time.monotonic() + 120
    while not os.path.exists(f"{folder}/finish") and time.monotonic() < deadline:
        os.pwrite(stamps, struct.pack("d", time.monotonic()), 8)
        time.sleep(EVERY_S)


main(*sys.argv[1:])
