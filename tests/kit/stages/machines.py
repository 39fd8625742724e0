"""Hosts that are made up: CPUs, NUMA nodes, caches and GPUs as sysfs would show them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Machine(NamedTuple):
    """CPUs are numbered as most firmware does: first each core's first thread, then each core's second."""

    sockets: int = 2
    nodes: int = 1
    """NUMA nodes of each socket."""
    caches: int = 2
    """Last-level caches of each node."""
    cores: int = 4
    """Behind each cache."""
    threads: int = 2
    gpus: tuple[int, ...] = (0, 0, 1, 1)
    """NUMA node of each, as sysfs says it: -1 in most virtual machines."""

    @property
    def all_cores(self) -> int:
        return self.sockets * self.nodes * self.caches * self.cores

    @property
    def all_cpus(self) -> range:
        return range(self.all_cores * self.threads)

    def alike(self, cpu: int, divisor: int) -> list[int]:
        """CPUs in the same block of so many cores."""
        return [other for other in self.all_cpus if other % self.all_cores // divisor == cpu % self.all_cores // divisor]

    def node_cpus(self, node: int) -> list[int]:
        each = self.caches * self.cores
        return [cpu for cpu in self.all_cpus if cpu % self.all_cores // each == node]

    @staticmethod
    def address(gpu: int) -> str:
        return f"0000:{0x17 + 0x10 * gpu:02x}:00.0"

    def write(self, root: Path) -> None:
        """The files."""
        for node in range(self.sockets * self.nodes):
            put(root, f"sys/devices/system/node/node{node}/cpulist", listed(self.node_cpus(node)))
        put(root, "sys/devices/system/node/possible", listed(range(self.sockets * self.nodes)))
        for cpu in self.all_cpus:
            self._write_cpu(root, cpu)
        for gpu, node in enumerate(self.gpus):
            put(root, f"sys/bus/pci/devices/{self.address(gpu)}/numa_node", str(node))
            put(root, f"dev/nvidia{gpu}", "")
            said = f"Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-{gpu}{gpu}{gpu}{gpu}-77aa\nDevice Minor: \t {gpu}\n"
            put(root, f"proc/driver/nvidia/gpus/{self.address(gpu)}/information", said)

    def _write_cpu(self, root: Path, cpu: int) -> None:
        folder = f"sys/devices/system/cpu/cpu{cpu}"
        socket = cpu % self.all_cores // (self.nodes * self.caches * self.cores)
        put(root, f"{folder}/topology/physical_package_id", str(socket))
        put(root, f"{folder}/topology/thread_siblings_list", listed(self.alike(cpu, 1)))
        for index, kind, level, divisor in (
            (0, "Data", 1, 1),
            (1, "Instruction", 4, 10_000),  # never the last-level cache, whatever its level says
            (2, "Unified", 2, 1),
            (3, "Unified", 3, self.cores),
        ):
            put(root, f"{folder}/cache/index{index}/type", kind)
            put(root, f"{folder}/cache/index{index}/level", str(level))
            put(root, f"{folder}/cache/index{index}/shared_cpu_list", listed(self.alike(cpu, divisor)))
        put(root, f"{folder}/cache/uevent", "")


def put(root: Path, path: str, text: str) -> None:
    """Write one file."""
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def listed(cpus: object) -> str:
    """As the kernel lists them, though never as a range of one's own making: `0,1,2`."""
    return ",".join(map(str, cpus))  # type: ignore[call-overload]
