# ruff: noqa: E501 (a row is a row: messages stand as they are)
"""What do the kernel, its file systems and its clock say about a host?"""

from __future__ import annotations

from holdfast.diagnosis.tables import CAUSE, EFFECT, MACHINE, SYMPTOM, Row

LINUX = "https://github.com/torvalds/linux: "
HOST, STORAGE, GPU, LOST, FRAMEWORK, USER = "oom-host", "storage", "gpu", "node-lost", "framework", "user-code"
MEMORY = "load less at once, use fewer data loader workers, or give the job more memory"
SERVER = "look at the file server and the network to it; nothing that reads there will get on"

RULES: tuple[Row, ...] = (
    ("kernel-oom-killed", HOST, MACHINE, 97, "Killed process", r"(?:Out of memory|Memory cgroup out of memory): Killed process (?P<pid>\d+) \((?P<what>[^)]*)\)",
     "the kernel killed it for want of memory", MEMORY, LINUX + "mm/oom_kill.c",
     "[81234.567890] Out of memory: Killed process 71234 (python) total-vm:412345678kB, anon-rss:251234567kB, file-rss:0kB, shmem-rss:0kB, UID:1000"),
    ("kernel-oom-cgroup", HOST, MACHINE, 96, "Memory cgroup out of memory|oom-kill:constraint=CONSTRAINT_MEMCG", r"Memory cgroup out of memory|oom-kill:constraint=CONSTRAINT_MEMCG.*?pid=(?P<pid>\d+)",
     "its container's or job's memory limit was reached", MEMORY, LINUX + "mm/oom_kill.c",
     "[81234.567890] oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0-1,oom_memcg=/slurm/uid_1000,task_memcg=/slurm/uid_1000/job_7,task=python,pid=71234,uid=1000"),
    ("kernel-oom-invoked", HOST, MACHINE, 90, "invoked oom-killer", r"(?P<what>\S+) invoked oom-killer: ", "its host ran out of memory", MEMORY, LINUX + "mm/oom_kill.c",
     "[81234.1] python invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0"),
    ("systemd-oomd", HOST, MACHINE, 92, "systemd-oomd killed", r"systemd-oomd killed \d+ process", "systemd-oomd killed it for want of memory", MEMORY, "https://www.freedesktop.org/software/systemd/man/latest/systemd-oomd.service.html",
     "node7 systemd[1]: user@1000.service: systemd-oomd killed 17 process(es) in this unit."),
    ("shell-killed", HOST, SYMPTOM, 62, "Killed ", r"^\S+: line \d+: +(?P<pid>\d+) Killed\b", "it was killed by SIGKILL, most often for want of memory", "see the kernel log of that node", "https://man7.org/linux/man-pages/man7/signal.7.html",
     "train.sh: line 12: 71234 Killed                  python train.py"),
    ("kernel-segfault", FRAMEWORK, SYMPTOM, 65, " segfault at ", r"\w+\[(?P<pid>\d+)\]: segfault at [0-9a-f]+ ip [0-9a-f]+ sp [0-9a-f]+ error \d+(?: in (?P<what>[^[\s]+))?", "native code has crashed",
     "look for libraries whose versions do not fit", LINUX + "arch/x86/mm/fault.c", "[812.1] python[71234]: segfault at 0 ip 00007f2b1c0a5f10 sp 00007ffd2f1a error 4 in libtorch_cuda.so[7f2b00000000+40000000]"),
    ("kernel-general-protection", FRAMEWORK, SYMPTOM, 62, "traps: |general protection", r"traps: \w+\[(?P<pid>\d+)\] (?:general protection|trap invalid opcode)", "native code has crashed", "was it built for this processor?", LINUX + "arch/x86/kernel/traps.c",
     "[812.1] traps: python[71234] trap invalid opcode ip:7f2b sp:7ffd error:0 in libmkl_avx512.so.2[7f2b+1000]"),
    ("mce-uncorrected", "node-lost", MACHINE, 90, "Machine check events logged|mce: [Hardware Error]|Uncorrected hardware memory error", r"mce: \[Hardware Error\]: (?:CPU|Machine check)|Uncorrected hardware memory error",
     "the processor or its memory reported a hardware error", "drain the node, and have its memory tested", LINUX + "arch/x86/kernel/cpu/mce/core.c", "[9981.2] mce: [Hardware Error]: CPU 12: Machine Check: 0 Bank 7: ac00000000010090", ),
    ("memory-failure", "node-lost", MACHINE, 90, "Memory failure: ", r"Memory failure: 0x[0-9a-f]+: (?:Killing|Sending SIGBUS to) (?P<what>\S+?):(?P<pid>\d+)", "a page of the host's memory is broken, and it was killed for it", "drain the node, and have its memory tested", LINUX + "mm/memory-failure.c",
     "[9981.2] Memory failure: 0x3f2a1c: Killing python:71234 due to hardware memory corruption"),
    ("edac-ue", "node-lost", MACHINE, 88, "EDAC MC", r"EDAC MC\d+: \d+ UE ", "the host's memory has an error that cannot be corrected", "drain the node, and replace the module that it names", LINUX + "drivers/edac/edac_mc.c",
     "[9981.2] EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#1_Chan#0_DIMM#0"),
    ("hung-task", STORAGE, SYMPTOM, 68, "blocked for more than", r"INFO: task (?P<what>\S+?):(?P<pid>\d+) blocked for more than \d+ seconds", "a process has been asleep in the kernel for minutes, deaf to signals", "see what it waits for below that line: mostly a file system or a driver", LINUX + "kernel/hung_task.c",
     "[7712.1] INFO: task python:71234 blocked for more than 122 seconds."),
    ("soft-lockup", "node-lost", MACHINE, 82, "soft lockup - CPU|watchdog: BUG: soft lockup|Watchdog detected hard LOCKUP|detected stalls on CPUs", r"soft lockup - CPU#\d+ stuck|hard LOCKUP|rcu_\w+ (?:self-)?detected stalls? on CPU",
     "a processor of that host is stuck in the kernel", "drain the node; see which driver it names", LINUX + "kernel/watchdog.c", "[7712.1] watchdog: BUG: soft lockup - CPU#17 stuck for 23s! [python:71234]"),
    ("kernel-panic", LOST, MACHINE, 97, "Kernel panic - not syncing", r"Kernel panic - not syncing", "its host's kernel panicked", "drain the node", LINUX + "kernel/panic.c", "[7712.1] Kernel panic - not syncing: Fatal hardware error!"),
    ("kernel-oops", LOST, MACHINE, 82, "BUG: unable to handle|kernel BUG at|Oops: ", r"BUG: unable to handle (?:kernel|page fault)|kernel BUG at|Oops: [0-9a-f]{4}", "its host's kernel has a fault", "drain the node; see which module it names", LINUX + "arch/x86/mm/fault.c",
     "[7712.1] BUG: unable to handle page fault for address: ffffb2f1c0"),
    ("thermal", GPU, EFFECT, 45, "temperature above threshold", r"CPU\d+: (?:Core|Package) temperature above threshold, cpu clock", "a processor is too hot and slowed down", "check its cooling", LINUX + "drivers/thermal/intel/therm_throt.c",
     "[7712.1] CPU12: Package temperature above threshold, cpu clock throttled (total events = 1)"),
    ("block-io", STORAGE, MACHINE, 90, "I/O error, dev|Medium Error|critical medium error", r"(?:blk_update_request: )?(?:critical medium error|I/O error), dev (?P<what>[\w-]+)", "a disk could not read or write ({what})", "replace it; what was written to it may be lost", LINUX + "block/blk-core.c",
     "[312.9] blk_update_request: I/O error, dev nvme1n1, sector 12345678 op 0x0:(READ) flags 0x0"),
    ("nvme-timeout", STORAGE, MACHINE, 88, "controller is down; will reset|nvme nvme", r"nvme nvme\d+: (?:controller is down; will reset|I/O \d+ QID \d+ timeout|I/O tag \d+ .*timeout)", "an NVMe disk does not answer", "replace it, or update its firmware", LINUX + "drivers/nvme/host/pci.c",
     "[312.9] nvme nvme1: I/O 842 QID 17 timeout, aborting"),
    ("ext-error", STORAGE, MACHINE, 90, "EXT4-fs error|metadata I/O error|Corruption|Filesystem has been shut down|log I/O error", r"EXT4-fs error \(device (?P<what>[^)]+)\)|XFS \((?P<dev>[^)]+)\): (?:metadata I/O error|Corruption|Filesystem has been shut down|log I/O error)", "a file system is damaged or shut down", "unmount and repair it",
     LINUX + "fs/ext4/super.c", "[312.9] EXT4-fs error (device nvme0n1p2): ext4_find_entry:1682: inode #131074: comm python: reading directory lblock 0"),
    ("nfs-not-responding", STORAGE, MACHINE, 90, "not responding", r"nfs: server (?P<what>\S+) not responding", "a file server does not answer ({what})", SERVER, LINUX + "net/sunrpc/clnt.c", "[5511.2] nfs: server nas3.cluster not responding, still trying"),
    ("lustre-evicted", STORAGE, MACHINE, 92, "was evicted by|This client was evicted", r"LustreError: .*?(?:This client was evicted by|was evicted by) (?P<what>\S+)", "Lustre threw that node out", SERVER, "https://github.com/lustre/lustre-release: lustre/ptlrpc/import.c",
     "[5511.2] LustreError: 167-0: scratch-OST0012-osc-ffff8: This client was evicted by scratch-OST0012; in progress operations using this service will fail."),
    ("lustre-lost", STORAGE, MACHINE, 85, "Connection to", r"Lustre: \S+: Connection to (?P<what>\S+) \(at [^)]*\) was lost", "Lustre lost the connection to {what}", SERVER, "https://github.com/lustre/lustre-release: lustre/ptlrpc/import.c",
     "[5511.2] Lustre: scratch-MDT0000-mdc-ffff8: Connection to scratch-MDT0000 (at 10.1.0.4@o2ib) was lost; in progress operations using this service will wait for recovery to complete"),
    ("ceph-lost", STORAGE, MACHINE, 82, "libceph: |ceph: mds", r"libceph: (?:mon|osd|mds)\d+ .*(?:socket closed|session lost|down)|ceph: mds\d+ (?:hung|caps stale|reconnect denied)", "Ceph lost a connection", SERVER, LINUX + "net/ceph/messenger.c",
     "[5511.2] libceph: osd17 (1)10.3.0.17:6801 socket closed (con state OPEN)"),
    ("gpfs-unmounted", STORAGE, MACHINE, 88, "Unmounting file system|expelled|has been panicked|has been unmounted|lost membership", r"mmfsd?(?:64)?(?:\[\d+\])?: .*(?:Unmounting file system|expelled|File system \S+ has been (?:panicked|unmounted)|lost membership)", "GPFS threw that node out", SERVER, "https://www.ibm.com/docs/en/storage-scale",
     "Nov 21 12:00:00 node7 mmfs: [E] This node was expelled from cluster gpfs.cluster; lost membership"),
    ("fuse-gone", STORAGE, CAUSE, 80, "Software caused connection abort", r"\[Errno 103\] Software caused connection abort", "a file system in user space died", "mount it again; look at its client's log", "https://man7.org/linux/man-pages/man4/fuse.4.html",
     "OSError: [Errno 103] Software caused connection abort: '/mnt/s3/shard-7'"),
    ("signal-kill-exit", HOST, SYMPTOM, 55, "Signal 9 (SIGKILL)|(SIGKILL) received", r"Signal 9 \(SIGKILL\) received by PID (?P<pid>\d+)", "it was killed by SIGKILL: by nobody here, so most often for want of memory", "see the kernel log of that node (`dmesg`)", "https://man7.org/linux/man-pages/man7/signal.7.html",
     "           Signal 9 (SIGKILL) received by PID 71234"),
    ("signal-segv-exit", FRAMEWORK, SYMPTOM, 55, "Signal 11 (SIGSEGV)|(SIGSEGV) received", r"Signal 11 \(SIGSEGV\) received by PID (?P<pid>\d+)", "native code has crashed", "see its stack above; look for libraries whose versions do not fit", "https://man7.org/linux/man-pages/man7/signal.7.html",
     "           Signal 11 (SIGSEGV) received by PID 71234"),
    ("signal-bus-exit", HOST, SYMPTOM, 60, "Signal 7 (SIGBUS)|(SIGBUS) received", r"Signal 7 \(SIGBUS\) received by PID (?P<pid>\d+)", "it died of a bus error: often a full /dev/shm", "give the container more shared memory", "https://man7.org/linux/man-pages/man7/signal.7.html",
     "           Signal 7 (SIGBUS) received by PID 71234"),
    ("signal-ill-exit", FRAMEWORK, SYMPTOM, 70, "Illegal instruction|Signal 4 (SIGILL)", r"^Illegal instruction|Signal 4 \(SIGILL\) received", "native code is not for this processor", "use a build for it on every node", "https://man7.org/linux/man-pages/man7/signal.7.html", "Illegal instruction (core dumped)"),
    ("malloc-corruption", FRAMEWORK, SYMPTOM, 66, "double free or corruption|free(): invalid pointer|malloc(): |corrupted size vs. prev_size|munmap_chunk(): ",
     r"^(?:double free or corruption|free\(\): invalid|malloc\(\): |corrupted size vs|munmap_chunk\(\): )", "native code corrupted its memory", "look for libraries whose versions do not fit", "https://sourceware.org/git/glibc.git: malloc/malloc.c", "double free or corruption (!prev)"),
    ("cpp-terminate", FRAMEWORK, EFFECT, 35, "terminate called after throwing", r"terminate called after throwing an instance of '(?!std::bad_alloc)(?P<what>[^']+)'", "native code ended with an exception", "see what() in the next line", "https://gcc.gnu.org/onlinedocs/libstdc++/", "terminate called after throwing an instance of 'c10::DistBackendError'"),
    ("cpp-bad-alloc", HOST, CAUSE, 90, "std::bad_alloc", r"std::bad_alloc", "native code could not get memory from the host", MEMORY, "https://en.cppreference.com/w/cpp/memory/new/bad_alloc", "terminate called after throwing an instance of 'std::bad_alloc'"),
)
