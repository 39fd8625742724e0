"""Writes the cycle-info files when a round begins and ends.

A cycle is a round (`core.job.cycles`); what is written is `telemetry.report.cycle_info`'s. Without a coordinator an agent
writes nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from holdfast.agent.component import Component
from holdfast.core.config.config import RunConfig
from holdfast.core.job.cycles import InfoNames, cycle_of
from holdfast.core.job.events import Event, RoundFormed
from holdfast.rendezvous.coordinator.job import Phase
from holdfast.rendezvous.coordinator.machine import Rendezvous
from holdfast.rendezvous.coordinator.membership import Seat, SeatState
from holdfast.telemetry.report.cycle_info import CycleInfo


class Cycles(Component):
    """What was last seen of the rounds, and the files about them."""

    notes = (RoundFormed,)

    def __init__(
        self,
        config: RunConfig,
        folder: str,
        complain: Callable[[str], None],
        *,
        rendezvous: Callable[[], Rendezvous | None],
        unix: Callable[[], float],
    ) -> None:
        """`rendezvous`: the coordinator's machine. None: it is elsewhere. `unix`: the clock."""
        self.rendezvous, self.unix = rendezvous, unix
        names = InfoNames(folder, config.rdzv_id, os.environ)
        self.info = CycleInfo(names, config.ft.per_cycle_applog_prefix, complain)
        self.seen = 0  # The round that was last written about.

    def recorded(self, event: Event, at_unix: float) -> None:
        """Workers may look for the file of the round that was formed."""
        self.end_turn()

    def end_turn(self) -> None:
        """Write down what has become of the round."""
        if (rendezvous := self.rendezvous()) is None:
            return
        if rendezvous.phase is not Phase.RUNNING:
            self.info.end(self.unix())
        elif rendezvous.round > self.seen:
            self.seen = rendezvous.round
            active = sorted(rendezvous.seats.members, key=_group_rank)
            self.info.begin(
                cycle_of(rendezvous.round),
                self.unix(),
                active=[seat.name for seat in active],
                standby=[seat.name for seat in rendezvous.seats.values() if seat.state is SeatState.READY],
            )

    def close(self) -> None:
        self.info.end(self.unix())
        self.info.close()


def _group_rank(seat: Seat) -> int:
    return seat.place.group_rank if seat.place is not None else 0
