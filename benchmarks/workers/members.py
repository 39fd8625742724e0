"""Nodes that come at once, over TLS and with a token, by the agents' own links: `members.py PORT COUNT CERT KEY CA`.

Prints the milliseconds from the first connection until the last one has its rank. A link that goes down is made anew.
"""

import json
import os
import socket
import sys
import time

from holdfast.core.wire.links import Arrived, LinkDown, LinkUp, Transmit
from holdfast.core.wire.messages import Assigned, Join, Renew
from holdfast.runtime.host import Host
from holdfast.runtime.net.frames import Identity
from holdfast.runtime.net.network import Network
from holdfast.runtime.secrets import shelter_of

PATIENCE_S = 60.0
USUAL = {"addr": "127.0.0.1", "master_port": 1, "nproc": 1, "role": "default"}


def main(port: int, count: int, cert: str, key: str, ca: str) -> None:
    host = Host(lambda line: print(line, file=sys.stderr))
    identity = Identity("bench", os.environb[b"HOLDFAST_TOKEN"])
    network = Network(host, identity, ("127.0.0.1", port), shelter=shelter_of(cert, key, ca))
    network.warm()
    while (probe := socket.socket()).connect_ex(("127.0.0.1", port)):
        time.sleep(0.01)  # it is about to listen
    probe.close()
    begun = time.monotonic()
    nodes = {link: f"n{link}-1-{os.urandom(8).hex()}" for link in range(1, count + 1)}
    waiting, seen = set(nodes), []
    for link in nodes:
        seen += network.connect(link)
    while waiting:
        if time.monotonic() > begun + PATIENCE_S:
            raise SystemExit(f"{len(waiting)} have no rank")
        for one in seen:
            match one:
                case LinkUp(link=link):
                    join = Join(node=nodes[link], name=f"n{link}", **USUAL)
                    network.transmit_all([Transmit(link=link, message=join)])
                    network.transmit_all([Transmit(link=link, message=Renew(node=nodes[link], round=0, sent_at=1.0))])
                case LinkDown(link=link, reason=reason):
                    print(f"{link}: {reason}", file=sys.stderr)
                    network.connect(link)
                case Arrived(link=link, message=Assigned()):
                    waiting.discard(link)
        seen = [*host.wait(min(network.deadline(), time.monotonic() + 0.5)), *network.due()] if waiting else []
    print(json.dumps({"ms": 1000 * (time.monotonic() - begun)}))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
