# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""Something is killed: a rank, an agent, a guardian, a node, or several of them."""

from __future__ import annotations

import signal

from chaos.fault import Outcome, fault
from chaos.job import LEASE_S, Job
from chaos.node import send

KILLED = ("rank {rank} .*on {node}", "SIGKILL")
LOST_NODE = ("{node}",)
LOST_COORDINATOR = ("coordinator .*was lost",)


@fault("kill rank", "SIGKILL to a rank", restarts=1, cause=KILLED, torchrun=True, smoke=True)
def kill_rank(job: Job) -> None:
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "kill rank, DDP",
    "SIGKILL to a rank that trains with PyTorch",
    restarts=1,
    cause=KILLED,
    ddp=True,
    torchrun=True,
    smoke=True,
)
def kill_rank_ddp(job: Job) -> None:
    job.kill_rank(job.any_rank())
    job.again()


@fault("kill all ranks", "SIGKILL to all ranks in one moment", restarts=1, cause=("SIGKILL",), torchrun=True)
def kill_all_ranks(job: Job) -> None:
    job.strike()
    for life in job.alive():
        send(life.pid, signal.SIGKILL)
    job.again()


@fault("kill two ranks, 100 ms apart", "SIGKILL to a rank, and then to another", restarts=(1, 2), cause=("SIGKILL",), nproc=2)
def kill_two_ranks(job: Job) -> None:
    first, second = job.rng.sample(job.alive(), 2)
    job.strike()
    send(first.pid, signal.SIGKILL)
    job.lasts(0.1)
    send(second.pid, signal.SIGKILL)
    job.again()


@fault("kill rank ten times", "SIGKILL to a rank as soon as a restart trains, ten times; --max-restarts 20", restarts=10,
       cause=KILLED, options=("--max-restarts", 20))  # fmt: skip
def kill_rank_ten_times(job: Job) -> None:
    for _ in range(10):
        step = job.step()
        job.kill_rank(job.any_rank())
        job.wait(lambda step=step: job.step() > step + 2, "steps after a kill")  # type: ignore[misc]
    job.goes_on()


@fault("kill rank, budget spent", "SIGKILL to a rank, with no restart left", outcome=Outcome.ENDS, cause=KILLED,
       options=("--max-restarts", 0), torchrun=True)  # fmt: skip
def kill_rank_budget_spent(job: Job) -> None:
    job.kill_rank(job.any_rank())


@fault(
    "kill rank at the end",
    "while the training ends: from three steps before the last to 0.3 s after it",
    restarts=(0, 1),
    smoke=True,
)
def kill_rank_at_the_end(job: Job) -> None:
    life = job.any_rank()
    job.finish()
    job.lasts(job.rng.uniform(0.0, 0.3))
    job.strike()
    send(life.pid, signal.SIGKILL)


@fault(
    "kill agent",
    "SIGKILL to an agent that is not the coordinator's",
    nodes=3,
    nnodes="2:3",
    cause=LOST_NODE,
    smoke=True,
    torchrun=True,
)
def kill_agent(job: Job) -> None:
    node = job.any_node("n1", "n2")
    job.note(node=node.name)
    node.is_lost = True
    job.strike()
    send(node.agent_pid(), signal.SIGKILL)
    job.again()


@fault("kill guardian", "SIGKILL to the process that was started", nodes=3, nnodes="2:3", cause=LOST_NODE)
def kill_guardian(job: Job) -> None:
    node = job.any_node("n1", "n2")
    job.note(node=node.name)
    node.is_lost = True
    job.strike()
    send(node.launcher.pid, signal.SIGKILL)
    job.again()


@fault("kill agent and guardian", "SIGKILL to both in one moment", nodes=3, nnodes="2:3", cause=LOST_NODE, smoke=True)
def kill_agent_and_guardian(job: Job) -> None:
    node = job.any_node("n1", "n2")
    job.note(node=node.name)
    node.is_lost = True
    agent = node.agent_pid()
    job.strike()
    send(agent, signal.SIGKILL)
    send(node.launcher.pid, signal.SIGKILL)
    job.again()


@fault(
    "kill node",
    "SIGKILL to all processes of a node that is not the coordinator's",
    nodes=3,
    nnodes="2:3",
    cause=LOST_NODE,
    torchrun=True,
)
def kill_node(job: Job) -> None:
    node = job.any_node("n1", "n2")
    job.note(node=node.name)
    job.strike()
    node.kill()
    job.again()


@fault("kill node, again", "SIGKILL to all processes of a node, and its agent is started again; as many nodes as before",
       cause=LOST_NODE, torchrun=True)  # fmt: skip
def kill_node_again(job: Job) -> None:
    job.note(node="n1")
    job.strike()
    job.nodes["n1"].kill()
    job.start("n1")
    job.again()


@fault("kill coordinator guardian", "SIGKILL to the coordinator's guardian", nodes=3, nnodes="2:3", cause=LOST_COORDINATOR)
def kill_coordinator_guardian(job: Job) -> None:
    job.nodes["n0"].is_lost = True
    job.strike()
    send(job.nodes["n0"].launcher.pid, signal.SIGKILL)
    job.again()


@fault(
    "kill coordinator agent",
    "SIGKILL to the coordinator's agent",
    nodes=3,
    nnodes="2:3",
    cause=LOST_COORDINATOR,
    smoke=True,
    torchrun=True,
)
def kill_coordinator_agent(job: Job) -> None:
    job.nodes["n0"].is_lost = True
    job.strike()
    send(job.nodes["n0"].agent_pid(), signal.SIGKILL)
    job.again()


@fault(
    "kill coordinator, again",
    "SIGKILL to the coordinator's node, and its agent is started again at once",
    nodes=3,
    nnodes="2:3",
)
def kill_coordinator_again(job: Job) -> None:
    job.strike()
    job.nodes["n0"].kill()
    job.start("n0")
    _all_train(job)


@fault("coordinator lost twice", "SIGKILL to the coordinator's node, and once it trains again to its successor's; 2:4 nodes", nodes=4,
       nnodes="2:4")  # fmt: skip
def coordinator_lost_twice(job: Job) -> None:
    job.strike()
    job.nodes["n0"].kill()
    job.again(steps=100)
    job.nodes["n1"].kill()
    job.wait(lambda: {life.node for life in job.alive()} == {"n2", "n3"}, "ranks on the two that are left")
    job.goes_on()


@fault(
    "two of four lost at once",
    "two nodes that are not the coordinator's are gone within 200 ms",
    nodes=4,
    nnodes="2:4",
    smoke=True,
)
def two_of_four(job: Job) -> None:
    job.strike()
    for name in job.rng.sample(["n1", "n2", "n3"], 2):
        job.nodes[name].kill()
        job.lasts(job.rng.uniform(0.0, 0.2))
    job.again()


def _kill_agents(job: Job, *names: str, apart_s: float) -> None:
    """SIGKILL to these agents; `apart_s`: between the first and the last."""
    pids = [job.nodes[name].agent_pid() for name in names]
    job.strike()
    for number, (name, pid) in enumerate(zip(names, pids)):
        if number:
            job.lasts(apart_s)
        job.nodes[name].is_lost = True
        send(pid, signal.SIGKILL)


def _and_again(job: Job, *names: str, apart_s: float, options: tuple[object, ...] = ()) -> None:
    """Kill and start again at once, one after the other."""
    for number, name in enumerate(names):
        if number:
            job.lasts(apart_s)
        pid = job.nodes[name].agent_pid()
        job.strike()
        send(pid, signal.SIGKILL)
        job.ended(name, patience_s=10)
        job.start(name, options=options)


def _all_train(job: Job) -> None:
    """Each node is back, and it trains. If the job ended before, a node that comes later would find nobody to tell it so."""
    back = lambda: {life.node for life in job.alive() if life.first > job.struck_at}
    job.wait(lambda: back() == set(job.nodes), "a rank on each node")
    job.again()


@fault("coordinator and one of three", "agents of n0 and n1 are killed within 0.25 s, and nobody starts them again; 2:3 nodes",
       outcome=Outcome.HALTS, nodes=3, nnodes="2:3")  # fmt: skip
def coordinator_and_one(job: Job) -> None:
    _kill_agents(job, "n0", "n1", apart_s=job.rng.uniform(0, 0.25))


@fault("coord.+1 of 3, endpoint again", "as before, but only the endpoint's is started again, 5 s later", nodes=3, nnodes="2:3")
def coordinator_and_one_endpoint(job: Job) -> None:
    _kill_agents(job, "n0", "n1", apart_s=job.rng.uniform(0, 0.25))
    job.lasts(5)
    job.start("n0")
    job.again()


@fault(
    "coord.+1 of 3, both again",
    "agents of n0 and n1 are killed within 0.25 s, and both started again at once",
    nodes=3,
    nnodes="2:3",
)
def coordinator_and_one_again(job: Job) -> None:
    _and_again(job, "n0", "n1", apart_s=job.rng.uniform(0, 0.25))
    _all_train(job)


@fault("two others of 3, both again", "agents of n1 and n2 are killed within 0.25 s and both started again at once; the coordinator lives",
       nodes=3, nnodes="2:3", smoke=True)  # fmt: skip
def two_others_again(job: Job) -> None:
    _kill_agents(job, "n1", "n2", apart_s=job.rng.uniform(0, 0.25))
    job.start("n1", "n2")
    _all_train(job)


@fault("two others of 3 fixed, both again", "the same where the job must have three nodes", nodes=3)
def two_others_fixed(job: Job) -> None:
    _kill_agents(job, "n1", "n2", apart_s=job.rng.uniform(0, 0.25))
    job.start("n1", "n2")
    _all_train(job)


@fault("two others of 3, both again, endpoint", "the same; 15 s later the endpoint's agent is ended by SIGTERM and started again", nodes=3,
       nnodes="2:3", patience_s=90)  # fmt: skip
def two_others_and_endpoint(job: Job) -> None:
    _kill_agents(job, "n1", "n2", apart_s=job.rng.uniform(0, 0.25))
    job.start("n1", "n2")
    job.lasts(15)
    job.nodes["n0"].launcher.send_signal(signal.SIGTERM)
    job.ended("n0", patience_s=40)
    for name in (
        "n1",
        "n2",
    ):  # The endpoint's SIGTERM ends the job, where it leads: whoever has ended with it is started again.
        job.lasts(0.5)
        if not job.nodes[name].runs:
            job.start(name)
    job.start("n0")
    job.wait(lambda: len({life.node for life in job.alive()}) >= 2, "ranks on two nodes")
    job.goes_on()


@fault(
    "two others of 3, both again, witness",
    "two others of 3, both again, with --witness DIR on all nodes",
    nodes=3,
    nnodes="2:3",
    starts=False,
)
def two_others_witness(job: Job) -> None:
    witness = job.base / "witness"
    witness.mkdir()
    options = ("--witness", witness)
    job.start(options=options)
    job.trains(job.rng.randint(4, 25))
    _kill_agents(job, "n1", "n2", apart_s=job.rng.uniform(0, 0.25))
    job.start("n1", "n2", options=options)
    _all_train(job)


def _two_others_apart(job: Job, seconds: float) -> None:
    _and_again(job, "n1", "n2", apart_s=seconds)
    _all_train(job)


@fault(
    "two others of 3, 0.5 s apart",
    "agents of n1 and n2 are killed one after the other, and each is started again at once",
    nodes=3,
    nnodes="2:3",
)
def two_others_half(job: Job) -> None:
    _two_others_apart(job, 0.5)


@fault(
    "two others of 3, 2 s apart",
    "agents of n1 and n2 are killed one after the other, and each is started again at once",
    nodes=3,
    nnodes="2:3",
)
def two_others_two(job: Job) -> None:
    _two_others_apart(job, 2)


@fault(
    "two others of 3, 3 s apart",
    "agents of n1 and n2 are killed one after the other, and each is started again at once",
    nodes=3,
    nnodes="2:3",
)
def two_others_three(job: Job) -> None:
    _two_others_apart(job, 3)


@fault("two others of 3, 0 to 2 s apart", "agents of n1 and n2 are killed at a random distance, and started again when both are gone", nodes=3,
       nnodes="2:3")  # fmt: skip
def two_others_random(job: Job) -> None:
    _kill_agents(job, "n1", "n2", apart_s=job.rng.uniform(0, 2))
    job.start("n1", "n2")
    _all_train(job)


def _two_of_three(job: Job) -> None:
    """Any two nodes, the coordinator's too, 0 to 2 s apart; each is back 0 to 2 s after both are gone."""
    first, second = job.rng.sample(sorted(job.nodes), 2)
    job.strike()
    job.nodes[first].kill()
    job.lasts(job.rng.uniform(0, 2))
    job.nodes[second].kill()
    lost = [first, second]
    job.rng.shuffle(lost)
    for name in lost:
        job.lasts(job.rng.uniform(0, 2))
        job.start(name)
    _all_train(job)


@fault("any two nodes of 3, both again", "two nodes, the coordinator's too, are lost 0 to 2 s apart, and both started again at random moments; "
       "it trains at most lease + 5 s after the second's start", nodes=3, nnodes="2:3", back_within_s=LEASE_S + 5)  # fmt: skip
def any_two(job: Job) -> None:
    _two_of_three(job)


@fault(
    "any two nodes of 3 fixed, both again", "the same where the job must have three nodes", nodes=3, back_within_s=LEASE_S + 5
)
def any_two_fixed(job: Job) -> None:
    _two_of_three(job)


@fault("coord.+1 of 4, both again", "of four nodes the coordinator's agent and another are killed within 0.25 s, and both started again at once",
       nodes=4, nnodes="2:4")  # fmt: skip
def coordinator_and_one_of_four_again(job: Job) -> None:
    _and_again(job, "n0", "n1", apart_s=job.rng.uniform(0, 0.25))
    _all_train(job)


@fault("two others of 4, both again", "of four nodes two that are not the coordinator's are killed within 0.25 s, and both started again at once",
       nodes=4, nnodes="2:4")  # fmt: skip
def two_others_of_four(job: Job) -> None:
    _and_again(job, "n1", "n2", apart_s=job.rng.uniform(0, 0.25))
    _all_train(job)


@fault("coordinator of 2 fixed, again", "of two nodes the coordinator's agent is killed and started again at once")
def coordinator_of_two(job: Job) -> None:
    _and_again(job, "n0", apart_s=0)
    _all_train(job)


@fault("coord.+1 of 3, on-split continue", "agents of n0 and n1 are killed; n2 may go on", nodes=3, nnodes="1:3",
       options=("--on-split", "continue"))  # fmt: skip
def on_split_continue(job: Job) -> None:
    _kill_agents(job, "n0", "n1", apart_s=job.rng.uniform(0, 0.25))
    job.again()


@fault("coord.+1 of 4", "of four nodes the coordinator's agent and another are killed within 0.25 s, and nobody starts them again: half are left",
       outcome=Outcome.HALTS, nodes=4, nnodes="2:4")  # fmt: skip
def coordinator_and_one_of_four(job: Job) -> None:
    _kill_agents(job, "n0", "n1", apart_s=job.rng.uniform(0, 0.25))


@fault("all agents, all again", "all agents are killed within 0.5 s, and all started again", nodes=3, nnodes="2:3")
def all_agents(job: Job) -> None:
    _kill_agents(job, "n0", "n1", "n2", apart_s=job.rng.uniform(0, 0.25))
    job.ended(patience_s=10)
    job.start()
    job.again()


@fault("kill during restart", "a rank is killed, and 0 to 500 ms later any process of a rank or a spare that lives then", nodes=2,
       restarts=(1, 3), torchrun=True, smoke=True)  # fmt: skip
def kill_during_restart(job: Job) -> None:
    job.kill_rank(job.any_rank())
    job.lasts(job.rng.uniform(0, 0.5))
    node = job.any_node()
    mine = {node.launcher.pid, node.agent_pid()}
    others = [pid for pid in node.pids() if pid not in mine and "python" in _name(pid)]
    if others:
        send(job.rng.choice(others), signal.SIGKILL)
    job.again()


@fault(
    "kill agent during restart",
    "a rank is killed, and 0 to 500 ms later an agent, the coordinator's too",
    nodes=3,
    nnodes="2:3",
    restarts=(0, 2),
)
def kill_agent_during_restart(job: Job) -> None:
    job.kill_rank(job.any_rank())
    job.lasts(job.rng.uniform(0, 0.5))
    node = job.any_node()
    node.is_lost = True
    send(node.agent_pid(), signal.SIGKILL)
    job.again()


@fault("kill while starting", "to 3 s after the agents' start a rank, or the agent of n1 or n2, is killed", nodes=3, nnodes="2:3", starts=False,
       restarts=(0, 1))  # fmt: skip
def kill_while_starting(job: Job) -> None:
    job.start()
    job.lasts(job.rng.uniform(0, 3))
    job.strike()
    if job.rng.random() < 0.5 and (alive := job.alive()):
        send(job.rng.choice(alive).pid, signal.SIGKILL)
    else:
        node = job.any_node("n1", "n2")
        node.is_lost = True
        send(node.agent_pid(), signal.SIGKILL)
    job.trains()
    job.goes_on()


@fault("kill rank of eight", "eight ranks on two nodes; one is killed", nproc=4, restarts=1, cause=KILLED)
def kill_of_eight(job: Job) -> None:
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "kill rank 0 and coordinator",
    "the rank 0 is killed, and in the same moment the agent above it",
    nodes=3,
    nnodes="2:3",
    restarts=(0, 1),
)
def kill_rank_and_coordinator(job: Job) -> None:
    life = job.rank(0)
    node = job.nodes[life.node]
    agent = node.agent_pid()
    node.is_lost = True
    job.kill_rank(life)
    send(agent, signal.SIGKILL)
    job.again()


@fault("200 restarts", "a script that fails at once, 200 times; --backoff 0", nodes=1, restarts=200, starts=False, options=("--max-restarts", 250),
       script="import os, sys\nif int(os.environ['TORCHELASTIC_RESTART_COUNT']) < 200: sys.exit(3)\n", patience_s=200)  # fmt: skip
def two_hundred_restarts(job: Job) -> None:
    job.strike()
    job.start()
    job.trains(patience_s=180)
    job.goes_on()


def _name(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read()
    except OSError:
        return ""
