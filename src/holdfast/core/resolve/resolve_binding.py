"""Where is each worker of this node to run? --numa-binding, or NVRX_GPUS_PER_NUMA as ft_launcher has it, on this host."""

from __future__ import annotations

from holdfast.core.config.binding import AUTO, NUMACTL_ADVICE, bind, numactl, unbound
from holdfast.core.config.draft import Draft
from holdfast.core.config.grammar import ranges
from holdfast.core.errors import UsageError


def choose_binding(draft: Draft) -> None:
    """Settle `bindings`. The number of workers and `ft` must be settled."""
    mode, ft, nproc = draft.text("numa_binding"), draft.fields["ft"], draft.fields["nproc_per_node"]
    origin = draft.origins.get("ft.gpus_per_numa", "")
    if mode:
        if origin:
            draft.tell("NOTE", f"{origin} is ignored: {draft.name('numa_binding')} is given")
        return _by_topology(draft, mode, nproc, ft.numa_bind_strict)
    if not ft.gpus_per_numa:
        return None
    if not draft.host.has_program("numactl"):
        raise UsageError(f"{origin}: workers are bound by numactl, which is not on PATH", hint=NUMACTL_ADVICE)
    strict = ft.numa_bind_strict
    draft.put("bindings", {rank: numactl(rank, ft.gpus_per_numa, strict=strict) for rank in range(nproc)}, origin)
    nodes = draft.host.topology(AUTO).nodes
    if nodes and (lost := [rank for rank in range(nproc) if rank // ft.gpus_per_numa not in nodes]):
        here = f"there {'are' if len(nodes) > 1 else 'is'} NUMA node {ranges(sorted(nodes))} here"
        draft.warn(f"{origin}={ft.gpus_per_numa}: {here}, none for local rank {ranges(lost)}: numactl will refuse")
    return None


def _by_topology(draft: Draft, mode: str, nproc: int, strict: bool) -> None:
    name = f"{draft.name('numa_binding')} {mode}"
    host = draft.host.topology(mode)
    try:
        bindings = bind(mode, nproc, host, strict=strict)
    except UsageError as error:
        if not draft.on("numa_fallback"):
            raise UsageError(f"{name}: {error.what}", hint=error.hint) from None
        draft.warn(f"{name}: {error.what}; going on without binding, as --numa-fallback asks")
        return
    draft.put("bindings", bindings, f"derived: {name}")
    if mode == AUTO and (why := unbound(nproc, host, bindings)):
        draft.tell("NOTE", f"{name}: {why}")
