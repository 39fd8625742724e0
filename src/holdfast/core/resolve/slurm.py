"""What do Slurm's variables say? Pure. Seen with 22.05; what differs between its ways to start a program:

started by                     SLURM_PROCID     SLURM_NNODES     SLURM_JOB_NODELIST   SLURM_STEP_*
srun over all nodes            node index (1)   nodes of job     nodes of job         there
srun over one of many nodes    0 on each        1                nodes of job         there, of that one node
the batch script itself        0                nodes of job     nodes of job         not there
a shell under salloc           not there        nodes of job     nodes of job         not there
(1) with one task per node
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from holdfast.core.config.grammar import whole
from holdfast.core.resolve.hostlist import expand

JOB_NODELIST = ("SLURM_JOB_NODELIST", "SLURM_NODELIST")
STARTED_BY = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEP_LAUNCHER_PORT")
SPECIAL_STEPS, NO_STEP = 0xFFFFFFF0, 0xFFFFFFFF
"""Step numbers from the first on are no steps of srun: the shell of an interactive allocation, and the like."""
PORTS, STEPS = range(20000, 29216), 32
"""Where agents of a Slurm job meet: below the ports that Linux gives out by itself (32768 and up), and below 29400, which many
command lines name. 9216 / 32: no two of the first 32 steps of 288 consecutive jobs have the same port."""


def first(environ: Mapping[str, str], variables: Iterable[str]) -> str:
    """The first of `variables` that has a value; empty: none has."""
    return next((variable for variable in variables if environ.get(variable)), "")


def number(environ: Mapping[str, str], variable: str) -> int:
    """A variable's value: 0 or more, or a `UsageError`."""
    return whole(environ[variable], variable, at_least=0)


def topology(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """SLURM_TOPOLOGY_ADDR by its pattern: `s0.s4.n7` under `switch.switch.node` → (switch, s0), (switch, s4), (node, n7)."""
    kinds = [kind for kind in environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").lower().split(".") if kind]
    names = environ.get("SLURM_TOPOLOGY_ADDR", "").split(".", len(kinds) - 1 if kinds else 0)  # a node's name may have dots
    return list(zip(kinds, names)) if len(kinds) == len(names) else []


def step(environ: Mapping[str, str]) -> int | None:
    """Number of the step that srun started us in. None: it did not, so this is the batch script or a shell of the user's."""
    number = _step_id(environ)
    if number >= SPECIAL_STEPS or not environ.get("SLURM_PROCID"):
        return None
    # A batch script that was submitted from a step inherits that step's variables; its own number of nodes tells.
    nodes = environ.get("SLURM_NNODES")
    return number if nodes == environ.get("SLURM_STEP_NUM_NODES", nodes) else None


def in_batch_script(environ: Mapping[str, str]) -> bool:
    """Are we in the batch script itself, not in a step nor in a shell of the user's?"""
    inherited = _step_id(environ)
    interactive = SPECIAL_STEPS <= inherited < NO_STEP
    return step(environ) is None and "SLURM_PROCID" in environ and not interactive


def _step_id(environ: Mapping[str, str]) -> int:
    variable = first(environ, ("SLURM_STEP_ID", "SLURM_STEPID"))
    return number(environ, variable) if variable else NO_STEP


def started_by(environ: Mapping[str, str]) -> str:
    """Marks of the srun that started us; empty: none did. A requeue, or a later job of the same number, has other ones."""
    marks = [environ.get(variable, "") for variable in STARTED_BY]
    return " ".join([*marks, environ.get("SLURM_RESTART_COUNT", "0")]) if all(marks) else ""


def port(job: int, step: int) -> int:
    """Where the agents of that step meet, on its first node."""
    return PORTS[(job * STEPS + step) % len(PORTS)]


def several_agents_wanted(environ: Mapping[str, str]) -> bool:
    """Is more than one agent per node what the user asks for?"""
    return environ.get("NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE") == "1"


def nodelist(environ: Mapping[str, str]) -> str:
    """The variable that names the nodes that agents run on: the step's, or the job's where the step has one of its nodes."""
    return first(environ, JOB_NODELIST if alone(environ) else ("SLURM_STEP_NODELIST", *JOB_NODELIST))


def hosts(environ: Mapping[str, str]) -> list[str]:
    """Those nodes, in Slurm's order."""
    variable = nodelist(environ)
    return expand(environ[variable], variable) if variable else []


def step_nodes(environ: Mapping[str, str]) -> int | None:
    """How many nodes those are. None: not told."""
    order = ("SLURM_JOB_NUM_NODES", "SLURM_NNODES") if alone(environ) else ("SLURM_NNODES", "SLURM_JOB_NUM_NODES")
    variable = first(environ, order)
    return whole(environ[variable], variable, at_least=1) if variable else None


def node_index(environ: Mapping[str, str]) -> int | None:
    """This node's place among them. None: not told. Assumes one task per node."""
    if alone(environ):
        name, names = environ.get("SLURMD_NODENAME"), hosts(environ)
        if name in names:
            return names.index(name)
    return number(environ, "SLURM_PROCID") if "SLURM_PROCID" in environ else None


def one_task_per_node(text: str) -> bool:
    """SLURM_TASKS_PER_NODE, such as `1(x3)` or `2(x2),1`: is there one everywhere?"""
    return all(entry.strip().partition("(")[0] == "1" for entry in text.split(","))


def alone(environ: Mapping[str, str]) -> bool:
    """Is this a step of one node in a job of several: one `srun -N1 -w NODE` for each, which all have SLURM_PROCID 0?"""
    return environ.get("SLURM_STEP_NUM_NODES") == "1" and environ.get("SLURM_JOB_NUM_NODES", "1") != "1"
