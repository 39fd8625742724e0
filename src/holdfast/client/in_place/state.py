"""What does a rank keep in its memory from one life to the next, and how does a newcomer get it from a rank that lives?

    def train(life):
        dist.init_process_group()
        state = life.state
        model = state.keep("model", Net)                                          # made once in each process
        optimizer = state.keep("optimizer", lambda: Adam(model.parameters()))
        for step in range(state.begin(load_checkpoint), STEPS):                   # all ranks: from the same step
            loss(model, step).backward()
            with life.update():
                optimizer.step()

    kept ──begin──▶ whole at step n ──update──▶ torn ──its end──▶ whole at step n + 1
                        ▲                          │ another rank fails
                        └── given by another rank ─┘

A state is *whole* between two updates, and *torn* within one. In `begin` all ranks say what they have, over the script's
process group, and come to the same answer (`core.page.in_memory`): the newest step of which every part is whole in some rank.
Who has it goes on with the objects that it has; who has not is given it. Where that is not enough, the script's own way is
taken.
"""

from __future__ import annotations

import os
import sys
from _warnings import warn
from copy import deepcopy

from holdfast.client import stash
from holdfast.client.in_place import sharded, transfer
from holdfast.client.in_place.as_built import as_built
from holdfast.client.in_place.between import Between
from holdfast.client.in_place.device import Device
from holdfast.client.worker import this_worker
from holdfast.core.page import layout
from holdfast.core.page.in_memory import Has, agree

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import FrameType, TracebackType
    from typing import Any, TypeVar

    from holdfast.core.page.in_memory import Generation

    T = TypeVar("T")

__all__ = ["State"]

WRAPPERS = ("DistributedDataParallel", "FullyShardedDataParallel")
"""Classes of torch's whose objects have a process group inside, which ends with the round."""


class Kept:
    """One object, and how it is made, told and filled."""

    def __init__(
        self, name: str, build: Callable[[], Any], dump: Any, load: Any, part: str, left: Any, anew: bool = False
    ) -> None:
        """Makes the object. TypeError: it cannot be kept."""
        self.name, self.build, self.dump_with, self.load_with, self.part = name, build, dump, load, part
        self.is_anew = anew  # The object ends with the life, and its state stays.
        self.is_new = True  # Made in this life.
        self.left = left  # What an earlier life has left of it, where the object itself could not be kept.
        self.is_watched = False  # Its steps are updates.
        self.was_at: Any = None  # Where it was read to as the last update ended, if it is read.
        self.object: Any = self._made()
        self.put_back = as_built(self.object)

    def _made(self) -> Any:
        made = self.build()
        if any(kind.__name__ in WRAPPERS for kind in type(made).__mro__):
            raise TypeError(f"{self.name} is a {type(made).__name__}, which ends with the round: keep the module inside it")
        if self.dump_with is None and not (hasattr(made, "state_dict") and hasattr(made, "load_state_dict")):
            told = f"{self.name} is a {type(made).__name__} without state_dict() and load_state_dict()"
            raise TypeError(f"{told}: it cannot go on where it was; say dump= and load=, or make it anew in each life")
        return made

    def watch(self, before: Callable[..., None], after: Callable[..., None]) -> None:
        """Call these before and after each step, if it is an optimizer."""
        if not self.is_watched and not self.is_anew and hasattr(self.object, "register_step_pre_hook"):
            self.object.register_step_pre_hook(before)
            self.object.register_step_post_hook(after)
            self.is_watched = True

    def take_what_is_left(self, is_wanted: bool) -> None:
        """Put what an earlier life has left into the object, or forget that."""
        if self.left is not None and is_wanted:
            self.load(self.left)
        self.left = None

    def note(self) -> None:
        """An update has ended, or the life begins. A data loader's batch that comes after it is to come again."""
        if self.is_read:
            self.was_at = deepcopy(self.dump())

    def end_life(self, is_whole: bool) -> None:
        self.is_new = False
        if self.is_read:
            self.left = self.was_at if is_whole else None
        # What torch's GradScaler knows between `step` and `update` is not in its state_dict.
        getattr(self.object, "_per_optimizer_states", {}).clear()
        if self.is_module:
            self.object.zero_grad(set_to_none=True)

    def stay(self) -> None:
        """The object goes on in the next life."""
        self.put_back()
        self.is_watched = False

    def let_go(self, is_whole: bool) -> None:
        """The object ends with the round; what is in this rank's memory stays, if it is whole: what an earlier life left, as
        long as this one has not taken it."""
        if not is_whole:
            self.left = None
        elif self.left is None:
            self.left = self.dump()
        self.object, self.put_back = None, as_built(None)

    def dump(self) -> Any:
        """Its state, with this rank's part of what is sharded."""
        return self._told(self.object)

    def _told(self, one: Any) -> Any:
        state = self._dump_of(one)
        return sharded.local(state) if sharded.is_sharded(state) else state  # torch's own dicts know more than their items

    def _dump_of(self, one: Any) -> Any:
        return one.state_dict() if self.dump_with is None else self.dump_with(one)

    def is_sharded(self) -> bool:
        return sharded.is_sharded(self._dump_of(self.object))

    def load(self, state: Any) -> None:
        """Fill the object with `state`, as `dump` tells it."""
        if self.load_with is not None:
            self.load_with(self.object, state)
        elif self.is_module:
            own = self.object.state_dict()
            if sharded.is_sharded(own):
                sharded.fill(own, state)
            elif not all(sharded.is_same(value, state.get(name)) for name, value in own.items()):
                self.object.load_state_dict(state)
        elif hasattr(self.object, "param_groups"):
            self._fill_optimizer(state)
        else:
            self.object.load_state_dict(state)

    def _fill_optimizer(self, state: Any) -> None:
        told, own = len(state["param_groups"]), len(self.object.param_groups)
        if told != own:
            why = f"{self.name}: the state to go on with has {told} parameter groups, and the one made here has {own}"
            raise ValueError(f"{why}; add in its build= what the script adds later, or say dump= and load=")
        self.object.load_state_dict(sharded.spread(self.object, state))

    def start_over(self) -> None:
        """As if it had been made just now, in the same object: the script has that already."""
        self.load(self._told(self.build()))

    @property
    def is_read(self) -> bool:
        """A data loader, which goes on between two updates, and begins from its start unless it is told where it was."""
        if self.is_module or self.is_anew or self.dump_with is not None:
            return False
        return hasattr(self.object, "__iter__")

    @property
    def is_module(self) -> bool:
        """It has parameters, and buffers that change by themselves."""
        return hasattr(self.object, "named_buffers")


class State:
    """What this process keeps. For the main thread."""

    def __init__(self, is_asked: Callable[[], bool] = lambda: False, device: Device | None = None) -> None:
        """`is_asked()`: whether this rank is to let go of its round. `device`: CUDA's stand-in, in tests."""
        self._is_asked = is_asked
        self._device = device if device is not None else Device()
        self._kept: dict[str, Kept] = {}
        self._names: list[str] = []  # Of what this life keeps.
        self._values: dict[str, Any] = {}
        self._generation: Generation | None = None  # Of what is kept. None: it is torn, or there is nothing.
        self._step = 0
        self._part: int | None = None  # None: it is not known before the first `begin`.
        self._is_all = False  # That part is all of the model, in all ranks.
        self._round = 0
        self._stash_every = 0
        self._begun = False
        self._depth = 0  # So many updates are open, one within the other.
        self._by_itself = False  # The open one is an optimizer's step.
        self._is_simple = False  # A step of the optimizer changes all that is kept, and nothing else does.
        self._mark: Any = None  # Behind the last update.
        self._buffers: list[tuple[Any, Any]] = []
        """Of modules, each with a copy: a forward changes them before the update, and not always so that torch counts it."""
        self._between = Between(())
        self._updates = 0  # Of this life.
        self._warned: set[str] = set()
        self._source = layout.NO_STATE

    # --- the script's ---------------------------------------------------------------------------------------------------

    def keep(
        self,
        name: str,
        build: Callable[[], T],
        *,
        dump: Callable[[T], Any] | None = None,
        load: Callable[[T, Any], object] | None = None,
        part: str = "",
        anew: bool = False,
    ) -> T:
        """The object of that name: the one that this process has, or what `build()` returns. Before `begin`.

        A module, an optimizer, or whatever has `state_dict` and `load_state_dict`; for anything else `dump(object)` returns
        tensors and plain values, and `load(object, them)` puts them back. `part`: which part of the model it is, where ranks
        hold different ones that are no DTensors; ranks with the same hold the same bytes. `anew`: `build()` is called in each
        life, and what it returns is filled by `begin`: for an object that refers to what ends with the round. Whoever says
        that says what an update is, too: its `step()` is not watched.

        TypeError: it cannot be kept; it says why. RuntimeError: after `begin`.
        """
        if self._begun:
            raise RuntimeError(f"keep {name}: before begin, so that all ranks know what there is to go on with")
        kept = self._kept.get(name)
        if kept is None or kept.object is None or kept.part != part:
            left = kept.left if kept is not None and kept.part == part else None
            if left is None:
                self._generation = None  # what an earlier life has left is not all of it
            self._kept[name] = kept = Kept(name, build, dump, load, part, left, anew)
        if name not in self._names:
            self._names.append(name)
        return kept.object  # type: ignore[no-any-return]

    def begin(self, otherwise: Callable[[], int | None] | None = None, *, stash_every: int = 0) -> int:
        """The step to go on from, the same in all ranks; what is kept is filled with its state. All ranks call it, after they
        have joined the process group, and before they wrap the module.

        Where no rank has the state any more, the newest stash is taken (with `stash_every`: one is made each so many updates);
        without one `otherwise()` is called in all ranks: it restores a checkpoint into what is kept, and returns its step
        (None: 0). Unstashable: something kept cannot be told in bytes; it says where. RuntimeError: there is no process group.
        """
        if self._begun:
            return self._step
        if int(os.environ.get("WORLD_SIZE") or 1) > 1 and not transfer.has_group():
            raise RuntimeError("life.state.begin() asks all ranks: call torch.distributed.init_process_group() before it")
        self._kept = {name: self._kept[name] for name in self._names}
        self._part = self._know_part()
        self._tear_if_moved("load pretrained weights in build=, or in the function that begin() is given", _of_script() - 1)
        self._round, self._stash_every = int(os.environ.get("HOLDFAST_ROUND") or 0), stash_every
        told = transfer.gather([*(self._generation or (0, -1)), self._part])
        self._is_all = len({part for _, _, part in told}) == 1 and not self._is_divided()
        found = agree([Has((round, step) if step >= 0 else None, part) for round, step, part in told])
        if found.generation is None:
            self._generation = None
            for kept in self._objects():
                kept.take_what_is_left(False)
            self._start_over(otherwise)
        else:
            self._source, self._step = layout.FROM_MEMORY, found.generation[1]
            mine, self._generation = self._generation, None  # torn, while it is put in place
            for kept in self._objects():
                kept.take_what_is_left(mine == found.generation)
            self._generation = mine
            self._exchange(found.moves)
        self._watch()
        self._begun = True
        self._generation = (self._round, self._step)
        this_worker.agreed(self._step, self._source)
        self.tell(is_over=False)
        return self._step

    @property
    def step(self) -> int:
        """How many updates what is kept has seen."""
        return self._step

    @property
    def came_from(self) -> str:
        """Where this life has it from: `memory` · `rank N` · `stash` · `script`; empty before `begin`."""
        return layout.source_in_words(self._source)

    def __getitem__(self, name: str) -> Any:
        """A plain value: it is kept, and given to newcomers, with the rest. KeyError: there is none."""
        return self._values[name]

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __setitem__(self, name: str, value: Any) -> None:
        if not self._begun and self._source != layout.FROM_SCRIPT:
            raise RuntimeError(f"state[{name!r}] is set before begin(), which says what it is")
        self._values[name] = value

    def get(self, name: str, default: Any = None) -> Any:
        """The same; `default`: there is none."""
        return self._values.get(name, default)

    # --- an update ------------------------------------------------------------------------------------------------------

    def __enter__(self) -> State:
        """An update: around all that changes what is kept. See `Life.update`."""
        if self._depth == 0 and self._begun:
            self._look_between()
        self._generation = None
        self._depth += 1
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None and self._depth == 1 and self._begun:
                self._updated()
        finally:
            self._depth -= 1

    def _updated(self) -> None:
        for buffer, copy in self._buffers:
            copy.copy_(buffer)
        self._step, self._updates = self._step + 1, self._updates + 1
        self._between.note()
        for kept in self._objects():
            kept.note()
        self._mark = self._device.mark()
        self._generation = (self._round, self._step)
        if self._mark is not None and self._is_asked():
            self.settle()
        if self._stash_every and self._step % self._stash_every == 0:
            stash.save(self._step, {"part": self._part, **self._tree()})

    def _watch(self) -> None:
        """An optimizer's step is an update, where that is all there is to it."""
        for kept in self._objects():
            kept.watch(self._before_step, self._after_step)
            kept.note()
        self._is_simple = _is_simple(self._objects())
        self._buffers = [(buffer, buffer.clone()) for buffer in self._all_buffers()]
        self._between, self._updates = Between([(kept.name, kept.object) for kept in self._objects()]), 0

    def _look_between(self) -> None:
        """Say once what the script changes outside of its updates. Weights are looked at less and less often: the GPU waits."""
        moved = self._between.moved_schedules()
        if self._updates & self._updates - 1 == 0:
            moved += self._between.moved_weights()
        if moved:
            torn = "who is interrupted in between goes on with half of it, or has no whole state"
            helps = "put all that changes it into the `with life.update():` of its step"
            self._warn_once(f"{', '.join(moved)} changed after begin() or the last update, outside of one: {torn}; {helps}")

    def _tear_if_moved(self, helps: str, level: int) -> None:
        """No rank is to go on with weights that no update has made."""
        if self._generation is not None and (moved := self._between.moved_weights()):
            self._generation = None
            torn = "outside of an update, so that this rank has no whole state for the next life"
            warn(f"the weights of {', '.join(moved)} changed {torn}; {helps}", stacklevel=level + 1)

    def _warn_once(self, told: str) -> None:
        if told not in self._warned:
            self._warned.add(told)
            warn(told, stacklevel=_of_script())

    def _before_step(self, optimizer: Any, *_: object) -> None:
        if self._begun and self._is_simple and not self._updates and (moved := _companions(optimizer)):
            lost = "after a failure it begins from its start, and the loss is another, without an error"
            helps = "keep it (`life.state.keep`), and put `with life.update():` around all of a step"
            self._warn_once(f"{' and '.join(moved)} moves with the optimizer's steps, and is not kept: {lost}; {helps}")
        if self._depth or not self._begun:
            return
        self._by_itself = self._is_simple and not self._values
        if self._by_itself:
            self.__enter__()
            return
        self._generation = None
        names = ", ".join(self._names + list(self._values))
        lost = "no rank has a whole state any more, and after a failure all go back to the stash or the checkpoint"
        helps = "put all that changes it into one `with life.update():`"
        self._warn_once(f"more is kept than what a step of one optimizer changes ({names}): {lost}; {helps}")

    def _after_step(self, *_: object) -> None:
        if self._by_itself:
            self._by_itself = False
            self.__exit__(None, None, None)

    # --- a life ---------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """The round is about to be aborted: an update that the GPU has not done by now is none. From any thread."""
        if not self._device.has_reached(self._mark):
            self._generation = None

    def in_update(self) -> bool:
        """Whether an update is under way: it is soon over, if it is let."""
        return self._depth > 0

    def end_life(self) -> None:
        """This life is cut short, and another follows."""
        self._tear_if_moved("a validation's weights (an EMA's) belong into a module of their own", 2)
        is_whole = self._generation is not None
        copies, self._buffers = [copy for _, copy in self._buffers], []
        for buffer, copy in zip(self._all_buffers(), copies):  # those of now: a framework may have moved them
            if is_whole:
                buffer.copy_(copy)
        self._begun, self._depth, self._by_itself, self._mark, self._source = False, 0, False, None, layout.NO_STATE
        self._names.clear()
        alive = [kept for kept in self._kept.values() if kept.object is not None]
        # All that refers to meshes ends with them. FSDP's own hooks, which `stay` takes away, make its parameters parts again.
        meshes_end = any(kept.is_sharded() for kept in alive if kept.is_module)
        for kept in alive:
            kept.end_life(is_whole)
            if meshes_end or kept.is_anew:
                kept.let_go(is_whole)
                self._between = Between(())
            else:
                kept.stay()

    def tell(self, *, is_over: bool = True) -> None:
        """Tell the agent which part this rank keeps, if it knows that; and what it has of it, where its life is over."""
        if self._part is None:
            return
        generation = self._generation if is_over else None
        this_worker.holds(self._part, generation, stashes=self._stash_every > 0, is_all=self._is_all)

    def forget(self) -> None:
        """Nothing of this process's is of use to its next life."""
        self._generation = None
        self._kept.clear()

    # --- beginning ------------------------------------------------------------------------------------------------------

    def _objects(self) -> list[Kept]:
        return [self._kept[name] for name in self._names]

    def _modules(self) -> list[dict[str, Any]]:
        return [kept.object.state_dict() for kept in self._objects() if kept.is_module]

    def _all_buffers(self) -> list[Any]:
        return [one for kept in self._objects() if kept.is_module for _, one in kept.object.named_buffers()]

    def _tree(self) -> dict[str, Any]:
        return {"kept": {kept.name: kept.dump() for kept in self._objects()}, "values": self._values}

    def _load(self, tree: dict[str, Any]) -> None:
        for kept in self._objects():
            kept.load(tree["kept"][kept.name])
        self._values = dict(tree["values"])

    def _know_part(self) -> int:
        """Which part of the model this rank holds. What it has of another is of no use."""
        part = sharded.part(sorted(f"{kept.name} {kept.part}" for kept in self._objects()), self._modules())
        if part != self._part:
            self._is_all, self._generation = False, None
        return part

    def _is_divided(self) -> bool:
        """Whether this rank holds what other ranks, or another number of ranks, hold differently."""
        return any(kept.part for kept in self._objects()) or sharded.is_divided(self._modules())

    def _exchange(self, moves: Sequence[tuple[int, int]]) -> None:
        """Give to whom this rank is to give, or take."""
        me = int(os.environ.get("RANK") or 0)
        for giver, taker in moves:
            if giver == me:
                transfer.send(self._tree(), taker)
            elif taker == me:
                self._generation = None  # torn from here on
                self._load(transfer.receive(giver, self._tree()))
                self._source = layout.FROM_RANK + giver

    def _start_over(self, otherwise: Callable[[], int | None] | None) -> None:
        """From the stash, or as the script itself does it, in all ranks."""
        for kept in self._objects():
            if not kept.is_new:
                kept.start_over()
        self._values = {}
        found = stash.latest() if self._stash_every else None
        is_ours = found is not None and isinstance(found[1], dict) and found[1].get("part") == self._part
        if found is not None and all(one for (one,) in transfer.gather([int(is_ours)])):
            self._source, self._step = layout.FROM_STASH, found[0]
            self._load(found[1])
            return
        self._source, self._step = layout.FROM_SCRIPT, 0
        if otherwise is not None:
            self._step = otherwise() or 0


def _of_script() -> int:
    """Which frame, counted from who asks, is the script's: above it are torch's, as many as wrap an optimizer's step."""
    level, frame = 2, sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(("torch.", __name__)):
        level, frame = level + 1, frame.f_back
    return level


def _companions(optimizer: Any) -> list[str]:
    """What moves with the optimizer's steps, as torch shows it: a schedule wraps its `step`, and a scaler calls it."""
    names = ["a learning rate's schedule"] if hasattr(optimizer.step, "_wrapped_by_lr_sched") else []
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("torch."):
        if frame.f_globals["__name__"] == "torch.amp.grad_scaler" and frame.f_locals["self"].is_enabled():
            return [*names, "a GradScaler"]
        frame = frame.f_back
    return names


def _is_simple(those: Sequence[Kept]) -> bool:
    """One optimizer is kept, and modules that it changes, or one: a copy that the script moves by itself is none of these."""
    modules = [kept.object for kept in those if kept.is_module]
    others = [kept.object for kept in those if not kept.is_module]
    if len(others) != 1:
        return False
    changed = {id(one) for group in getattr(others[0], "param_groups", ()) for one in group["params"]}
    return len(modules) == 1 or all(id(one) in changed for module in modules for one in module.parameters())
