# ruff: noqa: E501 (a row is a row: messages stand as they are)
"""What do CUDA, ROCm and the drivers in the kernel say about a GPU? Xid codes are NVIDIA's numbers for a driver's errors."""

from __future__ import annotations

from holdfast.core.job.xid import CATALOGUE, DRIVER, NVLINK, PROGRAM, REBOOT, RESET, RESTART, SERVICE, WATCH
from holdfast.diagnosis.tables import CAUSE, EFFECT, MACHINE, SYMPTOM, Row

XID = "https://docs.nvidia.com/deploy/xid-errors/index.html"
CUDA = "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html"
ROCM = "https://github.com/torvalds/linux: drivers/gpu/drm/amd/"
GPU, USER, FABRIC, FRAMEWORK, UNKNOWN = "gpu", "user-code", "fabric", "framework", "unknown"
DRAIN = "drain the node, reset the GPU, and have it tested (dcgmi diag -r 3)"
AGAIN = "if it comes again, reset the GPU and have it tested (dcgmi diag -r 3)"
DEBUG = "run it with CUDA_LAUNCH_BLOCKING=1, or compute-sanitizer, to see where"


def _xid(code: int, kind: str, depth: int, confidence: int, advice: str, tail: str, more: str = "", says: str = "") -> Row:
    """`says`: what the driver reports, where the catalogue's words do not say it."""
    says = says or f'"{CATALOGUE[code].what}"'
    return (
        f"xid-{code}", kind, depth, confidence, "NVRM: Xid", rf"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): {code}\b{more}",
        f"its GPU's driver reported {says} (Xid {code})", advice, XID,
        f"[ 4711.123456] NVRM: Xid (PCI:0000:1b:00): {code}, {tail}",
    )  # fmt: skip


_OWN: tuple[Row, ...] = (
    _xid(13, USER, CAUSE, 75, DEBUG, "pid=71234, name=python, Graphics SM Warp Exception on (GPC 0, TPC 1, SM 0): Out Of Range Address"),
    _xid(31, USER, CAUSE, 75, DEBUG, "pid=71234, name=python, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1_CLIENT_T1_1 faulted @ 0x7f2a_1c000000"),
    _xid(32, GPU, MACHINE, 80, AGAIN, "pid=71234, Channel ID 00000001 intr0 00040000"),
    _xid(38, FRAMEWORK, MACHINE, 75, "update the driver", "pid=71234, 0098 00000000 00000000"),
    _xid(43, USER, EFFECT, 50, DEBUG, "pid=71234, name=python, Ch 00000010"),
    _xid(44, GPU, MACHINE, 80, AGAIN, "pid=71234, Ch 00000010, engmask 00000101"),
    _xid(45, UNKNOWN, EFFECT, 40, "see the error before it", "pid=71234, name=python, Ch 00000010"),
    _xid(46, GPU, MACHINE, 90, DRAIN, "pid=71234, GPU has stopped processing"),
    _xid(48, GPU, MACHINE, 96, DRAIN, "pid=71234, DBE (double bit error) ECC Error"),
    _xid(54, GPU, MACHINE, 85, "check its power cable and supply", "pid='<unknown>', name=<unknown>, Auxiliary power is not connected"),
    _xid(56, GPU, MACHINE, 75, DRAIN, "CMDre 00000000 00000080 00000000 00000005 00000010", says="a display engine error"),
    _xid(61, GPU, MACHINE, 85, DRAIN, "pid=71234, 0cec(3074) 00000000 00000000"),
    _xid(62, GPU, MACHINE, 88, DRAIN, "pid=71234, 0a5d(2a40) 00000000 00000000"),
    _xid(63, GPU, EFFECT, 50, "reset the GPU at the next chance, so that the row is replaced", "pid='<unknown>', name=<unknown>, Row Remapper: New row marked for remapping, reset gpu to activate."),
    _xid(64, GPU, MACHINE, 93, DRAIN, "pid='<unknown>', name=<unknown>, Row Remapper: Failed to remap row"),
    _xid(69, USER, CAUSE, 70, DEBUG, "pid=71234, Class Error: ChId 0008, Class 0000c7c0"),
    _xid(74, FABRIC, MACHINE, 92, "drain the node; check the NVLink bridge or baseboard, and the peer GPU", "pid='<unknown>', name=<unknown>, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0)"),
    _xid(79, GPU, MACHINE, 98, "drain the node, reboot it, check power, riser and temperature", "pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    _xid(92, GPU, EFFECT, 50, "watch it, and test it soon", "pid='<unknown>', name=<unknown>, High single-bit ECC error rate"),
    _xid(94, GPU, MACHINE, 94, AGAIN, "pid=71234, name=python, Contained: CE User Channel (0x9). RST: No, D-RST: No"),
    _xid(95, GPU, MACHINE, 97, DRAIN, "pid=71234, name=python, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"),
    _xid(109, USER, CAUSE, 65, DEBUG, "pid=71234, name=python, Ch 00000002, errorString CTX SWITCH TIMEOUT"),
    _xid(119, GPU, MACHINE, 94, "reset the GPU or reboot the node; update the driver", "pid=71234, name=python, Timeout after 6s of waiting for RPC response from GPU0 GSP!"),
    _xid(120, GPU, MACHINE, 94, "reset the GPU or reboot the node; update the driver", "pid=71234, name=python, GSP task exception: load access page fault"),
    _xid(121, FABRIC, MACHINE, 75, "watch it, and reset the GPU soon", "pid='<unknown>', name=<unknown>, C2C Link corrected error"),
    _xid(123, GPU, MACHINE, 85, DRAIN, "pid='<unknown>', name=<unknown>, SPI PMU RPC failure"),
    _xid(136, FABRIC, MACHINE, 85, DRAIN, "pid='<unknown>', name=<unknown>, link training failed"),
    _xid(140, GPU, MACHINE, 92, DRAIN, "pid='<unknown>', name=<unknown>, Unrecovered ECC Error"),
    _xid(144, FABRIC, MACHINE, 85, DRAIN, "SAW_MVB Nonfatal XC0 i0 Link 00"),
    _xid(145, FABRIC, MACHINE, 88, DRAIN, "RLW_REMAP Nonfatal XC0 i0 Link 03"),
    _xid(149, FABRIC, MACHINE, 88, DRAIN, "NETIR_LINK_EVT Fatal XC0 i0 Link 07"),
    # Not as sure as what excludes a node (`recovery.findings.SURE`): a job that was given no GPUs says the same, on any node.
    ("container-gpu", GPU, CAUSE, 90, "nvidia-container-cli:", r"nvidia-container-cli: (?:initialization|detection|device) error: ", "a container got no GPU from its node's driver", "see `nvidia-smi` on that node; drain it if that fails", "https://github.com/NVIDIA/libnvidia-container: src/cli/main.c", "nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown"),
    ("cuda-kernel-assertion", USER, CAUSE, 93, "Assertion `", r"block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion `", "a kernel's assertion does not hold: mostly an index out of range", DEBUG, CUDA, "/pytorch/aten/src/ATen/native/cuda/Indexing.cu:1308: indexSelectLargeIndex: block: [12,0,0], thread: [3,0,0] Assertion `srcIndex < srcSelectDimSize` failed."),
    ("cuda-unknown-init", GPU, CAUSE, 82, "CUDA unknown error - this may be due to an incorrectly set up environment", r"CUDA unknown error - this may be due to", "CUDA could not be initialised on that node", "see `nvidia-smi` and dmesg there; nvidia_uvm may need to be reloaded", "https://github.com/pytorch/pytorch: c10/cuda/CUDAFunctions.cpp", "RuntimeError: CUDA unknown error - this may be due to an incorrectly set up environment, e.g. changing env variable CUDA_VISIBLE_DEVICES after program start."),
    ("nvrm-rminit", GPU, MACHINE, 94, "RmInitAdapter failed", r"NVRM: GPU (?P<pci>[0-9a-fA-F:.]+): RmInitAdapter failed", "the driver cannot start a GPU", DRAIN, "https://github.com/NVIDIA/open-gpu-kernel-modules: src/nvidia/arch/nvalloc/unix/src/osinit.c", "[   99.1] NVRM: GPU 0000:1b:00.0: RmInitAdapter failed! (0x62:0x55:1924)"),
    ("nvrm-reset-required", GPU, MACHINE, 90, "NV_ERR_RESET_REQUIRED", r"NVRM: .*NV_ERR_RESET_REQUIRED", "its driver says that a GPU needs a reset", DRAIN, "https://github.com/NVIDIA/open-gpu-kernel-modules: src/common/sdk/nvidia/inc/nvstatuscodes.h", "[373871.354096] NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062) returned from status @ kernel_channel.c:2827"),
    ("pcie-fatal", GPU, MACHINE, 82, "PCIe Bus Error: severity=Uncorrected|AER: Uncorrected (Fatal)", r"PCIe Bus Error: severity=Uncorrected|AER: (?:Uncorrected|Uncorrectable) \(Fatal\)", "a PCIe device reported an uncorrectable error", "see which device; reseat or replace it", "https://docs.kernel.org/PCI/pcieaer-howto.html", "[ 8812.3] pcieport 0000:17:01.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"),
    ("amdgpu-reset", GPU, MACHINE, 88, "GPU reset begin|ring gfx timeout|*ERROR* ring", r"amdgpu [0-9a-f:.]+: (?:amdgpu: )?(?:GPU reset begin|\[drm\] \*ERROR\* ring \S+ timeout)|\*ERROR\* ring \S+ timeout", "its GPU hung and was reset", DRAIN, ROCM + "amdgpu/amdgpu_device.c", "[ 8912.3] amdgpu 0000:c1:00.0: amdgpu: GPU reset begin!"),
    ("amdgpu-ras", GPU, MACHINE, 92, "uncorrectable hardware errors|poison is consumed", r"amdgpu [0-9a-f:.]+: .*(?:[1-9]\d* (?:new )?uncorrectable hardware errors|poison is consumed)", "its GPU reported uncorrectable errors", DRAIN, ROCM + "amdgpu/amdgpu_ras.c", "[ 8912.3] amdgpu 0000:c1:00.0: amdgpu: socket: 0, die: 0, 1 new uncorrectable hardware errors detected in umc block"),
    ("amdgpu-page-fault", FRAMEWORK, CAUSE, 75, "Memory access fault by GPU node", r"Memory access fault by GPU node-\d+", "a kernel used an illegal address", "run it with AMD_SERIALIZE_KERNEL=3 to see where", "https://github.com/ROCm/ROCR-Runtime: runtime/hsa-runtime/core/runtime/runtime.cpp", "Memory access fault by GPU node-4 (Agent handle: 0x55d) on address 0x7f1a2c000000. Reason: Unknown."),
    ("gpu-off-the-bus", GPU, MACHINE, 95, "fallen off the bus and is not responding|: GPU has fallen off the bus", r"NVRM: (?:(?:GPU \S+ )?(?:has )?fallen off the bus and is not responding|GPU \S+: GPU has fallen off the bus)", "its GPU has fallen off the bus", DRAIN, XID, "[ 4711.123456] NVRM: fallen off the bus and is not responding to commands."),
    ("cuda-forked", USER, CAUSE, 95, "Cannot re-initialize CUDA in forked subprocess", r"Cannot re-initialize CUDA in forked subprocess", "CUDA is used in a forked process", "start data loaders and processes by 'spawn' or 'forkserver', or keep CUDA out of them", "https://github.com/pytorch/pytorch: torch/cuda/__init__.py", "RuntimeError: Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must use the 'spawn' start method"),
    ("cudnn-no-plan", FRAMEWORK, CAUSE, 82, "No execution plans support the graph|was unable to find an engine to execute this computation|No valid execution plans built", r"No execution plans support the graph|was unable to find an engine to execute this computation|No valid execution plans built", "cuDNN has nothing for this operation", "use the cuDNN that torch was built with, or another data type, layout or attention backend", "https://docs.nvidia.com/deeplearning/cudnn/frontend/latest/troubleshooting.html", "RuntimeError: cuDNN Frontend error: [cudnn_frontend] Error: No execution plans support the graph."),
    ("cudnn-no-algorithm", "oom-gpu", SYMPTOM, 60, "Unable to find a valid cuDNN algorithm", r"Unable to find a valid cuDNN algorithm to run convolution", "cuDNN found no algorithm: mostly no memory is left on the GPU", "lower the batch", "https://github.com/pytorch/pytorch: aten/src/ATen/native/cudnn/Conv_v7.cpp", "RuntimeError: Unable to find a valid cuDNN algorithm to run convolution"),
    ("hsa-address", FRAMEWORK, CAUSE, 78, "HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION|HSA_STATUS_ERROR_MEMORY_FAULT", r"HSA_STATUS_ERROR_MEMORY_(?:APERTURE_VIOLATION|FAULT)", "a kernel used an illegal address", "run it with AMD_SERIALIZE_KERNEL=3 to see where", "https://github.com/ROCm/ROCR-Runtime: runtime/hsa-runtime/inc/hsa.h", ":0:rocdevice.cpp :2984: 1234567 us: [pid:71234 tid:0x7f20] Callback: Queue 0x7f1c00000000 aborting with error : HSA_STATUS_ERROR_MEMORY_APERTURE_VIOLATION: The agent attempted to access memory beyond the largest legal address. code: 0x29"),
    ("container-gpu-version", "environment", CAUSE, 92, "nvidia-container-cli: requirement error", r"nvidia-container-cli: requirement error: unsatisfied condition: (?P<what>[^,]+)", "its image needs a newer driver ({what})", "update the driver on that node, or use an older image", "https://github.com/NVIDIA/libnvidia-container: src/cli/main.c", "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=12.4, please update your driver to a newer version"),
    ("neuron-hardware", GPU, CAUSE, 88, "NRT_EXEC_HW_ERR_HBM_UE|NRT_EXEC_HW_ERR_NC_UE|NRT_EXEC_HW_ERR_DMA_ABORT", r"NRT_EXEC_HW_ERR_(?:HBM_UE|NC_UE|DMA_ABORT)", "its Neuron device reported an error that was not corrected", "replace the instance, or reload the driver", "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/nrt-troubleshoot.html", "2026-Nov-21 12:00:00.0000 812:812 ERROR  TDRV:exec_consume_infer_status_notifications  Received notification generated at runtime: failed to run infer, NRT_EXEC_HW_ERR_HBM_UE"),
    ("hsa-hang", GPU, CAUSE, 88, "HW Exception by GPU node", r"HW Exception by GPU node-\d+ .*reason ?:(?P<what>[^)]*)", "its GPU hung or failed ({what})", DRAIN, "https://github.com/ROCm/ROCR-Runtime: runtime/hsa-runtime/core/runtime/runtime.cpp", "HW Exception by GPU node-9 (Agent handle: 0x631351bb5a20) reason :GPU Hang"),
    ("xe-reset", GPU, MACHINE, 78, "Engine reset: engine_class|Xe device coredump has been created|[drm] GPU HANG: ", r"\bxe [0-9a-f:.]+: \[drm\] .*(?:Engine reset: engine_class|Xe device coredump has been created)|\[drm\] GPU HANG: ", "its GPU hung and was reset", DRAIN, "https://github.com/torvalds/linux: drivers/gpu/drm/xe/xe_guc_submit.c", "[ 8912.3] xe 0000:2c:00.0: [drm] GT0: Engine reset: engine_class=ccs, logical_mask: 0x1, guc_id=3"),
    ("xpu-device-lost", GPU, CAUSE, 86, "UR_RESULT_ERROR_DEVICE_LOST", r"UR_RESULT_ERROR_DEVICE_LOST", "its GPU was lost", "see the kernel log of that node for a reset", "https://github.com/oneapi-src/unified-runtime: include/ur_api.h", "RuntimeError: level_zero backend failed with error: 20 (UR_RESULT_ERROR_DEVICE_LOST)"),
    ("npu-kernel", FRAMEWORK, CAUSE, 74, "an exception occurred during AICPU execution|aicore exception|aicpu exception|vector core exception", r"an exception occurred during AICPU execution|\b(?:aicore|aicpu|vector core) exception\b", "a kernel failed on its NPU", "see CANN's own log (~/ascend/log) for the operator; check that CANN and torch_npu fit", "https://www.hiascend.com/document", "EZ9999: The error from device(chipId:0, dieId:0), serial number is 13, an exception occurred during AICPU execution, stream_id:2, task_id:19016, errcode:21008, msg:inner error."),
    ("hpu-compile", FRAMEWORK, CAUSE, 84, "Graph compile failed. synStatus", r"Graph compile failed\. synStatus", "a graph could not be compiled for its HPU", "see $HABANA_LOGS; check that driver and SynapseAI fit", "https://docs.habana.ai/en/latest/PyTorch/Reference/Debugging_Guide/index.html", "RuntimeError: Graph compile failed. synStatus=synStatus 26 [Generic failure]."),
    ("hpu-acquire", GPU, CAUSE, 84, "Device acquire failed", r"synStatus=\d+ \[(?!Device already)[^\]]*\] Device acquire failed", "it cannot have its HPU", "see `hl-smi` and the kernel log of that node", "https://docs.habana.ai/en/latest/PyTorch/Reference/Debugging_Guide/index.html", "RuntimeError: synStatus=26 [Generic failure] Device acquire failed."),
    ("hpu-in-use", FRAMEWORK, CAUSE, 86, "[Device already acquired] Device acquire failed", r"\[Device already acquired\] Device acquire failed", "another process has its HPU", "end it", "https://docs.habana.ai/en/latest/PyTorch/Reference/Debugging_Guide/index.html", "RuntimeError: synStatus=20 [Device already acquired] Device acquire failed."),
    ("neuron-load", FRAMEWORK, CAUSE, 78, "Nrt::Load failed on NeuronCores|nrt_load status=", r"Nrt::Load failed on NeuronCores|nrt_load status=[1-9]", "a compiled graph could not be loaded onto its NeuronCores", "check that compiler, runtime and driver fit; clear the compile cache", "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/nrt-troubleshoot.html", "  (0) INTERNAL: Nrt::Load failed on NeuronCores 0-0(2): nrt_load status=1, error message=\"Non specific failure\"."),
    ("neuron-driver", GPU, CAUSE, 88, "Unable to determine Neuron Driver version", r"Unable to determine Neuron Driver version", "its node has no Neuron driver", "install or load it there (aws-neuronx-dkms)", "https://awsdocs-neuron.readthedocs-hosted.com/en/latest/neuron-runtime/nrt-troubleshoot.html", "2026-Mar-29 07:07:29.0082    11:11    ERROR   NRT:nrt_init    Unable to determine Neuron Driver version. Please check aws-neuron-dkms package is installed."),
)

HELPS = {
    RESTART: "start the program again", WATCH: "look after it", RESET: DRAIN,
    REBOOT: "restart the host; if it comes again, have the GPU tested", SERVICE: "have the hardware looked at",
}  # fmt: skip
"""What helps, by the catalogue's action."""

HARDWARE = (RESET, REBOOT, SERVICE)  # Of these actions: the node cannot go on as it is.

_NAMED = {row[0] for row in _OWN}
_CLASS = {PROGRAM: USER, DRIVER: FRAMEWORK, NVLINK: FABRIC}
_NEEDS = r".* to \S+ \((?!None|Drain P2P)"  # Xid 154 tells what a GPU needs to recover, nothing included.

RULES: tuple[Row, ...] = (
    *_OWN,
    _xid(154, GPU, MACHINE, 90, HELPS[REBOOT], "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)", _NEEDS, "that the GPU needs a reset, or its host a restart"),
    *(
        _xid(one.number, _CLASS.get(one.kind, GPU), MACHINE if one.action in HARDWARE else EFFECT, 85 if one.action in HARDWARE else 50, HELPS[one.action], "pid='<unknown>', name=<unknown>")
        for one in CATALOGUE.values()
        if one.number != 154 and f"xid-{one.number}" not in _NAMED
    ),
    ("xid-unknown", UNKNOWN, EFFECT, 40, "NVRM: Xid", r"NVRM: Xid \((?:PCI:)?[0-9a-fA-F:.]+\): (?P<what>\d+)", "its GPU's driver reported Xid {what}", "look it up in NVIDIA's table of Xid errors", XID, "[ 4711.123456] NVRM: Xid (PCI:0000:1b:00): 1999, pid='<unknown>', name=<unknown>"),
)

ACTIONS: dict[str, str] = {
    "cuda-nvlink": "exclude",
    **{f"xid-{one.number}": "exclude" if one.action in HARDWARE else "restart" for one in CATALOGUE.values() if one.kind != PROGRAM},
    "xid-109": "stop",  # most often the program's doing, though a reset is what helps the GPU
}
"""What is advised of some, whatever their class: NVIDIA's word counts, by which the checks judge a node, too."""
