"""`job`: a job of `security_peer` of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kit.network.security_peer import WAITS, Job


@pytest.fixture
def job(holdfast: Any, free_port: int, tmp_path: Path, script: Any, wait_until: Any) -> Iterator[Job]:
    """A job that has not begun."""
    folder = tmp_path / "ranks"
    folder.mkdir()
    job = Job(holdfast, free_port, folder, script(WAITS), wait_until)
    yield job
    for peer in job.peers:
        peer.sock.close()
