"""What does the user leave to the scheduler? Each value that neither a flag nor a variable gives, and that Slurm or Kubernetes
tell (`core.resolve.scheduler`), is taken from them, with the variable that it comes from.

said by the user               taken from the scheduler
nothing about nodes            number of nodes, endpoint, job's name, workers per node
--nnodes                       endpoint and job's name, where it asks for several
--rdzv-endpoint, or etcd       number of nodes and job's name
--node-rank, --master-…        the rest of the static ranks
--standalone, memory           nothing
"""

from __future__ import annotations

from holdfast.core.config import grammar
from holdfast.core.config.draft import Draft, Setting
from holdfast.core.errors import UsageError
from holdfast.core.resolve.infrastructure import one_agent_per_node
from holdfast.core.resolve.scheduler import COORDINATOR, Given, Said, pod_host, scheduler_given
from holdfast.core.resolve.slurm import first, in_batch_script

STATIC = ("node_rank", "master_addr", "master_port")
OUR_SERVER = ("", "c10d", "embedded", "holdfast")
"""Backends that meet at an endpoint on the first node; the first is none said."""


def ask_scheduler(draft: Draft) -> None:
    """Fill in what the user left open. `UsageError`: this cannot be meant, such as two agents on one node."""
    asked = draft.text("rdzv_backend")
    backend = asked if draft.given("rdzv_backend") or asked == "c10d" else ""  # the second is ft_launcher's default
    if draft.on("standalone") or backend == "memory":
        return
    given = scheduler_given(draft.environ)
    if given is not None:
        _take_from(given, draft, backend)


def _take_from(given: Given, draft: Draft, backend: str) -> None:
    said = {dest for dest in ("nnodes", "rdzv_backend", "rdzv_endpoint", *STATIC) if draft.given(dest)}
    if "nnodes" not in said:
        _nodes(draft, given)
    several = grammar.node_range(draft.text("nnodes"), draft.name("nnodes"))[1] > 1
    if given.scheduler == "slurm" and (several or "nnodes" not in said):
        one_agent_per_node(draft.environ)
    if several and "rdzv_endpoint" not in said:
        _meeting(draft, given, backend, said)
    met_here = draft.given("rdzv_endpoint") and "rdzv_endpoint" not in said
    if given.job.value and (met_here or not several or "nnodes" not in said):
        _fill(draft, "rdzv_id", given.job)  # else the user's nodes may be of several of the scheduler's jobs
    _fill(draft, "node_name", given.node_name)
    if not said & {"rdzv_backend", "rdzv_endpoint", *STATIC}:
        _fill(draft, "nproc_per_node", given.workers)


def _fill(draft: Draft, dest: str, said: Said | None) -> None:
    if said is not None and not draft.given(dest):
        draft.settings[dest] = Setting(value=said.value, origin=said.origin)


def _nodes(draft: Draft, given: Given) -> None:
    if given.unused:
        _srun_is_missing(draft, given)
    if given.nodes is not None:
        _fill(draft, "nnodes", given.nodes)
    elif given.scheduler != "slurm":
        draft.warn(
            f"pod {draft.environ['JOB_COMPLETION_INDEX']} of an Indexed Job runs alone: the number of pods is not known "
            "(set PET_NNODES, or JOB_COMPLETIONS, in the manifest; --standalone to run alone)"
        )


def _srun_is_missing(draft: Draft, given: Given) -> None:
    """The job has more nodes than this one, and nobody starts agents on them."""
    job, nodes = draft.environ["SLURM_JOB_ID"], given.unused + 1
    if in_batch_script(draft.environ):
        raise UsageError(
            f"Slurm job {job} has {nodes} nodes, and its batch script starts an agent on the first of them only",
            hint="`srun holdfast run …` in the script starts one on each; --nnodes 1 if the others are for something else",
        )
    draft.warn(
        f"Slurm job {job} has {nodes} nodes, and this is a shell beside them: running on this host alone "
        "(`srun holdfast run …` runs on all of them)"
    )


def _meeting(draft: Draft, given: Given, backend: str, said: set[str]) -> None:
    head = _head(draft, given)
    if backend == "static" or (not backend and (given.static or said & set(STATIC))):
        _fill(draft, "node_rank", given.rank)
        _fill(draft, "master_addr", head)
        _fill(draft, "master_port", given.port)
    elif backend in OUR_SERVER and head is not None and given.port is not None:
        endpoint = grammar.shown_endpoint(head.value, int(given.port.value))
        origin = head.origin if given.port.origin == "default" else f"{head.origin}, {given.port.origin}"
        _fill(draft, "rdzv_endpoint", Said(value=endpoint, origin=origin))
        if given.rank is not None and not first(draft.environ, COORDINATOR):  # which may be any of the pods
            draft.put("is_host", given.rank.value == "0", given.rank.origin)


def _head(draft: Draft, given: Given) -> Said | None:
    if given.scheduler == "slurm":
        if given.head is None:
            return None
        address = draft.host.slurm_address(given.head.value)
        how = "" if address == given.head.value else ", its NodeAddr"
        return Said(value=address, origin=f"{given.head.origin}{how}")
    if given.head is not None or given.rank is None:
        return given.head
    host = pod_host(draft.environ, draft.host.full_name())
    if not host:
        raise UsageError(
            f"pod {draft.environ['JOB_COMPLETION_INDEX']}: the other pods have no DNS names",
            hint="give the pods a headless service (spec.subdomain and a Service with clusterIP: None), or --rdzv-endpoint",
        )
    return Said(value=host, origin="the first pod's name")
