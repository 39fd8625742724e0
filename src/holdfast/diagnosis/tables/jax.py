# ruff: noqa: E501 (a row is a row: messages stand as they are)
"""What do JAX, XLA and the TPU runtime say?"""

from __future__ import annotations

from holdfast.diagnosis.tables import CAUSE, EFFECT, MACHINE, SYMPTOM, Row

XLA = "https://github.com/openxla/xla: "
JAX = "https://github.com/jax-ml/jax: "
TSL = "https://github.com/openxla/xla: xla/tsl/distributed_runtime/coordination/"

RULES: tuple[Row, ...] = (
    ("xla-gpu-oom", "oom-gpu", CAUSE, 95, "RESOURCE_EXHAUSTED: Out of memory", r"RESOURCE_EXHAUSTED: Out of memory", "its accelerator ran out of memory", "shard or rematerialise more, lower the batch, see XLA_PYTHON_CLIENT_MEM_FRACTION", JAX + "docs/gpu_memory_allocation.rst",
     "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes."),
    ("xla-hbm-oom", "oom-gpu", CAUSE, 95, "Ran out of memory in memory space hbm|Exceeded hbm capacity", r"Ran out of memory in memory space hbm|Exceeded hbm capacity", "the program does not fit into the accelerator's memory", "shard or rematerialise more, lower the batch", "https://docs.cloud.google.com/tpu/docs/troubleshooting/trouble-jax",
     "XlaRuntimeError: RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 21.40G of 15.48G hbm. Exceeded hbm capacity by 5.92G."),
    ("xla-bfc", "oom-gpu", SYMPTOM, 65, "Allocator (GPU_", r"Allocator \(GPU_(?P<local>\d+)_bfc\) ran out of memory", "its accelerator ran out of memory", "shard or rematerialise more, lower the batch", XLA + "xla/tsl/framework/bfc_allocator.cc",
     "2026-11-21 12:00:00.123456: W external/xla/xla/tsl/framework/bfc_allocator.cc:497] Allocator (GPU_0_bfc) ran out of memory trying to allocate 16.00GiB"),
    ("xla-host-oom", "oom-host", CAUSE, 88, "RESOURCE_EXHAUSTED: Failed to allocate host memory|failed to alloc", r"RESOURCE_EXHAUSTED: Failed to allocate host memory|failed to allocate \S+ .*bytes.* from host", "the host could not pin memory", "raise `ulimit -l`, or give the job more memory", XLA + "xla/stream_executor/gpu/gpu_executor.h",
     "XlaRuntimeError: RESOURCE_EXHAUSTED: Failed to allocate host memory of size 8589934592"),
    ("jax-heartbeat", "unknown", EFFECT, 50, "heartbeat timeout|unhealthy: stopped sending heartbeats|failed to send heartbeat", r"(?i)/task:(?P<peer_rank>\d+) (?:unexpectedly|has|is|failed).*(?:heartbeat)|heartbeat timeout.*?(?:task:(?P<peer_rank2>\d+))?", "a task was no longer heard from", "see that task's log", TSL + "coordination_service.cc",
     "E1121 12:00:00.123456 4711 coordination_service.cc:1090] Task /job:jax_worker/replica:0/task:3 has heartbeat timeout. This indicates that the remote task has failed"),
    ("jax-crashed-tasks", "unknown", EFFECT, 50, "The tasks have crashed|unhealthy tasks", r"(?i)following tasks are unhealthy.*?task:(?P<peer_rank>\d+)|The tasks have crashed.*?", "other tasks have crashed", "see their logs", TSL + "coordination_service.cc",
     "UNAVAILABLE: The following tasks are unhealthy (stopped sending heartbeats): /job:jax_worker/replica:0/task:3 The tasks have crashed. Check the task logs for an earlier error"),
    ("jax-terminating", "unknown", EFFECT, 30, "Terminating process because the JAX distributed service detected fatal errors|Terminating process because the coordinator detected missing heartbeats", r"Terminating process because the (?:JAX distributed service|coordinator) detected", "it ends because other tasks have failed", "see the first that failed", XLA + "xla/pjrt/distributed/client.h",
     "F1121 12:00:00.1 4711 client.h:80] Terminating process because the JAX distributed service detected fatal errors. This most likely indicates that another task died"),
    ("jax-barrier", "unknown", EFFECT, 45, "Barrier timed out|Barrier failed", r"DEADLINE_EXCEEDED: Barrier timed out|Barrier failed", "it waited for others at a barrier in vain", "see which tasks did not come", TSL + "coordination_service.cc",
     "XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Id: [Init]PjRT_Client_Connect::0. This usually happens because a task triggered the barrier too early or too slowly."),
    ("jax-preempted", "preempted", MACHINE, 93, "SIGTERM caught at|Preemption notice|preempted at time", r"SIGTERM caught at |Task .* has been? preempted|Preemption notice|Sync manager.*preempt", "it was told of its pre-emption", "it comes back when there is room", XLA + "xla/tsl/distributed_runtime/preemption/preemption_notifier.cc",
     "W1121 12:00:00.1 4711 preemption_notifier.cc:89] SIGTERM caught at 2026-11-21T12:00:00+00:00"),
    ("jax-connect", "fabric", SYMPTOM, 60, "failed to connect to all addresses", r"UNAVAILABLE: failed to connect to all addresses", "it cannot reach the coordinator", "check its address, and whether process 0 has started", "https://grpc.github.io/grpc/core/md_doc_statuscodes.html",
     "XlaRuntimeError: UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: ipv4:10.0.0.1:1234: Failed to connect to remote host: Connection refused"),
    ("xla-nccl", "unknown", EFFECT, 40, "NCCL operation", r"INTERNAL: NCCL operation \S+ failed", "a collective failed", "see the rank that failed first", XLA + "xla/backends/gpu/collectives/nccl_errors.h",
     "XlaRuntimeError: INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled cuda error (run with NCCL_DEBUG=INFO for details)."),
    ("xla-rendezvous", "unknown", EFFECT, 45, "This thread has been waiting for|stuck rendezvous|rendezvous to be joined", r"This thread has been waiting for .* and may be stuck|Termination timeout for .* of \d+ seconds exceeded", "a collective waits for participants", "see which rank did not come", XLA + "xla/service/rendezvous.cc",
     "E1121 12:00:00.1 4711 rendezvous.cc:38] This thread has been waiting for `first call to collective operation 0` for 20 seconds and may be stuck"),
    ("xla-illegal-address", "user-code", CAUSE, 70, "CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS", r"CUDA_ERROR_ILLEGAL_ADDRESS", "a kernel used an illegal address", "run it with compute-sanitizer to see where", XLA + "xla/stream_executor/cuda/cuda_status.cc",
     "XlaRuntimeError: INTERNAL: CUDA error: Failed to synchronize: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered"),
    ("xla-launch-failed", "gpu", SYMPTOM, 60, "CUDA_ERROR_LAUNCH_FAILED", r"CUDA_ERROR_LAUNCH_FAILED", "a kernel failed", "see the kernel log for an Xid", "https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__TYPES.html",
     "XlaRuntimeError: INTERNAL: CUDA error: CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure"),
    ("xla-ptxas", "environment", CAUSE, 85, "ptxas returned an error|ptxas exited with non-zero|ptxas too old|get ptxas version", r"ptxas (?:returned an error|exited with non-zero|too old)|Couldn't get ptxas version", "XLA's assembler does not fit the driver or GPU", "install the CUDA packages that belong to this jaxlib", XLA + "xla/stream_executor/cuda/subprocess_compilation.cc",
     "XlaRuntimeError: INTERNAL: ptxas exited with non-zero error code 65280, output: ptxas fatal   : Value 'sm_120' is not defined"),
    ("jax-cudnn", "framework", CAUSE, 82, "DNN library initialization failed|Loaded runtime CuDNN library", r"DNN library initialization failed|Loaded runtime CuDNN library: \S+ but source was compiled with", "cuDNN does not fit, or found no memory", "install the version that jaxlib was built with", XLA + "xla/stream_executor/cuda/cuda_dnn.cc",
     "E1121 12:00:00.1 4711 cuda_dnn.cc:522] Loaded runtime CuDNN library: 8.9.4 but source was compiled with: 9.1.1."),
    ("jax-no-backend", "gpu", CAUSE, 82, "Unable to initialize backend", r"RuntimeError: Unable to initialize backend '(?P<what>cuda|tpu|rocm|gpu)'", "JAX cannot start its {what} backend", "see `nvidia-smi` or the TPU's state on that node", JAX + "jax/_src/xla_bridge.py",
     "RuntimeError: Unable to initialize backend 'cuda': FAILED_PRECONDITION: No visible GPU devices."),
    ("tpu-in-use", "framework", CAUSE, 88, "The TPU is already in use by process", r"The TPU is already in use by process with pid (?P<pid>\d+)|libtpu.so already in use", "another process has the TPU", "end it, or remove /tmp/libtpu_lockfile", "https://docs.cloud.google.com/tpu/docs/troubleshooting/trouble-jax",
     "RuntimeError: ABORTED: The TPU is already in use by process with pid 812. Not attempting to load libtpu.so in this process."),
    ("tpu-halted", "gpu", CAUSE, 85, "TPU initialization failed|Core halted unexpectedly|Accelerator device halted prematurely|SLICE_FAILURE", r"TPU initialization failed|Core halted unexpectedly|Accelerator device halted prematurely|SLICE_FAILURE_\w+", "a TPU failed", "it is repaired or replaced; restart on another slice", "https://docs.cloud.google.com/tpu/docs/troubleshooting/trouble-jax",
     "XlaRuntimeError: INTERNAL: Core halted unexpectedly: INTERNAL: Accelerator device halted prematurely"),
    ("jax-sharding", "user-code", CAUSE, 92, "implies that the global size of its dimension|which are not divisible", r"implies that (?:the global size of its dimension|array axis) .*(?:divisible|multiple)", "an array cannot be split as the script asks", "make the axis a multiple of the mesh's", JAX + "jax/_src/pjit.py",
     "ValueError: One of pjit arguments was given the sharding of NamedSharding(mesh), which implies that the global size of its dimension 0 should be divisible by 8, but it is equal to 12"),
    ("orbax-missing", "user-code", CAUSE, 85, "Checkpoint structure file does not exist|on-disk value metadata tree structures", r"(?:Checkpoint structure file does not exist|User-provided restore item and on-disk value metadata tree structures do not match)", "the checkpoint is not there, or does not fit", "check its path and configuration", "https://github.com/google/orbax: checkpoint/orbax/checkpoint/",
     "ValueError: User-provided restore item and on-disk value metadata tree structures do not match: {'params': ...}"),
    ("tf-oom", "oom-gpu", CAUSE, 95, "OOM when allocating tensor with shape", r"OOM when allocating tensor with shape.*\bGPU", "its GPU ran out of memory", "lower the batch or sequence length, or shard the model more",
     "https://github.com/tensorflow/tensorflow: tensorflow/core/common_runtime/bfc_allocator.cc",
     "tensorflow.python.framework.errors_impl.ResourceExhaustedError: OOM when allocating tensor with shape[192,4096,4096] and type half on /job:localhost/replica:0/task:0/device:GPU:1 by allocator GPU_1_bfc"),
    ("jax-barrier-absent", "unknown", EFFECT, 50, "/job:jax_worker/replica:", r"^/job:jax_worker/replica:\d+/task:(?P<peer_rank>\d+)\s*$", "a task did not come to a barrier", "see that task's log", TSL + "coordination_service.cc",
     "/job:jax_worker/replica:0/task:3"),
    ("xla-cubin", "environment", CAUSE, 86, "Failed to load in-memory CUBIN (compiled for a different GPU|CUDA_ERROR_NO_BINARY_FOR_GPU|CUDA_ERROR_UNSUPPORTED_PTX_VERSION", r"compiled for a different GPU|CUDA_ERROR_NO_BINARY_FOR_GPU|CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "XLA or one of its libraries was not built for this GPU or driver", "install the jaxlib and driver that belong together; clear the compilation cache", XLA + "xla/stream_executor/cuda/cuda_executor.cc",
     "XlaRuntimeError: INTERNAL: Failed to load in-memory CUBIN (compiled for a different GPU?).: CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid"),
    ("jax-incarnation", "unknown", EFFECT, 50, "with a different incarnation", r"/task:(?P<peer_rank>\d+) (?:unexpectedly )?tried to connect with a different incarnation", "a task has started anew", "see what ended it before", TSL + "coordination_service.cc",
     "/job:jax_worker/replica:0/task:3 unexpectedly tried to connect with a different incarnation. It has likely restarted."),
    ("jax-register", "fabric", SYMPTOM, 62, "CoordinationService/RegisterTask", r"CoordinationService/RegisterTask", "it cannot reach the coordinator", "did process 0 start? Check the coordinator's address, its port and the firewall between the hosts", TSL + "client/coordination_service_agent.cc",
     "RPC: /tensorflow.CoordinationService/RegisterTask"),
    ("tpu-halt", "framework", CAUSE, 72, "*** Halt is unexpected, all pending programs will fail", r"\*\*\* Halt is unexpected, all pending programs will fail", "a program halted its TPU", "try another version of jaxlib and libtpu; if it comes again on that host only, replace it", "https://docs.cloud.google.com/tpu/docs/troubleshooting/trouble-jax",
     "E1224 22:35:53.165575   26868 real_program_continuator.cc:1331] 0x0x0_TC0: *** Halt is unexpected, all pending programs will fail. This is likely an XLA compiler bug"),
    ("tpu-unhealthy", "gpu", CAUSE, 85, "is not HEALTHY yet. Re-run when all TPUs are HEALTHY", r"is not HEALTHY yet\. Re-run when all TPUs are HEALTHY", "a TPU is not fit for use", "wait until it is repaired, or make it anew", "https://github.com/pytorch/xla: torch_xla/distributed/xla_dist.py",
     "RuntimeError: TPU node-v3-32 is not HEALTHY yet. Re-run when all TPUs are HEALTHY"),
)
ACTIONS = {"jax-cudnn": "stop"}
