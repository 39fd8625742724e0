"""What are the number and the places of the nodes to keep to, beyond --nnodes? Segments, the unit, this node's domain."""

from __future__ import annotations

from holdfast.core.config import grammar
from holdfast.core.config.draft import Draft
from holdfast.core.errors import UsageError

PLACED = ("memory", "embedded", "etcd")  # Backends whose ranks come from our own placement.


def choose_placement(draft: Draft) -> None:
    """Settle it. The rendezvous must be settled: `min_nodes` and `rdzv_conf` are read."""
    size = draft.fields["rdzv_conf"].get("replacement_group_size")
    if size is not None:
        name = draft.name("rdzv_conf")
        draft.put("replacement_group_size", grammar.whole(size, f"{name} replacement_group_size", at_least=1), name)
    backend = draft.fields["rdzv_backend"]
    if backend in PLACED:
        _check_multiple(draft, "ft_segment", draft.fields["segment"] or 1)
        _check_multiple(draft, "node_unit", draft.fields["node_unit"])
    elif given := [draft.name(dest) for dest in ("ft_segment", "node_unit", "domain") if draft.given(dest)]:
        draft.warn(f"{' and '.join(given)} ignored: the {backend} backend gives the ranks itself")


def _check_multiple(draft: Draft, dest: str, number: int) -> None:
    least = draft.fields["min_nodes"]
    if least % number:
        near = " or ".join(str(at * number) for at in (least // number, least // number + 1) if at)
        raise UsageError(
            f"{draft.name('nnodes')}: the least number of nodes, {least}, is not a multiple of {draft.name(dest)} {number}",
            hint=f"let it be {near}",
        )
