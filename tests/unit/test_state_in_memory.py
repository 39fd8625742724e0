"""What does a rank keep from one life to the next (`client.in_place.state`)? Real torch, CUDA's stand-in."""

from __future__ import annotations

import array
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from holdfast.client.in_place import sharded  # noqa: E402 - torch comes first, or the test is skipped
from holdfast.client.in_place.lives import Life  # noqa: E402 - likewise
from holdfast.client.in_place.state import State  # noqa: E402 - likewise
from holdfast.client.worker import this_worker  # noqa: E402 - likewise
from holdfast.core.page import layout  # noqa: E402 - likewise

pytestmark = pytest.mark.torch


class Gpu:
    """CUDA as it is documented: a mark is reached when all before it is done."""

    def __init__(self) -> None:
        self.is_done = True

    def mark(self) -> object:
        return self

    def has_reached(self, mark: object) -> bool:
        return mark is None or self.is_done


@pytest.fixture
def state() -> Iterator[State]:
    yield State()


def module(**more: Any) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))


def begun(state: State, otherwise: Any = None, build: Callable[[], Any] = module) -> tuple[Any, Any]:
    """A life's beginning: module and optimizer."""
    model = state.keep("model", build)
    optimizer = state.keep("optimizer", lambda: torch.optim.Adam(model.parameters()))
    state.begin(otherwise)
    return model, optimizer


def backward(model: Any) -> None:
    model(torch.randn(4, 3)).pow(2).mean().backward()


def cut_short() -> None:
    raise RuntimeError("cut short")


def step(model: Any, optimizer: Any) -> None:
    backward(model)
    optimizer.step()


def test_the_next_life_goes_on_with_the_same_objects_at_the_step_that_was_reached(state: State) -> None:
    model, optimizer = begun(state)
    for _ in range(3):
        step(model, optimizer)
    state.end_life()
    assert begun(state) == (model, optimizer)
    assert (state.step, state.came_from) == (3, "memory")
    assert all(parameter.grad is None for parameter in model.parameters())


def test_the_first_life_begins_as_the_script_says(state: State) -> None:
    begun(state, lambda: 7)
    assert (state.step, state.came_from) == (7, "script")


def test_what_was_torn_in_an_update_is_not_gone_on_with(state: State) -> None:
    """No other rank has it: the script's own way, on objects as new."""
    model, optimizer = begun(state)
    step(model, optimizer)
    with pytest.raises(KeyboardInterrupt), Life(0, None, [state]).update():
        model[0].weight.data.zero_()
        raise KeyboardInterrupt
    state.end_life()
    again, optimizer = begun(state)
    assert again is model and (state.step, state.came_from) == (0, "script")
    assert torch.equal(model[0].weight, module()[0].weight) and not optimizer.state


def test_an_optimizer_s_step_is_an_update_by_itself(state: State) -> None:
    model, optimizer = begun(state)
    optimizer.register_step_post_hook(lambda *_: seen.append(state._generation))
    seen: list[object] = []
    step(model, optimizer)
    optimizer.zero_grad()
    assert state.step == 1 and seen == [(0, 1)]


def test_an_interrupted_optimizer_s_step_is_torn(state: State) -> None:
    model, optimizer = begun(state)
    backward(model)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    optimizer.register_step_pre_hook(interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimizer.step()
    state.end_life()
    begun(state)
    assert state.came_from == "script"


def test_with_more_than_one_optimizer_the_script_has_to_say_what_an_update_is(state: State) -> None:
    model = state.keep("model", module)
    first = state.keep("first", lambda: torch.optim.SGD(model[0].parameters(), 0.1))
    state.keep("second", lambda: torch.optim.SGD(model[1].parameters(), 0.1))
    state.begin()
    with pytest.warns(UserWarning, match="with life.update"):
        first.step()
    state.end_life()
    state.keep("model", module), state.keep("first", list), state.keep("second", list)
    state.begin()
    assert state.came_from == "script"


def test_a_copy_that_the_script_moves_by_itself_is_no_part_of_an_optimizer_s_step(state: State) -> None:
    """An EMA: with the step alone it would count as moved, and another rank would be given one that was not."""
    model = state.keep("model", module)
    state.keep("ema", lambda: module().requires_grad_(False))
    optimizer = state.keep("optimizer", lambda: torch.optim.Adam(model.parameters()))
    state.begin()
    backward(model)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # one more frame of torch's around each step
    with pytest.warns(UserWarning, match=r"\(model, ema, optimizer\): no rank has a whole state any more") as told:
        optimizer.step()
    assert told[0].filename == __file__, "the script's own line is shown"
    assert state.step == 0 and state._generation is None


def test_two_modules_that_one_optimizer_changes_make_one_step(state: State) -> None:
    models = [state.keep(name, module) for name in ("body", "head")]
    optimizer = state.keep("optimizer", lambda: torch.optim.Adam([one for model in models for one in model.parameters()]))
    state.begin()
    for model in models:
        backward(model)
    optimizer.step()
    assert state.step == 1


@pytest.mark.filterwarnings("ignore:more is kept than")
@pytest.mark.parametrize("cut_short", ["in the step", "after unscale_"])
def test_what_a_scaler_knows_between_step_and_update_ends_with_the_life(state: State, cut_short: str) -> None:
    def begin_life() -> tuple[Any, Any, Any]:
        model = state.keep("model", lambda: torch.nn.Linear(3, 3))
        optimizer = state.keep("optimizer", lambda: torch.optim.SGD(model.parameters(), lr=0.1))
        scaler = state.keep("scaler", lambda: torch.amp.GradScaler("cpu", init_scale=8.0))
        state.begin()
        return model, optimizer, scaler

    def backward_scaled(model: Any, scaler: Any) -> None:
        scaler.scale(model(torch.ones(2, 3)).pow(2).mean()).backward()

    model, optimizer, scaler = begin_life()
    backward_scaled(model, scaler)
    scaler.unscale_(optimizer)
    if cut_short == "in the step":
        scaler.step(optimizer)
    state.end_life()
    model, optimizer, scaler = begin_life()
    backward_scaled(model, scaler)
    scaled = model.weight.grad.clone()
    scaler.unscale_(optimizer)  # once more: it had been done, for the life before
    assert torch.equal(model.weight.grad * 8.0, scaled)
    with state:
        scaler.step(optimizer)
        scaler.update()
    assert state.step == 1


def test_an_optimizer_with_other_groups_than_the_one_before_says_what_to_do(state: State) -> None:
    _, optimizer = begun(state)
    told = state._tree()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    grown = state._tree()
    state._load(grown)
    with pytest.raises(ValueError, match="1 parameter groups, and the one made here has 2; add in its build="):
        state._load(told)


def test_within_an_update_optimizers_and_schedulers_make_one_step(state: State) -> None:
    model = state.keep("model", module)
    optimizer = state.keep("optimizer", lambda: torch.optim.SGD(model.parameters(), 0.1))
    scheduler = state.keep("scheduler", lambda: torch.optim.lr_scheduler.StepLR(optimizer, 1))
    state.begin()
    with Life(0, None, [state]).update():
        step(model, optimizer)
        scheduler.step()
        state["epoch"] = 1
    state.end_life()
    assert state.keep("model", module) is model
    state.keep("optimizer", list), state.keep("scheduler", list)
    assert state.begin() == 1 and state["epoch"] == 1 and state.get("other", 2) == 2
    assert "epoch" in state and "other" not in state


def test_buffers_that_a_forward_has_changed_since_the_last_update_are_put_back(state: State) -> None:
    model, optimizer = begun(state)
    step(model, optimizer)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    backward(model)
    assert not torch.equal(model[1].running_mean, before["1.running_mean"])
    state.end_life()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_buffers_that_a_framework_has_moved_since_are_put_back_where_they_are(state: State) -> None:
    """Lightning moves its module to the CPU as it unwinds."""
    model, optimizer = begun(state)
    step(model, optimizer)
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    backward(model)
    for name, buffer in list(model[1].named_buffers()):
        setattr(model[1], name, buffer.clone())
    state.end_life()
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


def test_what_a_script_does_beside_the_state_ends_with_the_life_and_what_build_did_stays(state: State) -> None:
    """An evaluation's mode, a frozen part, and hooks, which the next life registers again."""
    called: list[str] = []

    def hooked() -> Any:
        made = module()
        made.register_forward_hook(lambda *_: called.append("module of build"))
        made[0].weight.register_hook(lambda _: called.append("tensor of build"))
        made[1].bias.requires_grad_(False)
        return made

    for _ in range(3):
        model, optimizer = begun(state, build=hooked)
        assert all(one.training for one in model.modules())
        assert [one.requires_grad for one in model.parameters()] == [True, True, True, False]
        model.register_forward_hook(lambda *_: called.append("module"))
        model[0].weight.register_hook(lambda _: called.append("tensor"))
        model[0].bias.register_hook(lambda _: called.append("another"))
        model[0].bias.register_post_accumulate_grad_hook(lambda _: called.append("gradient"))
        optimizer.register_step_post_hook(lambda *_: called.append("step"))
        called.clear()
        step(model, optimizer)
        expected = ["another", "gradient", "module", "module of build", "step", "tensor", "tensor of build"]
        assert sorted(called) == expected
        model.eval().requires_grad_(False)
        state.end_life()
    model, optimizer = begun(state)
    step(model, optimizer)
    assert state.step == 4  # who has an optimizer's step watched, has it once


def averaged(model: Any) -> Any:
    """A copy that is moved after each step."""
    return torch.optim.swa_utils.AveragedModel(model)


def with_average(state: State) -> tuple[Any, Any, Any]:
    model = state.keep("model", module)
    optimizer = state.keep("optimizer", lambda: torch.optim.Adam(model.parameters()))
    average = state.keep("average", lambda: averaged(model))
    state.begin()
    return model, optimizer, average


@pytest.mark.parametrize("how", ["copied", "swapped", "loaded"])
def test_weights_that_a_validation_has_put_into_the_model_are_not_gone_on_with(state: State, how: str) -> None:
    model, optimizer, average = with_average(state)
    for _ in range(3):
        with state:
            step(model, optimizer)
            average.update_parameters(model)
    if how == "loaded":
        model.load_state_dict(average.module.state_dict())
    for one, other in zip(model.parameters(), average.module.parameters()):
        if how == "copied":
            one.data.copy_(other.data)
        elif how == "swapped":
            one.data = other.data
    with pytest.warns(UserWarning, match="weights of model changed outside of an update.* belong into a module of their own"):
        state.end_life()
    with_average(state)
    assert (state.step, state.came_from) == (0, "script")


def test_weights_that_are_put_back_after_a_validation_are_gone_on_with(state: State) -> None:
    model, optimizer, average = with_average(state)
    with state:
        step(model, optimizer)
        average.update_parameters(model)
    stored = [one.detach().clone() for one in model.parameters()]
    for one, other in zip(model.parameters(), stored):
        one.data.zero_()
        one.data.copy_(other)
    state.end_life()
    with_average(state)
    assert (state.step, state.came_from) == (1, "memory")


def test_weights_that_are_no_numbers_have_not_changed(state: State) -> None:
    model, _ = begun(state)
    with state:
        for parameter in model.parameters():
            parameter.data.fill_(torch.nan)
    state.end_life()
    begun(state)
    assert state.came_from == "memory"


def test_weights_that_each_life_loads_over_those_it_has_kept_are_not_gone_on_with(state: State) -> None:
    pretrained = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).state_dict()
    step(*begun(state))
    state.end_life()
    model = state.keep("model", module)
    state.keep("optimizer", list)
    model.load_state_dict(pretrained)
    with pytest.warns(UserWarning, match="weights of model changed outside of an update.*load pretrained weights in build="):
        state.begin()
    assert (state.step, state.came_from) == (0, "script")


@pytest.mark.parametrize("late", ["average", "schedule"])
def test_what_changes_after_the_update_is_said_at_the_next(state: State, late: str) -> None:
    """Who is interrupted between the two has the one and not the other."""
    model, optimizer, average = with_average(state)
    state.end_life()
    model, optimizer = state.keep("model", module), state.keep("optimizer", list)
    average, schedule = state.keep("average", list), None
    if late == "schedule":
        schedule = state.keep("schedule", lambda: torch.optim.lr_scheduler.StepLR(optimizer, 1))
    state.begin()
    for number in range(3):
        with state:
            step(model, optimizer)
        if number == 0:
            if schedule is None:
                average.update_parameters(model)
            else:
                schedule.step()
            with pytest.warns(UserWarning, match=f"^{late} changed .*outside of one.*`with life.update") as told, state:
                step(model, optimizer)
            assert told[0].filename == __file__


class Loader:
    """As torchdata's: an iteration begins at the start, but for the first after `load_state_dict`."""

    def __init__(self) -> None:
        self.at, self.is_told = 0, False

    def __iter__(self) -> Iterator[int]:
        self.at, self.is_told = self.at if self.is_told else 0, False
        while self.at < 10:
            self.at += 1
            yield self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, told: dict[str, int]) -> None:
        self.at, self.is_told = told["at"], True


def test_a_data_loader_gives_the_batch_again_that_no_update_has_seen(state: State) -> None:
    """And goes on there, in the rank that has read from it as in one that is given its state."""
    seen = []
    for trained in (3, 0, 2):
        loader = state.keep("loader", Loader)
        state.begin()
        batches = iter(loader)
        for _ in range(trained):
            seen.append(next(batches))
            with state:
                pass
        next(batches)
        assert state._tree()["kept"]["loader"] == {"at": len(seen) + 1}
        state.end_life()
    assert seen == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("what", ["a learning rate's schedule", "a GradScaler", "nothing"])
def test_what_moves_with_the_optimizer_s_steps_and_is_not_kept_is_named(state: State, what: str) -> None:
    """The next life would make it anew, and train with the first rates, or scale, once more."""
    model, optimizer = begun(state)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0, enabled=what == "a GradScaler")
    if what == "a learning rate's schedule":
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    scaler.scale(model(torch.randn(4, 3)).pow(2).mean()).backward()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        scaler.step(optimizer)
        optimizer.step()
    assert [str(one.message).partition(" moves ")[0] for one in told] == ([what] if what != "nothing" else [])
    assert all(one.filename == __file__ for one in told) and state.step == 2


def test_what_is_made_anew_in_each_life_is_filled_with_what_was_kept(state: State) -> None:
    """And its step is no update: a trainer's may have forward and backward within it."""
    for life in range(2):
        model = state.keep("model", module, anew=True)
        optimizer = state.keep("optimizer", lambda model=model: torch.optim.Adam(model.parameters()), anew=True)
        state.begin()
        if life == 0:
            first, before = (model, optimizer), model.state_dict()
            with state:
                step(model, optimizer)
            assert state.step == 1
            optimizer.register_step_pre_hook(lambda *_: state.end_life())  # another rank has failed by then
            with pytest.raises(RuntimeError, match="cut short"):
                optimizer.step(cut_short)
    assert (state.came_from, state.step) == ("memory", 1)
    assert model is not first[0] and optimizer is not first[1]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [float(one["step"]) for one in optimizer.state_dict()["state"].values()] == [1.0] * 4


def test_an_update_that_the_gpu_has_not_done_when_the_round_is_aborted_is_none() -> None:
    gpu, asked = Gpu(), threading.Event()
    state = State(asked.is_set, gpu)
    model, optimizer = begun(state)
    step(model, optimizer)
    gpu.is_done = False
    step(model, optimizer)
    asked.set()
    state.settle()
    state.end_life()
    begun(state)
    assert state.came_from == "script"


def test_an_update_that_the_gpu_has_done_counts() -> None:
    state = State(lambda: True, Gpu())
    step(*begun(state))
    state.settle()
    state.end_life()
    begun(state)
    assert (state.came_from, state.step) == ("memory", 1)


def test_what_torch_s_own_dicts_know_beside_their_items_is_kept(state: State) -> None:
    """The versions of a module's parts: by them an older state is read."""
    begun(state)
    assert state._kept["model"].dump()._metadata["1"] == {"version": 2}


def test_a_life_that_ends_before_it_began_leaves_what_the_one_before_has_left(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sharded objects are made anew in each life: those that have not been filled yet are not what is kept."""
    model, optimizer = begun(state)
    step(model, optimizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    monkeypatch.setattr(sharded, "is_sharded", lambda value: True)
    state.end_life()
    assert state.keep("model", module) is not model
    state.end_life()
    again, _ = begun(state)
    assert (state.came_from, state.step) == ("memory", 1)
    assert again is not model and all(torch.equal(value, before[name]) for name, value in again.state_dict().items())


@pytest.mark.parametrize("wrapper", ["DistributedDataParallel", "FullyShardedDataParallel"])
def test_a_wrapper_with_a_process_group_inside_is_refused(state: State, wrapper: str) -> None:
    kind = type(wrapper, (torch.nn.Linear,), {})
    with pytest.raises(TypeError, match=f"model is a {wrapper}, which ends with the round: keep the module inside it"):
        state.keep("model", lambda: kind(1, 1))


def test_what_can_not_tell_its_state_is_refused_with_the_way_out(state: State) -> None:
    with pytest.raises(TypeError, match=r"loader is a list without state_dict\(\).* say dump= and load="):
        state.keep("loader", list)


def test_anything_is_kept_by_a_dump_and_a_load_of_the_script_s(state: State) -> None:
    place = state.keep("place", lambda: [1], dump=lambda it: {"at": it[0]}, load=lambda it, told: it.__setitem__(0, told["at"]))
    state.begin()
    with state:
        place[0] = 5
    state.end_life()
    assert state.keep("place", lambda: [1]) is place and state.begin() == 1 and place == [5]


def test_what_is_kept_is_known_before_the_beginning(state: State) -> None:
    begun(state)
    with pytest.raises(RuntimeError, match="keep late: before begin"):
        state.keep("late", module)


def test_a_value_is_set_after_the_beginning(state: State) -> None:
    with pytest.raises(RuntimeError, match="is set before begin"):
        state["epoch"] = 1


def test_a_life_that_keeps_something_new_does_not_go_on_in_part(state: State) -> None:
    step(*begun(state))
    state.end_life()
    state.keep("teacher", module)
    begun(state)
    assert state.came_from == "script"


def test_another_part_of_the_model_is_another_object(state: State) -> None:
    one = state.keep("model", module, part="stage 0")
    state.begin()
    state.end_life()
    assert state.keep("model", module, part="stage 1") is not one
    state.begin()
    assert state.came_from == "script"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> memoryview:
    """What the agent reads."""
    words = memoryview(array.array("Q", bytes(layout.SIZE)))
    monkeypatch.setattr(this_worker, "words", words)
    return words


@pytest.fixture
def mesh() -> Iterator[Callable[[int], Any]]:
    """The mesh of rank 0 of so many ranks, whose processes nobody starts."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist = torch.distributed

    def made(size: int) -> Any:
        if dist.is_initialized():
            dist.destroy_process_group()
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        return dist.device_mesh.init_device_mesh("cpu", (size,))

    yield made
    if dist.is_initialized():
        dist.destroy_process_group()


def spread_over(mesh: Any, placement: Any) -> Any:
    from torch.distributed.tensor import distribute_module, distribute_tensor

    def spread(name: str, one: Any, mesh: Any) -> None:
        for key, value in list(one.named_parameters(recurse=False)):
            one.register_parameter(key, torch.nn.Parameter(distribute_tensor(value.data, mesh, [placement])))

    return distribute_module(torch.nn.Linear(4, 4), mesh, spread)


def test_the_agent_is_told_whether_the_part_is_all_of_the_model(page: memoryview, mesh: Callable[[int], Any]) -> None:
    from torch.distributed.tensor import Replicate, Shard

    def is_all(build: Callable[[], Any], part: str = "") -> bool:
        state = State()
        state.keep("model", build, part=part)
        state.begin()
        return bool(page[layout.HELD] & layout.HELD_ALL)

    assert is_all(module) and not is_all(module, "stage 0")
    one = mesh(1)
    assert is_all(lambda: spread_over(one, Replicate())) and not is_all(lambda: spread_over(one, Shard(0)))


def test_a_rank_that_has_not_begun_says_nothing_of_what_it_holds(page: memoryview, state: State) -> None:
    state.keep("model", module)
    state.end_life()
    state.tell()
    assert page[layout.HELD] == 0
    begun(state)
    state.end_life()
    state.tell()
    assert page[layout.HELD] & layout.HELD_WHOLE and page[layout.HELD_PART] == state._part


@pytest.mark.parametrize("size", [1, 4])
def test_the_shard_of_a_mesh_of_another_size_is_another_part(mesh: Callable[[int], Any], size: int) -> None:
    """A job that shrinks or grows: rank 0 is at the same place, and has other rows."""
    from torch.distributed.tensor import Shard

    def part(size: int) -> int:
        return sharded.part(["model"], [spread_over(mesh(size), Shard(0)).state_dict()])

    assert part(size) != part(2) == part(2)


def test_several_ranks_have_to_meet_before(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match=r"call torch\.distributed\.init_process_group"):
        begun(state)
