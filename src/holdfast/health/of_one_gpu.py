"""Is one GPU of this host well, with its NVLinks and the NICs nearest to it? For a rank that has no agent to ask.

Its own checks answer: NVML in a process of its own, since a call may hang in the driver; the NICs from /sys.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from holdfast.core.value import replace
from holdfast.health import check
from holdfast.health.checks import nic
from holdfast.health.runner import Examination
from holdfast.health.verdict import UNFIT, Verdict
from holdfast.runtime.hardware import gpus


class OneGpu:
    """`device_index`: as CUDA counts those of this process; None: all of the host's. Each answer is what is wrong, in words;
    empty: nothing, or there is none."""

    def __init__(self, device_index: int | None) -> None:
        self.device_index = device_index
        self.root = os.environ.get(check.ROOT, "/")
        self._links = self._examination()
        self._ports: dict[str, dict[str, Any]] = {}

    def gpu(self) -> str:
        """It needs a reset or more, or has had memory errors."""
        return self._take(self._examination())

    def links(self) -> str:
        """The same; and fewer of its NVLinks are up than at an earlier look."""
        return self._take(self._links)

    def nics(self) -> str:
        """Of the NICs that are nearest on the PCI bus one has lost its link since the last look."""
        before, self._ports = self._ports, self._near()
        return _wrong(nic.compared(self._ports, before))

    def _examination(self) -> Examination:
        [asked] = check.wanted(["gpu"], self.root)
        seen = gpus.visible(gpus.nvidia(self.root), os.environ.get("CUDA_VISIBLE_DEVICES"))
        return Examination([replace(asked, argument=self._mine(seen))], root=self.root)

    def _take(self, examination: Examination) -> str:
        return _wrong(*examination.take()) if gpus.nvidia(self.root) else ""

    def _near(self) -> dict[str, dict[str, Any]]:
        found = nic.ports(check.Look(root=self.root))
        if self.device_index is None:
            return found
        address = self._mine(gpus.addresses(gpus.GPU, os.environ, self.root))
        own = os.path.realpath(os.path.join(self.root, "sys/bus/pci/devices", address))
        shared = {port: _shared(own, self._device(port)) for port in found}
        return {port: told for port, told in found.items() if shared[port] == max(shared.values())}

    def _mine(self, each: Sequence[str]) -> str:
        return "" if self.device_index is None else "".join(each[self.device_index : self.device_index + 1])

    def _device(self, port: str) -> str:
        return os.path.realpath(os.path.join(self.root, nic.FOLDER, port.partition("/")[0], "device"))


def _wrong(verdict: Verdict) -> str:
    return verdict.reason if verdict.state == UNFIT else ""


def _shared(one: str, other: str) -> int:
    """So many folders of two paths are the same: the bridges that two devices of a PCI bus are both behind."""
    return len(os.path.commonpath([one, other]).split("/"))
