"""How many GPUs may this process use, and where on the PCI bus are they? Known from what the drivers show in the file system,
and from the variables that hide some of them; without a framework and without the drivers' libraries, which may hang on broken
hardware.

    gpu   NVIDIA: /dev/nvidia<n>, else /proc/driver/nvidia/gpus; AMD: /sys/class/kfd
    xpu   Intel: /sys/class/drm; graphics built into the CPU do not count

A container is given only some of the device files, while /proc still lists every GPU of the host: so files go first.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

GPUS = "proc/driver/nvidia/gpus"
GPU, XPU = "gpu", "xpu"  # Kinds of accelerators.
INTEL, INTEGRATED = "0x8086", "0000:00:02.0"  # PCI vendor; address of the processor's own graphics.


def count(kind: str, environ: Mapping[str, str], root: str = "/") -> int:
    """How many `gpu` or `xpu` are visible. 0: none, or no driver."""
    if kind == GPU and (found := nvidia(root)):
        return len(visible(found, environ.get("CUDA_VISIBLE_DEVICES")))
    return len(addresses(kind, environ, root))


def addresses(kind: str, environ: Mapping[str, str], root: str = "/") -> list[str]:
    """The PCI address of each visible device, such as `0000:07:00.0`, by its index. Empty text: it cannot be told."""
    if kind == XPU:
        return _chosen(_intel(root), environ.get("ZE_AFFINITY_MASK"))
    cuda = environ.get("CUDA_VISIBLE_DEVICES")
    if found := nvidia(root):
        return _nvidia_addresses(root, visible(found, cuda), found)
    behind_rocr = _chosen(_amd(root), environ.get("ROCR_VISIBLE_DEVICES"))
    return _chosen(behind_rocr, environ.get("HIP_VISIBLE_DEVICES", cuda))


def visible(total: int, listed: str | None) -> list[str]:
    """The entries of a list such as `0,1` or `GPU-1f2e` that name one of `total` devices.

    As CUDA reads it: it ends at the first that names none, and a device named twice leaves none."""
    if listed is None:
        return [str(index) for index in range(total)]
    seen: list[str] = []
    for entry in map(str.strip, listed.split(",")):
        index = entry.split(".")[0]  # `1.0` is a tile of device 1, in ZE_AFFINITY_MASK
        if not ((index.isdigit() and int(index) < total) or (entry.startswith(("GPU-", "MIG-")) and total)):
            break
        if entry in seen:
            return []
        seen.append(entry)
    return seen


def _chosen(devices: list[str], listed: str | None) -> list[str]:
    indices = [entry.split(".")[0] for entry in visible(len(devices), listed)]
    return [devices[int(index)] if index.isdigit() else "" for index in indices]


def nvidia(root: str = "/") -> int:
    """How many GPUs NVIDIA's driver shows, visible or not."""
    return len(_nvidia_files(root)) or len(names(root, GPUS))


def _nvidia_files(root: str) -> list[str]:
    return [name[6:] for name in names(root, "dev") if name.startswith("nvidia") and name[6:].isdigit()]


def _nvidia_addresses(root: str, entries: list[str], total: int) -> list[str]:
    listed = names(root, GPUS)  # in the order of the bus, which is CUDA's for GPUs of one kind
    known = [(address, "") for address in listed]
    if len(listed) != total or not all(entry.isdigit() for entry in entries):
        # The driver is asked only where this cannot be told without it.
        files, told = _nvidia_files(root), {address: text(root, f"{GPUS}/{address}/information") for address in listed}
        known = [
            (address, _said(told[address], "GPU UUID"))
            for address in listed
            if not files or _said(told[address], "Device Minor") in files
        ]
    if len(known) != total:
        return [""] * len(entries)
    return [
        known[int(entry)][0] if entry.isdigit() else next((address for address, uuid in known if uuid.startswith(entry)), "")
        for entry in entries
    ]


def _said(information: str, key: str) -> str:
    found = (line.partition(":") for line in information.splitlines())
    return next((value.strip() for name, _, value in found if name.strip() == key), "")


def _amd(root: str) -> list[str]:
    nodes, cards = "sys/class/kfd/kfd/topology/nodes", names(root, "dev/dri")
    found = []
    for node in sorted(names(root, nodes), key=lambda name: (len(name), name)):
        properties = dict(
            line.split(maxsplit=1) for line in text(root, f"{nodes}/{node}/properties").splitlines() if " " in line
        )
        is_gpu = properties.get("simd_count", "0") != "0"  # CPUs are nodes of the topology too
        if is_gpu and f"renderD{properties.get('drm_render_minor', '')}" in cards:
            domain, at = int(properties.get("domain", "0")), int(properties.get("location_id", "0"))
            found.append(f"{domain:04x}:{at >> 8 & 0xFF:02x}:{at >> 3 & 0x1F:02x}.{at & 7}")
    return found


def _intel(root: str) -> list[str]:
    cards = [name for name in names(root, "sys/class/drm") if name.startswith("renderD") and name in names(root, "dev/dri")]
    devices = [os.path.join(root, "sys/class/drm", name, "device") for name in cards]
    found = [os.path.basename(os.path.realpath(device)) for device in devices if text(device, "vendor") == INTEL]
    return sorted(address for address in found if address != INTEGRATED)


def names(root: str, folder: str) -> list[str]:
    """What is in a folder below `root`, sorted; nothing where it cannot be read."""
    try:
        return sorted(os.listdir(os.path.join(root, folder)))
    except OSError:
        return []


def text(root: str, path: str) -> str:
    """A small file below `root`; empty where it cannot be read."""
    try:
        with open(os.path.join(root, path)) as file:
            return file.read().strip()
    except OSError:
        return ""
