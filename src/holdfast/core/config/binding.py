"""On which CPUs, and beside which memory, does each worker of this node run? Decided over a `Topology`, a value.

    node           every CPU of the NUMA node that the worker's GPU hangs on
    socket         every CPU of the socket which that node is part of
    exclusive      the node's physical cores, shared out among the GPUs of that node
    core-complex   the CPUs of that node that share one last-level cache; another one for each GPU, while there are enough
    auto           as `node`, and the node's memory too; without GPUs the workers are spread over the NUMA nodes

The first four are torchrun's, CPU for CPU, and set no memory policy; `auto` is ours, and leaves alone what it knows nothing
of. The worker with local rank i has GPU i. Who reads the topology is `runtime.hardware.topology`, who binds
`runtime.hardware.affinity`.
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.core.config.grammar import ranges
from holdfast.core.errors import UsageError
from holdfast.core.value import Value

MODES = NODE, SOCKET, EXCLUSIVE, CORE_COMPLEX, AUTO = "node", "socket", "exclusive", "core-complex", "auto"  # As above.
NUMACTL_ADVICE = "install it (apt-get install numactl, yum install numactl), or use --numa-binding, which needs none"


class Topology(Value):
    """What a host shows of itself, as far as a mode needs it."""

    nodes: dict[int, frozenset[int]]  # NUMA node → its CPUs, among them those that we may not use.
    allowed: frozenset[int]  # CPUs that this process may use.
    gpus: tuple[int | None, ...] = ()
    """NUMA node of each visible GPU, by index. None: the firmware does not say."""
    groups: dict[int, int] = {}  # noqa: RUF012
    """CPU → physical core (`exclusive`), last-level cache (`core-complex`) or socket (`socket`) that it is part of."""

    def cpus(self, node: int) -> frozenset[int]:
        """The CPUs of a NUMA node that this process may use."""
        return self.nodes.get(node, frozenset()) & self.allowed


class Binding(Value):
    """Where one worker runs."""

    cpus: tuple[int, ...] = ()  # In order. Empty: on any.
    memory: int | None = None  # NUMA node of its memory. None: wherever the kernel takes it.
    prefix: tuple[str, ...] = ()  # Words before its command line: a program that binds, and becomes it.

    def __str__(self) -> str:
        if self.prefix:
            return " ".join(self.prefix)
        return f"CPUs {ranges(self.cpus)}" + ("" if self.memory is None else f" and the memory of NUMA node {self.memory}")


def numactl(local_rank: int, gpus_per_node: int, *, strict: bool) -> Binding:
    """As ft_launcher binds: the GPUs are counted off over the NUMA nodes, and `numactl` does it."""
    node = local_rank // gpus_per_node
    return Binding(prefix=("numactl", f"--cpunodebind={node}", f"--membind={node}" if strict else "--localalloc"))


def bind(mode: str, nproc: int, host: Topology, *, strict: bool = True) -> dict[int, Binding]:
    """Local rank → where it runs; ranks left out are not bound. UsageError: this host does not allow the mode (never `auto`).

    `strict` False: memory is preferred on the node where a thread runs, the kernel's own rule."""
    if mode == AUTO:
        return _automatic(nproc, host, strict)
    if nproc > len(host.gpus):
        raise UsageError(
            f"{nproc} workers, but {len(host.gpus) or 'no'} GPUs are visible",
            hint="--numa-binding auto spreads workers without GPUs over the NUMA nodes",
        )
    return {local_rank: Binding(cpus=tuple(sorted(_near(mode, local_rank, host)))) for local_rank in range(nproc)}


def unbound(nproc: int, host: Topology, bindings: dict[int, Binding]) -> str:
    """Why `auto` left workers where they are; empty: it did not."""
    if len(bindings) == nproc:
        return ""
    if len(_usable(host)) < 2:
        return "there is one NUMA node, so there is nothing to choose"
    ranks = ", ".join(str(rank) for rank in range(nproc) if rank not in bindings)
    return f"no NUMA node with CPUs that we may use is known to be near the GPU of local rank {ranks}; left unbound"


def _usable(host: Topology) -> list[int]:
    return [node for node in sorted(host.nodes) if host.cpus(node)]


def _automatic(nproc: int, host: Topology, strict: bool) -> dict[int, Binding]:
    usable = _usable(host)
    if len(usable) < 2:
        return {}
    # Without GPUs, neighbours in rank are neighbours in the machine: they talk to each other most.
    spread = [usable[rank * len(usable) // nproc] for rank in range(nproc)] if not host.gpus else host.gpus
    return {
        rank: Binding(cpus=tuple(sorted(host.cpus(node))), memory=node if strict else None)
        for rank, node in enumerate(spread[:nproc])
        if node is not None and host.cpus(node)
    }


def _near(mode: str, gpu: int, host: Topology) -> frozenset[int]:
    # As torch has it: a firmware that names no node is that of a host with one.
    homes = [0 if node is None else node for node in host.gpus]
    node = homes[gpu]
    cpus = host.cpus(node)
    if not cpus:
        raise UsageError(f"no CPU of NUMA node {node}, where GPU {gpu} is, may be used by this process")
    if mode == NODE:
        return cpus
    if mode == SOCKET:
        socket = host.groups[min(cpus)]
        alike = [other for node in host.nodes if (other := host.cpus(node)) and host.groups[min(other)] == socket]
        return frozenset().union(*alike)
    neighbours = [index for index, home in enumerate(homes) if home == node]
    place, parts = neighbours.index(gpu), _grouped(cpus, host.groups)
    if mode == CORE_COMPLEX:
        by_size = sorted(parts.items(), key=lambda part: (-len(part[1]), part[0]))
        return frozenset(by_size[place % len(by_size)][1])
    return _share([parts[core] for core in sorted(parts)], place, len(neighbours), node)


def _grouped(cpus: Iterable[int], groups: dict[int, int]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for cpu in cpus:
        found.setdefault(groups[cpu], []).append(cpu)
    return found


def _share(cores: list[list[int]], place: int, sharers: int, node: int) -> frozenset[int]:
    """One sharer's cores; the first sharers get the remainder."""
    each, over = divmod(len(cores), sharers)
    if not each:
        raise UsageError(
            f"NUMA node {node} has {len(cores)} usable physical cores, for {sharers} GPUs",
            hint="give this process more CPUs, or take --numa-binding node",
        )
    start = place * each + min(place, over)
    return frozenset(cpu for core in cores[start : start + each + (place < over)] for cpu in core)
