"""Shows torch elastic's own events on stderr, for `--event-log-handler console`."""

from __future__ import annotations

from holdfast.agent.component import Component
from holdfast.agent.group.machine import Group
from holdfast.agent.reporting.agent_log import AgentLog
from holdfast.agent.workers.launch import program_name
from holdfast.core.config.config import RunConfig
from holdfast.core.job.events import Event
from holdfast.telemetry.report.torch_events import TorchEvents


class TorchEventLog(Component):
    """Those of one agent."""

    notes = (Event,)

    def __init__(self, config: RunConfig, agent_log: AgentLog, group: Group) -> None:
        self.events = TorchEvents(config, agent_log.name, program_name(config))
        self.agent_log, self.group = agent_log, group

    def recorded(self, event: Event, at_unix: float) -> None:
        for line in self.events.heard(event, at_unix, self.group.assigned):
            self.agent_log.stderr.say(f"{line}\n")
