"""How does this host reach Google's sensor? By a thread, which makes the calls of `sensor_reports` and waits at most CALL_S.

Google's sensor may hang, be gone, or be another one tomorrow: nobody but this thread waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from time import monotonic
from typing import Any

import grpc  # type: ignore[import-untyped]

from holdfast.core.machine import Observation
from holdfast.core.wire.google_sensor import SENSOR, HostNames
from holdfast.supervisor.daemon.host_table import HostTable
from holdfast.supervisor.daemon.sensor_reports import Call, GoogleServices, SensorReports

CALL_S = 2.0
"""Longest wait for an answer. A host is lost for Google's sensor after 5 s at the least."""


class SensorLink:
    """The thread, which begins when it is shown how things are, and ends with the process, or with `close`."""

    def __init__(
        self, google: GoogleServices, address: str, say: Callable[[str], None], see: Callable[[Observation], None]
    ) -> None:
        """`see` shows the table which troubles the sensor has heard of."""
        self.say, self.see = say, see
        self.troubles: dict[str, str] = {}
        """By service: what was said of it, until it answers."""
        others = tuple(one for one in google.addresses if one != SENSOR)
        self.reports = SensorReports(HostNames(address=address, name=google.name), others, google.every_s)
        self.channels: Mapping[str, Any] = {name: grpc.insecure_channel(at) for name, at in google.addresses.items()}
        self._turn, self._is_over = threading.Condition(), False
        self._thread = threading.Thread(target=self._run, name="sensor", daemon=True)

    def shows(self, table: HostTable) -> None:
        """How things are: told at once, if it is new."""
        with self._turn:
            self.reports.shows(table)
            self._turn.notify()
        if not self._thread.is_alive():
            self._thread.start()

    def close(self) -> None:
        """Make no more calls."""
        with self._turn:
            self._is_over = True
            self._turn.notify()

    def _run(self) -> None:
        while True:
            with self._turn:
                while not self._is_over and not (calls := self.reports.calls(monotonic())):
                    self._turn.wait(max(0.0, self.reports.deadline() - monotonic()) + 0.001)
                if self._is_over:
                    return
            self._make(calls)

    def _make(self, calls: list[Call]) -> None:
        """All at once: one that hangs holds up no other."""
        under_way = [(call, self._begin(call)) for call in calls]
        for call, answer in under_way:
            trouble = ""
            try:
                answer.result()
            except grpc.RpcError as error:
                trouble = f"Google's {call.service.rpartition('.')[2]} does not answer: {error.code().name.lower()}"
            if trouble and trouble != self.troubles.get(call.service):
                self.say(trouble)
            self.troubles[call.service] = trouble
            with self._turn:
                seen = self.reports.answered(call, not trouble, monotonic())
            for one in seen:
                self.see(one)

    def _begin(self, call: Call) -> Any:
        return self.channels[call.service].unary_unary(f"/{call.service}/{call.method}").future(call.data, timeout=CALL_S)
