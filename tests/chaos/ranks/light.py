"""A rank that trains without PyTorch: the same model as `ddp.py`'s, its gradients summed over sockets. python light.py FOLDER

Rank 0 listens and tells the others where in a file; what is summed passes through the network, and a peer that dies, or falls
silent, does to the others what it does to those of gloo.
"""

import os
import socket
import struct
import sys
import time

from ledger import ITEMS, RATE, Ledger, gradient

from holdfast.client import heartbeat

STEP_S = 0.02
SUM = struct.Struct("!ddi")


def read(link, size):
    parts = b""
    while len(parts) < size:
        part = link.recv(size - len(parts))
        if not part:
            raise ConnectionError("nothing more comes")
        parts += part
    return parts


def meet(book):
    """Connections to the others, of rank 0; to rank 0, of another."""
    place = f"{book.folder}/meet.{book.key}"
    if book.rank == 0:
        server = socket.create_server((os.environ.get("CHAOS_ADDR", "127.0.0.1"), 0), backlog=64)
        with open(f"{place}.tmp", "w") as file:
            file.write("{} {}".format(*server.getsockname()))
        os.rename(f"{place}.tmp", place)
        with server:
            return [server.accept()[0] for _ in range(book.world - 1)]
    while True:
        book.stamp()
        try:
            with open(place) as file:
                host, port = file.read().split()
            return [socket.create_connection((host, int(port)))]
        except (FileNotFoundError, ConnectionRefusedError):  # not there yet, or an earlier round's of the same port
            time.sleep(0.005)


def all_reduce(book, links, slope, loss):
    """The sums of all ranks, and whether this is the last step, which rank 0 says."""
    if book.rank:
        links[0].sendall(SUM.pack(slope, loss, 0))
        return SUM.unpack(read(links[0], SUM.size))
    for link in links:
        one, two, _ = SUM.unpack(read(link, SUM.size))
        slope, loss = slope + one, loss + two
    last = book.is_over()
    for link in links:
        link.sendall(SUM.pack(slope, loss, last))
    return slope, loss, last


def main():
    book = Ledger(sys.argv[1])
    print(f"rank {book.rank} of {book.world} begins, round {book.round}", flush=True)
    links = meet(book)
    for link in links:
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    step, weight, loss = book.load()
    last = False
    while not last:
        book.stamp()
        heartbeat()  # as an optimizer's step is one, which a script of PyTorch's makes
        book.obey()
        slope, loss = gradient(weight, step, range(book.rank, ITEMS, book.world))
        try:
            slope, loss, last = all_reduce(book, links, slope, loss)
        except OSError as error:
            raise RuntimeError("Connection closed by peer") from error  # as gloo says it
        finally:
            book.stamp()
        weight, step = weight - RATE * slope, step + 1
        if book.rank == 0:
            book.save(step, weight, loss)
            if step % 10 == 0 and "CHAOS_QUIET" not in os.environ:
                print(f"step {step} loss {loss:.6f}", flush=True)
        time.sleep(STEP_S)


if __name__ == "__main__":
    main()
