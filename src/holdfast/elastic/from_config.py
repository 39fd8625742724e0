"""How does `holdfast run` serve what only torch elastic's interfaces can: another package's rendezvous handler or logs specs?

Such a job runs through the elastic agent, whose hooks those packages were written for; everything else through our own.
"""

from __future__ import annotations

import logging
import os
import signal

from holdfast.agent.logs.nonblocking_writer import tell
from holdfast.agent.secrets import check_required
from holdfast.core.config.config import RunConfig
from holdfast.core.config.grammar import shown_endpoint
from holdfast.core.errors import UsageError
from holdfast.elastic.launcher.api import LaunchConfig, elastic_launch
from holdfast.elastic.multiprocessing import SignalException, Std
from holdfast.elastic.multiprocessing.errors import ChildFailedError
from holdfast.elastic.rendezvous.holdfast_handler import TLS_SETTINGS, identity_of
from holdfast.elastic.run import _get_logs_specs_class, command_of

OURS = "holdfast"
"""The one rendezvous of torch elastic's interfaces by which nodes prove that they belong to the job."""


def run(config: RunConfig) -> int:
    """Run this node's part of the job; returns the exit code."""
    launch = _launch_config(config)
    _check_token(config, launch)
    entrypoint, args = command_of(config, config.python)
    if config.omp_num_threads:
        os.environ["OMP_NUM_THREADS"] = config.omp_num_threads
    try:
        elastic_launch(launch, entrypoint)(*args)
    except ModuleNotFoundError as error:
        what = f"what this job's rendezvous and logs are served by needs {error.name}, which is not installed"
        raise UsageError(what, hint="install it, or leave out --logs-specs, or that --rdzv-backend") from error
    except ChildFailedError as error:
        tell(error.format_msg())
        return 1
    except SignalException as error:
        logging.getLogger(__name__).warning("%s", error)
        return 1
    return 0


def _check_token(config: RunConfig, launch: LaunchConfig) -> None:
    """UsageError: the job shall not start without a token, and has none, or a rendezvous that knows none."""
    if not config.require_token or config.most_nodes == 1:
        return
    if launch.rdzv_backend != OURS:
        what = f"--require-token: nodes that meet by torch elastic's {launch.rdzv_backend} are not known to prove a token"
        raise UsageError(what, hint=f"--rdzv-backend {OURS} does; without --logs-specs so do holdfast run's own")
    check_required(config, identity_of(launch.run_id, launch.rdzv_configs.get("token_file")).is_secret)


def _launch_config(config: RunConfig) -> LaunchConfig:
    logs_specs = _get_logs_specs_class(config.logs_specs)(
        log_dir=config.log_dir,
        redirects={rank: Std(streams) for rank, streams in config.redirects.items()},
        tee={rank: Std(streams) for rank, streams in config.tee.items()},
        local_ranks_filter=set(config.local_ranks_filter) if config.local_ranks_filter is not None else None,
    )
    return LaunchConfig(
        min_nodes=config.min_nodes,
        max_nodes=config.most_nodes,
        nproc_per_node=config.nproc_per_node,
        logs_specs=logs_specs,
        run_id=config.rdzv_id,
        role=config.role,
        rdzv_endpoint=config.rdzv_endpoint or shown_endpoint("localhost", 0),
        rdzv_backend={"embedded": "c10d", "memory": "c10d"}.get(config.rdzv_backend, config.rdzv_backend),
        rdzv_configs={**(_proofs(config) if config.rdzv_backend == OURS else {}), **config.rdzv_conf, "rank": config.node_rank},
        max_restarts=config.max_restarts,
        monitor_interval=config.monitor_interval,
        start_method=config.start_method,
        log_line_prefix_template=config.log_line_prefix_template,
        local_addr=config.local_addr,
        event_log_handler=config.event_log_handler,
        signals_to_handle=",".join(signal.Signals(signum).name for signum in config.signals_to_handle),
        duplicate_stdout_filters=list(config.duplicate_stdout_filters),
        duplicate_stderr_filters=list(config.duplicate_stderr_filters),
        virtual_local_rank=config.virtual_local_rank,
        shutdown_timeout=int(config.shutdown_timeout_s),
        numa_options=config.bindings or None,
    )


def _proofs(config: RunConfig) -> dict[str, str]:
    """What our handler's settings are called where `holdfast run` has options for them."""
    given = {name: getattr(config, name) for name in ("token_file", *TLS_SETTINGS)}
    return {name: path for name, path in given.items() if path}
