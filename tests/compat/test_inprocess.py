"""`inprocess` is NVRx's by its names: the same function, begun again in the same process, under NVRx and under us."""

from __future__ import annotations

import dataclasses
import gc
import importlib
import io
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from datetime import timedelta
from types import FrameType, ModuleType
from typing import Any

import pytest
from kit import LIGHT_TORCH
from kit.ports import ports

pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.torch

MS = timedelta(milliseconds=1)
QUICK = {
    "monitor_thread_interval": MS,
    "monitor_process_interval": MS,
    "progress_watchdog_interval": MS,
    "last_call_wait": MS,
    "termination_grace_time": MS,
}


def _nvrx() -> ModuleType:
    pytest.importorskip("nvidia_resiliency_ext", reason="no NVRx to compare with: make nvrx")
    return importlib.import_module("nvidia_resiliency_ext.inprocess")


@pytest.fixture(params=["nvrx", "ours"])
def names(request: pytest.FixtureRequest) -> ModuleType:
    """NVRx's `inprocess`, then ours."""
    return _nvrx() if request.param == "nvrx" else importlib.import_module("holdfast.inprocess")


@pytest.fixture
def wrap(names: ModuleType, free_port: int, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A `Wrapper` for one rank. Whatever a call does, it leaves no thread and no store behind."""
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "localhost", "MASTER_PORT": free_port}.items():
        monkeypatch.setenv(name, str(value))
    before = threading.enumerate()

    def made(most: int | None = None, **more: Any) -> Any:
        given = {"store_kwargs": {"port": free_port, "timeout": timedelta(seconds=10)}, **QUICK, **more}
        if most is not None:
            given["initialize"] = names.initialize.RetryController(max_iterations=most)
        return names.Wrapper(**given)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield made
    assert not set(threading.enumerate()) - set(before)  # some that other tests left may have ended meanwhile
    gc.collect()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some objects of torch's warn when they are looked at
        assert not [one for one in gc.get_objects() if isinstance(one, names.store.TCPStore)]


def test_it_hands_on_what_comes_and_goes(wrap: Any) -> None:
    assert wrap()(lambda a, b, c=3: (a, b, c))(1, b=2) == (1, 2, 3)


def test_a_function_that_asks_for_it_is_given_its_call(wrap: Any, names: ModuleType) -> None:
    def fn(call: Any = None) -> int:
        call.ping()
        with call.atomic():
            call.ping()
        return call.iteration  # type: ignore[no-any-return]

    fn.__annotations__["call"] = names.CallWrapper | None
    decorated = wrap()(fn)
    assert [decorated(), decorated()] == [0, 0]


def test_its_place_among_the_arguments_is_its_own_whatever_is_given_there(wrap: Any, names: ModuleType) -> None:
    def fn(first: int, call: Any, last: int = 0) -> tuple[int, int, int]:
        return first, call.iteration, last

    fn.__annotations__ = {"call": names.CallWrapper}
    assert wrap()(fn)(1, None, 2) == wrap()(fn)(1, last=2, call=None) == (1, 0, 2)


@pytest.mark.parametrize("most", [1, 4])
def test_it_begins_again_after_each_exception_and_no_more_often_than_it_may(wrap: Any, names: ModuleType, most: int) -> None:
    calls: list[int] = []

    @wrap(most)  # type: ignore[untyped-decorator]
    def fn() -> None:
        calls.append(1)
        raise RuntimeError

    with pytest.raises(names.exception.RestartAbort, match=f"iteration={most}"):
        fn()
    assert len(calls) == most


def test_what_the_last_life_returns_is_returned(wrap: Any) -> None:
    calls: list[int] = []

    @wrap(4)  # type: ignore[untyped-decorator]
    def fn() -> int:
        calls.append(1)
        if len(calls) < 4:
            raise RuntimeError
        return 123

    assert fn() == 123 and len(calls) == 4


@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_is_no_exception_ends_the_call(wrap: Any, error: type[BaseException]) -> None:
    @wrap(4)  # type: ignore[untyped-decorator]
    def fn() -> None:
        raise error

    with pytest.raises(error):
        fn()


def test_a_function_may_ask_for_a_restart_itself(wrap: Any, names: ModuleType) -> None:
    @wrap(2)  # type: ignore[untyped-decorator]
    def fn() -> None:
        raise names.monitor_thread.RankShouldRestart

    with pytest.raises(names.exception.RestartAbort):
        fn()


def test_a_process_group_that_is_there_already_is_refused(wrap: Any) -> None:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    try:
        with pytest.raises(ValueError, match=r"not torch\.distributed\.is_initialized"):
            wrap()(lambda: None)()
    finally:
        dist.destroy_process_group()


def stage(base: Any, act: Any) -> Any:
    """One of a class of stages, which does `act` with what it is given."""
    return type("Stage", (base,), {"__call__": lambda self, given: act(given)})()


def fails(given: Any) -> Any:
    raise ZeroDivisionError


def writes(given: Any) -> Any:
    given.rank = 0
    return given


def raising() -> None:
    raise RuntimeError


@pytest.mark.parametrize(
    "name, act, fn, expected",
    [
        ("initialize", fails, lambda: None, "RestartAbort"),
        ("abort", fails, raising, "RestartAbort"),
        ("finalize", fails, raising, "ZeroDivisionError"),
        ("health_check", fails, raising, "HealthCheckError"),
        ("initialize", writes, lambda: None, "RestartAbort"),
        ("finalize", writes, raising, "FrozenInstanceError"),
        ("health_check", writes, raising, "HealthCheckError"),
        ("rank_assignment", fails, raising, "ZeroDivisionError"),
    ],
)
def test_a_stage_that_fails_or_writes_into_the_state_is_the_end_that_it_has_to_be(
    wrap: Any, names: ModuleType, name: str, act: Any, fn: Any, expected: str
) -> None:
    kind = {"initialize": "Initialize", "abort": "Abort", "finalize": "Finalize", "health_check": "HealthCheck"}
    base = getattr(getattr(names, name), kind.get(name, "RankAssignment"))
    retry = names.initialize.RetryController(max_iterations=2)
    one = stage(base, act)
    given = {name: names.Compose(one, retry) if name == "initialize" else one}
    given.setdefault("initialize", retry)
    with pytest.raises(BaseException) as raised:
        wrap(**given)(fn)()
    assert type(raised.value).__name__ == expected


def test_a_rank_that_was_unfit_for_a_moment_goes_on(wrap: Any, names: ModuleType) -> None:
    asked: list[int] = []

    def once(state: Any) -> Any:
        asked.append(1)
        if len(asked) == 1:
            raise ZeroDivisionError
        return state

    assert wrap(health_check=stage(names.health_check.HealthCheck, once))(lambda: 5)() == 5


def test_a_factory_that_makes_no_store_ends_the_call(names: ModuleType, wrap: Any) -> None:
    class Store(names.store.StoreMixin):  # type: ignore[misc]
        def __init__(self, **_: Any) -> None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wrap(store_factory=Store)(lambda: None)()


def test_what_is_done_at_info_is_said_alike_each_time(wrap: Any) -> None:
    root, said = logging.getLogger(), []
    before = root.handlers[:], root.level
    try:
        for _ in range(2):
            stream = io.StringIO()
            logging.basicConfig(level=logging.INFO, stream=stream, force=True)
            wrap()(lambda: None)()
            said.append(len(stream.getvalue()))
    finally:
        root.handlers[:], root.level = before
    assert said[0] == said[1]


def test_when_a_life_begins_is_said_to_whoever_debugs(wrap: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        wrap()(lambda: None)()
    assert caplog.text


@pytest.mark.parametrize("name, base", [("finalize", "Finalize"), ("health_check", "HealthCheck")])
def test_nothing_of_a_call_is_left_for_the_garbage_collector_when_a_stage_ends_it(
    wrap: Any, names: ModuleType, name: str, base: str
) -> None:
    gc.collect()
    gc.disable()
    try:
        try:
            wrap(2, **{name: stage(getattr(getattr(names, name), base), fails)})(raising)()
        except Exception as error:
            traceback.clear_frames(error.__traceback__)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert not [one for one in gc.get_objects() if isinstance(one, names.store.TCPStore)]
    finally:
        gc.enable()


def test_the_monitor_says_in_its_file_whom_it_watches(wrap: Any, tmp_path: Any) -> None:
    root = logging.getLogger()
    level, root.level = root.level, logging.INFO
    try:
        wrap(monitor_process_logfile=str(tmp_path / "monitor_{rank}.log"))(lambda: None)()
    finally:
        root.level = level
    said = (tmp_path / "monitor_0.log").read_text()
    assert "target_pid" in said and "monitor_process" in said


def test_process_groups_of_one_life_are_gone_in_the_next(
    wrap: Any, names: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch.distributed as dist

    monkeypatch.setenv("MASTER_PORT", str(ports(1)[0]))
    found: list[int] = []

    @wrap(3)  # type: ignore[untyped-decorator]
    def fn() -> None:
        dist.init_process_group("gloo")
        found.append(dist.distributed_c10d._get_default_store().add("once", 1))
        raise ZeroDivisionError

    with pytest.raises(names.exception.RestartAbort, match="iteration=3"):
        fn()
    assert found == [1, 1, 1]


def test_a_rank_that_is_late_begins_again(wrap: Any, names: ModuleType) -> None:
    lives: list[int] = []

    def fn(call: Any = None) -> int:
        call.ping()
        lives.append(call.iteration)
        while call.iteration < 2:
            time.sleep(0.001)
        return 123

    fn.__annotations__["call"] = names.CallWrapper
    assert wrap(soft_timeout=timedelta(seconds=0.5))(fn)() == 123
    assert lives == [0, 1, 2]


HANGS = LIGHT_TORCH + """
import os, sys, time
from datetime import timedelta
from importlib import import_module
inprocess = import_module(sys.argv[1])
ms = timedelta(milliseconds=1)
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT=sys.argv[2])
@inprocess.Wrapper(
    store_kwargs={"port": int(sys.argv[2])}, monitor_thread_interval=ms, monitor_process_interval=ms, last_call_wait=ms,
    progress_watchdog_interval=ms, termination_grace_time=ms,
    soft_timeout=timedelta(seconds=0.5), hard_timeout=timedelta(seconds=1),
)
def fn():
    time.sleep(100)
fn()
"""


def test_one_that_c_code_holds_is_ended_at_the_hard_limit(names: ModuleType, free_port: int) -> None:
    ran = subprocess.run([sys.executable, "-c", HANGS, names.__name__, str(free_port)], capture_output=True, timeout=60)
    assert ran.returncode == -signal.SIGTERM, ran.stderr


def test_an_exception_is_raised_in_another_thread(names: ModuleType) -> None:
    class Raised(Exception):
        pass

    is_awaited = threading.Event()

    def interrupt() -> None:
        is_awaited.wait()
        names.monitor_thread.async_raise(threading.main_thread().ident, Raised)

    other = threading.Thread(target=interrupt)
    other.start()
    with pytest.raises(Raised):
        is_awaited.set()
        while True:
            time.sleep(0.001)
    other.join()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_one_that_a_finaliser_drops_is_raised_again(names: ModuleType) -> None:
    class Dropped(Exception):
        pass

    class Drops:
        def __del__(self) -> None:
            raise Dropped

    before = sys.unraisablehook
    with names.monitor_thread.reraise_if_unraisable(Dropped), pytest.raises(Dropped):
        one = Drops()
        del one
        while True:
            time.sleep(0.001)
    assert sys.unraisablehook is before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_what_is_raised_again_comes_once_the_hook_is_over_however_long_that_takes() -> None:
    """Within it Python would drop it again, and tell nobody: on a busy machine the thread that raises it may run at once."""
    from holdfast.inprocess import monitor_thread

    class Dropped(Exception):
        pass

    class Drops:
        def __del__(self) -> None:
            raise Dropped

    def is_slow_to_return(frame: FrameType, event: str, _: object) -> Any:
        if event == "return" and frame.f_code.co_name == "hook":
            time.sleep(0.05)
        return is_slow_to_return

    before = sys.gettrace()
    with monitor_thread.reraise_if_unraisable(Dropped), pytest.raises(Dropped):
        sys.settrace(is_slow_to_return)
        one = Drops()
        del one
        sys.settrace(before)
        for _ in range(1000):
            time.sleep(0.001)


class Collect:
    """In a monitor's place."""

    def __init__(self) -> None:
        self.stamps: list[Any] = []

    def send_timestamp(self, stamp: Any) -> None:
        self.stamps.append(dataclasses.replace(stamp))


def test_progress_is_told_until_it_is_paused_and_again_afterwards(names: ModuleType) -> None:
    module = importlib.import_module(f"{names.__name__}.progress_watchdog")
    told, began = Collect(), time.monotonic()
    watchdog = module.ProgressWatchdog(0, told, timedelta(milliseconds=1))
    watchdog.start()
    while len(told.stamps) < 10:
        time.sleep(0.001)
    watchdog.pause_and_synchronize()
    count = len(told.stamps)
    for _ in range(20):
        time.sleep(0.001)
    assert len(told.stamps) == count
    watchdog.resume()
    while len(told.stamps) < count + 10:
        time.sleep(0.001)
    watchdog.ping()
    while told.stamps[-1].manual is None:
        time.sleep(0.001)
    watchdog.shutdown()
    autos = [stamp.auto for stamp in told.stamps]
    assert began - 1 < autos[0] <= autos[-1] and told.stamps[0].manual is None
    with pytest.raises(RuntimeError):
        watchdog.resume()


def test_stages_are_composed_from_the_last_to_the_first(names: ModuleType) -> None:
    class Base:
        pass

    class Adds(Base):
        def __init__(self, what: str) -> None:
            self.what = what

        def __call__(self, text: str) -> str:
            return text + self.what

    composed = names.Compose(Adds("a"), Adds("b"), Adds("c"))
    assert composed("") == "cba" and isinstance(composed, Base)
    with pytest.warns(UserWarning):
        assert names.Compose(stage(Base, lambda _: None), stage(Base, lambda _: None))(1) is None


def test_a_program_reads_where_layered_restarts_stand(names: ModuleType) -> None:
    said, state = io.StringIO(), names.State(0, 2).freeze()
    module = importlib.import_module(f"{names.__name__}.nested_restarter")
    logger = module.NestedRestarterLogger()
    logger.restarter_logger.handlers = [logging.StreamHandler(said)]
    logger.restarter_logger.setLevel(logging.DEBUG)
    begins = module.NestedRestarterHandlingCompleted(special_rank=0)
    begins.logger = logger
    for one in (begins, module.NestedRestarterHandlingStarting(logger=logger), begins):
        assert one(state) is state
    others = names.State(1, 2).freeze()
    for one in (module.NestedRestarterFinalized(logger=logger), module.NestedRestarterAborted(logger=logger)):
        one(others)
        one(state)
    assert [line.partition("name=[InProcess] ")[2] for line in said.getvalue().splitlines()] == [
        *("state=initialize", "state=handling stage=starting", "state=handling stage=completed"),
        *("state=finalized", "state=aborted"),
    ]


def test_a_rank_that_fails_too_often_is_unfit(names: ModuleType) -> None:
    count = names.health_check.FaultCounter(max_rank_faults=1)
    well = names.State(0, 1).freeze()
    ill = names.State(0, 1, fn_exception=ValueError()).freeze()
    for state in (ill, well, well):
        assert count(state) is state
    with pytest.raises(names.health_check.FaultCounterExceeded):
        count(ill)


def test_all_ranks_choose_alike_whom_a_fault_comes_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the same seed as with NVRx: the same ranks, delays and faults."""
    found: list[list[Any]] = []
    monkeypatch.setenv("WORLD_SIZE", "8")
    for package in ("nvidia_resiliency_ext", "holdfast"):
        name = f"{package}.inprocess.tools.inject_fault"
        module, came = pytest.importorskip(name, reason="no NVRx to compare with: make nvrx"), list[Any]()
        monkeypatch.setattr(
            module, "dispatch_fault_injection", lambda fault, delay, _, came=came: came.append((fault.name, delay))
        )
        for seed in range(30):
            for rank in range(8):
                monkeypatch.setenv("RANK", str(rank))
                module.inject_fault((module.Fault.SIGKILL, module.Fault.SIGTERM), (1, 3), 2, (1.0, 2.0), seed)
                came.append(rank)
        found.append(came)
    assert found[0] == found[1] and {one[0] for one in found[1] if isinstance(one, tuple)} == {"SIGKILL", "SIGTERM"}


def test_a_fault_of_one_s_own_is_injected_by_its_name() -> None:
    from holdfast.inprocess.tools import inject_fault as ours

    came: list[Any] = []
    mine = ours.register_fault("MINE", lambda delay, callback: came.append((delay, callback)))
    assert ours.Fault["MINE"] is mine
    ours.dispatch_fault_injection(mine, 2.0, None)
    assert came == [(2.0, None)]
    with pytest.raises(RuntimeError, match="register_fault"):
        ours.dispatch_fault_injection("nobody's", 0.0, None)


FOLLOWED = LIGHT_TORCH + """
import os, sys, warnings
from datetime import timedelta
from importlib import import_module
warnings.simplefilter("ignore")
inprocess = import_module(sys.argv[1])
ms = timedelta(milliseconds=1)
os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="localhost", MASTER_PORT=sys.argv[2])
lives = []
@inprocess.Wrapper(
    store_kwargs={"port": int(sys.argv[2])}, monitor_thread_interval=ms, monitor_process_interval=ms, last_call_wait=ms,
    progress_watchdog_interval=ms,
)
def fn():
    lives.append(1)
    if len(lives) < 3:
        raise RuntimeError
fn()
sys.setprofile(lambda *_: None)
(lambda: None)()
print("followed")
"""


def test_a_profiler_can_follow_what_comes_afterwards(names: ModuleType, free_port: int) -> None:
    """Python 3.11 hangs in it, where an exception that was to be raised in a thread has been called off."""
    argv = [sys.executable, "-c", FOLLOWED, names.__name__, str(free_port)]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "followed\n", ran.stderr


TOGETHER = LIGHT_TORCH + """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from holdfast import inprocess
fault, port, rank = sys.argv[1], int(sys.argv[2]), int(os.environ["RANK"])
ms, seconds = timedelta(milliseconds=20), lambda count: timedelta(seconds=count)
class Hangs(inprocess.finalize.Finalize, inprocess.health_check.HealthCheck):
    def __call__(self, state):
        if state.initial_rank == 1 and state.fn_exception:
            time.sleep(100)
        return state
@inprocess.Wrapper(
    store_kwargs={"port": port}, monitor_thread_interval=ms, monitor_process_interval=ms, progress_watchdog_interval=ms,
    abort=inprocess.abort.AbortTorchDistributed(os.environ.get("TRACES")), last_call_wait=ms,
    soft_timeout=seconds(4 if fault else 60), hard_timeout=seconds(5 if fault else 90),
    **{fault: Hangs()} if fault else {},
)
def fn(call: inprocess.CallWrapper = None):
    if not fault or call.iteration:
        dist.init_process_group("gloo", timeout=seconds(60))
        total = torch.ones(1)
        dist.all_reduce(total)
    if call.iteration < (1 if fault else 3):
        if rank == 1:
            raise ValueError
        while True:
            time.sleep(0.01)
    dist.destroy_process_group()
    return int(total)
print("together", fn())
"""


def together(fault: str, **variables: str) -> list[tuple[int, str]]:
    """How each of two ranks ends, and what it says last."""
    master, port = ports(2)
    environment = {**os.environ, "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(master), **variables}
    argv = [sys.executable, "-c", TOGETHER, fault, str(port)]
    ranks = [
        subprocess.Popen(argv, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True) for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    return [(rank.returncode, text) for rank, text in zip(ranks, said, strict=True)]


def test_each_life_s_process_group_meets_at_the_address_that_the_launcher_gave() -> None:
    """The store that the first rank served there is gone with the life before, or its ranks would meet in the wrong one."""
    assert together("") == [(0, "together 2\n")] * 2


def test_torch_s_record_of_collectives_is_written_where_abort_is_told_to(tmp_path: Any) -> None:
    assert together("", TRACES=str(tmp_path), TORCH_FR_BUFFER_SIZE="100") == [(0, "together 2\n")] * 2
    found = {str(path.relative_to(tmp_path)): json.loads(path.read_text()) for path in tmp_path.glob("*/*")}
    assert sorted(found) == [f"iter_{life}/_dump_{rank}.json" for life in range(3) for rank in range(2)]


@pytest.mark.parametrize("stage", ["finalize", "health_check"])
def test_one_that_hangs_after_its_function_is_ended_at_the_hard_limit_and_the_others_go_on(stage: str) -> None:
    assert together(stage) == [(0, "together 1\n"), (-signal.SIGTERM, "")]


def test_whoever_waits_for_the_others_last_call_is_not_late(wrap: Any, names: ModuleType) -> None:
    """Longer than the hard limit, here, in which a rank that hangs would be ended."""

    @wrap(2, last_call_wait=timedelta(seconds=2), soft_timeout=timedelta(seconds=1), hard_timeout=timedelta(seconds=1.5))  # type: ignore[untyped-decorator]
    def fn() -> None:
        raise ZeroDivisionError

    with pytest.raises(names.exception.RestartAbort, match="iteration=2"):
        fn()


RANKS = LIGHT_TORCH + """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from holdfast import inprocess
fault, port, base_port = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
ms = timedelta(milliseconds=50)
inactive = inprocess.rank_assignment.MaxActiveWorldSize(2) if fault == "reserve" else None
assignment = inprocess.rank_assignment.ShiftRanks()
more = {"rank_assignment": inprocess.Compose(inactive or inprocess.rank_assignment.ActivateAllRanks(), assignment)}
@inprocess.Wrapper(
    initialize=inprocess.initialize.RetryController(max_iterations=5), store_kwargs={"port": port}, monitor_thread_interval=ms,
    monitor_process_interval=ms, progress_watchdog_interval=ms, last_call_wait=ms, **more,
)
def fn(call: inprocess.CallWrapper = None):
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    at = {"store": dist.PrefixStore(str(call.iteration), base), "rank": rank, "world_size": size}
    dist.init_process_group("gloo", timeout=timedelta(seconds=60), **at)
    dist.all_reduce(torch.ones(1))
    os.write(1, f"life {call.iteration} rank {rank} of {size} pid {os.getpid()}\\n".encode())
    if call.iteration == 0:
        if rank == size - 1:
            {"kill": lambda: os.kill(os.getpid(), 9), "exit": lambda: sys.exit(0), "raise": lambda: 1 / 0}.get(
                fault, lambda: os.kill(os.getpid(), 9))()
        if rank == 0:
            time.sleep(100)
        dist.all_reduce(torch.ones(1))
    dist.barrier()
    dist.destroy_process_group()
    return rank
end = {"timeout": timedelta(seconds=60)}
base = dist.TCPStore("localhost", base_port, 3, os.environ["RANK"] == "0", wait_for_workers=False, **end)
os.write(1, f"returned {fn()}\\n".encode())
"""


@pytest.mark.parametrize("fault, left", [("kill", 2), ("exit", 2), ("raise", 3), ("reserve", 2)])
def test_the_ranks_that_live_go_on_in_their_processes(fault: str, left: int) -> None:
    """Whoever sleeps, or waits in a collective, is out of it; who waits in reserve takes the place of one that is gone."""
    port, base = ports(2)
    environment = {**os.environ, "WORLD_SIZE": "3", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port)}
    argv = [sys.executable, "-c", RANKS, fault, str(port), str(base)]
    ranks = [
        subprocess.Popen(argv, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True) for rank in range(3)
    ]
    said = [rank.communicate(timeout=100)[0].splitlines() for rank in ranks]
    last = [line for lines in said for line in lines if line.startswith("life 1 ")]
    assert len(last) == left and {line.split(" pid ")[0] for line in last} == {
        f"life 1 rank {rank} of {left}" for rank in range(left)
    }
    pids = {line.split()[-1] for lines in said for line in lines if line.startswith("life")}
    assert pids == {str(rank.pid) for rank in ranks}
    assert sorted(line for lines in said for line in lines if line.startswith("returned")) == [
        f"returned {rank}" for rank in range(left)
    ]
