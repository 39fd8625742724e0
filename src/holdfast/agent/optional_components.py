"""Which parts does an agent get because an option or a variable asks for them? Most jobs have none of these."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from holdfast.agent.component import Component
from holdfast.agent.surroundings import Surroundings
from holdfast.agent.workers.checkpoint_writes import Saves
from holdfast.core.config.own_options import Grow

DAEMON_PORT = "GCP_HOST_DAEMON_PORT"  # Where a host daemon of Google's kind takes reports of the ranks.


def wished_for(around: Surroundings, log_is_whole: Callable[[str], bool]) -> Iterator[Component]:
    """Make them. `log_is_whole`: whether nothing more comes into the log at a path. UsageError: one cannot be had."""
    config, host, agent_log = around.config, around.host, around.agent_log
    if config.grow == Grow.AT_CHECKPOINT:
        yield Saves(host)
    if config.event_log_handler == "console":
        from holdfast.agent.reporting.torch_event_log import TorchEventLog  # rare

        yield TorchEventLog(config, agent_log, around.node.group)
    if config.ft.cycle_info_dir:
        from holdfast.agent.reporting.cycles import Cycles  # rare

        yield Cycles(config, config.ft.cycle_info_dir, agent_log.degraded, rendezvous=around.rendezvous, unix=host.unix)
    if os.environ.get(DAEMON_PORT):
        from holdfast.agent.reporting.google_rank_reports import rank_reports  # loads gRPC's framing

        job = os.path.basename(around.job_dir.path) if config.rdzv_id == "none" else config.rdzv_id
        if reports := rank_reports(config, os.environ, job, agent_log.line, agent_log.degraded, host.now):
            yield reports
    if config.in_place_restart:
        from holdfast.agent.reporting.jobset import InPlace  # only for pods of a JobSet

        yield InPlace(host, os.environ, agent_log.say)
    if _asks_attribution(around):
        from holdfast.agent.reporting.attribution import Attribution  # loads HTTP

        yield Attribution(config, agent_log.say, host.others.add, log_is_whole, rendezvous=around.rendezvous, clock=host.now)


def _asks_attribution(around: Surroundings) -> bool:
    ft = around.config.ft
    if not (ft.attribution_endpoint or ft.attrsvc_host or ft.attrsvc_port):
        return False
    if (ft.attribution_endpoint or "").startswith(("grpc://", "unix://")):  # ft_launcher takes them, and asks nobody either
        why = f"{ft.attribution_endpoint} cannot be spoken to: give --ft-attribution-endpoint http://host:port"
        around.agent_log.degraded(f"the attribution service is not used, since {why}")
        return False
    needed = {
        "the log of --ft-per-cycle-applog-prefix": ft.per_cycle_applog_prefix,
        "--ft-attrsvc-host": ft.attrsvc_host or ft.attribution_endpoint,
        "--ft-attrsvc-port": ft.attrsvc_port or not ft.attrsvc_host,
    }
    if missing := " and ".join(option for option, given in needed.items() if not given):
        around.agent_log.degraded(f"the attribution service is not used without {missing}")
    return not missing
