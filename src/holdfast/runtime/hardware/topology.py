"""Which CPUs, NUMA nodes and GPUs does this host have, and what is near what? Read from sysfs, without a framework and without
the drivers' libraries.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from holdfast.core.config.binding import Topology
from holdfast.runtime.hardware.gpus import addresses, names, text

CPUS, NODES, PCI = "sys/devices/system/cpu", "sys/devices/system/node", "sys/bus/pci/devices"


def read(mode: str, environ: Mapping[str, str], root: str = "/") -> Topology:
    """What the mode (`core.config.binding`) needs to know; of hundreds of CPUs, files are read only if it divides them."""
    nodes = {
        int(name[4:]): members(text(root, f"{NODES}/{name}/cpulist"))
        for name in names(root, NODES)
        if name.startswith("node") and name[4:].isdigit()
    }
    allowed = frozenset(os.sched_getaffinity(0))
    devices = addresses("gpu", environ, root) or addresses("xpu", environ, root)
    divide = {"exclusive": _core, "core-complex": _cache, "socket": _socket}.get(mode)
    return Topology(
        nodes=nodes,
        allowed=allowed,
        gpus=tuple(_home(root, address) for address in devices),
        groups={cpu: divide(root, cpu) for cpus in nodes.values() for cpu in cpus & allowed} if divide else {},
    )


def members(listed: str) -> frozenset[int]:
    """`0-2,5` → 0, 1, 2, 5."""
    bounds = [part.partition("-") for part in listed.split(",") if part.strip()]
    return frozenset(number for low, _, high in bounds for number in range(int(low), int(high or low) + 1))


def _home(root: str, address: str) -> int | None:
    """The NUMA node of a PCI device. None: not known; virtual machines often say -1."""
    said = text(root, f"{PCI}/{address}/numa_node") if address else ""
    return int(said) if said.isdigit() else None


def _core(root: str, cpu: int) -> int:
    return _least(text(root, f"{CPUS}/cpu{cpu}/topology/thread_siblings_list"), cpu)


def _socket(root: str, cpu: int) -> int:
    said = text(root, f"{CPUS}/cpu{cpu}/topology/physical_package_id")
    return int(said) if said.isdigit() else 0  # some virtual machines say -1


def _cache(root: str, cpu: int) -> int:
    """The last-level cache; one for instructions does not count. A host that shows none has one."""
    folder = f"{CPUS}/cpu{cpu}/cache"
    indices = [f"{folder}/{name}" for name in names(root, folder) if name[:5] == "index" and name[5:].isdigit()]
    caches = [index for index in indices if text(root, f"{index}/type") in ("Unified", "Data")]
    if not caches:
        return 0
    return _least(text(root, f"{max(caches, key=lambda index: int(text(root, f'{index}/level')))}/shared_cpu_list"), cpu)


def _least(listed: str, otherwise: int) -> int:
    return min(members(listed), default=otherwise)
