"""Thousands of hosts that report to one supervisor, in one process: each has a connection, a proof, and little else.

    fleet_crowd.py PORT COUNT      no token      job: train, eight ranks on each host; host 0 has its coordinator

Told what to do by lines on stdin, answers each with a line of JSON. What is said is made before the clock runs.

    connect          connect, prove, and say how things stand                          → seconds
    beat SECONDS     four signs of life in a lease of 5 s, and the ranks' steps every 5 s → how many were sent, in which time
    change SECONDS   the same signs of life, and once a second the steps of one host's ranks     → as for beat
    die COUNT        the last COUNT hosts say no more; the others do, and host 0 that they are gone → when they had spoken last,
                     and when the first and the last order about one of them came
"""

import resource
import select
import socket
import sys
import time
from collections.abc import Callable

from crowd import Crowd, Member, say

from holdfast.core.wire.fleet import FLEET, Alive, Did, FleetMessage, Order, RankSaid, Standing
from holdfast.runtime.net.codec import decode, encode
from holdfast.runtime.net.frames import Identity, frame

RANKS, BEAT_S, STEPS_EACH = 8, 1.25, 4
"""Of a host; a lease's quarter; and the steps are told with every fourth beat."""


class Host(Member):
    """One host."""

    def __init__(self, number: int, identity: Identity, members: tuple[str, ...]) -> None:
        super().__init__(number, identity)
        self.name, self.said = f"n{number}", 0
        self.members = members if number == 0 else None

    def standing(self) -> Standing:
        """How it is now; another step than before."""
        self.said += 1
        ranks = tuple(
            RankSaid(rank=RANKS * self.number + local, local_rank=local, state="running", pid=1000 + local, step=self.said)
            for local in range(RANKS)
        )
        who = {"node": self.node, "name": self.name, "job": "train", "life": "1"}
        how = {"state": "running", "round": 1, "ranks": ranks, "members": self.members}
        return Standing(number=self.said, **who, **how)

    def framed(self, message: FleetMessage) -> bytes:
        """As it goes over its link."""
        return frame(self.seals[0].put(encode(message)))

    def heard_of_the_fleet(self) -> list[FleetMessage]:
        """What has come."""
        self.frames.feed(bytes(self.came))
        self.came.clear()
        found = []
        while (payload := self.frames.next()) is not None:
            found.append(decode(self.seals[1].take(payload), FleetMessage))
        return found


class Fleet(Crowd):
    """All of them."""

    def __init__(self, port: int, count: int) -> None:
        self.port = port
        identity, names = Identity(FLEET, b""), tuple(f"n{number}" for number in range(count))
        self.members = [Host(number, identity, names) for number in range(count)]
        self.epoll = select.epoll()
        self.by_fd = {member.sock.fileno(): member for member in self.members}
        self.deadline = 0.0

    def connect(self) -> dict[str, float]:
        took = super().connect()
        for member in self.members:
            member.sock.sendall(member.framed(member.standing()))
        self.listen(0.5)
        return took

    def beat(self, seconds: int) -> dict[str, float]:
        return self._speak(seconds, lambda turn, number: not (turn + number) % STEPS_EACH)

    def change(self, seconds: int) -> dict[str, float]:
        count = len(self.members)
        return self._speak(seconds, lambda turn, number: not (turn * count + number) % round(count / BEAT_S))

    def _speak(self, seconds: int, tells: Callable[[int, int], bool]) -> dict[str, float]:
        turns = round(seconds / BEAT_S)
        for member in self.members:
            member.prepared = [
                encode(member.standing() if tells(turn, member.number) else Alive(node=member.node)) for turn in range(turns)
            ]
            if not member.number % 256:
                self.keep_alive()
        say({"ready": True})
        begun, sent, count = time.monotonic(), 0, len(self.members)
        while sent < turns * count:
            time.sleep(0.002)  # asleep, not waiting: it is no cost of a supervisor's to wake somebody on its own machine
            due = min(turns * count, int((time.monotonic() - begun) * count / BEAT_S))
            while sent < due:
                turn, number = divmod(sent, count)
                member = self.members[number]
                member.sock.send(frame(member.seals[0].put(member.prepared[turn])))
                sent += 1
            for member in self.poll(0.0):
                self.read(member)
        return {"sent": sent, "took_s": time.monotonic() - begun}

    def die(self, count: int) -> dict[str, float]:
        for member in self.members:
            member.sock.send(member.framed(Alive(node=member.node)))
        died_at = time.monotonic()
        host, dead = self.members[0], {member.name for member in self.members[-count:]}
        self.members = self.members[:-count]
        host.members = tuple(member.name for member in self.members)
        host.sock.sendall(host.framed(host.standing()))
        seen: dict[str, float] = {}
        host.heard_of_the_fleet()
        beat_at = died_at + 1.0
        while len(seen) < count and time.monotonic() < died_at + 60:
            for member in self.poll(0.01):
                self.read(member)
            for message in host.heard_of_the_fleet():
                if isinstance(message, Order) and message.target in dead:
                    seen.setdefault(message.target, time.monotonic())
                    done = Did(node=host.node, order=message.order, ok=True, text=f"{message.target} is excluded")
                    host.sock.send(host.framed(done))
            if time.monotonic() >= beat_at:
                beat_at += 1.0
                for member in self.members:
                    member.sock.send(member.framed(Alive(node=member.node)))
        times = sorted(seen.values())
        return {"died_at": died_at, "first_at": times[0], "last_at": times[-1], "orders": len(times)}

    # --- in between -------------------------------------------------------------------------------------------------------

    def listen(self, seconds: float) -> None:
        """Take in what comes, for so long."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            for member in self.poll(left):
                self.read(member)

    def keep_alive(self) -> None:
        """A sign of life of each, where it is due."""
        if self.deadline and time.monotonic() >= getattr(self, "alive_at", 0.0):
            self.alive_at = time.monotonic() + 1.0
            for member in self.members:
                if member.said:
                    member.sock.send(member.framed(Alive(node=member.node)))


def main() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    fleet = Fleet(*map(int, sys.argv[1:]))
    while True:
        while not select.select([sys.stdin], [], [], 0.2)[0]:
            fleet.deadline = time.monotonic() + 60
            fleet.keep_alive()
            if fleet.members[0].said:
                fleet.listen(0.05)
        what, *given = sys.stdin.readline().split() or ["end"]
        if what == "end":
            return
        fleet.deadline = time.monotonic() + 120
        say(getattr(fleet, what)(*map(int, given)))


if __name__ == "__main__":
    socket.setdefaulttimeout(None)
    main()
