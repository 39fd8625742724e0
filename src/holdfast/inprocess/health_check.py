"""Is this rank fit to go on in the same process? NVRx's names."""

from __future__ import annotations

import abc
import logging
import os
import sys
import threading
from datetime import timedelta
from importlib import import_module
from typing import Any

from holdfast.inprocess.exception import HealthCheckError, RestartError, TimeoutError

log = logging.getLogger(__name__)


class HealthCheck(abc.ABC):
    """Called with the `FrozenState`, which it returns: before the function is, and after a life that was cut short."""

    @abc.abstractmethod
    def __call__(self, state: Any) -> Any:
        """What it raises before a life begins another; after one, it ends the call on this rank (`HealthCheckError`)."""


class Device:
    """This rank's GPU, as CUDA counts them: LOCAL_RANK, else torch's current one."""

    def __init__(self, index: int, cuda: Any) -> None:
        self.index, self._cuda = index, cuda

    def use(self) -> None:
        """Make it the calling thread's current one."""
        self._cuda.set_device(self.index)

    def finish(self) -> None:
        """Wait until it has done all that it was given. RuntimeError: it takes nothing more from this process."""
        self._cuda.synchronize(self.index)


def this_device() -> Device | None:
    """None: this process has not used one."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    local_rank = os.environ.get("LOCAL_RANK")
    return Device(torch.cuda.current_device() if local_rank is None else int(local_rank), torch.cuda)


class CudaHealthCheck(HealthCheck):
    """Whether this process can still use its GPU."""

    def __init__(self, timeout: timedelta = timedelta(seconds=30)) -> None:
        self.timeout = timeout

    def __call__(self, state: Any) -> Any:
        """RuntimeError: it can not, in CUDA's words. TimeoutError: a kernel is not done within `timeout`."""
        device = this_device()
        if device is None:
            return state
        waits = threading.Thread(target=_quietly, args=(device,), name="CudaHealthCheck", daemon=True)
        waits.start()
        waits.join(self.timeout.total_seconds())
        if waits.is_alive():
            raise TimeoutError(f"GPU {device.index} is not done within {self.timeout.total_seconds():g} s")
        device.finish()
        return state


def _quietly(device: Device) -> None:
    try:
        device.finish()
    except RuntimeError:  # the caller asks again
        return


class FaultCounterExceeded(RestartError):
    """This rank has failed too often."""


class FaultCounter(HealthCheck):
    """Ends the call on a rank whose own function has raised more than `max_rank_faults` times (None: never)."""

    def __init__(self, max_rank_faults: int | None = None) -> None:
        self.max_rank_faults, self.faults_count = max_rank_faults, 0

    def __call__(self, state: Any) -> Any:
        """FaultCounterExceeded: too often."""
        if state.fn_exception is not None:
            self.faults_count += 1
            if self.max_rank_faults is not None and self.faults_count > self.max_rank_faults:
                raise FaultCounterExceeded(f"failed {self.faults_count} times, and {self.max_rank_faults} are allowed")
        return state


class _OfOneGpu(HealthCheck):
    """`device_index`: as CUDA counts those of this process; None: all of the host's."""

    def __init__(self, device_index: int | None = None) -> None:
        self.device_index = device_index
        self._one: Any = import_module("holdfast.health.of_one_gpu").OneGpu(device_index)


class ChainedGPUHealthCheck(_OfOneGpu):
    """Whether the GPU can be used without a reset or more."""

    def __call__(self, state: Any) -> Any:
        """HealthCheckError: it cannot, or has had memory errors; it says what NVML says."""
        if wrong := self._one.gpu():
            raise HealthCheckError(wrong)
        return state


class ChainedNVLHealthCheck(_OfOneGpu):
    """Whether as many NVLinks are up as after the life before. It ends nothing, as in NVRx: the log says it."""

    def __call__(self, state: Any) -> Any:
        """Nothing is raised."""
        if wrong := self._one.links():
            log.warning("rank %s: %s", state.rank, wrong)
        return state


class ChainedNicHealthCheck(_OfOneGpu):
    """Whether the NICs that are nearest to the GPU on the PCI bus have kept their links since this was made."""

    def __init__(self, device_index: int | None = None) -> None:
        super().__init__(device_index)
        self._one.nics()

    def __call__(self, state: Any) -> Any:
        """HealthCheckError: one has lost its link; it says which."""
        if wrong := self._one.nics():
            raise HealthCheckError(wrong)
        return state
