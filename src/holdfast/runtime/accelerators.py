"""How many GPUs may this process use? Counted from what the drivers show in the file system, and from the variables that
hide some of them; without a framework and without the drivers' libraries, which may hang on broken hardware.

    gpu   NVIDIA: /dev/nvidia<n>, else /proc/driver/nvidia/gpus; AMD: /sys/class/kfd
    xpu   Intel: /sys/class/drm; graphics built into the CPU do not count

A container is given only some of the device files, while /proc still lists every GPU of the host: so files go first.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

INTEL, INTEGRATED = "0x8086", "0000:00:02.0"
"""PCI vendor, and the address at which Intel's processors have their own graphics."""


def count(kind: str, environ: Mapping[str, str], root: str = "/") -> int:
    """How many `gpu` or `xpu` are visible. 0: none, or no driver."""
    if kind == "xpu":
        return _visible(_intel(root), environ.get("ZE_AFFINITY_MASK"))
    cuda = environ.get("CUDA_VISIBLE_DEVICES")
    if found := _nvidia(root):
        return _visible(found, cuda)
    behind_rocr = _visible(_amd(root), environ.get("ROCR_VISIBLE_DEVICES"))
    return _visible(behind_rocr, environ.get("HIP_VISIBLE_DEVICES", cuda))


def _visible(total: int, listed: str | None) -> int:
    """How many of `total` devices a list such as `0,1` or `GPU-1f2e,GPU-77aa` leaves.

    As CUDA reads it: it ends at the first entry that names no device, and naming one twice leaves none.
    """
    if listed is None:
        return total
    seen: list[str] = []
    for entry in map(str.strip, listed.split(",")):
        index = entry.split(".")[0]  # `1.0` is a tile of device 1, in ZE_AFFINITY_MASK
        if not ((index.isdigit() and int(index) < total) or (entry.startswith(("GPU-", "MIG-")) and total)):
            break
        if entry in seen:
            return 0
        seen.append(entry)
    return len(seen)


def _nvidia(root: str) -> int:
    files = [name for name in _names(root, "dev") if name.startswith("nvidia") and name[6:].isdigit()]
    return len(files) or len(_names(root, "proc/driver/nvidia/gpus"))


def _amd(root: str) -> int:
    nodes, cards = "sys/class/kfd/kfd/topology/nodes", _names(root, "dev/dri")
    found = 0
    for node in _names(root, nodes):
        properties = dict(
            line.split(maxsplit=1) for line in _read(root, f"{nodes}/{node}/properties").splitlines() if " " in line
        )
        is_gpu = properties.get("simd_count", "0") != "0"  # CPUs are nodes of the topology too
        if is_gpu and f"renderD{properties.get('drm_render_minor', '')}" in cards:
            found += 1
    return found


def _intel(root: str) -> int:
    cards = [name for name in _names(root, "sys/class/drm") if name.startswith("renderD") and name in _names(root, "dev/dri")]
    devices = [os.path.join(root, "sys/class/drm", name, "device") for name in cards]
    return sum(
        1 for device in devices if _read(device, "vendor") == INTEL and os.path.basename(os.path.realpath(device)) != INTEGRATED
    )


def _names(root: str, folder: str) -> list[str]:
    try:
        return sorted(os.listdir(os.path.join(root, folder)))
    except OSError:
        return []


def _read(root: str, path: str) -> str:
    try:
        with open(os.path.join(root, path)) as file:
            return file.read().strip()
    except OSError:
        return ""
