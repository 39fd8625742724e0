"""Are the NVIDIA GPUs healthy? Asks NVML (`nvidia-ml-py`) in a process of its own, because a call may hang in the driver.

    recovery action        other than none: unfit (driver 570 and later report it)
    memory errors          uncorrected since the driver loaded, or a failed row remap: unfit; a pending row remap: degraded
    throttling             by the hardware (heat, power brake): degraded
    clock                  far below its maximum under load: degraded
    NVLink                 fewer links than the node's other GPUs, or than at the last check: unfit

Without a driver the check does not apply. If NVML returns an error, the node is unfit, as with ft_launcher.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from holdfast.health import injected
from holdfast.health.check import Look
from holdfast.health.verdict import Findings, Verdict, degraded, unfit

RECOVERIES = {1: "a reset", 2: "the host restarted", 3: "its peers drained", 4: "to be drained and reset"}
"""NVML's nvmlDeviceGpuRecoveryAction_t, less 0 (none)."""

ADVICE = "`nvidia-smi -q` tells more; drain the node, and reset the GPU or restart the host"
LEAST_CLOCK = 0.5
"""Of the greatest clock of the SMs, where the GPU is at work: power capping alone does not go so low on a healthy one."""

BUSY = 50  # Per cent of the time in which a kernel ran, from which on a GPU counts as at work.

HARD_LIMITS = ("HwThermalSlowdown", "HwPowerBrakeSlowdown")
MOST_LINKS = 18  # NVLinks of one GPU (Hopper, Blackwell), where the library does not say how many there may be.


def gpu(look: Look) -> Verdict:
    """All GPUs of the node, one after the other; as an argument, the one of that number or UUID."""
    driver = bool(look.names("proc/driver/nvidia")) or "nvidiactl" in look.names("dev")
    try:
        import pynvml  # type: ignore[import-untyped]
    except ImportError:
        if not driver:
            return _no_driver()
        return degraded("not known: nvidia-ml-py is not installed", "pip install 'holdfast[nvidia]'")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if not driver:
            return _no_driver()
        return unfit(f"NVML does not start: {error}", "`nvidia-smi` says more; is the driver loaded, in the library's version?")
    return _look_at_all(pynvml, look)


def _no_driver() -> Verdict:
    found = Findings()
    _judge_errors(found, "GPU 0", 0, injected.memory_errors(0))  # practice needs no GPU
    return found.verdict("does not apply: no NVIDIA driver")


def _look_at_all(nvml: ModuleType, look: Look) -> Verdict:
    found, links = Findings(), dict[str, int]()
    linked, counted = look.before.get("links", {}), look.before.get("count", 0)
    try:
        for index in [_index(nvml, look.argument)] if look.argument else range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            links[f"GPU {index}"] = _look_at(nvml, handle, index, found)
    except nvml.NVMLError as error:
        found.unfit(f"NVML: {error}", ADVICE)
    most = max(links.values(), default=0)
    for name, up in links.items():
        if up < (had := max(most, linked.get(name, 0))):
            found.unfit(f"{name} has {up} NVLinks up, of {had}", ADVICE)
    if counted > len(links):
        found.unfit(f"{len(links)} GPUs are here, and there were {counted}", ADVICE)
    best = {name: max(up, linked.get(name, 0)) for name, up in links.items()}
    told = f"{len(links)} GPU{'s' * (len(links) != 1)}" + (f" with {most} NVLinks each" if most else "")
    return found.verdict(told, count=max(len(links), counted), links=best)


def _index(nvml: ModuleType, named: str) -> int:
    return int(named) if named.isdigit() else int(nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(named)))


def _look_at(nvml: ModuleType, handle: Any, index: int, found: Findings) -> int:
    """One GPU; returns how many of its NVLinks are up."""
    name = f"GPU {index}"
    if (action := _field(nvml, handle, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION")) not in (None, 0):
        found.unfit(f"{name} needs {RECOVERIES.get(int(action or 0), f'recovery action {action}')}", ADVICE)
    errors = _asked(nvml, lambda: nvml.nvmlDeviceGetTotalEccErrors(handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, 0))
    _judge_errors(found, name, int(errors or 0), injected.memory_errors(index))
    remapped = _asked(nvml, lambda: nvml.nvmlDeviceGetRemappedRows(handle))
    if remapped and remapped[3]:
        found.unfit(f"{name} could not remap a row of its memory", "have the GPU replaced")
    elif remapped and remapped[2]:
        found.degraded(f"{name} will remap a row of its memory when it is reset", "reset it when the node is free")
    _look_at_speed(nvml, handle, name, found)
    return _links_up(nvml, handle)


def _judge_errors(found: Findings, name: str, errors: int, added: int) -> None:
    """`added`: how many of them have been injected."""
    if errors + added:
        by_us = f" ({added} injected)" if added else ""
        found.unfit(f"{name} had {errors + added} uncorrected memory errors{by_us}", ADVICE)


def _look_at_speed(nvml: ModuleType, handle: Any, name: str, found: Findings) -> None:
    reasons = int(_asked(nvml, lambda: nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)) or 0)
    limits = [word for word in HARD_LIMITS if reasons & int(getattr(nvml, f"nvmlClocksThrottleReason{word}", 0))]
    if limits:
        heat = _asked(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, 0))
        found.degraded(f"{name} is throttled by its hardware ({', '.join(limits)}), at {heat} °C", "cooling, power supply")
    use = _asked(nvml, lambda: nvml.nvmlDeviceGetUtilizationRates(handle))
    clock = _asked(nvml, lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
    most = _asked(nvml, lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM))
    if use and clock and most and use.gpu >= BUSY and clock < LEAST_CLOCK * most:
        found.degraded(f"{name} works at {clock} MHz, of {most}", "`nvidia-smi -q -d CLOCK,PERFORMANCE,POWER` tells why")


def _links_up(nvml: ModuleType, handle: Any) -> int:
    most = getattr(nvml, "NVML_NVLINK_MAX_LINKS", MOST_LINKS)
    states = (_asked(nvml, lambda link=link: nvml.nvmlDeviceGetNvLinkState(handle, link)) for link in range(most))
    return sum(1 for state in states if state)


def _field(nvml: ModuleType, handle: Any, name: str) -> int | None:
    """A field that newer drivers have. None: this one has it not, or the library does not know it."""
    number = getattr(nvml, name, None)
    values = _asked(nvml, lambda: nvml.nvmlDeviceGetFieldValues(handle, [number])) if number is not None else None
    return int(values[0].value.uiVal) if values and values[0].nvmlReturn == 0 else None


def _asked(nvml: ModuleType, question: Any) -> Any:
    """The answer. None: this GPU, driver or library has none. Any other error is the GPU's, and goes up."""
    try:
        return question()
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument, nvml.NVMLError_FunctionNotFound, AttributeError):
        return None
