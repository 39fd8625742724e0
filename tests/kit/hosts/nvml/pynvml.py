"""NVML without a GPU: the part of `pynvml` that the check uses, with GPUs as $FAKE_GPUS describes them, `|` between two."""

from __future__ import annotations

import ast
import os
import time
from types import SimpleNamespace
from typing import Any

NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_CLOCK_SM = 1, 1
NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 274
nvmlClocksThrottleReasonHwThermalSlowdown = 0x40
nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 0x80


class NVMLError(Exception):
    pass


class NVMLError_NotSupported(NVMLError):
    pass


class NVMLError_InvalidArgument(NVMLError):
    pass


class NVMLError_FunctionNotFound(NVMLError):
    pass


def _gpus() -> list[dict[str, Any]]:
    return [ast.literal_eval(text) for text in os.environ["FAKE_GPUS"].split("|")]


def nvmlInit() -> None:
    if os.environ["FAKE_GPUS"] == "none":
        raise NVMLError("Driver Not Loaded")
    if os.environ["FAKE_GPUS"] == "hangs":
        time.sleep(1000)


def nvmlDeviceGetCount() -> int:
    return len(_gpus())


def nvmlDeviceGetHandleByIndex(index: int) -> dict[str, Any]:
    gpu = _gpus()[index]
    if gpu.get("lost"):
        raise NVMLError("GPU is lost")
    return gpu


def nvmlDeviceGetHandleByUUID(uuid: str) -> dict[str, Any]:
    return next(gpu for gpu in _gpus() if gpu.get("uuid") == uuid)


def nvmlDeviceGetIndex(gpu: dict[str, Any]) -> int:
    return _gpus().index(gpu)


def nvmlDeviceGetFieldValues(gpu: dict[str, Any], numbers: list[int]) -> list[Any]:
    if gpu.get("old_driver"):
        return [SimpleNamespace(nvmlReturn=3, value=SimpleNamespace(uiVal=0))]
    return [SimpleNamespace(nvmlReturn=0, value=SimpleNamespace(uiVal=gpu.get("recovery", 0)))]


def nvmlDeviceGetTotalEccErrors(gpu: dict[str, Any], kind: int, counter: int) -> int:
    if gpu.get("old_driver"):
        raise NVMLError_NotSupported
    return int(gpu.get("uncorrected", 0))


def nvmlDeviceGetRemappedRows(gpu: dict[str, Any]) -> list[Any]:
    return gpu.get("remapped", [0, 0, False, False])


def nvmlDeviceGetCurrentClocksEventReasons(gpu: dict[str, Any]) -> int:
    return int(gpu.get("reasons", 0))


def nvmlDeviceGetTemperature(gpu: dict[str, Any], sensor: int) -> int:
    return 91


def nvmlDeviceGetUtilizationRates(gpu: dict[str, Any]) -> Any:
    return SimpleNamespace(gpu=gpu.get("use", 0), memory=0)


def nvmlDeviceGetClockInfo(gpu: dict[str, Any], kind: int) -> int:
    return int(gpu.get("clock", 1980))


def nvmlDeviceGetMaxClockInfo(gpu: dict[str, Any], kind: int) -> int:
    return 1980


def nvmlDeviceGetNvLinkState(gpu: dict[str, Any], link: int) -> int:
    if link >= 18:
        raise NVMLError_InvalidArgument
    return int(link < gpu.get("links", 18))
