# ruff: noqa: E501 (a row is a row: messages stand as they are)
"""What do Slurm, Kubernetes and the clouds say when they end a job, or lose a node?"""

from __future__ import annotations

from holdfast.diagnosis.tables import CAUSE, EFFECT, MACHINE, SYMPTOM, Row

SLURM = "https://github.com/SchedMD/slurm: "
K8S = "https://kubernetes.io/docs/"
HOST, LOST, PREEMPTED, USER, STORAGE = "oom-host", "node-lost", "preempted", "user-code", "storage"
MEMORY = "ask for more memory (--mem, or resources.limits.memory), or use less"
GONE = "see that node's own log; leave it out until it is repaired"

RULES: tuple[Row, ...] = (
    ("slurm-oom", HOST, MACHINE, 95, "oom-kill event|oom_kill event|OOM Killed", r"slurmstepd: error: (?:Detected \d+ oom.?kill event|.*OOM Killed)", "its job step used more memory than Slurm granted", MEMORY, SLURM + "src/plugins/task/cgroup/task_cgroup_memory.c",
     "slurmstepd: error: Detected 1 oom_kill event in StepId=14604003.0. Some of the step tasks have been OOM Killed."),
    ("slurm-task-oom", HOST, MACHINE, 96, "Out Of Memory", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)\S*: Out Of Memory", "its job step used more memory than Slurm granted", MEMORY, SLURM + "src/srun/task_state.c",
     "srun: error: node17: task 17: Out Of Memory"),
    ("slurm-memory-limit", HOST, MACHINE, 93, "exceeded memory limit|Exceeded job memory limit|Exceeded step memory limit", r"(?i)exceeded (?:job |step )?memory limit", "its job step used more memory than Slurm granted", MEMORY, SLURM + "src/slurmd/slurmstepd/mgr.c",
     "slurmstepd: error: Step 4711.0 exceeded memory limit (262144000 > 258048000), being killed"),
    ("slurm-time-limit", PREEMPTED, MACHINE, 96, "DUE TO TIME LIMIT", r"(?:JOB|STEP) \S+ ON (?P<node>[\w.-]+) CANCELLED AT \S+ DUE TO TIME LIMIT", "the job's time is over", "ask for more (--time), or queue it again from its checkpoint", SLURM + "src/slurmd/slurmstepd/req.c",
     "slurmstepd: error: *** JOB 4711 ON node01 CANCELLED AT 2026-11-21T12:00:00 DUE TO TIME LIMIT ***"),
    ("slurm-preempted", PREEMPTED, MACHINE, 96, "DUE TO PREEMPTION", r"(?:JOB|STEP) \S+ ON (?P<node>[\w.-]+) CANCELLED AT \S+ DUE TO PREEMPTION", "a job of higher priority took its nodes", "queue it again; it can go on from its checkpoint", SLURM + "src/slurmd/slurmstepd/req.c",
     "slurmstepd: error: *** STEP 4711.0 ON node01 CANCELLED AT 2026-11-21T12:00:00 DUE TO PREEMPTION ***"),
    ("slurm-node-failure", LOST, MACHINE, 96, "DUE TO NODE FAILURE|DUE to SIGNAL|DUE TO NODE", r"CANCELLED AT \S+ DUE TO NODE FAILURE, SEE SLURMCTLD LOG", "Slurm lost a node", GONE, SLURM + "src/slurmctld/node_mgr.c",
     "slurmstepd: error: *** STEP 4711.0 ON node01 CANCELLED AT 2026-11-21T12:00:00 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***"),
    ("srun-node-failure", LOST, MACHINE, 96, "Node failure on", r"Node failure on (?P<node>[\w.\[\],-]+)", "Slurm lost its node", GONE, SLURM + "src/api/step_launch.c", "srun: error: Node failure on node17"),
    ("slurm-cancelled", PREEMPTED, EFFECT, 60, "CANCELLED AT", r"(?:JOB|STEP) \S+ ON (?P<node>[\w.-]+) CANCELLED AT \S+ \*\*\*", "the job or step was cancelled", "see by whom (`sacct -j`): a user, or srun after a task failed", SLURM + "src/slurmd/slurmstepd/req.c",
     "slurmstepd: error: *** STEP 4711.0 ON node01 CANCELLED AT 2026-11-21T12:00:00 ***"),
    ("srun-task-killed", HOST, SYMPTOM, 58, ": Killed", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+): Killed", "it was killed by SIGKILL, most often for want of memory", "see the kernel log of that node", SLURM + "src/srun/task_state.c", "srun: error: node17: task 17: Killed"),
    ("srun-task-exit", "unknown", EFFECT, 45, "Exited with exit code", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+)(?![\d,-]): Exited with exit code (?P<code>\d+)", "it ended with an exit code", "see its log", SLURM + "src/srun/task_state.c",
     "srun: error: node17: task 17: Exited with exit code 1"),
    ("srun-task-segv", "framework", SYMPTOM, 58, ": Segmentation fault|: Aborted|: Bus error", r"srun: error: (?P<node>[\w.-]+): tasks? (?P<rank>\d+): (?:Segmentation fault|Aborted|Bus error)", "native code has crashed", "see its log", SLURM + "src/srun/task_state.c",
     "srun: error: node17: task 17: Segmentation fault (core dumped)"),
    ("srun-terminated", "unknown", EFFECT, 30, "Terminating StepId=|Job step aborted|: Terminated", r"srun: (?:launch/slurm: \S+: )?(?:Terminating StepId=|Job step aborted|error: \S+ tasks? \S+: Terminated)", "srun ends the other tasks", "see the first task that failed", SLURM + "src/srun/task_state.c",
     "srun: launch/slurm: _step_signal: Terminating StepId=4711.0"),
    ("slurm-kill-failed", LOST, MACHINE, 80, "Kill task failed|UnkillableStepTimeout|JOB NOT ENDING WITH SIGNALS", r"Kill task failed|STEPD TERMINATED ON .* DUE TO JOB NOT ENDING WITH SIGNALS", "a process on that node cannot be killed: asleep in a driver or file system", "Slurm drains it; reboot it", SLURM + "src/slurmd/slurmd/req.c",
     "slurmstepd: error: *** JOB 4711 STEPD TERMINATED ON node09 AT 2026-11-21T12:00:00 DUE TO JOB NOT ENDING WITH SIGNALS ***"),
    ("slurm-no-config", USER, CAUSE, 88, "Unable to allocate resources|Unable to create step for job", r"srun: error: Unable to (?:allocate resources|create step for job \d+): ", "Slurm refused it", "fix what it names", SLURM + "src/api/allocate.c",
     "srun: error: Unable to create step for job 4711: More processors requested than permitted"),
    ("slurm-execve", USER, CAUSE, 94, "slurmstepd: error: execve():", r"slurmstepd: error: execve\(\): (?P<what>\S+): ", "its program is not there or cannot be executed ({what})", "check its path on every node", SLURM + "src/slurmd/slurmstepd/task.c",
     "slurmstepd: error: execve(): python3.12: No such file or directory"),
    ("slurm-socket-timeout", LOST, SYMPTOM, 62, "Socket timed out on send/recv|communication connection failure|Zero Bytes were transmitted", r"slurm\w*: error: .*(?:Socket timed out on send/recv|communication connection failure|Zero Bytes were transmitted)", "Slurm's daemons do not reach one another", "look at the controller and the network", SLURM + "src/common/slurm_errno.c",
     "slurmstepd: error: slurm_receive_msg: Socket timed out on send/recv operation"),
    ("pbs-walltime", PREEMPTED, MACHINE, 94, "PBS: job killed: walltime", r"PBS: job killed: walltime \d+ exceeded limit", "the job's time is over", "ask for more walltime", "https://github.com/openpbs/openpbs: src/resmom/mom_main.c", "=>> PBS: job killed: walltime 3617 exceeded limit 3600"),
    ("pbs-memory", HOST, MACHINE, 93, "PBS: job killed: mem", r"PBS: job killed: (?:mem|vmem) ", "its job used more memory than was granted", MEMORY, "https://github.com/openpbs/openpbs: src/resmom/linux/mom_mach.c", "=>> PBS: job killed: mem 268435456kb exceeded limit 251658240kb"),
    ("lsf-limits", PREEMPTED, MACHINE, 93, "TERM_RUNLIMIT|TERM_PREEMPT", r"TERM_(?:RUNLIMIT|PREEMPT)\b", "LSF ended the job", "ask for more time, or queue it again", "https://www.ibm.com/docs/en/spectrum-lsf", "TERM_RUNLIMIT: job killed after reaching LSF run time limit."),
    ("lsf-memory", HOST, MACHINE, 93, "TERM_MEMLIMIT", r"TERM_MEMLIMIT\b", "its job used more memory than was granted", MEMORY, "https://www.ibm.com/docs/en/spectrum-lsf", "TERM_MEMLIMIT: job killed after reaching LSF memory usage limit."),
    ("k8s-oom-killed", HOST, MACHINE, 96, "OOMKilled|OOMKilling", r"\bOOMKill(?:ed|ing)\b", "its container used more memory than its limit", MEMORY, K8S + "tasks/configure-pod-container/assign-memory-resource/", "    Reason:       OOMKilled"),
    ("k8s-evicted-memory", HOST, MACHINE, 94, "low on resource: memory", r"The node was low on resource: memory", "its pod was evicted: the node ran low on memory", MEMORY, K8S + "concepts/scheduling-eviction/node-pressure-eviction/",
     "Message: The node was low on resource: memory. Threshold quantity: 100Mi, available: 41Mi."),
    ("k8s-evicted-disk", STORAGE, MACHINE, 94, "low on resource: ephemeral-storage|ephemeral local storage usage exceeds", r"low on resource: ephemeral-storage|ephemeral local storage usage exceeds", "its pod was evicted: the node's disk is full", "write less to the container's own disk, or ask for more ephemeral-storage", K8S + "concepts/scheduling-eviction/node-pressure-eviction/",
     "Message: The node was low on resource: ephemeral-storage. Container trainer was using 212Gi, request is 0."),
    ("k8s-preempted", PREEMPTED, MACHINE, 94, "Preempted by|PreemptionByScheduler|preempting to accommodate", r"Preempted by (?:pod |a pod )|PreemptionByScheduler|preempting to accommodate a higher priority pod", "a pod of higher priority took its place", "it comes back when there is room", K8S + "concepts/scheduling-eviction/pod-priority-preemption/",
     "Normal  Preempted  12s  default-scheduler  Preempted by pod 3f2a1c on node gpu-07"),
    ("k8s-node-not-ready", LOST, MACHINE, 93, "NodeNotReady|node is not ready|Node is not ready", r"\bNodeNotReady\b|[Nn]ode is not ready", "its node is not ready any more", GONE, K8S + "concepts/architecture/nodes/", "Warning  NodeNotReady  node-controller  Node is not ready"),
    ("k8s-node-lost", LOST, MACHINE, 95, "NodeLost|TaintManagerEviction|DeletionByTaintManager", r"\bNodeLost\b|TaintManagerEviction|DeletionByTaintManager", "its node is lost", GONE, K8S + "concepts/scheduling-eviction/taint-and-toleration/", "Normal  TaintManagerEviction  taint-eviction-controller  Marking for deletion Pod train/worker-3"),
    ("k8s-deadline", PREEMPTED, MACHINE, 92, "DeadlineExceeded: Job|Job was active longer than specified deadline", r"was active longer than specified deadline", "the job's time is over (activeDeadlineSeconds)", "give it more", K8S + "concepts/workloads/controllers/job/", "Warning  DeadlineExceeded  job-controller  Job was active longer than specified deadline"),
    ("k8s-image", USER, CAUSE, 93, "ImagePullBackOff|ErrImagePull|InvalidImageName", r"ImagePullBackOff|ErrImagePull|InvalidImageName", "its image cannot be fetched", "check its name and the registry's credentials", K8S + "concepts/containers/images/", "Warning  Failed  kubelet  Error: ImagePullBackOff"),
    ("k8s-mount", STORAGE, CAUSE, 90, "MountVolume.SetUp failed|Unable to attach or mount volumes|FailedMount", r"MountVolume\.\w+ failed for volume|Unable to attach or mount volumes|\bFailedMount\b", "a volume cannot be mounted", "look at the claim and its storage", K8S + "concepts/storage/volumes/",
     "Warning  FailedMount  kubelet  MountVolume.SetUp failed for volume \"data\" : mount failed: exit status 32"),
    ("k8s-gpu-admission", "gpu", MACHINE, 90, "UnexpectedAdmissionError", r"UnexpectedAdmissionError.*(?:nvidia|amd)\.com/gpu|no healthy devices present", "its node has fewer healthy GPUs than were asked for", GONE, K8S + "concepts/extend-kubernetes/compute-storage-net/device-plugins/",
     "Status: Failed Reason: UnexpectedAdmissionError Message: Allocate failed due to no healthy devices present; cannot allocate unhealthy devices nvidia.com/gpu"),
    ("k8s-run-error", USER, CAUSE, 90, "RunContainerError|CreateContainerConfigError|CreateContainerError|StartError", r"\b(?:RunContainerError|CreateContainer(?:Config)?Error|StartError)\b", "its container cannot be started", "fix what it names", K8S + "concepts/workloads/pods/pod-lifecycle/",
     "Warning  Failed  kubelet  Error: CreateContainerConfigError: secret \"hub-token\" not found"),
    ("cloud-preempted", PREEMPTED, MACHINE, 94, "Spot interruption|spot instance interruption|instance-action|EC2 Spot|was preempted|preemption notice|Instance preempted", r"(?i)spot (?:instance )?interruption|spot/instance-action|instance (?:was )?preempted|preemption notice", "the cloud took the node back", "it comes back when there is room",
     "https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html", "node-termination-handler: Received EC2 Spot interruption notice for instance i-0a1b2c3d, action=terminate"),
    ("cloud-maintenance", PREEMPTED, MACHINE, 90, "TERMINATE_ON_HOST_MAINTENANCE|host maintenance|hostError", r"TERMINATE_ON_HOST_MAINTENANCE|compute\.instances\.hostError", "the cloud took the node for maintenance, or lost it", "it comes back on another host",
     "https://cloud.google.com/compute/docs/instances/host-maintenance-overview", "maintenance-event: TERMINATE_ON_HOST_MAINTENANCE received from the metadata server"),
    ("systemd-shutdown", LOST, MACHINE, 85, "System is rebooting|System is powering down|The system is going down", r"systemd-logind\[\d+\]: (?:System is rebooting|System is powering down)|The system is going down for (?:reboot|poweroff|halt)", "its host is being shut down", "see who does that", "https://www.freedesktop.org/software/systemd/man/latest/systemd-logind.service.html",
     "Nov 21 12:00:00 node7 systemd-logind[812]: System is rebooting."),
    ("sigterm-told", PREEMPTED, SYMPTOM, 60, "Received SIGTERM|received SIGTERM|Received signal 15|Signal 15 (SIGTERM)|Signal 15 received|signum=15", r"(?i)(?:received (?:signal )?(?:SIGTERM|15\b)|got SIGTERM|Signal 15 \(SIGTERM\) received)", "it was told to end (SIGTERM)", "see who sent it: most often the scheduler, or the launcher after another rank failed", "https://man7.org/linux/man-pages/man7/signal.7.html",
     "Received SIGTERM, saving a checkpoint before exit"),
)
