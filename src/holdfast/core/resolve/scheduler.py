"""What does the scheduler say about a job that we are a node of: how many nodes, where do they meet, what is the job called?

Read from the environment alone, and pure. Each value comes with the variable that says it.
What the user says goes first: `core.resolve.resolve_scheduler` puts the two together.

started by                          says
srun, on all nodes of the step      nodes, first node, port, name, workers (GPUs)
srun on one of the job's nodes      one node; where the user gives a number of nodes, it is one of several such steps
a batch script, a shell of salloc   one node; where the job has more, that srun is missing
JobSet, Indexed Job                 as far as the manifest hands it down; Kubernetes itself only tells JOB_COMPLETION_INDEX
PyTorchJob without PET_ variables   static ranks: WORLD_SIZE pods, RANK, MASTER_ADDR, MASTER_PORT
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.resolve import slurm
from holdfast.core.resolve.infrastructure import PODS, jobset, pod_rank
from holdfast.core.resolve.slurm import first, number
from holdfast.core.value import Value

POD_PORT = 29400  # A pod has an address of its own, so torchrun's usual port does.
REPLICATED_JOB = ("JOBSET_REPLICATEDJOB_NAME", "JOBSET_REPLICATED_JOB_NAME", "REPLICATED_JOB_NAME")
REPLICAS = (
    "JOBSET_GLOBAL_REPLICAS",
    "GLOBAL_REPLICAS",
    "JOBSET_REPLICATEDJOB_REPLICAS",
    "JOBSET_REPLICATED_JOB_REPLICAS",
    "REPLICATED_JOB_REPLICAS",
)
COORDINATOR = ("JOBSET_COORDINATOR", "COORDINATOR_ADDRESS")
RESTARTS = ("JOBSET_RESTART_ATTEMPT", "RESTART_ATTEMPT")
"""Usual names for JobSet's labels and annotations, which a manifest hands down by `fieldRef`."""
PYTORCHJOB = ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "KUBERNETES_SERVICE_HOST")
NAME_CHARS = 40
PLAIN = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


class Said(Value):
    """A value as the scheduler gives it, and where."""

    value: str
    origin: str


class Given(Value):
    """What the scheduler says. None, of any value: it does not."""

    scheduler: str  # slurm · jobset · indexed job · pytorchjob
    job: Said
    """A name that all nodes of this life of the job have, and no other job, nor another life of this one. May be empty."""
    nodes: Said | None = None
    rank: Said | None = None  # This node's place among them; 0 is the first.
    head: Said | None = None  # Host of the first node: there the coordinator can be.
    port: Said | None = None  # Free for this job there.
    node_name: Said | None = None
    workers: Said | None = None  # How many this node has devices for.
    static: bool = False  # Ranks and address are those of the workers: the static backend.
    unused: int = 0  # Nodes of the job that nobody starts an agent on, as far as we see.


def scheduler_given(environ: Mapping[str, str]) -> Given | None:
    """What Slurm or Kubernetes say. None: neither started us. UsageError: a variable makes no sense.

    Each task of a job array is a job of its own."""
    if environ.get("SLURM_JOB_ID"):
        return _slurm(environ)
    if environ.get("JOB_COMPLETION_INDEX"):
        return _kubernetes(environ)
    if all(environ.get(variable) for variable in PYTORCHJOB) and "LOCAL_RANK" not in environ:
        return _pytorchjob(environ)
    return None


def pod_host(environ: Mapping[str, str], full_name: str) -> str:
    """Where the first pod of this job is found; empty: it has no name that others know.

    `full_name`: this pod's, with its headless service's domain (`train-1.train.ns.svc.cluster.local`)."""
    if coordinator := first(environ, COORDINATOR):
        return environ[coordinator]
    job, _, domain = full_name.partition(".")
    if (name := jobset(environ)) and (part := first(environ, REPLICATED_JOB)):
        return f"{name}-{environ[part]}-0-0.{domain or name}"  # JobSet's service is called after it unless told otherwise
    prefix, dash, _ = job.rpartition(f"-{environ['JOB_COMPLETION_INDEX']}")
    return f"{prefix}-0.{domain}" if dash and domain else ""


ONE_AGENT = Said(value="1", origin="derived: one agent in this part of a Slurm job")

# --- Slurm --------------------------------------------------------------------------------------------------------------


def _slurm(environ: Mapping[str, str]) -> Given:
    job, step, names = number(environ, "SLURM_JOB_ID"), slurm.step(environ), slurm.hosts(environ)
    alone = slurm.alone(environ)
    total = slurm.step_nodes(environ) or len(names) or 1
    several = slurm.several_agents_wanted(environ)
    own_step = None if alone else step  # steps of one node each, one for each node: all must find the same place
    return Given(
        scheduler="slurm",
        job=Said(value=_slurm_name(environ, own_step), origin="SLURM_JOB_ID"),
        nodes=ONE_AGENT if step is None or alone else _slurm_nodes(environ, several),
        rank=None if step is None else _slurm_rank(environ, alone, several),
        head=Said(value=names[0], origin=slurm.nodelist(environ)) if names else None,
        port=Said(value=str(slurm.port(job, own_step or 0)), origin="SLURM_JOB_ID"),
        node_name=_said(environ, "SLURMD_NODENAME"),
        workers=_said(environ, "SLURM_GPUS_ON_NODE") if environ.get("SLURM_GPUS_ON_NODE", "0") != "0" else None,
        unused=total - 1 if step is None else 0,
    )


def _slurm_nodes(environ: Mapping[str, str], several: bool) -> Said | None:
    if several:
        return _said(environ, "SLURM_NTASKS")
    return _said(environ, "SLURM_STEP_NUM_NODES") or _said(environ, "SLURM_NNODES")


def _slurm_rank(environ: Mapping[str, str], alone: bool, several: bool) -> Said | None:
    if alone:
        return Said(value=str(slurm.node_index(environ) or 0), origin="place in SLURM_JOB_NODELIST")
    # Not SLURM_PROCID, unless agents share nodes: with --distribution=arbitrary the first task need not be on the first node.
    return (None if several else _said(environ, "SLURM_NODEID")) or _said(environ, "SLURM_PROCID")


def _slurm_name(environ: Mapping[str, str], step: int | None) -> str:
    """`17.0-llama`, and `17.0-llama-r1` after a requeue: its former life's agents, if any are left, are strangers."""
    name = "".join(char if char in PLAIN else "-" for char in environ.get("SLURM_JOB_NAME", ""))[:NAME_CHARS].strip("-.")
    lives = environ.get("SLURM_RESTART_COUNT", "0")
    parts = (environ["SLURM_JOB_ID"] + ("" if step is None else f".{step}"), name, f"r{lives}" if lives != "0" else "")
    return "-".join(filter(None, parts))


# --- Kubernetes ----------------------------------------------------------------------------------------------------------


def _kubernetes(environ: Mapping[str, str]) -> Given:
    in_jobset = jobset(environ)
    rank, why = pod_rank(environ)
    lives = first(environ, RESTARTS)
    name = in_jobset or environ.get("JOB_NAME") or _without(environ.get("HOSTNAME", ""), environ["JOB_COMPLETION_INDEX"])
    return Given(
        scheduler="jobset" if in_jobset else "indexed job",
        job=Said(
            value=f"{name}-r{environ[lives]}" if name and lives and environ[lives] != "0" else name,
            origin="JOBSET_NAME" if in_jobset else "JOB_NAME" if environ.get("JOB_NAME") else "HOSTNAME",
        ),
        nodes=_pods(environ, bool(in_jobset)),
        rank=Said(value=str(rank), origin=why),
        port=Said(value=str(POD_PORT), origin="default"),
    )


def _pods(environ: Mapping[str, str], in_jobset: bool) -> Said | None:
    pods, replicas = first(environ, PODS), first(environ, REPLICAS) if in_jobset else ""
    if not pods:
        return None
    count = number(environ, pods) * (number(environ, replicas) if replicas else 1)
    return Said(value=str(count), origin=f"{pods} x {replicas}" if replicas else pods)


def _pytorchjob(environ: Mapping[str, str]) -> Given:
    host, _, _ = environ.get("HOSTNAME", "").rpartition("-")
    name, _, _ = host.rpartition("-")  # the pods are called <job>-master-0, <job>-worker-3
    return Given(
        scheduler="pytorchjob",
        job=Said(value=name, origin="HOSTNAME"),
        nodes=_said(environ, "WORLD_SIZE"),
        rank=_said(environ, "RANK"),
        head=_said(environ, "MASTER_ADDR"),
        port=_said(environ, "MASTER_PORT"),
        static=True,
    )


def _without(name: str, index: str) -> str:
    """The pods of an Indexed Job are called <job>-<index>."""
    host, dash, _ = name.rpartition(f"-{index}")
    return host if dash else ""


def _said(environ: Mapping[str, str], variable: str) -> Said | None:
    return Said(value=environ[variable], origin=variable) if environ.get(variable) else None
