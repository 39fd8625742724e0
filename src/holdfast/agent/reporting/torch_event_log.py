"""Shows torch elastic's own events on stderr, for `--event-log-handler console`."""

from __future__ import annotations

from holdfast.agent.component import Part
from holdfast.agent.group.machine import Group
from holdfast.agent.reporting.agent_log import Telling
from holdfast.agent.workers.launch import program_name
from holdfast.core.config.config import RunConfig
from holdfast.core.job.events import Event
from holdfast.telemetry.report.torch_events import TorchEvents


class TorchEventLog(Part):
    """Those of one agent."""

    def __init__(self, config: RunConfig, telling: Telling, group: Group) -> None:
        self.events = TorchEvents(config, telling.name, program_name(config))
        self.telling, self.group = telling, group

    def recorded(self, event: Event, at_unix: float) -> None:
        for line in self.events.heard(event, at_unix, self.group.assigned):
            self.telling.voice.say(f"{line}\n")
