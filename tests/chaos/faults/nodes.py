# ruff: noqa: E501 (a row is a row: what is done stands in one line)
"""Nodes that come, go, or are set up in an odd way."""

from __future__ import annotations

from chaos.fault import Outcome, fault
from chaos.job import Job

WHO = ("rank {rank} .*on {node}",)


@fault(
    "scale 1-2-3-2", "one node; a second; a third; the third is told to leave", nodes=3, nnodes="1:3", starts=False, smoke=True
)
def scale(job: Job) -> None:
    job.strike()
    for number, name in enumerate(job.nodes, 1):
        job.start(name)
        job.wait(lambda number=number: len({life.node for life in job.alive()}) == number, f"ranks on {number} nodes")  # type: ignore[misc]
        job.goes_on(steps=5)
    job.nodes["n2"].is_lost = True
    job.nodes["n2"].launcher.terminate()
    job.ended("n2", patience_s=20)
    job.goes_on()


@fault("different nproc", "one node has one rank, the other two; one is killed", nproc=(1, 2), restarts=1, cause=WHO)
def different_nproc(job: Job) -> None:
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "same node name twice",
    "both agents are called `same`; one's rank is killed",
    starts=False,
    restarts=1,
    cause=("rank {rank} ",),
)
def same_name(job: Job) -> None:
    for name, node in job.nodes.items():
        node.start(job.words(name, "--node-name", "same"), {})
    job.trains()
    job.kill_rank(job.any_rank())
    job.again()


@fault("job id reused", "when a job has ended, another of its id is started in the same place", starts=False, restarts=(0, 1))
def id_reused(job: Job) -> None:
    job.start()
    job.trains()
    job.finish()
    job.ended(patience_s=30)
    (job.folder / "finish").unlink()
    job.strike()
    job.start()
    job.goes_on()
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "job id in use, one host",
    "two single-node jobs of one id at the same time, in one state directory",
    nodes=1,
    starts=False,
    restarts=1,
)
def id_in_use(job: Job) -> None:
    job.start("n0")
    job.trains()
    other = job.add_node("other")
    other.env["HOLDFAST_STATE_DIR"] = str(job.nodes["n0"].state)
    words = [
        word if str(word) != str(job.endpoint) else f"127.0.0.1:{job.port + 1}"
        for word in job.words("n0", "--node-name", "other")
    ]
    folder = job.base / "other-job"
    (folder / "lives").mkdir(parents=True)
    words[-1] = folder
    other.start(words, {})
    job.wait(lambda: (folder / "saves").exists() or not other.runs, "the other job to train, or to be refused", 30)
    job.kill_rank(job.any_rank())
    job.again()
    (folder / "finish").touch()
    job.ended("other", patience_s=30)
    other.is_lost = True


@fault(
    "endpoint's agent starts twice",
    "a second agent is started for n0 by mistake, beside the first; a rank is killed",
    restarts=(0, 1),
)
def starts_twice(job: Job) -> None:
    twin = job.add_node("twin")
    twin.start(job.words("n0"), {})
    twin.is_lost = True
    job.lasts(2)
    job.kill_rank(job.any_rank())
    job.again()
    if twin.runs:
        twin.launcher.terminate()


@fault("n1 is started 8 s late", "one of two nodes comes 8 s after the other", starts=False, torchrun=True)
def late(job: Job) -> None:
    job.start("n0")
    job.strike()
    job.lasts(8)
    job.start("n1")
    job.trains()
    job.goes_on()


@fault(
    "a spare takes a place",
    "of three nodes two train; one is lost, and the third takes its place",
    nodes=3,
    nnodes="2",
    smoke=True,
)
def spare(job: Job) -> None:
    job.wait(lambda: len(job.alive()) == 2, "ranks")
    nodes = {life.node for life in job.alive()} - {"n0"}
    lost = job.nodes[nodes.pop()]
    job.strike()
    lost.kill()
    job.again()


@fault("a spare is lost", "of three nodes two train; the third is lost, and nobody notices", nodes=3, nnodes="2")
def spare_lost(job: Job) -> None:
    job.lasts(1)
    spare = ({"n1", "n2"} - {life.node for life in job.alive()}).pop()
    job.strike()
    job.nodes[spare].kill()
    job.goes_on(steps=20)


@fault(
    "a node comes and goes",
    "a third node is started and killed five times, while two train",
    nodes=2,
    nnodes="2:3",
    patience_s=90,
)
def comes_and_goes(job: Job) -> None:
    node = job.add_node("n2")
    job.strike()
    for _ in range(5):
        job.start("n2")
        job.lasts(job.rng.uniform(0.2, 1.5))
        node.kill()
    job.goes_on()


@fault("a node fails again and again", "n1's rank fails in each life; --exclude-after 2, and a spare takes its place", nodes=3, nnodes="2",
       options=("--exclude-after", 2), restarts=(2, 6), starts=False,
       script="import os\nif os.environ['CHAOS_NODE'] == 'n1': raise OSError('a bad disk')\n", cause=("a bad disk", "n1"))  # fmt: skip
def bad_node(job: Job) -> None:
    job.strike()
    job.start("n0", "n1")
    job.lasts(0.5)
    job.start("n2")
    job.trains()
    job.goes_on()


@fault("different scripts", "n1's launcher is given a script that does not exist there", outcome=Outcome.ENDS, starts=False, restarts=(0, 2),
       options=("--max-restarts", 2), cause=("n1",))  # fmt: skip
def other_script(job: Job) -> None:
    job.strike()
    job.start("n0")
    job.nodes["n1"].start(job.words("n1", script="/no/such/script.py"), {})


@fault("different nnodes", "n1's launcher says --nnodes 3 where n0's says 2; a rank is killed", starts=False, restarts=1)
def other_nnodes(job: Job) -> None:
    job.start("n0")
    words = list(map(str, job.words("n1")))
    words[words.index("--nnodes") + 1] = "3"
    job.nodes["n1"].start(words, {})
    job.trains()
    job.kill_rank(job.any_rank())
    job.again()


@fault(
    "different max-restarts",
    "n1's launcher says --max-restarts 0 where n0's allows some; a rank on n1 is killed",
    starts=False,
    restarts=1,
)
def other_budget(job: Job) -> None:
    job.start("n0")
    job.lasts(0.5)
    job.start("n1", options=("--max-restarts", 0))
    job.trains()
    job.kill_rank(next(life for life in job.alive() if life.node == "n1"))
    job.again()


@fault(
    "three nodes lost one after the other",
    "of five nodes three are lost, one in each second; 2:5 nodes",
    nodes=5,
    nnodes="2:5",
    patience_s=90,
)
def leaving(job: Job) -> None:
    job.strike()
    for name in ("n4", "n3", "n2"):
        job.nodes[name].kill()
        job.lasts(1)
    job.wait(lambda: {life.node for life in job.alive()} == {"n0", "n1"}, "ranks on the two that are left")
    job.goes_on()
