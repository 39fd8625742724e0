"""NVRx's local checkpoints by its own names: files of each rank's own, whole on all or not there, and cliques."""

from __future__ import annotations

import pickle
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def local() -> Any:
    pytest.importorskip("torch")
    from holdfast.checkpointing.local.ckpt_managers import local_manager

    return local_manager


def basic(**state: Any) -> Any:
    from holdfast.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict

    return BasicTensorAwareStateDict(state)


def layers(**tensors: Any) -> Any:
    """As a module's `state_dict()`."""
    made = OrderedDict(tensors)
    made._metadata = {"": {"version": 1}}  # type: ignore[attr-defined]
    return made


def test_what_is_saved_is_found_by_another_manager_and_the_one_before_is_gone(local: Any, tmp_path: Path) -> None:
    import torch

    manager = local.LocalCheckpointManager(tmp_path / "new" / "folder", session_id="run")
    assert manager.find_latest() == -1
    with pytest.raises(local.CheckpointingException, match="find_latest"):
        manager.load()
    weight = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    for iteration in (1, 2):
        state = basic(
            model=layers(w=weight * iteration, e=torch.empty(0), flag=torch.tensor(True)), step=iteration, lr=[0.1, (1, "x")]
        )
        assert manager.save(state, iteration) is None
    assert [path.name for path in manager.local_ckpt_dir.iterdir()] == ["iter_0000002_0_local.pt"]
    again = local.LocalCheckpointManager(tmp_path / "new" / "folder", session_id="run")
    assert again.find_latest() == 2 and local.LocalCheckpointManager(tmp_path).find_latest() == -1
    loaded, ckpt_id = again.load()
    found = loaded.to_state_dict()
    assert ckpt_id == (2, 0, "run") and found["lr"] == [0.1, (1, "x")] and found["step"] == 2
    assert torch.equal(found["model"]["w"], weight * 2) and found["model"]["w"].dtype == torch.bfloat16
    assert found["model"]["flag"].item() is True and found["model"]["e"].numel() == 0
    assert type(found["model"]) is OrderedDict and found["model"]._metadata == {"": {"version": 1}}
    found["model"]["w"].zero_()  # its own, not the file's
    assert torch.equal(again.load()[0].to_state_dict()["model"]["w"], weight * 2)
    with pytest.raises(AssertionError, match="is no later"):
        again.save(basic(step=1), 1)


def test_a_state_of_plain_values_and_tensors_is_neither_pickled_nor_unpickled(
    local: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    for name in ("save", "load"):
        monkeypatch.setattr(torch, name, lambda *_, **__: pytest.fail("torch pickles"))
    monkeypatch.setattr(pickle, "loads", lambda *_: pytest.fail("pickle"))
    manager = local.LocalCheckpointManager(tmp_path)
    manager.save(basic(w=torch.ones(3), rng=b"123", nested=[{"a": None}]), 7)
    assert manager.find_latest() == 7
    found = manager.load()[0].to_state_dict()
    assert torch.equal(found["w"], torch.ones(3)) and found["rng"] == b"123" and found["nested"] == [{"a": None}]


class Own:
    """What a script has in its state."""

    def __init__(self, value: int) -> None:
        self.value = value


def test_what_only_the_script_knows_is_saved_too(local: Any, tmp_path: Path) -> None:
    manager = local.LocalCheckpointManager(tmp_path)
    manager.save(basic(own=Own(5)), 1)
    assert manager.find_latest() == 1 and manager.load()[0].to_state_dict()["own"].value == 5


@pytest.mark.parametrize("cut", [0, 40, 5000])
def test_a_file_that_is_not_whole_is_said_to_be_none(local: Any, tmp_path: Path, cut: int) -> None:
    import torch

    manager = local.LocalCheckpointManager(tmp_path)
    manager.save(basic(w=torch.ones(1000)), 1)
    (path,) = manager.local_ckpt_dir.iterdir()
    path.write_bytes(path.read_bytes()[:cut] or b"holdfast state 1")
    manager.find_latest()
    with pytest.raises(local.CheckpointingException, match="cannot be read"):
        manager.load()


def test_a_part_that_a_killed_rank_has_left_is_written_anew_and_one_that_is_being_written_is_not(
    local: Any, tmp_path: Path
) -> None:
    import fcntl

    manager = local.LocalCheckpointManager(tmp_path)
    path = manager._local_ckpt_path_from_id(manager._ckpt_id(1), True)
    path.parent.mkdir()
    path.write_bytes(b"half")
    with path.open("ab") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(local.SameMachineReplicationException):
            manager.save(basic(a=1), 1)
    path.write_bytes(b"half")
    manager.save(basic(a=1), 1)
    assert manager.find_latest() == 1 and manager.load()[0].to_state_dict() == {"a": 1}


def test_while_it_is_written_the_script_goes_on_with_its_tensors(local: Any, tmp_path: Path) -> None:
    import torch

    from holdfast.checkpointing.async_ckpt.core import AsyncCallsQueue

    manager, queue, weight, ended = local.LocalCheckpointManager(tmp_path), AsyncCallsQueue(), torch.ones(4), []
    request = manager.save(basic(w=weight), 3, is_async=True)
    weight.zero_()
    request.add_finalize_fn(lambda: ended.append("ended"))
    assert queue.schedule_async_request(request) == 0 and queue.maybe_finalize_async_calls(blocking=True) == [0]
    assert ended == ["ended"] and queue.get_num_unfinalized_calls() == 0
    assert manager.find_latest() == 3 and torch.equal(manager.load()[0].to_state_dict()["w"], torch.ones(4))
    queue.schedule_async_request(manager.save(basic(w=object), 4, is_async=True)._replace(async_fn=lambda *_: 1 / 0))
    with pytest.raises(local.CheckpointingException, match=r"iteration 4: the last complete one is 3"):
        queue.close()
    assert manager.find_latest() == 3


def test_what_is_under_way_is_forgotten_as_a_life_is_cut_short() -> None:
    """Not all ranks are left that would finalize it together."""
    from holdfast.checkpointing.async_ckpt.core import AsyncCallsQueue, AsyncRequest
    from holdfast.inprocess.abort import AbortPersistentCheckpointProcesses
    from holdfast.inprocess.state import State

    may_end, finalized = threading.Event(), list[str]()
    queue, state = AsyncCallsQueue(), State(rank=0, world_size=2).freeze()
    queue.schedule_async_request(AsyncRequest(may_end.wait, (30,), [lambda: finalized.append("it")]))
    assert queue in AsyncCallsQueue.get_instances() and queue.get_num_unfinalized_calls() == 1
    assert AbortPersistentCheckpointProcesses()(state) is state and queue.get_num_unfinalized_calls() == 0
    may_end.set()
    assert queue.maybe_finalize_async_calls(blocking=True) == [] and not finalized


def test_a_hollow_state_knows_how_its_tensors_were() -> None:
    import torch

    state = basic(a=torch.ones(2, 3), b=[torch.zeros(1, dtype=torch.int8)], c=1)
    taken = state.pop_tensors()
    assert state.is_hollow and [list(one.shape) for one in taken] == [[2, 3], [1]]
    state.init_tensors()
    assert [(list(one.shape), one.dtype) for one in state.tensors] == [([2, 3], torch.float32), ([1], torch.int8)]
    state.pop_tensors()
    state.insert_tensors(taken)
    assert torch.equal(state.to_state_dict()["a"], torch.ones(2, 3)) and not state.is_hollow


def test_cliques_are_apart_as_far_as_a_failure_reaches() -> None:
    from holdfast.checkpointing.local.replication.group_utils import parse_group_sequence

    assert parse_group_sequence(2, 2, 8) == [(0, 2), (1, 3), (4, 6), (5, 7)]
    assert parse_group_sequence(1, 3, 6) == [(0, 1, 2), (3, 4, 5)]
    with pytest.raises(AssertionError, match="6 ranks cannot be split"):
        parse_group_sequence(2, 2, 6)


CLIQUES = """
import os, pathlib, shutil, sys
import torch, torch.distributed as dist
from holdfast.checkpointing.local.base_state_dict import TensorAwareStateDict
from holdfast.checkpointing.local.basic_state_dict import BasicTensorAwareStateDict
from holdfast.checkpointing.local.ckpt_managers.base_manager import CheckpointingException
from holdfast.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
from holdfast.checkpointing.local.replication.group_utils import GroupWrapper
from holdfast.checkpointing.local.replication.strategies import LazyCliqueReplicationStrategy, NoReplicasAvailableError

class Mine(BasicTensorAwareStateDict):
    "A class of the script's own: it is pickled."

root, kind = sys.argv[1], {"plain": BasicTensorAwareStateDict, "own": Mine}[sys.argv[2]]
strategy = LazyCliqueReplicationStrategy(replication_jump=2, replication_factor=2)
dist.init_process_group("gloo")
rank = dist.get_rank()
manager = LocalCheckpointManager(root, repl_strategy=strategy)
full = lambda: torch.full((3, rank + 1), float(rank))
state = lambda: kind({"w": full(), "none": torch.empty(0, 2), "rank": rank, "b": [torch.tensor(rank > 1)]})
manager.save(state(), 10)
other = rank ^ 2
assert {path.name for path in manager.local_ckpt_dir.iterdir()} == {f"iter_0000010_{one}_local.pt" for one in (rank, other)}
dist.barrier()
if rank in (0, 3):  # of two cliques one rank each
    shutil.rmtree(manager.local_ckpt_dir)
dist.barrier()
manager = LocalCheckpointManager(root, repl_strategy=strategy)
assert manager.find_latest() == 10
loaded, ckpt_id = manager.load()
found = loaded.to_state_dict()
assert ckpt_id == (10, rank, "") and type(loaded) is kind and found["rank"] == rank, found
assert torch.equal(found["w"], full()) and found["none"].shape == (0, 2) and bool(found["b"][0]) == (rank > 1)
# Of one rank that cannot save, another has the part. Where its whole clique cannot, nobody has it, and the one before stays.
if rank == 1:
    manager._save = lambda *_: 1 / 0
manager.save(state(), 11)
assert manager.find_latest() == 11
if rank == 3:
    manager._save = lambda *_: 1 / 0
try:
    manager.save(state(), 12)
except CheckpointingException as error:
    assert "iteration 12: the last complete one is 11" in str(error), error
else:
    raise AssertionError("it should have failed")
dist.barrier()
assert not [path for path in manager.local_ckpt_dir.glob("iter_0000012*")]
# A whole clique is lost.
dist.barrier()
if rank in (0, 2):
    shutil.rmtree(manager.local_ckpt_dir)
dist.barrier()
again = LocalCheckpointManager(root, repl_strategy=strategy)
assert again.find_latest() == -1
group = GroupWrapper()
assert group.all_gather_batch([torch.tensor([rank])] * rank) == [[torch.tensor([one])] * one for one in range(4)]
os.write(1, f"done {rank}\\n".encode())  # at once: four ranks share it
dist.destroy_process_group()
"""


@pytest.mark.parametrize("kind", ["plain", "own"])
def test_a_rank_s_part_comes_from_its_clique_when_its_disk_is_lost(
    holdfast: Any, script: Any, tmp_path: Path, kind: str
) -> None:
    done = holdfast("run", "--nproc-per-node", 4, script(CLIQUES), tmp_path / "local", kind, timeout=100.0)
    assert done.returncode == 0, done.output
    assert sorted(done.stdout.split()) == sorted(["done"] * 4 + ["0", "1", "2", "3"])


@pytest.fixture
def trained(tmp_path: Path, local: Any) -> Any:
    """`trained(steps, newest)`: a Lightning trainer on the CPU, that keeps a local checkpoint each third step, and others each
    fourth, of which it says that they are of step `newest`; None: it keeps no local ones."""
    pl = pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: pip install 'holdfast[lightning]'")
    import torch

    from holdfast.ptl_resiliency.local_checkpoint_callback import HierarchicalCheckpointIO, LocalCheckpointCallback

    class Model(pl.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.layer, self.began = torch.nn.Linear(3, 1), -1

        def on_train_start(self) -> None:
            self.began = self.trainer.global_step

        def training_step(self, batch: Any, number: int) -> Any:
            return self.layer(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=0.1)

    def run(steps: int, newest: int | None, folder: str = "run") -> Any:
        saved = pl.callbacks.ModelCheckpoint(dirpath=tmp_path / folder, save_last=True, every_n_train_steps=4)
        callbacks = [saved] if newest is None else [saved, LocalCheckpointCallback(every_n_train_steps=3)]
        quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
        trainer = pl.Trainer(accelerator="cpu", devices=1, max_steps=steps, callbacks=callbacks, **quiet)
        manager = local.LocalCheckpointManager(tmp_path / "local")
        if newest is not None:
            wrap = HierarchicalCheckpointIO.get_partial_wrapper_constructor(manager, lambda path: newest)
            trainer.strategy.checkpoint_io = wrap(trainer.strategy.checkpoint_io)
        same = torch.utils.data.TensorDataset(torch.ones(30, 3))  # in each step: where the loader goes on is Lightning's
        model, data = Model(), torch.utils.data.DataLoader(same)
        trainer.fit(model, data, ckpt_path="last")
        return model, manager

    return run


@pytest.mark.timeout(300)
def test_a_lightning_trainer_goes_on_from_whichever_is_newer(trained: Any) -> None:
    import torch

    model, manager = trained(10, 8)
    assert model.began == 0 and manager.find_latest() == 9
    model, manager = trained(12, 8)
    assert model.began == 9 and manager.find_latest() == 12
    plain, _ = trained(12, None, "without")
    assert plain.began == 0 and torch.equal(model.layer.weight, plain.layer.weight)
    model, _ = trained(14, 1000)
    assert model.began == 12, "the trainer's own is said to be newer: last.ckpt"


TWO_RANKS = """
import logging, sys, warnings
import lightning.pytorch as pl, torch
from lightning.pytorch.strategies import DDPStrategy
from holdfast.checkpointing.local.ckpt_managers.local_manager import LocalCheckpointManager
from holdfast.ptl_resiliency.local_checkpoint_callback import HierarchicalCheckpointIO, LocalCheckpointCallback

STRATEGY

class Model(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer, self.began = torch.nn.Linear(3, 1), -1

    def on_train_start(self):
        self.began = self.trainer.global_step

    def training_step(self, batch, number):
        return self.layer(batch[0]).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)

warnings.simplefilter("ignore")
logging.disable(logging.WARNING)
for steps in (6, 8):
    own = pl.callbacks.ModelCheckpoint(dirpath=sys.argv[1] + "/own", every_n_train_steps=5, save_last=True)
    quiet = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False}
    strategy = SavesOnAllRanks() if sys.argv[2] == "all" else DDPStrategy()
    callbacks = [own, LocalCheckpointCallback(every_n_train_steps=3)]
    trainer = pl.Trainer(accelerator="cpu", devices=2, max_steps=steps, strategy=strategy, callbacks=callbacks, **quiet)
    manager = LocalCheckpointManager(sys.argv[1] + "/local")
    wrap = HierarchicalCheckpointIO.get_partial_wrapper_constructor(manager, lambda path: 5)
    trainer.strategy.checkpoint_io = wrap(trainer.strategy.checkpoint_io)
    model = Model()
    try:
        trainer.fit(model, torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(40, 3))), ckpt_path="last")
    except ValueError as error:
        sys.stdout.write(f"refused: {error}\\n")  # at once: two ranks write
        break
    sys.stdout.write(f"began at {model.began}\\n")
torch.distributed.destroy_process_group()
"""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("saves", ["all", "rank 0"])
def test_with_several_ranks_all_save_or_it_is_refused(holdfast: Any, script: Any, tmp_path: Path, saves: str) -> None:
    pytest.importorskip("lightning.pytorch", reason="Lightning is not installed: pip install 'holdfast[lightning]'")
    page = (Path(__file__).parents[2] / "docs/how-to/local-checkpoints.md").read_text()
    strategy = page[page.index("class SavesOnAllRanks") :].partition("```")[0]
    train = script(TWO_RANKS.replace("STRATEGY", strategy))
    done = holdfast("run", "--nproc-per-node", 2, train, tmp_path / "kept", saves, timeout=200.0)
    assert done.returncode == 0, done.output
    if saves == "all":
        assert done.stdout.count("began at 0") == 2 and done.stdout.count("began at 6") == 2, done.output
    else:
        assert done.stdout.count("of 2 ranks DDPStrategy has rank 0 alone save") == 2, done.output


def test_what_is_written_beside_the_training_is_not_what_the_optimizer_goes_on_with(trained: Any) -> None:
    import torch

    from holdfast.ptl_resiliency.local_checkpoint_callback import LOCAL_CKPT_OPTS_KEY, HierarchicalCheckpointIO

    _, manager = trained(3, 0)
    moment = torch.zeros(1)
    checkpoint = {"optimizer_states": [{"state": {0: {"exp_avg": moment}}}]}
    to = HierarchicalCheckpointIO(None, manager, lambda path: 0)
    to.save_checkpoint(checkpoint, None, {LOCAL_CKPT_OPTS_KEY: {"iteration": 5}})
    assert checkpoint["optimizer_states"][0]["state"][0]["exp_avg"] is moment and manager.find_latest() == 5
    with pytest.raises(ValueError, match="whose manager knows"):
        to.save_checkpoint(checkpoint, "/some/path", {LOCAL_CKPT_OPTS_KEY: {"iteration": 6}})


def test_dicts_and_lists_are_mapped_in_place_or_aside() -> None:
    from holdfast.fault_tolerance.dict_utils import dict_list_map_inplace, dict_list_map_outplace

    inner = [1, {"a": 2}]
    state = {"x": inner, "t": (3,)}
    assert dict_list_map_outplace(str, state) == {"x": ["1", {"a": "2"}], "t": "(3,)"} and inner == [1, {"a": 2}]
    assert dict_list_map_inplace(str, state) is state and inner == ["1", {"a": "2"}]
    assert dict_list_map_outplace(str, 5) == "5"
