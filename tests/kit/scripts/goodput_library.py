"""Google's goodput library over entries from stdin (JSON), for tests; prints what it calls the job's goodput, in percent.

Its clients of Google's cloud are never asked, and need not be installed: mocks stand in their places.
"""

from __future__ import annotations

import json
import sys
import tempfile
from unittest.mock import MagicMock

sys.modules["tensorboardX"] = MagicMock()
for name in ("", ".api_core", ".api", ".cloud", ".cloud.logging", ".cloud.storage", ".cloud.monitoring_v3", ".auth"):
    sys.modules[f"google{name}"] = MagicMock()

from ml_goodput_measurement.src.goodput import GoodputCalculator  # noqa: E402


class Log:
    """In the place of its log in the cloud."""

    def __init__(self, entries: list[dict[str, object]]) -> None:
        self.entries = entries

    def read_cloud_logging_entries(self, *args: object, **more: object) -> tuple[list[dict[str, object]], None]:
        """All of them."""
        return self.entries, None


with tempfile.TemporaryDirectory() as cache:
    calculator = GoodputCalculator("train", "log", cloud_logger=Log(json.load(sys.stdin)), cache_dir=cache)
    print(calculator.get_job_goodput()[0])
