"""Thousands of members in one process, each with a connection and a proof of its own, and little else.

    crowd.py PORT FIRST COUNT      token: HOLDFAST_TOKEN      job: bench

Told what to do by lines on stdin, answers each with a line of JSON. What is sent is made before the clock runs, and what came
is checked (seals, kinds, ranks) after it has stopped: the time between is the coordinator's, as far as one machine allows.

    connect          connect and prove                     → seconds
    join [1]         everybody: Join and Renew (1: electors) → when the first was sent, when the last had its Assigned
    order N          member N says Failed (it may be another's) → when that was said, when the last had its Stop
    rejoin           everybody: Stopped and Join           → as for join
    renew SECONDS    everybody renews its lease once a second, evenly spread → how many were sent (and answered), in which time
"""

import errno
import json
import os
import resource
import select
import socket
import sys
import time

from holdfast.core.job.failure import Failure
from holdfast.core.wire.messages import Assigned, Failed, Join, Message, Renew, Renewed, Stop, Stopped
from holdfast.runtime.net.codec import decode, encode
from holdfast.runtime.net.frames import FRAME_BYTES, NONCE_BYTES, Frames, Handshake, Identity, Seal, frame

IN_FLIGHT = 512
"""Connections that are being made at a time."""
PATIENCE_S = 30.0


class Member:
    """One connection."""

    def __init__(self, number: int, identity: Identity) -> None:
        self.number = number
        self.node = f"n{number}-1-{os.urandom(8).hex()}"
        self.round = 0
        self.mark, self.roster = 0.0, 0
        """As a member says them: of the last answer, and the version of the roster that it holds."""
        self.handshake = Handshake(identity, os.urandom(NONCE_BYTES).hex(), ours=True)
        self.frames = Frames()
        self.seals: tuple[Seal, Seal]
        self.came = bytearray()
        self.ready = b""
        # An address of its own, as a node has; 127/8 is all ours.
        self.sock = socket.socket()
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.setsockopt(socket.IPPROTO_IP, 24, 1)  # IP_BIND_ADDRESS_NO_PORT
        self.addr = f"127.1.{number >> 8 & 255}.{number & 255}"
        self.sock.bind((self.addr, 0))
        self.sock.setblocking(False)

    def prepare(self, *messages: Message) -> None:
        """Make ready what `send` sends."""
        self.ready = b"".join(frame(self.seals[0].put(encode(message))) for message in messages)

    def renewal(self) -> Renew:
        """What it says once a second."""
        return Renew(node=self.node, round=self.round, sent_at=1.0, mark=self.mark, roster=self.roster, ahead_s=0.001)

    def send(self) -> int:
        """All at once: it is small, and the other side reads."""
        sent = self.sock.send(self.ready)
        assert sent == len(self.ready)
        return sent

    def heard(self) -> list[Message]:
        """What has come, checked."""
        self.frames.feed(bytes(self.came))
        self.came.clear()
        found = []
        while (payload := self.frames.next()) is not None:
            found.append(decode(self.seals[1].take(payload)))
        return found

    def renewed(self) -> int:
        """How many renewals have been answered in what has come; what the last answer says goes into the next."""
        answers = [message for message in self.heard() if isinstance(message, Renewed)]
        for answer in answers:
            self.mark = answer.mark
            self.roster = self.roster if answer.roster is None else answer.roster.version
        return len(answers)


class Crowd:
    """All of them."""

    def __init__(self, port: int, first: int, count: int) -> None:
        self.port = port
        identity = Identity("bench", os.environb[b"HOLDFAST_TOKEN"])
        self.members = [Member(number, identity) for number in range(first, first + count)]
        self.epoll = select.epoll()
        self.by_fd = {member.sock.fileno(): member for member in self.members}
        self.deadline = 0.0
        self.elect = False
        """They have a say in who succeeds the coordinator: then no round forms unless they have renewed of late."""

    def poll(self, timeout: float = 1.0) -> list[Member]:
        """Whose sockets are readable."""
        if time.monotonic() > self.deadline:
            raise SystemExit("the coordinator's answers did not come")
        return [self.by_fd[fd] for fd, _ in self.epoll.poll(timeout, maxevents=4096)]

    def read(self, member: Member) -> int:
        """Take in what is there; returns how much."""
        data = member.sock.recv(1 << 16)
        if not data:
            raise SystemExit(f"the coordinator hung up on {member.node}")
        member.came += data
        return len(data)

    # --- what can be asked for --------------------------------------------------------------------------------------------

    def connect(self) -> dict[str, float]:
        while socket.socket().connect_ex(("127.0.0.1", self.port)):
            time.sleep(0.01)  # it is about to listen
            assert time.monotonic() < self.deadline, "nobody listens"
        begun = time.monotonic()
        waiting, under_way = self.members[::-1], 0
        while waiting or under_way:
            while waiting and under_way < IN_FLIGHT:
                member = waiting.pop()
                assert member.sock.connect_ex(("127.0.0.1", self.port)) in (0, errno.EINPROGRESS)
                self.epoll.register(member.sock.fileno(), select.EPOLLIN)
                member.ready = b"".join(map(frame, member.handshake.opening()))
                under_way += 1
            for member in self.poll():
                if member.ready:
                    member.send()
                    member.ready = b""
                self.read(member)
                member.frames.feed(bytes(member.came))
                member.came.clear()
                while not member.handshake.done and (payload := member.frames.next()) is not None:
                    for answer in member.handshake.take(payload):
                        member.sock.send(frame(answer))
                if member.handshake.done:
                    member.seals, member.frames.limit = member.handshake.seals(), FRAME_BYTES
                    under_way -= 1
        return {"took_s": time.monotonic() - begun}

    def join(self, elect: int = 0) -> dict[str, float]:
        self.elect = bool(elect)
        for member in self.members:
            member.prepare(self.join_of(member), Renew(node=member.node, round=0, sent_at=1.0))
        return self.answered(Renewed, Assigned)

    def rejoin(self) -> dict[str, float]:
        for member in self.members:
            member.prepare(Stopped(node=member.node, round=member.round), self.join_of(member))
        return self.answered(Assigned)

    def order(self, failing: int) -> dict[str, float]:
        for member in self.members:
            if member.number == failing:
                failure = Failure(node=f"n{failing}", rank=failing, local_rank=0, exitcode=1, at_unix=time.time())
                member.prepare(Failed(node=member.node, round=member.round, failure=failure))
        return self.answered(Stop)

    def join_of(self, member: Member) -> Join:
        name = f"n{member.number}"
        usual = {"addr": member.addr, "master_port": 1, "nproc": 1, "role": "default"}
        endpoint = f"{member.addr}:29400" if self.elect else ""
        return Join(node=member.node, name=name, round=member.round, roster=member.roster, endpoint=endpoint, **usual)

    def answered(self, *kinds: type[Message]) -> dict[str, float]:
        """Send what is ready, once we are told to, and wait until each member has heard a message of each of these kinds."""
        marks = [f'"is":"{kind.__name__}"'.encode() for kind in kinds]
        say({"ready": True})
        assert sys.stdin.readline().strip() == "go"
        waiting, bytes_in, bytes_out = len(self.members), 0, 0
        first_sent_at = time.monotonic()
        for member in self.members:
            if member.ready:
                bytes_out += member.send()
                member.ready = b""
        while waiting:
            for member in self.poll():
                bytes_in += self.read(member)
                waiting -= all(mark in member.came for mark in marks)
        last_at = time.monotonic()
        ranks = set()
        for member in self.members:
            for message in member.heard():
                assert type(message) in (*kinds, Stop), message  # a Stop is said again with the answer to a renewal
                if isinstance(message, Assigned):
                    member.round = message.round
                    ranks.add(message.group_rank)
        assert not ranks or len(ranks) == len(self.members)
        return {"first_at": first_sent_at, "last_at": last_at, "in": bytes_in, "out": bytes_out}

    def keep_leases(self) -> None:
        """A renewal for everybody, before anything is measured."""
        waiting = [member for member in self.members if member.round]
        for member in waiting:
            member.prepare(member.renewal())
            member.send()
            member.ready = b""
        left = len(waiting)
        while left:
            for member in self.poll():
                self.read(member)
                left -= bool(member.renewed())

    def renew(self, seconds: int) -> dict[str, float]:
        count = len(self.members)
        say({"ready": True})
        begun, sent, answered = time.monotonic(), 0, 0
        while answered < seconds * count:
            # Asleep, not waiting: to wake somebody on its own machine is no cost of a coordinator's.
            time.sleep(0.002)
            due = min(seconds * count, int((time.monotonic() - begun) * count))
            while sent < due:
                member = self.members[sent % count]
                member.prepare(member.renewal())
                member.send()
                sent += 1
            for member in self.poll(0.0):
                self.read(member)
                answered += member.renewed()
        return {"sent": sent, "took_s": time.monotonic() - begun}


def say(what: dict[str, object]) -> None:
    print(json.dumps(what), flush=True)


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    crowd = Crowd(*map(int, sys.argv[1:]))
    while True:
        while not select.select([sys.stdin], [], [], 0.7)[0]:
            crowd.deadline = time.monotonic() + PATIENCE_S
            crowd.keep_leases()
        what, *given = sys.stdin.readline().split()
        crowd.deadline = time.monotonic() + PATIENCE_S
        crowd.keep_leases()
        say(getattr(crowd, what)(*map(int, given)))


if __name__ == "__main__":
    main()
