"""How is a job of functions or programs started from Python? A config, then one call that returns what the workers returned."""

from __future__ import annotations

import os
import sys
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import holdfast.elastic.rendezvous.registry as rdzv_registry
from holdfast.elastic import events, metrics
from holdfast.elastic.agent.server.api import RunResult, WorkerSpec, exit_barrier_seconds
from holdfast.elastic.agent.server.health_check_server import HealthCheckServer, server_from_environment
from holdfast.elastic.agent.server.local_elastic_agent import LocalElasticAgent, _AliveCallbackProxy
from holdfast.elastic.multiprocessing import DefaultLogsSpecs, LogsSpecs, ProcessFailure, SignalException
from holdfast.elastic.multiprocessing.errors import ChildFailedError
from holdfast.elastic.rendezvous import RendezvousParameters
from holdfast.elastic.rendezvous.static_tcp_rendezvous import meeting_point
from holdfast.elastic.utils.logging import get_logger

logger = get_logger(__name__)

RENDEZVOUS_TIMEOUT_S = 900  # The launcher's default for the rendezvous setting `timeout`. torch: 900.
SHUTDOWN_TIMEOUT_ENV, SHUTDOWN_TIMEOUT_S = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30


@dataclass
class LaunchConfig:
    """What to run where. Fields, order and defaults are torch's; times in seconds.

    `rdzv_configs` are the rendezvous' own settings; `rdzv_timeout` is an old name for its `timeout`. Where `shutdown_timeout`
    or `exit_barrier_timeout` is None the environment decides (TORCH_ELASTIC_SHUTDOWN_TIMEOUT,
    TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT), and then 30 and 300.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: LogsSpecs | None = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = "etcd"
    rdzv_configs: dict[str, Any] = field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    exit_barrier_timeout: float | None = None

    def __post_init__(self) -> None:
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        self.rdzv_configs.setdefault("timeout", RENDEZVOUS_TIMEOUT_S)
        if self.logs_specs is None:
            self.logs_specs = DefaultLogsSpecs()
        if self.shutdown_timeout is None:
            self.shutdown_timeout = int(os.environ.get(SHUTDOWN_TIMEOUT_ENV, SHUTDOWN_TIMEOUT_S))
        self.exit_barrier_timeout = exit_barrier_seconds(self.exit_barrier_timeout)
        for name in ("shutdown_timeout", "exit_barrier_timeout"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be non-negative, got {getattr(self, name)}")

    def name_run(self) -> None:
        """Give the run a random name where it has none."""
        if not self.run_id:
            self.run_id = str(uuid.uuid4().int)
            logger.warning("config has no run_id, generated a random run_id: %s", self.run_id)


class elastic_launch:
    """Call it with the entrypoint's arguments: it runs the job and returns what this node's workers returned, by global rank.

    `entrypoint` is a function (which must be picklable, for start method `spawn`) or a program's name.
    """

    def __init__(
        self,
        config: LaunchConfig,
        entrypoint: Callable[..., Any] | str | None,
        health_check_server: HealthCheckServer | None = None,
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._health_check_server = health_check_server

    def __call__(self, *args: Any) -> dict[int, Any]:
        return launch_agent(self._config, self._entrypoint, list(args), health_check_server=self._health_check_server)


def launch_agent(
    config: LaunchConfig,
    entrypoint: Callable[..., Any] | str | None,
    args: list[Any],
    health_check_server: HealthCheckServer | None = None,
) -> dict[int, Any]:
    """Run the job's part of this node. Returns what its workers returned, by global rank; a program's is None.

    Raises ChildFailedError when workers failed, SignalException when a signal ended the job, and what rendezvous or agent do.
    """
    config.name_run()
    entrypoint_name = _get_entrypoint_name(entrypoint, args)
    logger.info(_config_in_words(config, entrypoint_name))
    parameters = RendezvousParameters(
        backend=config.rdzv_backend,
        endpoint=config.rdzv_endpoint,
        run_id=config.run_id,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        **config.rdzv_configs,
    )
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    # Before the rendezvous, which may take long: until there is an agent to ask, being here is being alive.
    health = health_check_server or server_from_environment(_AliveCallbackProxy())
    try:
        spec = _make_spec(config, entrypoint, args, parameters)
        agent = LocalElasticAgent(
            spec=spec,
            logs_specs=config.logs_specs,
            start_method=config.start_method,
            exit_barrier_timeout=config.exit_barrier_timeout,
            log_line_prefix_template=config.log_line_prefix_template,
            shutdown_timeout=config.shutdown_timeout or 0,
            health_check_server=health,
        )
    except BaseException:
        if health is not None:
            health.stop()
        raise
    if health is not None and isinstance(health.alive_callback, _AliveCallbackProxy):
        health.alive_callback.set_delegate(agent._get_alive_time)
    return _run(agent, spec, config, entrypoint_name)


def _make_spec(
    config: LaunchConfig, entrypoint: Callable[..., Any] | str | None, args: list[Any], parameters: RendezvousParameters
) -> WorkerSpec:
    master_addr, master_port = _get_addr_and_port(parameters)
    return WorkerSpec(
        role=config.role,
        local_world_size=config.nproc_per_node,
        entrypoint=entrypoint,
        args=tuple(args),
        rdzv_handler=rdzv_registry.get_rendezvous_handler(parameters),
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        master_addr=master_addr,
        master_port=master_port,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        numa_options=config.numa_options,
        duplicate_stdout_filters=config.duplicate_stdout_filters,
        duplicate_stderr_filters=config.duplicate_stderr_filters,
        virtual_local_rank=config.virtual_local_rank,
    )


def _run(agent: LocalElasticAgent, spec: WorkerSpec, config: LaunchConfig, entrypoint_name: str) -> dict[int, Any]:
    """Run the agent and close the rendezvous, except when a signal ended us: then the other nodes may go on."""
    ended_by_signal = False
    try:
        metrics.initialize_metrics(metrics.MetricsConfig(config.metrics_cfg))
        result: RunResult | None = agent.run()
        events.record(agent.get_event_succeeded(), config.event_log_handler)
    except Exception as error:
        ended_by_signal = isinstance(error, SignalException)
        events.record(agent.get_event_failed(), config.event_log_handler)
        raise
    finally:
        if not ended_by_signal:
            _shutdown_rendezvous(spec)
    if result is None:  # some agent of the user's: the job ended without a seat for this node
        return {}
    if result.is_failed():
        raise ChildFailedError(name=entrypoint_name, failures=result.failures or _somebody_failed(spec))
    return result.return_values


def _shutdown_rendezvous(spec: WorkerSpec) -> None:
    """What goes wrong here must not hide how the job ended."""
    try:
        spec.rdzv_handler.shutdown()
    except Exception:
        logger.exception("the rendezvous could not be shut down")


def _somebody_failed(spec: WorkerSpec) -> dict[int, ProcessFailure]:
    failure = ProcessFailure(local_rank=-1, pid=-1, exitcode=1, error_file="<N/A>")
    return {-1: failure.explained(f"The agent says that workers of role {spec.role} failed, and not which")}


def _get_entrypoint_name(entrypoint: Callable[..., Any] | str | None, args: list[Any]) -> str:
    """A function's name; for this Python the script's, that is the first argument that is no option; else the program's."""
    if callable(entrypoint):
        return entrypoint.__name__
    if entrypoint == sys.executable:
        return next((arg for arg in args if not arg.startswith("-")), "")
    return entrypoint or ""


def _get_addr_and_port(rdzv_parameters: RendezvousParameters) -> tuple[str | None, int | None]:
    """Where the workers meet, if that is known beforehand: with the static rendezvous."""
    return meeting_point(rdzv_parameters) if rdzv_parameters.backend == "static" else (None, None)


def _config_in_words(config: LaunchConfig, entrypoint_name: str) -> str:
    shown = {"entrypoint": entrypoint_name} | {each.name: getattr(config, each.name) for each in fields(config)}
    if config.logs_specs is not None:
        shown["logs_specs"] = config.logs_specs.root_log_dir
    return "Starting elastic_operator with launch configs:\n" + "".join(
        f"  {name:<24} : {value}\n" for name, value in shown.items()
    )
