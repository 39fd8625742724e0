# ruff: noqa: E501 (messages stand as they are written)
"""How failures look that the rules were tuned with: real messages' formats, in wordings of their own (none is a rule's sample).

(class, whose, lines): `one` rank's, `all` ranks', a `node`'s without a rank. `{rank}`, `{local}`, `{node}`, `{pid}` stand for who
it is, `{n}` for a number. A line that begins with `@kernel` is the node's kernel's, with `@job` the scheduler's or launcher's.
"""

from __future__ import annotations

TRACE = 'Traceback (most recent call last):\n  File "/workspace/train.py", line {n}, in <module>\n    main()\n  File "/workspace/train.py", line 88, in main\n    step(batch)\n'

CAUSES: list[tuple[str, str, str]] = [
    ("environment", "all", TRACE + "ModuleNotFoundError: No module named 'apex.optimizers'"),
    ("user-code", "all", TRACE + "TypeError: Trainer.__init__() missing 1 required positional argument: 'cfg'"),
    ("user-code", "all", "usage: train.py [-h] [--lr LR]\ntrain.py: error: the following arguments are required: --data"),
    ("user-code", "one", TRACE + "KeyError: 'attention_mask'"),
    ("user-code", "one", TRACE + "IndexError: index 512 is out of bounds for axis 0 with size 512"),
    ("user-code", "one", TRACE + "RuntimeError: The size of tensor a (1024) must match the size of tensor b (1023) at non-singleton dimension 1"),
    ("user-code", "one", TRACE + "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, cuda:{local} and cuda:0! (when checking argument for argument mat1 in method wrapper_CUDA_addmm)"),
    ("user-code", "one", "/opt/conda/conda-bld/pytorch/aten/src/ATen/native/cuda/Loss.cu:250: nll_loss_forward_reduce_cuda_kernel_2d: block: [0,0,0], thread: [{n},0,0] Assertion `t >= 0 && t < n_classes` failed.\n" + TRACE + "RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect."),
    ("user-code", "all", TRACE + "RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:\n\tsize mismatch for lm_head.weight: copying a param with shape torch.Size([32000, 4096]) from checkpoint, the shape in current model is torch.Size([32064, 4096])."),
    ("user-code", "one", TRACE + "PermissionError: [Errno 13] Permission denied: '/runs/exp{n}/metrics.json'"),
    ("user-code", "all", TRACE + "FileNotFoundError: [Errno 2] No such file or directory: '/datasets/pile/train.idx'"),
    ("data", "one", TRACE + "json.decoder.JSONDecodeError: Unterminated string starting at: line 1 column {n} (char {n})"),
    ("data", "one", TRACE + "RuntimeError: Caught RuntimeError in DataLoader worker process 3.\nRuntimeError: stack expects each tensor to be equal size, but got [2048] at entry 0 and [1987] at entry 6"),
    ("data", "one", TRACE + "OSError: image file is truncated ({n} bytes not processed)"),
    ("data", "all", TRACE + "RuntimeError: PytorchStreamReader failed reading zip archive: invalid header or archive is corrupted"),
    ("data", "one", TRACE + "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position {n}: invalid start byte"),
    ("oom-gpu", "one", TRACE + "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.{n} GiB (GPU {local}; 79.15 GiB total capacity; 71.30 GiB already allocated; 1.02 GiB free; 75.11 GiB reserved in total by PyTorch)"),
    ("oom-gpu", "one", TRACE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU {local} has a total capacity of 39.39 GiB of which 14.12 MiB is free. Process {pid} has 39.37 GiB memory in use."),
    ("oom-gpu", "all", TRACE + "jaxlib.xla_extension.XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory while trying to allocate {n}4359738368 bytes.: while running replica 0 and partition 0 of a replicated computation"),
    ("oom-gpu", "one", "{node}:{pid}:9001 [{local}] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'\n" + TRACE + "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:328, unhandled cuda error, NCCL version 2.21.5\nncclUnhandledCudaError: Call to CUDA function failed."),
    ("oom-host", "one", "@kernel Out of memory: Killed process {pid} (python3) total-vm:{n}2345678kB, anon-rss:{n}1234567kB, file-rss:1234kB, shmem-rss:8kB, UID:5001 pgtables:12345kB oom_score_adj:0"),
    ("oom-host", "one", "@kernel Memory cgroup out of memory: Killed process {pid} (pt_main_thread) total-vm:{n}2345678kB, anon-rss:{n}1234567kB, file-rss:1234kB, shmem-rss:8kB, UID:0 pgtables:12345kB oom_score_adj:985"),
    ("oom-host", "one", "@job slurmstepd: error: Detected {n} oom_kill events in StepId=8812{n}.0. Some of the step tasks have been OOM Killed.\n@job srun: error: {node}: task {rank}: Out Of Memory"),
    ("oom-host", "one", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).\n" + TRACE + "RuntimeError: DataLoader worker (pid(s) {pid}) exited unexpectedly"),
    ("oom-host", "one", TRACE + "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate {n}17179869 bytes. Error code 12 (Cannot allocate memory)"),
    ("gpu", "one", "@kernel NVRM: Xid (PCI:0000:4e:00): 79, pid={pid}, name=python, GPU has fallen off the bus.\n" + TRACE + "RuntimeError: CUDA error: unspecified launch failure"),
    ("gpu", "one", "@kernel NVRM: Xid (PCI:0000:9d:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU in the framebuffer at partition 6, subpartition 1.\n" + TRACE + "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("gpu", "one", TRACE + "torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\nSearch for `cudaErrorECCUncorrectable' in the CUDA documentation for more information."),
    ("gpu", "one", "@kernel NVRM: Xid (PCI:0000:18:00): 119, pid={pid}, name=python, Timeout after 45s of waiting for RPC response from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20802a02 0x8)."),
    ("gpu", "one", TRACE + "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 101\nRuntimeError: No CUDA GPUs are available"),
    ("fabric", "one", "{node}:{pid}:7731 [{local}] transport/net_ib.cc:1302 NCCL WARN NET/IB: Got completion from peer 10.7.{n}.9<41233> with status=12 opcode=0 len=0 vendor err 129 (Send) localGid fe80::1 remoteGidsfe80::2 hca mlx5_{local}"),
    ("fabric", "one", "@kernel NVRM: Xid (PCI:0000:8d:00): 74, pid={pid}, name=python, NVLink: fatal error detected on link {n}(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)\n" + TRACE + "RuntimeError: CUDA error: unspecified launch failure"),
    ("fabric", "node", "@kernel mlx5_core 0000:a3:00.0 rdma{n}: Link down"),
    ("storage", "one", TRACE + "OSError: [Errno 28] No space left on device: '/local/ckpt/iter_{n}/mp_rank_00.pt'"),
    ("storage", "one", TRACE + "OSError: [Errno 116] Stale file handle: '/home/ml/data/shard{n}.bin'"),
    ("storage", "node", "@kernel nfs: server filer{n}.corp not responding, still trying\n@kernel INFO: task python:{pid} blocked for more than 120 seconds."),
    ("environment", "all", TRACE + "ImportError: libcudart.so.12: cannot open shared object file: No such file or directory"),
    ("environment", "all", TRACE + "ImportError: /opt/conda/lib/python3.10/site-packages/transformer_engine_torch.so: undefined symbol: _ZN5torch3jit{n}"),
    ("framework", "one", "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f12 (most recent call first):\n  File \"/opt/lib/foo.py\", line {n} in run"),
    ("node-lost", "node", "@job srun: error: Node failure on {node}\n@job slurmstepd: error: *** STEP 77{n}.0 ON {node} CANCELLED AT 2026-03-04T05:06:07 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
    ("node-lost", "node", "@kernel Kernel panic - not syncing: Fatal exception in interrupt"),
    ("preempted", "none", "@job slurmstepd: error: *** JOB 99{n} ON {node} CANCELLED AT 2026-03-04T05:06:07 DUE TO TIME LIMIT ***"),
    ("preempted", "none", "@job slurmstepd: error: *** STEP 99{n}.0 ON {node} CANCELLED AT 2026-03-04T05:06:07 DUE TO PREEMPTION ***"),
    ("unknown", "one", "{timeouts-but-one}"),
    ("unknown", "one", "{behind}"),
    ("user-code", "one", "{mismatch}"),
    ("fabric", "none", "{all-stuck}"),
]
