"""Real hosts without a second machine: network namespaces, each with an interface of its own on a switch of the test's own.

    host a (eth0 10.77.0.1) ── veth ──┐
    host b (eth0 10.77.0.2) ── veth ──┤ bridge, in a namespace of its own       each host: /etc/hosts that knows all of them
    host c …      [Slow: a relay] ────┘

Everything is in namespaces, so this machine's own network is not touched, and any number of tests may use the same addresses.
All run on one kernel with one monotonic clock, so what happened on two hosts can be put in order.

Packets are dropped where they come in, silently: no RST, no ICMP, no error for the sender. The kernel needs no netem for it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PREFIX = "hf"
RELAY = Path(__file__).with_name("relay.py")
ETC = Path("/etc/netns")
"""Where `ip netns exec` looks for the files that it shows in /etc."""

JANITOR = """
read -r _
for ns; do
    for _ in 1 2 3 4 5; do ip netns pids "$ns" | xargs -r kill -9; done
    ip netns del "$ns"
    rm -rf "/etc/netns/$ns"
done
rmdir --ignore-fail-on-non-empty /etc/netns
"""
"""Waits until its standard input ends, as it does however pytest ends, and clears away. It is the only way of clearing away."""

TABLE = "add table inet cut; add chain inet cut in { type filter hook input priority 0; }"
_numbers = itertools.count()


def why_not() -> str:
    """Why this machine cannot play hosts; empty: it can."""
    for command, package in (("ip", "iproute2"), ("nft", "nftables")):
        if not shutil.which(command):
            return f"{command} is not installed: apt-get install {package}"
    name = f"{PREFIX}{os.getpid()}-probe"
    try:
        _run("ip", "netns", "add", name)
    except RuntimeError as error:
        return f"no network namespaces here: {error}"
    try:
        _run("ip", "-n", name, "link", "add", "name", "br0", "type", "bridge")
        _run("ip", "-n", name, "link", "add", "v0", "type", "veth", "peer", "name", "v1")
        _run("ip", "netns", "exec", name, "nft", TABLE)
    except RuntimeError as error:
        return f"network namespaces here lack something: {error}"
    finally:
        _run("ip", "netns", "del", name)
    return ""


def _run(*command: str, input: str | None = None) -> str:
    done = subprocess.run(command, input=input, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


FLAP = """
import fcntl, socket, struct, sys, time
GET, SET, UP = 0x8913, 0x8914, 1  # SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP
name, sock = sys.argv[1].encode(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
flags = struct.unpack_from("H", fcntl.ioctl(sock, GET, struct.pack("16s24x", name)), 16)[0]
fcntl.ioctl(sock, SET, struct.pack("16sH22x", name, flags & ~UP))
time.sleep(float(sys.argv[2]))
fcntl.ioctl(sock, SET, struct.pack("16sH22x", name, flags | UP))
"""


class Place:
    """One host's namespace."""

    def __init__(self, name: str, namespace: str, number: int) -> None:
        self.name, self.namespace = name, namespace
        self.address, self.address6 = f"10.77.0.{number}", f"fd77::{number}"
        self.second = f"10.78.0.{number}"
        """Its address on the second network, for a host that was made with one."""
        self.through = ("ip", "netns", "exec", namespace)
        """What a command is an argument of, to run there."""

    def run(self, *command: str) -> str:
        """Run something there to its end; returns what it printed."""
        return _run(*self.through, *command)

    def pids(self) -> list[int]:
        """All processes there."""
        return [int(word) for word in _run("ip", "netns", "pids", self.namespace).split()]

    def kill(self) -> None:
        """What the loss of its power does to its processes."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class Switch:
    """Hosts called `names`, on one network. `slow`: host → seconds that each of its packets takes longer, in and out.
    `two`: each has a second interface, eth1, on a network beside the first."""

    def __init__(self, names: Sequence[str], *, slow: dict[str, float] | None = None, two: bool = False) -> None:
        stem = f"{PREFIX}{os.getpid()}-{next(_numbers)}"
        self.namespace = f"{stem}-switch"
        self.places = {name: Place(name, f"{stem}-{name}", number) for number, name in enumerate(names, 1)}
        self._relays: list[subprocess.Popen[bytes]] = []
        namespaces = [self.namespace, *(place.namespace for place in self.places.values())]
        # In a session of its own and without the test's mark: it must outlive pytest, and is no orphan of Holdfast's.
        self._janitor = subprocess.Popen(
            ["sh", "-c", JANITOR, "janitor", *namespaces],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={"PATH": os.environ["PATH"]},
        )
        try:
            self._build(namespaces, slow or {}, two)
        except BaseException:
            self.close()
            raise

    def _build(self, namespaces: list[str], slow: dict[str, float], two: bool) -> None:
        _run("ip", "-batch", "-", input="".join(f"netns add {namespace}\n" for namespace in namespaces))
        networks = ("eth0", "10.77.0", "fd77:"), ("eth1", "10.78.0", "fd78:")
        for interface, four, six in networks[: 1 + two]:
            lines = [f"link add {interface} type bridge forward_delay 0", f"link set {interface} up"]
            for place in self.places.values():
                port = f"{interface}-{place.name}"
                lines.append(f"link add {port} type veth peer name {interface} netns {place.namespace}")
                end = port
                if place.name in slow and interface == "eth0":  # host ── port ═ relay ═ slow ── plug ── bridge
                    end = f"plug-{place.name}"
                    lines.append(f"link add {end} type veth peer name slow-{place.name}")
                    lines += [f"link set {port} up", f"link set slow-{place.name} up"]
                lines += [f"link set {end} master {interface}", f"link set {end} up"]
            _run("ip", "-n", self.namespace, "-batch", "-", input="\n".join(lines))
            for number, place in enumerate(self.places.values(), 1):
                lines = [f"addr add {four}.{number}/24 dev {interface}", f"addr add {six}:{number}/64 dev {interface} nodad"]
                lines += [f"link set {interface} up", "link set lo up"]
                _run("ip", "-n", place.namespace, "-batch", "-", input="\n".join(lines))
        known = "".join(f"{place.address} {place.name}\n" for place in self.places.values())
        for place in self.places.values():
            place.run("nft", TABLE)
            folder = ETC / place.namespace
            folder.mkdir(parents=True)
            # As on any host, its own host name leads to itself: libraries look it up to choose an interface.
            (folder / "hosts").write_text(f"127.0.0.1 localhost\n::1 localhost\n{place.address} {os.uname().nodename}\n{known}")
        for name, seconds in slow.items():
            self._slow_down(name, seconds)

    def _slow_down(self, name: str, seconds: float) -> None:
        command = ["ip", "netns", "exec", self.namespace, sys.executable, str(RELAY)]
        command += [f"eth0-{name}", f"slow-{name}", str(seconds)]
        env = {name: value for name, value in os.environ.items() if name != "HOLDFAST_TEST_MARK"}
        relay = subprocess.Popen(command, env=env, stdout=subprocess.PIPE)
        self._relays.append(relay)
        assert relay.stdout is not None
        if relay.stdout.readline() != b"ready\n":
            raise RuntimeError(f"the relay of {name} ended with {relay.wait()}")

    # --- faults ---------------------------------------------------------------------------------------------------------

    def cut_one_way(self, source: str, target: str) -> None:
        """Nothing that `source` sends reaches `target` any more; the other way it does."""
        lost, at = self.places[source], self.places[target]
        for family, address in (("ip", lost.address), ("ip6", lost.address6), ("ip", lost.second)):
            at.run("nft", f"add rule inet cut in {family} saddr {address} drop")

    def cut(self, one: str, other: str) -> None:
        """Nothing passes between the two."""
        self.cut_one_way(one, other)
        self.cut_one_way(other, one)

    def isolate(self, name: str) -> None:
        """Nothing passes between this host and any other."""
        for other in self.places:
            if other != name:
                self.cut(name, other)

    def lose(self, name: str, one_in: int) -> None:
        """One packet in so many that come to this host is lost."""
        rule = f"add rule inet cut in iif eth0 numgen inc mod {one_in} 0 drop"
        self.places[name].run("nft", rule)

    def heal(self) -> None:
        """What was cut is whole again; interfaces stay as they are."""
        for place in self.places.values():
            place.run("nft", "flush", "chain", "inet", "cut", "in")

    def unplug(self, name: str, *, plug: bool = False) -> None:
        """Pull its cable: the host sees its carrier go, everybody else nothing."""
        _run("ip", "-n", self.namespace, "link", "set", f"eth0-{name}", "up" if plug else "down")

    def flap(self, name: str, seconds: float) -> None:
        """Take its interface down, as an administrator or a driver does, and up again: its own packets have no way out. By one
        process that runs already: to start one for either would make it longer, on a busy machine by tenths of a second."""
        self.places[name].run(sys.executable, "-I", "-S", "-c", FLAP, "eth0", str(seconds))

    # --- the end --------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Everything goes, with all processes in it."""
        assert self._janitor.stdin is not None
        self._janitor.stdin.close()
        self._janitor.wait(60)
        for relay in self._relays:
            relay.wait(60)
            assert relay.stdout is not None
            relay.stdout.close()
