# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""The network between nodes: each is a host of its own, in a network namespace. Names, strangers, and ports too."""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from pathlib import Path

from kit.network.netns import ETC, Switch

from chaos.fault import Outcome, fault
from chaos.job import Job, sh

THREE = {"nodes": 3, "nnodes": "2:3", "network": True}
WHO = ("rank {rank} .*on {node}",)


def _switch(job: Job) -> Switch:
    assert job.switch
    return job.switch


def _leaves_or_stays(job: Job, *names: str) -> None:
    """Its node may have been given up, or has a rank again: a job that ends before finds nobody to tell it so."""
    nodes = [job.nodes[name] for name in names]
    back = lambda: {life.node for life in job.alive()}
    job.wait(lambda: all(not node.runs or node.name in back() for node in nodes), f"{', '.join(names)} to be back", 25.0)
    for node in nodes:
        node.is_lost = not node.runs


def _for_a_while(job: Job, seconds: float, *names: str) -> None:
    job.lasts(seconds)
    _switch(job).heal()
    job.goes_on()
    _leaves_or_stays(job, *names)


# --- power ----------------------------------------------------------------------------------------------------------------------


def _no_power(job: Job, *names: str) -> None:
    job.strike()
    for name in names:
        _switch(job).isolate(name)
        job.nodes[name].kill()


@fault("node loses power", "all processes of a node end and its network with them: nobody hears a socket close", cause=("{node}",), torchrun=True,
       smoke=True, **THREE)  # fmt: skip
def node_power(job: Job) -> None:
    node = job.any_node("n1", "n2")
    job.note(node=node.name)
    _no_power(job, node.name)
    job.again()


@fault(
    "coordinator loses power",
    "the coordinator's host is gone without a word",
    cause=("coordinator .*was lost",),
    torchrun=True,
    smoke=True,
    **THREE,
)
def coordinator_power(job: Job) -> None:
    _no_power(job, "n0")
    job.again()


@fault(
    "coordinator loses power, comes back",
    "the coordinator's host is gone without a word, and back after 1 to 8 s",
    torchrun=True,
    **THREE,
)
def coordinator_power_back(job: Job) -> None:
    _no_power(job, "n0")
    job.lasts(job.rng.uniform(1, 8))
    _switch(job).heal()
    job.start("n0")
    job.again()
    _leaves_or_stays(job, "n0")


@fault("power of all but one", "two of three hosts lose power at once, and are back after 5 s", **THREE)
def power_of_two(job: Job) -> None:
    _no_power(job, "n1", "n2")
    job.lasts(5)
    _switch(job).heal()
    job.start("n1", "n2")
    job.again()


@fault(
    "node loses power, DDP",
    "all processes of a node end and its network with them, while PyTorch trains on gloo",
    ddp=True,
    **THREE,
)
def node_power_ddp(job: Job) -> None:
    _no_power(job, "n2")
    job.again()


# --- cut --------------------------------------------------------------------------------------------------------------------------


@fault("partition n1 1 s", "nothing passes between a node and the others for 1 s", **THREE)
def partition_short(job: Job) -> None:
    job.strike()
    _switch(job).isolate("n1")
    _for_a_while(job, 1)


@fault("partition n1 6 s", "nothing passes between a node and the others for 6 s", smoke=True, torchrun=True, **THREE)
def partition(job: Job) -> None:
    job.strike()
    _switch(job).isolate("n1")
    _for_a_while(job, 6, "n1")


@fault(
    "partition n1 6 s, DDP",
    "nothing passes between a node and the others for 6 s, while PyTorch trains on gloo",
    ddp=True,
    **THREE,
)
def partition_ddp(job: Job) -> None:
    job.strike()
    _switch(job).isolate("n1")
    _for_a_while(job, 6, "n1")


@fault("partition n1 for ever", "nothing passes between a node and the others any more", cause=("n1",), **THREE)
def partition_for_ever(job: Job) -> None:
    job.nodes["n1"].is_lost = True
    job.strike()
    _switch(job).isolate("n1")
    job.again()


@fault("partition coordinator 8 s", "nothing passes between the coordinator's node and the others for 8 s", smoke=True, **THREE)
def partition_coordinator(job: Job) -> None:
    job.strike()
    _switch(job).isolate("n0")
    _for_a_while(job, 8, "n0", "n1", "n2")


@fault("all apart 3 s", "nothing passes between any two nodes for 3 s, as where a switch starts again", **THREE)
def all_apart(job: Job) -> None:
    job.strike()
    for one, other in itertools.combinations(job.nodes, 2):
        _switch(job).cut(one, other)
    _for_a_while(job, 3, "n0", "n1", "n2")


@fault(
    "split in two halves 8 s", "of four nodes two and two do not hear one another for 8 s", nodes=4, nnodes="2:4", network=True
)
def halves(job: Job) -> None:
    job.strike()
    for one, other in itertools.product(("n0", "n1"), ("n2", "n3")):
        _switch(job).cut(one, other)
    _for_a_while(job, 8, "n0", "n1", "n2", "n3")


@fault(
    "n1 and n2 do not hear one another",
    "two nodes that are not the coordinator's are cut off from one another for 6 s",
    **THREE,
)
def pair_cut(job: Job) -> None:
    job.strike()
    _switch(job).cut("n1", "n2")
    _for_a_while(job, 6, "n1", "n2")


def one_way(source: str, target: str) -> None:
    @fault(
        f"one-way loss {source} to {target} 8 s",
        "what one node sends to the other is lost for 8 s; n0 has the coordinator",
        **THREE,
    )  # type: ignore[arg-type]
    def play(job: Job) -> None:
        job.strike()
        _switch(job).cut_one_way(source, target)
        _for_a_while(job, 8, "n0", "n1", "n2")


one_way("n1", "n0")
one_way("n0", "n1")
one_way("n1", "n2")


@fault("flapping network", "a node is cut off for 0.3 s in each second, for 6 s", **THREE)
def flapping(job: Job) -> None:
    job.strike()
    for _ in range(6):
        _switch(job).isolate("n1")
        job.lasts(0.3)
        _switch(job).heal()
        job.lasts(0.7)
    job.goes_on()
    _leaves_or_stays(job, "n1")


@fault("packets get lost", "one packet in five that comes to n1 is lost; a rank is killed", restarts=1, nodes=2, network=True)
def losses(job: Job) -> None:
    _switch(job).lose("n1", 5)
    job.goes_on()
    job.kill_rank(job.any_rank())
    job.again()


def delay(milliseconds: int, **more: object) -> None:
    @fault(f"{milliseconds} ms delay", f"every packet of n1 takes {milliseconds} ms longer each way; a rank is killed", restarts=1, nodes=2,
           network=True, slow={"n1": milliseconds / 1000}, patience_s=90, **more)  # type: ignore[arg-type]  # fmt: skip
    def play(job: Job) -> None:
        job.kill_rank(job.any_rank())
        job.again()


delay(200)
delay(400)


@fault("200 ms delay, DDP", "every packet of n1 takes 200 ms longer each way; a rank of PyTorch's is killed", restarts=1, nodes=2, network=True,
       slow={"n1": 0.2}, ddp=True, patience_s=120)  # fmt: skip
def delay_ddp(job: Job) -> None:
    job.kill_rank(job.any_rank())
    job.again()


@fault("cable pulled 5 s", "n1's cable is pulled, and plugged again 5 s later", **THREE)
def cable(job: Job) -> None:
    job.strike()
    _switch(job).unplug("n1")
    job.lasts(5)
    _switch(job).unplug("n1", plug=True)
    job.goes_on()
    _leaves_or_stays(job, "n1")


@fault("interface down 3 s", "n1's interface is down for 3 s: its own packets have no way out", **THREE)
def interface(job: Job) -> None:
    job.strike()
    _switch(job).flap("n1", 3)
    job.goes_on()
    _leaves_or_stays(job, "n1")


@fault("connections reset", "a firewall answers all that n1 sends to n0 with RST, for 4 s", **THREE)
def resets(job: Job) -> None:
    job.strike()
    _switch(job).places["n0"].run(
        "nft", f"add rule inet cut in ip saddr {job.nodes['n1'].address} meta l4proto tcp reject with tcp reset"
    )
    _for_a_while(job, 4, "n1")


@fault("port is unreachable", "a firewall refuses all that n1 sends to n0 (ICMP), for 4 s", **THREE)
def unreachable(job: Job) -> None:
    job.strike()
    _switch(job).places["n0"].run("nft", f"add rule inet cut in ip saddr {job.nodes['n1'].address} reject")
    _for_a_while(job, 4, "n1")


@fault("large packets are lost", "no packet above 600 bytes comes to n0 any more, as where an MTU is wrong; a rank is killed", restarts=1, nodes=2,
       network=True)  # fmt: skip
def black_hole(job: Job) -> None:
    _switch(job).places["n0"].run("nft", "add rule inet cut in iif eth0 meta length > 600 drop")
    job.kill_rank(job.any_rank())
    job.again()


@fault("address goes", "n1's address is taken from its interface for 4 s, as where a DHCP lease ends", **THREE)
def address(job: Job) -> None:
    place = _switch(job).places["n1"]
    job.strike()
    place.run("ip", "addr", "del", f"{place.address}/24", "dev", "eth0")
    job.lasts(4)
    place.run("ip", "addr", "add", f"{place.address}/24", "dev", "eth0")
    job.goes_on()
    _leaves_or_stays(job, "n1")


# --- names ------------------------------------------------------------------------------------------------------------------------


def _hosts(job: Job) -> list[Path]:
    return [ETC / place.namespace / "hosts" for place in _switch(job).places.values()]


def _by_name(job: Job) -> None:
    """The endpoint is a name, and all know it."""
    job.endpoint = f"n0:{job.port}"


def _no_names(job: Job) -> list[str]:
    """No name resolves any more; returns what was there."""
    kept = [path.read_text() for path in _hosts(job)]
    for path in _hosts(job):
        path.write_text("")  # in place: each namespace has this very file mounted
    return kept


@fault(
    "DNS fails",
    "no name resolves any more; a rank is killed, and a fourth agent, which has no place, comes",
    starts=False,
    restarts=1,
    **THREE,
)
def dns_fails(job: Job) -> None:
    _by_name(job)
    job.start()
    job.trains(job.rng.randint(4, 25))
    _no_names(job)
    job.kill_rank(job.any_rank())
    job.again()


@fault("DNS fails, coordinator lost", "no name resolves any more, and the coordinator's node is gone", starts=False, **THREE)
def dns_fails_coordinator(job: Job) -> None:
    _by_name(job)
    job.start()
    job.trains(job.rng.randint(4, 25))
    _no_names(job)
    _no_power(job, "n0")
    job.again()


@fault(
    "DNS comes late",
    "no name resolves when the agents start; 5 s later they do",
    starts=False,
    smoke=True,
    torchrun=True,
    nodes=2,
    network=True,
)
def dns_late(job: Job) -> None:
    _by_name(job)
    kept = _no_names(job)
    job.strike()
    job.start()
    job.lasts(5)
    for path, text in zip(_hosts(job), kept):
        path.write_text(text)
    job.trains()
    job.goes_on()


@fault(
    "DNS is wrong at first",
    "the endpoint's name leads to a host that is not there; 5 s later to the right one",
    starts=False,
    nodes=2,
    network=True,
)
def dns_wrong(job: Job) -> None:
    _by_name(job)
    hosts = _hosts(job)[1]
    kept = hosts.read_text()
    hosts.write_text(kept.replace(f"{job.nodes['n0'].address} n0", "10.77.0.99 n0"))
    job.strike()
    job.start()
    job.lasts(5)
    hosts.write_text(kept)
    job.trains()
    job.goes_on()


# --- the endpoint's port, and strangers -------------------------------------------------------------------------------------------


def _taken(job: Job, address: str = "127.0.0.1") -> socket.socket:
    """Somebody else has the port, who takes connections and says nothing."""
    taken = socket.create_server((address, job.port))
    job.afterwards(taken.close)
    return taken


@fault(
    "endpoint's port taken for 4 s",
    "the endpoint's port is another's for 4 s at the start",
    starts=False,
    smoke=True,
    torchrun=True,
)
def port_taken(job: Job) -> None:
    taken = _taken(job)
    job.strike()
    job.start()
    job.lasts(4)
    taken.close()
    job.trains()
    job.goes_on()


@fault("endpoint's port stolen after loss", "the coordinator's agent is killed, another program takes its port, and n0's agent is started again",
       nodes=3, nnodes="2:3")  # fmt: skip
def port_stolen(job: Job) -> None:
    job.strike()
    job.nodes["n0"].kill()
    for _ in range(100):
        try:
            _taken(job)
            break
        except OSError:
            job.lasts(0.05)
    job.start("n0")
    job.again()
    _leaves_or_stays(job, "n0")


def _stranger(job: Job, data: bytes, count: int = 1) -> list[socket.socket]:
    links = []
    for _ in range(count):
        link = socket.create_connection(("127.0.0.1", job.port), timeout=5)
        link.settimeout(5)
        if data:
            link.sendall(data)
        links.append(link)
        job.afterwards(link.close)
    return links


@fault(
    "stranger speaks HTTP",
    "an HTTP client and a scanner of ports come to the coordinator's port, 50 times each; a rank is killed",
    restarts=1,
)
def http(job: Job) -> None:
    for _ in range(50):
        for data in (b"GET / HTTP/1.0\r\n\r\n", b""):
            for link in _stranger(job, data):
                link.close()
    job.kill_rank(job.any_rank())
    job.again()


@fault("stranger sends noise", "random bytes, 1 MB each, come to the coordinator's port 20 times; a rank is killed", restarts=1)
def noise(job: Job) -> None:
    for _ in range(20):
        with contextlib.suppress(OSError):
            _stranger(job, job.rng.randbytes(1 << 20))
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "stranger holds connections", "200 connections come to the coordinator's port and say nothing; a rank is killed", restarts=1
)
def idle_strangers(job: Job) -> None:
    _stranger(job, b"", 200)
    job.kill_rank(job.any_rank())
    job.again()


@fault("stranger sends byte by byte", "20 connections send one byte in each 100 ms for 5 s; a rank is killed", restarts=1)
def slow_strangers(job: Job) -> None:
    links = _stranger(job, b"", 20)

    def drip() -> None:
        for _ in range(50):
            for link in links:
                with contextlib.suppress(OSError):
                    link.send(b"\0")
            time.sleep(0.1)

    dripping = threading.Thread(target=drip, daemon=True)
    dripping.start()
    job.afterwards(lambda: dripping.join(10))
    job.kill_rank(job.any_rank())
    job.again()
    dripping.join()


SPEAKS_ANOTHER = """
import runpy, sys
from holdfast.runtime.net import frames
frames.VERSION += 1
sys.argv = ["holdfast", *sys.argv[1:]]
runpy.run_module("holdfast", run_name="__main__")
"""


@fault(
    "wrong version joins",
    "an agent of another protocol version comes to a running job; a rank is killed",
    restarts=1,
    nodes=2,
    nnodes="2:3",
)
def wrong_version(job: Job) -> None:
    node = job.add_node("n2")
    words = list(map(str, job.words("n2")))
    node.start([words[0], "-c", SPEAKS_ANOTHER, *words[3:]], {})
    node.is_lost = True
    job.wait(lambda: "version" in node.said_by_launchers(), "the agent to be refused", 20)
    job.kill_rank(job.any_rank())
    job.again()
    if node.runs:
        node.launcher.terminate()


@fault(
    "wrong job joins",
    "an agent with another --rdzv-id comes to the endpoint; a rank is killed",
    restarts=1,
    nodes=2,
    nnodes="2:3",
)
def wrong_job(job: Job) -> None:
    node = job.add_node("n2")
    words = list(map(str, job.words("n2")))
    words[words.index("chaos")] = "another"
    node.start(words, {})
    node.is_lost = True
    job.lasts(2)
    job.kill_rank(job.any_rank())
    job.again()
    if node.runs:
        node.launcher.terminate()


@fault("wrong token joins", "an agent with another secret comes to a running job; a rank is killed", restarts=1, nodes=2, nnodes="2:3",
       env={"HOLDFAST_TOKEN": "a secret of enough characters"})  # fmt: skip
def wrong_token(job: Job) -> None:
    node = job.add_node("n2")
    job.start("n2", env={"HOLDFAST_TOKEN": "another secret, as long as that"})
    node.is_lost = True
    job.lasts(2)
    job.kill_rank(job.any_rank())
    job.again()
    if node.runs:
        node.launcher.terminate()


@fault(
    "endpoint lost before the others come",
    "n1 comes while nobody listens at the endpoint, which comes 5 s later",
    starts=False,
    torchrun=True,
)
def endpoint_late(job: Job) -> None:
    job.start("n1")
    job.strike()
    job.lasts(5)
    job.start("n0")
    job.trains()
    job.goes_on()


@fault(
    "too few nodes",
    "of two nodes that the job must have one comes; it waits no longer than it is told to",
    outcome=Outcome.ENDS,
    starts=False,
)
def too_few(job: Job) -> None:
    job.strike()
    job.start("n0", options=("--rdzv-conf", "join_timeout=4"))
    job.nodes.pop("n1")


@fault("sockets killed", "each connection between the agents is closed by the kernel (ss --kill), as a firewall does that has lost its state", needs="ss",
       **THREE)  # fmt: skip
def sockets_killed(job: Job) -> None:
    place = _switch(job).places["n0"]
    job.strike()
    for _ in range(3):
        place.run("ss", "--kill", "--tcp", "state", "established", f"( sport = :{job.port} )")
        job.lasts(0.3)
    job.goes_on()


@fault("loopback down 2 s", "n1's loopback interface is down for 2 s", network=True, nodes=2)
def loopback(job: Job) -> None:
    job.strike()
    sh("ip", "-n", _switch(job).places["n1"].namespace, "link", "set", "lo", "down")
    job.lasts(2)
    sh("ip", "-n", _switch(job).places["n1"].namespace, "link", "set", "lo", "up")
    job.goes_on()
