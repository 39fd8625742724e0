"""The thread for what may hang: what becomes of the tasks after one that fails."""

from __future__ import annotations

import pytest

from holdfast.telemetry.record.io_thread import Aside


def no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("has_threads", [True, False])
def test_a_task_that_raises_costs_no_other(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, has_threads: bool
) -> None:
    if not has_threads:  # then it is done by whoever asked
        monkeypatch.setattr("_thread.start_new_thread", no_thread)
    aside, done = Aside(), list[str]()
    aside.do(lambda: done.append(str(1 // 0)), 60.0)
    aside.do(lambda: done.append("the next"), 60.0)
    assert done == ["the next"] and not aside.is_late and aside.close()
    assert "ZeroDivisionError" in capfd.readouterr().err
