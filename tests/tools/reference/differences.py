"""Where do we differ from torchrun on purpose, and what do we keep although it surprises? Text for the reference page."""

from __future__ import annotations

DIFFERENCES: tuple[tuple[str, str, str], ...] = (
    # (what it is about, torchrun 2.13, holdfast)
    (
        "Wrong command line",
        "argparse's errors exit 2; all others are a traceback and exit 1",
        "every one exits 2, with one line that names the flag or variable and the nearest valid value",
    ),
    (
        "`train.py --n 3`",
        "refused by the argparse of Python 3.11: it takes the script's `--n` for one of several flags of torchrun's",
        "the script's own, if all before it is written out",
    ),
    ("Start-up", "imports torch before it starts a worker, which takes seconds", "imports no framework"),
    (
        "One node",
        "opens a rendezvous server on a free port; MASTER_ADDR is the full host name",
        "opens no socket for itself; MASTER_ADDR is 127.0.0.1 unless `--local-addr` or `--master-port` say otherwise",
    ),
    (
        "Under Slurm, in an Indexed Job or a JobSet",
        "one node, unless flags say otherwise",
        "what no flag or `PET_*` variable says, the scheduler's variables do: nodes, endpoint, run id, workers per node",
    ),
    ("`--rdzv-id` on one node", "replaced by a random one", "kept; a short random one if none was given"),
    (
        "`--standalone --nnodes 2`",
        "waits ten minutes for a node that cannot come",
        "an error at once (`1:2` runs on this node alone, with a warning)",
    ),
    (
        "More nodes join (`--nnodes 1:2`)",
        "old and new agents wait for each other, and both fail",
        "address, port and ranks are told anew in every round",
    ),
    (
        "Store of the workers",
        "the agent serves one TCPStore to all attempts, so that a restarted worker may read a dead one's address",
        "a fresh port each round, and the worker of rank 0 serves it: `TORCHELASTIC_USE_AGENT_STORE` is "
        "`False`. The port is held for it, so that "
        "no other program can be given it",
    ),
    (
        "`--max-restarts`",
        "each agent counts for itself",
        "the job's budget, over all nodes; `--restart-period` makes it a rate; joining and leaving nodes spend none",
    ),
    (
        "Crash loops",
        "restarts at once, each time",
        "pauses grow up to `--backoff` seconds while the workers die as soon as they start",
    ),
    (
        "A node fails or is lost",
        "the others run on, and may sit at the end for 300 s and exit 0",
        "they know within milliseconds (a silent one: after `--lease`), and the job restarts or fails as a whole",
    ),
    ("`--monitor-interval`", "how often workers are polled", "accepted, unused: a death is an event"),
    (
        "Signals",
        "not acted on while the agent waits for other nodes; a third one leaves the workers running",
        "acted on everywhere, and no number of them leaves a worker behind",
    ),
    ("Agent killed", "its workers run on without it", "a guardian kills them and all their descendants"),
    ("Children of workers", "left running when their worker has died", "killed with it, even those that called setsid"),
    ("`--shutdown-timeout`", "only when the agent is told to stop; 30 s otherwise", "at every stop"),
    ("`--signals-to-handle`", "a wrong name is skipped with a warning", "a wrong name is an error"),
    ("SIGUSR1, SIGUSR2", "end the launcher unless listed", "passed on to the workers; the job goes on unless they are listed"),
    ("Logs of an earlier attempt", "erased when nodes join or leave", "kept: `attempt_1.r3` is the same attempt in round 3"),
    (
        "No `--log-dir`",
        "leaves a folder in /tmp behind after every run",
        "they lie in the job's folder under the state directory, and the oldest jobs are pruned",
    ),
    (
        "Relative `--log-dir`",
        "`TORCHELASTIC_ERROR_FILE` is relative too, and lost when the script changes directory",
        "always absolute",
    ),
    ("`-r` and `-t`", "can name local ranks 0 to 9", "can name any"),
    ("Lines under `--tee`", "unfinished lines of two ranks can be joined", "a line is held until it ends"),
    ("`--duplicate-*-filters`", "do nothing for streams that are only redirected", "work with `-r` too"),
    ("Workers stuck in the kernel", "the job ends with exit code 0", "a failure: exit code 1"),
    (
        "File timer expires",
        "kills the launcher too",
        "a failure of that worker: reported with its scope, and restarted like any other",
    ),
    (
        "`expires()` without a scope",
        "all unnamed timers share one name and release each other",
        "named after the line that called it (holdfast.elastic.timer)",
    ),
    ("Failure data", "failures without an error file share one dictionary", "each has its own"),
    ("A node too many", "crashes when the job ends without it", "exits 0"),
    (
        "Static backend",
        "takes a range of nodes and waits for the most; a rank too high hangs",
        "the same, with a warning; a rank too high is an error",
    ),
    (
        "`--rdzv-conf`",
        "unknown keys are ignored; `store_type=file` meets in a file",
        "named in a warning. `keep_alive_interval` x `keep_alive_max_attempt` gives the lease unless `--lease` does. "
        "`store_type=file` is an error: an agent serves the job, at a port",
    ),
    (
        "Empty `--rdzv-id`",
        "a random one on each node, so that they never meet",
        "`none`, with a warning; on one node a random one",
    ),
    (
        "PET variables",
        "`--logs-specs` and `--numa-binding` have none; `choices` are not checked in them",
        "every flag of torchrun's has one, checked like the flag",
    ),
    ("OMP_NUM_THREADS", "set to 1, with a warning in a frame", "set to 1 just the same, with one line"),
    (
        "`--numa-binding`",
        "asks torch which GPU is where, and needs numactl for a script",
        "the same CPUs, from sysfs, and needs neither; `auto` takes the memory too, and `--numa-fallback` goes on without it",
    ),
    (
        "etcd, etcd-v2",
        "agreement through etcd's version 2 API, by a client that is no longer kept",
        "etcd (version 3 API) elects the agent that runs the coordinator, and another when that is lost",
    ),
    (
        "Agents of torch and of `holdfast.elastic` at one `c10d` or `etcd-v2` endpoint",
        "share a pickled state",
        "do not meet: the shared state is JSON, and nothing is unpickled. A job takes one launcher on all its nodes. "
        "torchrun's own agents meet with the plug-in, `--rdzv-backend holdfast`",
    ),
    (
        "A node of `holdfast.elastic` counts as dead",
        "when its last heartbeat is old by the reader's wall clock, which must agree with the writer's",
        "when its heartbeat has not changed for so long by the reader's own clock: clocks need not agree",
    ),
    (
        "A node of `holdfast.elastic` that waits, and gets no seat in the new round",
        "waits on, so that the others restart again and again",
        "becomes a spare",
    ),
)

KEPT: tuple[str, ...] = (
    "A worker's own exit code is never passed on: the launcher exits 0 or 1.",
    "`$` in the arguments is template syntax: `$local_rank` and `${local_rank}` become the local rank, `$$` becomes `$`.",
    "A prefix of a flag works where it is torchrun's own prefix: `--nproc-p` does, `--nproc` is ambiguous. Holdfast's own "
    "flags are never matched by a prefix.",
    "A switch that its PET variable has set cannot be switched off on the command line; an empty variable counts as set.",
    "PET variables are inherited by the workers, and so by a launcher that a script starts.",
    "Outside the static backend `--node-rank` and `--master-addr` do nothing (a warning says so).",
    "Giving `--master-port` on one node fixes MASTER_ADDR and MASTER_PORT; `--master-addr` alone does not.",
    "Workers that were stopped because another failed are listed in the failure box, with exit code -15; the box is the same, "
    "byte for byte.",
    "stdin is shared by all workers.",
    "Defaults differ between the command line (`--max-restarts 0`, role `default`) and `LaunchConfig` (3, `default_role`).",
)

VARIABLES: tuple[tuple[str, str], ...] = (
    ("LOGLEVEL", "level of the agent's own lines (WARNING if not set); `--verbose` and `--quiet` go before it"),
    ("PYTHON_EXEC", "interpreter for the workers (otherwise the one that runs Holdfast)"),
    ("OMP_NUM_THREADS", "left as it is where it is set; otherwise 1 for each of several workers"),
    ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "default of `--shutdown-timeout`"),
    (
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
        "what stands before each line under `--tee`: `${role_name}`, `${rank}`, `${local_rank}`",
    ),
    ("TORCHELASTIC_ERROR_FILE", "the error file of the first failure is copied there"),
    (
        "TORCHELASTIC_ENABLE_FILE_TIMER, TORCHELASTIC_TIMER_FILE",
        "`1` opens the pipe for expiring timers, at that path or a new one",
    ),
    ("TORCHELASTIC_HEALTH_CHECK_PORT", "port of the health check server"),
    ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "seconds that a worker may be stuck in the kernel"),
    (
        "NVRX_GPUS_PER_NUMA",
        "GPUs of each NUMA node: every worker is started through numactl, and bound to the node of its GPU, unless "
        "`--numa-binding` is given",
    ),
    (
        "CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, ZE_AFFINITY_MASK",
        "which devices count for `--nproc-per-node`, and which is which for `--numa-binding`",
    ),
    (
        "NVRX_INFRA_RANK_FROM_NODENAME, CROSS_SLURM_PROCID, SLURM_TOPOLOGY_ADDR, OMPI_COMM_WORLD_RANK, SLURM_PROCID, "
        "GROUP_RANK, PET_NODE_RANK, JOB_COMPLETION_INDEX",
        "order the nodes of a c10d job: the first that is set counts; nodes without any follow by name",
    ),
    (
        "SLURM_TOPOLOGY_ADDR, SLURM_TOPOLOGY_ADDR_PATTERN",
        "this node's switches (nodes under one get neighbouring ranks) and its block (see `--domain`)",
    ),
    (
        "SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_GPUS_ON_NODE, SLURM_RESTART_COUNT, SLURMD_NODENAME",
        "and others of Slurm's: [what they stand for](../how-to/slurm.md); `--standalone` ignores them",
    ),
    (
        "JOB_COMPLETIONS, JOB_NAME, JOBSET_NAME, JOBSET_RESTART_ATTEMPT, JOBSET_COORDINATOR",
        "and others that a manifest hands down: [what they stand for](../how-to/kubernetes.md#which-variables-mean-what)",
    ),
    (
        "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE",
        "1: several agents on one node are meant, each a node of the job for its number",
    ),
    ("NVRX_REPLACEMENT_GROUP_ID", "nodes with the same one take part all or none; otherwise `SLURM_ARRAY_TASK_ID`"),
    ("HOLDFAST_TOKEN", "the secret that the job's nodes share, where there is no `--token-file`"),
    (
        "HOLDFAST_ETCD_USER, HOLDFAST_ETCD_PASSWORD",
        "credentials for `--rdzv-backend etcd`, where `--rdzv-conf` has none; not left to the workers",
    ),
    (
        "KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT, HOLDFAST_SERVICE_ACCOUNT",
        "the API server that `--witness kubernetes` and `--in-place-restart` ask, as Kubernetes says itself; and the folder "
        "with token, ca.crt and namespace, where that is not /var/run/secrets/kubernetes.io/serviceaccount",
    ),
    ("POD_NAME", "name of this pod, for `--in-place-restart`, which needs `JOBSET_NAME` too"),
    (
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE, TORCH_ELASTIC_WORKER_IDENTICAL",
        "no effect: what they switch on is always so, and needs no switch",
    ),
)
"""Variables that no flag stands for, and what they do here."""
