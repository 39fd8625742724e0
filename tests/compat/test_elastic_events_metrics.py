"""Events and metrics: what is recorded, how it reads, and who gets it. torch's and ours alike."""

from __future__ import annotations

import json
import logging
import time

import pytest


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(json.loads(record.getMessage()))


@pytest.fixture
def destination(names, request):
    """A logging handler of one's own, under a name that no other test uses."""
    name = f"{request.node.name}"
    handlers = names("events.handlers")._log_handlers
    handlers[name] = Kept()
    yield name, handlers[name].lines
    del handlers[name]


# Events.


def test_an_event_goes_to_its_destination_as_json(names, destination):
    events = names("events")
    name, lines = destination
    events.record(events.Event("step", events.EventSource.WORKER, 12, {"rank": 3, "ok": True, "why": None}), name)
    expected = {"name": "step", "source": "WORKER", "timestamp": 12, "metadata": {"rank": 3, "ok": True, "why": None}}
    assert lines == [expected]


def test_an_event_comes_back_from_its_json(names):
    events = names("events")
    event = events.Event("step", events.EventSource.AGENT, metadata={"a": 1.5})
    assert events.Event.deserialize(event.serialize()) == event == events.Event.deserialize(event)
    assert json.loads(str(event)) == {"name": "step", "source": "AGENT", "timestamp": 0, "metadata": {"a": 1.5}}


def test_an_unknown_destination_is_an_error(names):
    events = names("events")
    with pytest.raises(KeyError):
        events.record(events.Event("step", events.EventSource.AGENT), "no such handler")


def test_events_do_not_reach_the_root_logger(names, destination, caplog):
    events = names("events")
    with caplog.at_level(logging.DEBUG):
        events.record(events.Event("step", events.EventSource.AGENT), destination[0])
    assert not caplog.records


def test_a_missing_timestamp_is_filled_in_when_the_event_is_recorded(ours, request):
    events = ours("events")
    events.handlers._log_handlers["clocked"] = kept = Kept()
    event = events.Event("step", events.EventSource.AGENT)
    before = time.time() * 1000
    events.record(event, "clocked")
    assert before - 1 <= kept.lines[0]["timestamp"] <= time.time() * 1000 and event.timestamp == 0


def test_a_configured_handler_gets_every_event(ours, monkeypatch):
    events = ours("events")
    monkeypatch.setattr(events, "_event_handler", events.NullEventHandler())
    seen = []

    class Mine(events.EventHandler):
        def record(self, event):
            seen.append(event.name)

    events.configure(Mine())
    events.record(events.Event("step", events.EventSource.AGENT))
    assert seen == ["step"]


def test_rendezvous_events_are_named_after_the_caller(names, monkeypatch):
    events = names("events")
    seen = []
    monkeypatch.setattr(events, "get_logging_handler", lambda destination="null": logging.StreamHandler())
    monkeypatch.setattr(events, "record_rdzv_event", seen.append)

    def join():
        events.construct_and_record_rdzv_event("job7", "joining", events.NodeState.INIT, rank=2)

    join()
    try:
        raise ValueError("boom")
    except ValueError:
        events.construct_and_record_rdzv_event("job7", "left", events.NodeState.FAILED, name="leave", hostname="n1", pid=5)
    assert [event.name for event in seen] == ["test_elastic_events_metrics.py:join", "test_elastic_events_metrics.py:leave"]
    assert (seen[0].rank, seen[0].error_trace, seen[1].hostname, seen[1].pid) == (2, "", "n1", 5)
    assert "ValueError: boom" in seen[1].error_trace
    assert events.RdzvEvent.deserialize(seen[1].serialize()) == seen[1] == events.RdzvEvent.deserialize(seen[1])


def test_rendezvous_events_go_nowhere_while_nobody_listens(names, monkeypatch):
    events = names("events")
    monkeypatch.setattr(events, "record_rdzv_event", lambda event: pytest.fail("recorded"))
    events.construct_and_record_rdzv_event("job7", "joining", events.NodeState.INIT)


@pytest.mark.torch
def test_torch_reads_our_events(ours):
    from test_elastic_signatures import TORCH

    text = ours("events").Event("step", ours("events").EventSource.WORKER, 7, {"a": "b"}).serialize()
    assert TORCH("events").Event.deserialize(text).serialize() == text


# Metrics.


@pytest.fixture
def metrics(names, monkeypatch):
    api = names("metrics.api")
    monkeypatch.setattr(api, "_metrics_map", {})
    monkeypatch.setattr(api, "_default_metrics_handler", api.NullMetricHandler())
    return names("metrics")


def keep(metrics, group=None):
    found = []

    class Keep(metrics.MetricHandler):
        def emit(self, metric_data):
            found.append((metric_data.group_name, metric_data.name, metric_data.value))

    metrics.configure(Keep(), group)
    return found


def test_a_metric_goes_to_its_groups_handler_or_else_to_the_default(metrics):
    default, mine = keep(metrics), keep(metrics, "mine")
    metrics.put_metric("a", 1)
    metrics.put_metric("b", 2, "mine")
    assert default == [("torchelastic", "a", 1)] and mine == [("mine", "b", 2)]


def test_without_a_handler_metrics_go_nowhere(metrics, capsys):
    metrics.put_metric("a", 1)
    assert capsys.readouterr().out == ""


def test_the_console_handler_prints_a_line(metrics, capsys):
    metrics.ConsoleMetricHandler().emit(metrics.MetricData(1.5, "group", "name", 3))
    assert capsys.readouterr().out == "[1.5][group]: name=3\n"


def test_prof_tells_success_failure_and_duration(metrics):
    class Trainer:
        @metrics.prof
        def step(self, loss):
            return loss

        @metrics.prof(group="mine")
        def crash(self):
            raise ValueError

    default, mine = keep(metrics), keep(metrics, "mine")
    assert Trainer().step(3) == 3
    with pytest.raises(ValueError):
        Trainer().crash()
    where = "test_prof_tells_success_failure_and_duration.<locals>.Trainer"
    assert [name for _, name, _ in default] == [f"{where}.step.success", f"{where}.step.duration.ms"]
    assert [name for _, name, _ in mine] == [f"{where}.crash.failure", f"{where}.crash.duration.ms"]
    assert default[0][2] == mine[0][2] == 1 and default[1][2] >= 0


def test_a_function_is_named_after_its_module(names):
    def function(): ...

    function.__qualname__, function.__module__ = "train", "pkg.loop"
    assert names("metrics.api")._get_metric_name(function) == "loop.train"


def test_the_old_names_work_and_say_what_to_use(metrics):
    found = keep(metrics)
    with pytest.warns(FutureWarning):
        metrics.publish_metric("group", "a", 1)
        decorated = metrics.profile("group")(lambda: 5)
        assert decorated() == 5
    assert [name for _, name, _ in found] == ["a", "<lambda>.success", "<lambda>.duration.ms"]


def test_the_hook_for_settings_takes_them(metrics):
    assert metrics.MetricsConfig().params == {} and metrics.MetricsConfig({"a": "b"}).params == {"a": "b"}
    metrics.initialize_metrics(metrics.MetricsConfig())
