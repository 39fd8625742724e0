"""What was `holdfast run` told? `RunConfig`: every option parsed, checked and fitted to this host, once and for all.

Made in three steps, each a function: the command line's parser gives texts, `draft.gather` adds the environment and the
defaults and remembers where each came from, `core.resolve.resolve` makes values of them. Nothing after that reads a flag or a
`PET_*` variable again.
"""

from __future__ import annotations

from holdfast.core.config.binding import Binding
from holdfast.core.config.fault_tolerance import FaultTolerance, RestartPolicy
from holdfast.core.config.own_options import Growth, Health, Kept, Meeting, Membership, Placement, Restarts
from holdfast.core.config.torchrun_options import TorchrunOptions


class RunConfig(TorchrunOptions, Growth, Placement, Restarts, Meeting, Health, Kept):
    """Everything `holdfast run` was told. Names are torchrun's where it has one."""

    # the rendezvous
    is_host: bool | None = None  # Runs the embedded server. None: if the endpoint is its own address.
    join_timeout_s: float = 600.0
    last_call_s: float = 30.0  # How long a round with the least number of nodes waits for more.

    # the workers
    training_script: str
    training_script_args: tuple[str, ...] = ()
    use_env: bool = True  # False (`holdfast launch`): `--local-rank=N` goes before the script's arguments.
    python: str = "python3"  # Interpreter of Python workers: `PYTHON_EXEC`, else our own.
    omp_num_threads: str | None = None  # OMP_NUM_THREADS to give the workers. None: leave it as it is.
    bindings: dict[int, Binding] = {}  # noqa: RUF012
    """Local rank → the CPUs and the memory that it runs on. Who is not in it runs wherever the kernel puts it."""
    term_timeout_s: float | None = None  # `shutdown_timeout_s` where a signal ends the job. None: the same.
    watchdog: bool = False  # `TORCHELASTIC_ENABLE_FILE_TIMER=1`.
    timer_file: str | None = None
    health_check_port: int | None = None
    uninterruptible_timeout_s: float | None = None

    ft: FaultTolerance = FaultTolerance()  # ft_launcher's settings, and ours of that kind.

    # what is shown
    log_line_prefix_template: str | None = None
    log_level: str = "WARNING"
    error_file: str | None = None  # The agent's own: the root cause's error file is copied there.

    @property
    def most_nodes(self) -> int:
        """How many nodes a round has at most. With min-healthy those above `min_nodes` are what may be lost."""
        others_wait = self.membership == Membership.FIXED and self.ft.restart_policy != RestartPolicy.MIN_HEALTHY
        return self.min_nodes if others_wait else self.max_nodes
