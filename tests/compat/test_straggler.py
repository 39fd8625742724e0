"""NVRx's straggler detection by its own names: the scores, who is named, what is measured, what ranks tell each other."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def straggler() -> Iterator[Any]:
    """Ours; what a test leaves begun is ended."""
    pytest.importorskip("torch")
    from holdfast import straggler

    yield straggler
    straggler.Detector.shutdown()


def summary(straggler: Any, *durations: float) -> Any:
    from holdfast.straggler.statistics import summary_of

    return summary_of(durations)


def report(straggler: Any, generator: Any, kernels: dict[str, Any], sections: dict[str, Any] | None = None) -> Any:
    told = [{name: summary(straggler, *times) for name, times in of.items()} for of in (sections or {}, kernels)]
    return generator.generate_report(section_summaries=told[0], kernel_summaries=told[1])


def test_a_rank_is_compared_with_the_best_that_it_has_been(straggler: Any) -> None:
    generator = straggler.reporting.ReportGenerator(["individual_perf_scores"], gather_on_rank0=False, node_name="n0")

    def score(**kernels: tuple[float, ...]) -> float:
        return float(report(straggler, generator, kernels).gpu_individual_perf_scores[0])

    assert score(a=(1, 1, 2), b=(2, 2, 3)) == 1.0
    assert score(a=(2, 2, 4), b=(4, 4, 6)) == 0.5
    assert score(a=(4, 4, 8)) == 0.25  # b did not run
    assert math.isnan(score())
    assert score(c=(1,)) == 1.0  # new
    assert score(a=(0.5, 0.5, 1), b=(1, 1, 1.5)) == 1.0  # a better best
    assert score(a=(1, 1, 2), b=(2, 2, 3)) == 0.5
    # Each kernel counts by the time that it took: 1 of 9 parts at half its speed, 8 at full speed.
    assert score(a=(1,), b=(8,), d=(0.1,)) == pytest.approx((1 * 0.5 + 8 * 0.125 + 0.1) / 9.1)


def test_what_is_below_its_threshold_is_named(straggler: Any) -> None:
    found = straggler.Report(
        gpu_relative_perf_scores={0: 1.0, 1: 0.7},
        section_relative_perf_scores={"load": {0: 0.5, 1: 1.0}, "step": {0: 1.0, 1: 1.0}},
        gpu_individual_perf_scores={0: float("nan"), 1: 0.8},
        section_individual_perf_scores={},
        rank_to_node={0: "a", 1: "b"},
        local_section_summaries={},
        local_kernel_summaries={},
        generate_report_elapsed_time=1.0,
        gather_on_rank0=True,
        rank=0,
    )
    a, b = straggler.StragglerId(0, "a"), straggler.StragglerId(1, "b")
    assert found.identify_stragglers() == {
        "straggler_gpus_relative": {b},
        "straggler_gpus_individual": set(),
        "straggler_sections_relative": {"load": {a}},
        "straggler_sections_individual": {},
    }
    assert found.identify_stragglers(gpu_rel_threshold=0.6, gpu_indiv_threshold=0.9) == {
        "straggler_gpus_relative": set(),
        "straggler_gpus_individual": {b},
        "straggler_sections_relative": {"load": {a}},
        "straggler_sections_individual": {},
    }


def test_names_keep_their_numbers_and_need_none_where_nothing_is_exchanged(straggler: Any) -> None:
    generator = straggler.reporting.ReportGenerator(["relative_perf_scores"])
    report(straggler, generator, {"k0": (1,), "k1": (2,)}, {"s0": (1,)})
    report(straggler, generator, {"k2": (1,), "k0": (2,)}, {"s1": (1,), "s0": (1,)})
    mapper = generator.name_mapper
    assert [mapper.get_kernel_name(at) for at in range(mapper.kernel_counter)] == ["k0", "k1", "k2"]
    assert [mapper.get_section_id(f"s{at}") for at in range(mapper.section_counter)] == [0, 1]
    alone = straggler.reporting.ReportGenerator(["individual_perf_scores"], gather_on_rank0=False)
    report(straggler, alone, {"k0": (1,)})
    with pytest.raises(KeyError):
        alone.name_mapper.get_kernel_id("k0")


def test_it_must_have_begun(straggler: Any) -> None:
    with pytest.raises(RuntimeError, match="call initialize"), straggler.Detector.detection_section("a"):
        pass
    with pytest.raises(RuntimeError, match="has no instances"):
        straggler.Detector()
    straggler.Detector.initialize()
    with pytest.raises(RuntimeError, match="it has begun"):
        straggler.Detector.initialize()


def test_each_nth_entry_is_measured_and_a_report_begins_anew(straggler: Any) -> None:
    detector, num = straggler.Detector, straggler.Statistic.NUM
    detector.initialize(profiling_interval=2, gather_on_rank0=False, node_name="here")
    for _ in range(5):
        with detector.detection_section("one"):
            pass
        with detector.detection_section():
            pass
    first = detector.generate_report()
    (line,) = first.local_section_summaries.keys() - {"one"}
    assert line.rpartition(":")[0] == __file__ and first.rank_to_node == {0: "here"}
    assert [first.local_section_summaries[name][num] for name in ("one", line)] == [3, 3]
    assert detector.generate_report().local_section_summaries == {}
    with pytest.raises(ZeroDivisionError), detector.detection_section("fails"):
        1 / 0  # noqa: B018
    assert "fails" not in detector.generate_report().local_section_summaries


class Model:
    def forward(self) -> str:
        return "forward"

    @staticmethod
    def load(what: str) -> str:
        return what

    @classmethod
    def make(cls, what: str) -> tuple[type, str]:
        return cls, what


def test_functions_are_measured_until_they_are_given_back(straggler: Any) -> None:
    detector, num, one = straggler.Detector, straggler.Statistic.NUM, Model()
    detector.initialize(gather_on_rank0=False)
    before = dict(vars(Model))
    detector.wrap_callables(
        [straggler.CallableId(of, name) for of, name in ((one, "forward"), (Model, "load"), (Model, "make"))]
    )

    def call() -> None:
        assert (one.forward(), Model.load("a"), one.load("b")) == ("forward", "a", "b")
        assert (Model.make("c"), one.make("d")) == ((Model, "c"), (Model, "d"))

    for _ in range(3):
        call()
    detector.restore_original_callables()
    call()
    calls = {name: told[num] for name, told in detector.generate_report().local_section_summaries.items()}
    assert calls == {"Model.forward": 3, f"{__name__}.Model.load": 6, f"{__name__}.Model.make": 6}
    assert dict(vars(Model)) == before and not vars(one)


def test_a_report_comes_about_as_often_as_it_is_wished_for(straggler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.straggler import interval_tracker

    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(interval_tracker, "time", SimpleNamespace(monotonic=lambda: clock.now))
    tracker = interval_tracker.ReportIntervalTracker(time_interval=5.0, profiling_interval=2)
    for step in range(1, 101):
        tracker.iter_increase()
        assert (tracker.iter_interval is None) == (step <= tracker.INTERVAL_ESTIMATION_ITERS)
        assert tracker.is_interval_elapsed() == (step in (50, 100))
        clock.now += 0.5 if step < 8 else 0.1  # a few that take long at first do not count
    assert tracker.iter_interval == 50 and not tracker.step_times
    often = interval_tracker.ReportIntervalTracker(time_interval=0.0, profiling_interval=7)
    for _ in range(20):
        often.iter_increase()
        clock.now += 0.1
    assert often.iter_interval == 7  # no more often than something is measured


class Gpu:
    """A GPU and torch's profiler, as far as they are asked: `ran` is what ran on it."""

    def __init__(self, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ran: list[tuple[str, int]] = []
        self.calls: list[str] = []
        cuda = torch.autograd.DeviceType.CUDA

        def profile(activities: Any) -> Any:
            return SimpleNamespace(
                start=start, stop=lambda: self.calls.append("stop"), profiler=SimpleNamespace(kineto_results=self)
            )

        def start() -> None:
            if "another" in self.calls:
                raise RuntimeError("Profiler is already enabled on this thread")
            self.calls.append("start")

        self.event = lambda name, ns: SimpleNamespace(name=lambda: name, duration_ns=lambda: ns, device_type=lambda: cuda)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: self.calls.append("synchronize"))
        monkeypatch.setattr(torch.profiler, "profile", profile)

    def events(self) -> list[Any]:
        return [self.event(name, ns) for name, ns in self.ran]


def test_a_gpu_s_kernels_are_measured_while_anybody_wants_it(straggler: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    gpu, detector = Gpu(torch, monkeypatch), straggler.Detector
    detector.initialize(gather_on_rank0=False)
    gpu.ran = [
        ("gemm", 2000),
        ("Memcpy HtoD (Pageable -> Device)", 9000),
        ("gemm", 4000),
        ("add", 1000),
        ("Memset (Device)", 1),
    ]
    with detector.detection_section("outer"), detector.detection_section("inner"):
        pass
    with detector.detection_section("cpu only", profile_cuda=False):
        pass
    assert gpu.calls == ["synchronize", "start", "synchronize", "stop"]
    kernels = detector.generate_report().local_kernel_summaries
    assert {name: (told[straggler.Statistic.NUM], told[straggler.Statistic.MED]) for name, told in kernels.items()} == {
        "gemm": (2, 3.0),
        "add": (1, 1.0),
    }
    assert detector.generate_report().local_kernel_summaries == {}
    with pytest.raises(RuntimeError, match="nothing is being profiled"):
        detector.cupti_manager.stop_profiling()


def test_beside_another_profiler_kernels_are_not_measured_and_it_says_so_once(
    straggler: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    gpu, detector = Gpu(torch, monkeypatch), straggler.Detector
    gpu.calls.append("another")
    detector.initialize(gather_on_rank0=False)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            with detector.detection_section("one"):
                pass
    assert [str(one.message) for one in said] == ["kernels are not measured: Profiler is already enabled on this thread"]
    assert detector.generate_report().local_section_summaries["one"][straggler.Statistic.NUM] == 2


RANKS = """
import json, math, os, unittest.mock
import torch, torch.distributed as dist
from holdfast import straggler
from holdfast.straggler.statistics import summary_of

dist.init_process_group("gloo")
rank = dist.get_rank()
gathers = []

def asked(generator, sections, kernels):
    plain = dist.all_gather_object
    with unittest.mock.patch("torch.distributed.all_gather_object", wraps=plain) as gather:
        told = [{name: summary_of(times) for name, times in of.items()} for of in (sections, kernels)]
        report = generator.generate_report(section_summaries=told[0], kernel_summaries=told[1])
    gathers.append(gather.call_count)
    return report

def plain(scores):
    number = lambda one: None if math.isnan(one) else round(one, 6)
    return {at: plain(one) if isinstance(one, dict) else number(one) for at, one in scores.items()}

gathering = straggler.reporting.ReportGenerator(["relative_perf_scores"], node_name=f"n{rank}")
kernels = {"a": [rank + 1.0], f"only{rank}": [1.0], "ncclDevKernel_AllReduce": [9.0 - rank]}
first = asked(gathering, {"load": [rank + 2.0]}, dict(sorted(kernels.items(), reverse=bool(rank))))
second = asked(gathering, {"load": [rank + 2.0]}, {"a": [rank + 1.0]})
third = asked(gathering, {"load": [rank + 2.0]}, {"new" if rank == 0 else "a": [1.0]})
fourth = asked(gathering, {}, {} if rank == 1 else {"a": [1.0]})
own = straggler.reporting.ReportGenerator(["relative_perf_scores"], gather_on_rank0=False, node_name=f"n{rank}")
mine = asked(own, {"load": [rank + 2.0]}, {"a": [rank + 1.0]})
assert (first is None) == (rank != 0)
numbers = dist.all_gather_object(them := [None] * 3, gathering.name_mapper.kernel_name_to_id) or them
assert numbers[0] == numbers[1] == numbers[2]
alone = straggler.reporting.ReportGenerator(["individual_perf_scores"], gather_on_rank0=False)
asked(alone, {}, {"a": [1.0]})
told = {"gathers": gathers, "mine": plain(mine.gpu_relative_perf_scores), "nodes": mine.rank_to_node}
if rank == 0:
    told |= {"gpu": [plain(one.gpu_relative_perf_scores) for one in (first, second, third, fourth)]}
    told |= {"load": plain(first.section_relative_perf_scores), "all": first.rank_to_node}
print("told", json.dumps(told))
dist.destroy_process_group()
"""


def test_the_ranks_exchange_names_only_when_there_are_new_ones_and_rank_0_has_the_report(holdfast: Any, script: Any) -> None:
    done = holdfast("run", "--nproc-per-node", 3, script(RANKS), timeout=100.0)
    assert done.returncode == 0, done.output
    told = sorted((json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("told")), key=len)
    assert [one["gathers"] for one in told] == [[2, 0, 1, 0, 1, 0]] * 3
    first = told[-1]
    assert first["gpu"] == [
        {"0": 1.0, "1": 0.5, "2": 0.333333},
        {"0": 1.0, "1": 0.5, "2": 0.333333},
        {"0": None, "1": None, "2": None},  # nothing that all of them ran
        {"0": None, "1": None, "2": None},
    ]
    assert first["load"] == {"load": {"0": 1.0, "1": 0.666667, "2": 0.5}} and first["all"] == {"0": "n0", "1": "n1", "2": "n2"}
    assert sorted(str(one["mine"]) for one in told) == ["{'0': 1.0}", "{'1': 0.5}", "{'2': 0.333333}"]
    assert sorted(str(one["nodes"]) for one in told) == ["{'0': 'n0'}", "{'1': 'n1'}", "{'2': 'n2'}"]


SECTIONS = """
import os, time
from holdfast import straggler

straggler.Detector.initialize()
with straggler.Detector.detection_section("loading"):
    print("in it", flush=True)
    while not os.path.exists(__file__ + ".end"):
        time.sleep(0.01)
"""


def test_our_agent_hears_of_the_sections(holdfast: Any, script: Any, wait_until: Any) -> None:
    path = script(SECTIONS)
    job = holdfast.start("run", "--rdzv-id", "job", path)
    job.wait_for_output("in it")
    wait_until(lambda: "loading" in holdfast("status", "job").stdout)
    (path.parent / f"{path.name}.end").touch()
    assert job.wait().returncode == 0


LIGHTNING = """
import logging, sys, types
for name in ("lightning", "lightning.pytorch", "lightning.pytorch.callbacks"):  # what is asked of Lightning
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
sys.modules["lightning.pytorch.callbacks"].Callback = object
from holdfast.integrations.lightning_straggler import StragglerDetectionCallback
from holdfast.straggler import Report

logging.basicConfig(format="%(message)s", level="INFO", stream=sys.stdout)
saved, logged = [], {}
saves = types.SimpleNamespace(_monitor_candidates=lambda trainer: {}, _save_last_checkpoint=lambda *_: saved.append("saved"))
class Strategy:
    checkpoint_io = object()
    def training_step(self):
        return 7
strategy = Strategy()
trainer = types.SimpleNamespace(strategy=strategy, checkpoint_callback=saves, should_stop=False)
module = types.SimpleNamespace(log_dict=lambda told, **_: logged.update(told))
made = StragglerDetectionCallback(0.0, True, True, 1, 0.7, 0.7, True, True)
made.setup(trainer, module, "fit")
plain = {"section_relative_perf_scores": {}, "section_individual_perf_scores": {}, "local_section_summaries": {}}
report = Report(
    gpu_relative_perf_scores={0: 1.0, 1: 0.5, 2: 0.9}, gpu_individual_perf_scores={0: 1.0, 1: 1.0, 2: 0.8}, rank=0,
    rank_to_node={0: "a", 1: "b", 2: "c"}, local_kernel_summaries={}, generate_report_elapsed_time=1.0, gather_on_rank0=True,
    **plain)
from holdfast.straggler import Detector
Detector.generate_report = lambda: report
try:
    for step in range(20):
        assert strategy.training_step() == 7
        made.on_train_batch_end(trainer, module, None, None, step)
except SystemExit as ended:
    assert ended.code == 1 and step == 16 and trainer.should_stop and saved == ["saved"], (step, saved)
assert Detector.custom_sections["Strategy.training_step"].total_entry_cnt == 17
made.teardown(trainer, module, "fit")
assert not Detector.initialized and logged["gpu_relative_perf/min"] == 0.5 and logged["gpu_individual_perf/max"] == 1.0
print("done")
"""


def test_a_lightning_trainer_shows_its_scores_and_ends_where_there_is_a_straggler(holdfast: Any, script: Any) -> None:
    done = holdfast("run", script(LIGHTNING), timeout=100.0)
    assert done.returncode == 0 and done.stdout.endswith("done\n"), done.output
    assert "relative performance. Affected ranks: {StragglerId(rank=1, node='b')}" in done.stdout
    worst_and_best = (
        " Worst performing 1/3 ranks:\n  Rank=1 Node=b Score=0.50\n Best performing 1/3 ranks:\n  Rank=0 Node=a Score=1.00"
    )
    assert f"GPU relative performance:\n{worst_and_best}" in done.stdout and "performance dropped" not in done.stdout
