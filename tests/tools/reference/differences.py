"""Where do we differ from torchrun on purpose, and what do we keep although it surprises? Text for the reference page."""

from __future__ import annotations

DIFFERENCES: tuple[tuple[str, str, str], ...] = (
    # (what it is about, torchrun 2.13, holdfast)
    (
        "Wrong command line",
        "argparse's errors exit with 2; all others print a traceback and exit with 1",
        "every error exits with 2 and prints one line, which names the flag or variable and the nearest valid value",
    ),
    (
        "`train.py --n 3`",
        "Python 3.11's argparse refuses it: it takes the script's `--n` for an ambiguous prefix of torchrun's own flags",
        "`--n` goes to the script, if all flags before it are written out",
    ),
    ("Start-up", "imports torch before it starts a worker; this takes seconds", "imports no framework"),
    (
        "One node",
        "opens a rendezvous server on a free port; MASTER_ADDR is the full host name",
        "opens no socket for itself; MASTER_ADDR is 127.0.0.1 unless you give `--local-addr` or `--master-port`",
    ),
    (
        "Under Slurm, in an Indexed Job or a JobSet",
        "runs one node, unless flags say otherwise",
        "takes nodes, endpoint, run id and workers per node from the scheduler's variables, unless a flag or a `PET_*` "
        "variable sets them",
    ),
    ("`--rdzv-id` on one node", "replaced with a random id", "kept; a short random id if you give none"),
    (
        "`--standalone --nnodes 2`",
        "waits ten minutes for a node that cannot come",
        "fails at once (`1:2` runs on this node alone, with a warning)",
    ),
    (
        "More nodes join (`--nnodes 1:2`)",
        "old and new agents wait for each other, and both fail",
        "every round sets address, port and ranks anew",
    ),
    (
        "Store of the workers",
        "the agent serves one TCPStore to all attempts, so a restarted worker may read a dead worker's address",
        "the worker of rank 0 serves the store, on a fresh port each round: `TORCHELASTIC_USE_AGENT_STORE` is `False`. The "
        "agent reserves the port, so no other program can get it",
    ),
    (
        "`--max-restarts`",
        "each agent counts on its own",
        "one budget for the job, over all nodes; `--restart-period` makes it a rate; nodes that join or leave do not use it",
    ),
    (
        "Crash loops",
        "restarts at once each time",
        "if the workers die right after they start, it pauses longer each time, up to `--backoff` seconds",
    ),
    (
        "A node fails or is lost",
        "the other nodes run on, may wait 300 s at the end, and exit 0",
        "the other nodes know within milliseconds (of a silent node: after `--lease`), and the whole job restarts or fails",
    ),
    ("`--monitor-interval`", "sets how often torchrun polls the workers", "accepted but not used: a death is an event"),
    (
        "Signals",
        "ignored while the agent waits for other nodes; a third signal leaves the workers running",
        "always handled; no number of signals leaves a worker behind",
    ),
    ("Agent killed", "its workers run on", "a guardian kills them and all their descendants"),
    ("Children of workers", "keep running when their worker dies", "killed with the worker, even if they called setsid"),
    ("`--shutdown-timeout`", "applies only when the agent is told to stop; 30 s otherwise", "applies at every stop"),
    ("`--signals-to-handle`", "skips a wrong name with a warning", "a wrong name is an error"),
    (
        "SIGUSR1, SIGUSR2",
        "end the launcher unless `--signals-to-handle` lists them",
        "passed on to the workers; they end the job only if listed",
    ),
    ("Logs of an earlier attempt", "erased when nodes join or leave", "kept: `attempt_1.r3` is the same attempt in round 3"),
    (
        "No `--log-dir`",
        "leaves a folder in /tmp after every run",
        "writes logs to the job's folder under the state directory, and removes the oldest jobs",
    ),
    (
        "Relative `--log-dir`",
        "`TORCHELASTIC_ERROR_FILE` is relative too, and is lost when the script changes directory",
        "always absolute",
    ),
    ("`-r` and `-t`", "accept local ranks 0 to 9", "accept any local rank"),
    ("Lines under `--tee`", "unfinished lines of two ranks can mix", "holds a line until it ends"),
    ("`--duplicate-*-filters`", "have no effect on streams that are only redirected", "also work with `-r`"),
    ("Workers stuck in the kernel", "the job ends with exit code 0", "the job fails with exit code 1"),
    (
        "File timer expires",
        "also kills the launcher",
        "the worker fails: the report names the scope, and the job restarts as after any failure",
    ),
    (
        "`expires()` without a scope",
        "all unnamed timers share one name, and one releases another",
        "the scope is named after the line that called it (holdfast.elastic.timer)",
    ),
    ("Failure data", "failures without an error file share one dictionary", "each failure has its own"),
    ("More nodes than the job takes", "the extra node crashes when the job ends without it", "the extra node exits 0"),
    (
        "Static backend",
        "accepts a range of nodes and waits for the maximum; a node rank that is too high hangs",
        "the same, with a warning; a node rank that is too high is an error",
    ),
    (
        "`--rdzv-conf`",
        "ignores unknown keys; with `store_type=file` the nodes meet in a file",
        "a warning names unknown keys. `keep_alive_interval` × `keep_alive_max_attempt` sets the lease unless you give "
        "`--lease`. `store_type=file` is an error: an agent serves the job at a port",
    ),
    (
        "Empty `--rdzv-id`",
        "a random id on each node, so the nodes never meet",
        "`none`, with a warning; a random id on a single node",
    ),
    (
        "PET variables",
        "`--logs-specs` and `--numa-binding` have none; torchrun does not check `choices` in them",
        "every torchrun flag has one, and it is checked like the flag",
    ),
    ("OMP_NUM_THREADS", "set to 1, with a framed warning", "set to 1 too, with one line"),
    (
        "`--numa-binding`",
        "asks torch for each GPU's place, and needs numactl for a script",
        "binds to the same CPUs, reads sysfs, and needs neither; `auto` also binds the memory; `--numa-fallback` runs unbound "
        "if binding is not possible",
    ),
    (
        "etcd, etcd-v2",
        "the nodes agree through etcd's version 2 API, with a client that is no longer maintained",
        "etcd (version 3 API) elects the agent that runs the coordinator, and elects another if that agent is lost",
    ),
    (
        "Agents of torch and of `holdfast.elastic` at one `c10d` or `etcd-v2` endpoint",
        "share pickled state",
        "do not meet: the shared state is JSON, and Holdfast unpickles nothing. Use one launcher on all nodes of a job. "
        "torchrun's own agents can use the plug-in, `--rdzv-backend holdfast`",
    ),
    (
        "A node of `holdfast.elastic` counts as dead",
        "when its last heartbeat is too old by the reader's wall clock, which must agree with the writer's",
        "when its heartbeat has not changed for that long by the reader's own clock; the clocks need not agree",
    ),
    (
        "A waiting node of `holdfast.elastic` that gets no place in the new round",
        "keeps waiting, so the other nodes restart again and again",
        "becomes a spare",
    ),
)

KEPT: tuple[str, ...] = (
    "The launcher never passes on a worker's exit code: it exits with 0 or 1.",
    "`$` in the arguments is template syntax: `$local_rank` and `${local_rank}` become the local rank, `$$` becomes `$`.",
    "A prefix of a torchrun flag works as in torchrun: `--nproc-p` works, `--nproc` is ambiguous. Holdfast's own flags accept "
    "no prefix.",
    "If a PET variable turns a switch on, the command line cannot turn it off. An empty variable counts as set.",
    "Workers inherit PET variables, and so does a launcher that a script starts.",
    "`--node-rank` and `--master-addr` have no effect outside the static backend (a warning says so).",
    "On one node, `--master-port` fixes MASTER_ADDR and MASTER_PORT; `--master-addr` alone does not.",
    "The failure box also lists workers that were stopped because another failed, with exit code -15. The box is the same as "
    "torchrun's, byte for byte.",
    "All workers share stdin.",
    "Defaults differ between the command line (`--max-restarts 0`, role `default`) and `LaunchConfig` (3, `default_role`).",
)

VARIABLES: tuple[tuple[str, str], ...] = (
    ("LOGLEVEL", "log level of the agent (default: WARNING); `--verbose` and `--quiet` take precedence"),
    ("PYTHON_EXEC", "Python interpreter for the workers (default: the one that runs Holdfast)"),
    ("OMP_NUM_THREADS", "kept if it is set; otherwise Holdfast sets 1 if the node has several workers"),
    ("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "default of `--shutdown-timeout`"),
    (
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
        "prefix of each line under `--tee`, with `${role_name}`, `${rank}`, `${local_rank}`",
    ),
    ("TORCHELASTIC_ERROR_FILE", "Holdfast copies the error file of the first failure there"),
    (
        "TORCHELASTIC_ENABLE_FILE_TIMER, TORCHELASTIC_TIMER_FILE",
        "`1` opens the pipe for expiring timers, at the given path or a new one",
    ),
    ("TORCHELASTIC_HEALTH_CHECK_PORT", "port of the health check server"),
    ("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "longest time, in seconds, that a worker may be stuck in the kernel"),
    (
        "NVRX_GPUS_PER_NUMA",
        "number of GPUs per NUMA node: Holdfast starts every worker with numactl, bound to the NUMA node of its GPU, unless "
        "you give `--numa-binding`",
    ),
    (
        "CUDA_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, ZE_AFFINITY_MASK",
        "the devices that `--nproc-per-node` counts, and their order for `--numa-binding`",
    ),
    (
        "NVRX_INFRA_RANK_FROM_NODENAME, CROSS_SLURM_PROCID, SLURM_TOPOLOGY_ADDR, OMPI_COMM_WORLD_RANK, SLURM_PROCID, "
        "GROUP_RANK, PET_NODE_RANK, JOB_COMPLETION_INDEX",
        "order of the nodes of a c10d job: the first variable that is set counts; nodes without any of them follow, sorted by "
        "name",
    ),
    (
        "SLURM_TOPOLOGY_ADDR, SLURM_TOPOLOGY_ADDR_PATTERN",
        "this node's switches (nodes under one switch get neighbouring ranks) and its block (see `--domain`)",
    ),
    (
        "SLURM_JOB_ID, SLURM_STEP_NODELIST, SLURM_GPUS_ON_NODE, SLURM_RESTART_COUNT, SLURMD_NODENAME",
        "these and other Slurm variables: [what they mean](../how-to/slurm.md); `--standalone` ignores them",
    ),
    (
        "JOB_COMPLETIONS, JOB_NAME, JOBSET_NAME, JOBSET_RESTART_ATTEMPT, JOBSET_COORDINATOR",
        "these and others that a manifest passes on: [what they mean](../how-to/kubernetes.md#which-variables-mean-what)",
    ),
    (
        "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE",
        "1: several agents may run on one node; each counts as a node of the job",
    ),
    (
        "NVRX_REPLACEMENT_GROUP_ID",
        "nodes with the same value take part all together or not at all (default: `SLURM_ARRAY_TASK_ID`)",
    ),
    ("HOLDFAST_TOKEN", "the secret that the job's nodes share, if there is no `--token-file`"),
    (
        "HOLDFAST_ETCD_USER, HOLDFAST_ETCD_PASSWORD",
        "credentials for `--rdzv-backend etcd`, if `--rdzv-conf` has none; the workers do not get them",
    ),
    (
        "KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT, HOLDFAST_SERVICE_ACCOUNT",
        "the API server for `--witness kubernetes` and `--in-place-restart` (Kubernetes sets the first two), and the folder "
        "with token, ca.crt and namespace (default: /var/run/secrets/kubernetes.io/serviceaccount)",
    ),
    ("POD_NAME", "name of this pod, for `--in-place-restart`, which also needs `JOBSET_NAME`"),
    (
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE, TORCH_ELASTIC_WORKER_IDENTICAL",
        "no effect: what they turn on is always on",
    ),
)
"""Variables that no flag stands for, and what they do here."""
