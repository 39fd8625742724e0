"""What did the infrastructure give this node: which rank, domain, replacement group, switches? Read from the environment
alone, and pure: no program is asked. Where its scheduler would have the nodes meet is `core.resolve.scheduler`'s question.

A rank given here orders nodes; it need not be small, and there may be gaps. ft_launcher's variables come in its order, and
mpirun's own rank goes before that of the batch system below it: inside a Slurm job, the daemons that mpirun starts hand
their own SLURM_PROCID down, which is not a rank of anything.

variables                                            rank
NVRX_INFRA_RANK_FROM_NODENAME, SLURMD_NODENAME       the digits of the name, put together
CROSS_SLURM_PROCID                                   as it stands (several Slurm jobs make one)
SLURM_TOPOLOGY_ADDR with pattern block.node          block x SLURM_TOPOLOGY_NODES_PER_BLOCK (else 10^10) + node
OMPI_COMM_WORLD_RANK, MV2_COMM_WORLD_RANK, PMI_RANK  as it stands
SLURM_ARRAY_TASK_ID and SLURM_PROCID                 task x nodes of a task + SLURM_PROCID
SLURM_PROCID                                         as it stands; for a step of one node in a larger job, its place in the job
GROUP_RANK, PET_NODE_RANK                            as it stands
JobSet's job index, JOB_COMPLETION_INDEX             job index x pods of a job (else 10^10) + index

One agent runs per node. A step with several tasks per node would start several, so it is refused; those who mean it set
NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE=1.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.config.grammar import whole
from holdfast.core.errors import UsageError
from holdfast.core.resolve import slurm
from holdfast.core.resolve.slurm import first, number
from holdfast.core.value import Value

BLOCK = 10_000_000_000
"""Ranks kept free for each block where nothing says how large one is. ft_launcher: 10^10; in 64 bits that leaves room for
a billion blocks."""
MPI = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "MPI_LOCALNRANKS"),
)
"""Rank, and processes on this node: Open MPI, MVAPICH2, and Hydra (MPICH, Intel MPI). Slurm sets PMI_RANK without the other."""
JOB_INDEX = ("JOBSET_JOB_GLOBAL_INDEX", "JOB_GLOBAL_INDEX", "JOBSET_JOB_INDEX", "JOB_INDEX")
PODS = ("JOBSET_JOB_COMPLETIONS", "JOB_COMPLETIONS")
"""Kubernetes itself sets JOB_COMPLETION_INDEX only. The others are usual names for JobSet's annotations
(`jobset.sigs.k8s.io/job-global-index` and so on), which a manifest hands down by `fieldRef`."""


class Infrastructure(Value):
    """A node's place in the infrastructure."""

    rank: int | None = None  # Orders the nodes. None: not given.
    rank_from: str = ""  # Where the rank comes from, in words.
    domain: str | None = None  # The NVLink or network domain that a segment must not leave.
    group: str | None = None  # Nodes that are replaced together, all or none.
    group_size: int = 0  # Nodes in a complete group; 0: not told.
    switches: tuple[str, ...] = ()  # From the root of the network's tree down to this node's own switch.


def infrastructure(environ: Mapping[str, str]) -> Infrastructure:
    """This node's place. `UsageError` where a variable makes no sense, or several agents would run on one node."""
    rank, rank_from = _rank(environ)
    parts = slurm.topology(environ)
    group = environ.get("NVRX_REPLACEMENT_GROUP_ID") or environ.get("SLURM_ARRAY_TASK_ID") or None
    return Infrastructure(
        rank=rank,
        rank_from=rank_from,
        domain=next((name for level, name in reversed(parts) if level == "block"), None),
        group=group,
        group_size=(slurm.step_nodes(environ) or 0) if group else 0,
        switches=tuple(name for level, name in parts if level == "switch"),
    )


def nvlink_domain(report: str) -> str | None:
    """`ClusterUUID.CliqueId` from `nvidia-smi -q`, as Kubernetes' label nvidia.com/gpu.clique has it: a clique's GPUs reach
    each other. None: none, or several."""
    found, clique = set(), ""
    for line in report.splitlines():
        key, _, value = (part.strip() for part in line.partition(":"))
        if key == "CliqueId":
            clique = value
        elif key == "ClusterUUID":
            named = value.strip("0-") and value != "N/A"
            found.add(f"{value}.{clique}" if named and clique.isdecimal() else value if named else None)
            clique = ""
    return found.pop() if len(found) == 1 else None


def _rank(environ: Mapping[str, str]) -> tuple[int | None, str]:
    if environ.get("NVRX_INFRA_RANK_FROM_NODENAME", "0") not in ("0", ""):
        name = environ.get("SLURMD_NODENAME", "")
        return _digits(name, "SLURMD_NODENAME", "NVRX_INFRA_RANK_FROM_NODENAME"), f"SLURMD_NODENAME={name}"
    if "CROSS_SLURM_PROCID" in environ:
        return number(environ, "CROSS_SLURM_PROCID"), "CROSS_SLURM_PROCID"
    if environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").lower() == "block.node" and "SLURM_TOPOLOGY_ADDR" in environ:
        return _block_rank(environ), f"SLURM_TOPOLOGY_ADDR={environ['SLURM_TOPOLOGY_ADDR']}"
    for variable, local_size in MPI:
        if variable in environ and local_size in environ:
            _one_per_node(environ, environ[local_size] != "1", f"mpirun starts {environ[local_size]} agents on this node")
            return number(environ, variable), variable
    if "SLURM_PROCID" in environ:
        return _slurm_rank(environ)
    for variable in ("GROUP_RANK", "PET_NODE_RANK"):
        if variable in environ and environ.get("LOCAL_WORLD_SIZE", "1") == "1":
            return number(environ, variable), variable  # with siblings we would be workers of another launcher, not a node
    if "JOB_COMPLETION_INDEX" in environ:
        return pod_rank(environ)
    job = environ.get("SLURM_JOB_ID")
    return None, f"none: in Slurm job {job}, but not started by srun" if job else ""


def _block_rank(environ: Mapping[str, str]) -> int:
    parts = dict(slurm.topology(environ))
    address = environ["SLURM_TOPOLOGY_ADDR"]
    if len(parts) < 2:
        raise UsageError(
            f"SLURM_TOPOLOGY_ADDR {address!r} does not match expected format block.node (SLURM_TOPOLOGY_ADDR_PATTERN)"
        )
    block, node = (_digits(parts[kind], f"the {kind} part of SLURM_TOPOLOGY_ADDR={address}") for kind in ("block", "node"))
    given = environ.get("SLURM_TOPOLOGY_NODES_PER_BLOCK")
    size = BLOCK if given is None else whole(given, "SLURM_TOPOLOGY_NODES_PER_BLOCK", at_least=1)
    if node >= size:
        raise UsageError(
            f"SLURM_TOPOLOGY_ADDR: Node number {node} of {address} exceeds maximum supported value {size - 1}",
            hint="set SLURM_TOPOLOGY_NODES_PER_BLOCK above the highest number of a node",
        )
    return block * size + node


def _slurm_rank(environ: Mapping[str, str]) -> tuple[int, str]:
    one_agent_per_node(environ)
    task, index = number(environ, "SLURM_PROCID"), slurm.node_index(environ)
    assert index is not None, "SLURM_PROCID says it at least"
    why = "SLURM_PROCID" if index == task else "place in SLURM_JOB_NODELIST"
    if "SLURM_ARRAY_TASK_ID" not in environ:
        return index, why
    nodes = slurm.step_nodes(environ)
    if nodes is None:
        raise UsageError(
            "SLURM_ARRAY_TASK_ID is set, but SLURM_NNODES/SLURM_JOB_NUM_NODES is not defined: the node's place in the array is "
            "not known",
            hint="pass Slurm's variables on to the agent, or set CROSS_SLURM_PROCID",
        )
    return number(environ, "SLURM_ARRAY_TASK_ID") * nodes + index, f"SLURM_ARRAY_TASK_ID, {nodes} nodes a task, {why}"


def one_agent_per_node(environ: Mapping[str, str]) -> None:
    """Refuse a step with several tasks on one node, unless that is what the user asks for."""
    tasks = environ.get("SLURM_STEP_TASKS_PER_NODE", "1")  # without it we are the batch script, which runs once
    _one_per_node(environ, not slurm.one_task_per_node(tasks), f"srun starts several agents per node (tasks: {tasks})")


def _one_per_node(environ: Mapping[str, str], several: bool, what: str) -> None:
    if several and not slurm.several_agents_wanted(environ):
        raise UsageError(
            f"{what}: an agent runs once per node and starts the workers itself",
            hint="srun --ntasks-per-node=1, or mpirun --map-by ppr:1:node; "
            "to start several anyway: NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE=1",
        )


def pod_rank(environ: Mapping[str, str]) -> tuple[int, str]:
    """Rank of a pod of an Indexed Job, and where it comes from."""
    index = number(environ, "JOB_COMPLETION_INDEX")
    job = first(environ, JOB_INDEX) if jobset(environ) else ""
    if not job:
        return index, "JOB_COMPLETION_INDEX"
    pods = number(environ, first(environ, PODS)) if first(environ, PODS) else BLOCK
    return number(environ, job) * pods + index, f"{job}, JOB_COMPLETION_INDEX"


def jobset(environ: Mapping[str, str]) -> str:
    """Name of the JobSet; empty: in none."""
    return environ.get("JOBSET_NAME", "")


def _digits(text: str, what: str, because: str = "") -> int:
    digits = "".join(char for char in text if char in "0123456789")
    if not digits:
        raise UsageError(
            f"{what}: {text!r} contains no digits, so no rank" if text else f"{what} environment variable is not set",
            hint=f"{because} asks for it: unset that" if because else "unset SLURM_TOPOLOGY_ADDR_PATTERN to do without",
        )
    return int(digits)
