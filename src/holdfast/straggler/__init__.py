"""Which rank is slow? NVRx's straggler detection by its own names: a script marks what it does, and asks for a report.

    from holdfast import straggler

    straggler.Detector.initialize()
    for step in range(steps):
        with straggler.Detector.detection_section("forward"):
            ...
        if report := straggler.Detector.generate_report_if_interval_elapsed():
            print(report.identify_stragglers())

Sections are measured on the CPU, and where there is a GPU so are the kernels that they launch, by torch's own profiler. Under
`holdfast run` the agent hears the sections too, and finds stragglers by itself (`monitor.stragglers`).
"""

from __future__ import annotations

from holdfast.straggler import reporting
from holdfast.straggler.reporting import Report, StragglerId
from holdfast.straggler.statistics import Statistic
from holdfast.straggler.straggler import CallableId, Detector

__all__ = ["CallableId", "Detector", "Report", "Statistic", "StragglerId", "reporting"]
