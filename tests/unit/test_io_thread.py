"""The thread for what may hang: what becomes of the tasks after one that fails."""

from __future__ import annotations

import pytest

from holdfast.telemetry.record.io_thread import IoThread


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("has_threads", [True, False])
def test_a_task_that_raises_costs_no_other(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_threads: bool
) -> None:
    if not has_threads:  # then it is done by whoever asked
        monkeypatch.setattr("_thread.start_new_thread", no_thread)
    io_thread, done = IoThread(), list[str]()
    io_thread.do(lambda: done.append(str(1 // 0)), 60.0)
    io_thread.do(lambda: done.append("the next"), 60.0)
    assert done == ["the next"] and not io_thread.is_late and io_thread.close()
    assert "ZeroDivisionError" in capfd.readouterr().err
