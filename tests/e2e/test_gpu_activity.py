"""Do this node's GPUs work? Asked of an `nvidia-smi` that the test puts on the PATH."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.runtime.hardware import nvidia


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test_mark: str) -> Callable[[str], None]:
    """`smi("echo 7")`: what it does."""

    def write(body: str) -> None:
        program = tmp_path / "nvidia-smi"
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")

    return write


@pytest.mark.parametrize(
    ("body", "busy"),
    [
        ("echo 0; echo 37", True),
        ("echo 0; echo 0", False),
        ("echo '[N/A]'", None),
        ("exit 9", None),
    ],
)
def test_any_gpu_that_works_is_work(smi: Callable[[str], None], body: str, busy: bool | None) -> None:
    smi(body)
    assert nvidia.is_here() and nvidia.any_busy(20.0) is busy


def test_one_that_does_not_answer_tells_nothing_and_is_ended(smi: Callable[[str], None]) -> None:
    smi("exec sleep 600")
    assert nvidia.any_busy(0.2) is None


def test_without_it_there_is_nobody_to_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not nvidia.is_here() and nvidia.any_busy(1.0) is None
