"""Do Lightning's and Hugging Face's trainers, and a loop in torchtitan's style, go on in their processes? Real
libraries, real kills.

Each job is played undisturbed and with kills, and ends with the same weights and the same loss to the last bit."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]
PATIENCE_S = 400.0
"""These libraries take their time to be imported, by every rank, on a machine that may do other things."""
NEEDS = {"lightning": "lightning", "transformers": "transformers", "fsdp": "torch"}


def need(library: str) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed: pip install 'holdfast[{library}]'")


@pytest.mark.parametrize(("name", "ranks"), [("lightning", 2), ("transformers", 2), ("fsdp", 4)])
def test_an_example_keeps_its_processes_and_ends_with_the_same_loss(
    holdfast: Any, tmp_path: Path, name: str, ranks: int
) -> None:
    need(NEEDS[name])
    job = ("run", "--nproc-per-node", ranks, "--max-restarts", 1, "--warm-mode", "fork", EXAMPLES / f"in_place_{name}.py")
    ends = {}
    for fail_at in -1, 5:
        ran = holdfast(*job, "--fail-at", fail_at, timeout=PATIENCE_S, cwd=tmp_path)
        assert ran.returncode == 0, ran.output
        ends[fail_at] = re.findall(r"finished: .*", ran.stdout)
    assert ends[-1] == ends[5] and len(ends[5]) == 1, ran.output
    lives = re.findall(r"life (\d) of process (\d+), rank (\d)", ran.stdout)
    if "did not let go" not in ran.stderr:  # C code may hold a rank beyond the limit, on a busy machine
        kept = {(rank, pid) for life, pid, rank in lives if life == "1"}
        assert len(kept) == ranks - 1 and kept <= {(rank, pid) for life, pid, rank in lives if life == "0"}, lives


LIGHTNING = """
import os, torch
from torch.utils.data import DataLoader, TensorDataset
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from holdfast import client
from holdfast.integrations.lightning_in_place import InPlaceCallback

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.LayerNorm(8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1)
        )
        self.register_buffer("mean", torch.zeros(4))

    def loss(self, batch):
        return (self.layers(batch[0]) - batch[0].sum(dim=1, keepdim=True)).pow(2).mean()

    def training_step(self, batch, index):
        return self.loss(batch)

    def on_train_batch_end(self, *args):  # a part of the update that Lightning calls last of all
        self.mean.lerp_(self.layers[0].weight.detach().mean(dim=0), 0.1)

    def validation_step(self, batch, index):
        self.log("loss", self.loss(batch), sync_dist=True)

    def configure_optimizers(self):
        optimizer = torch.optim.Adam(self.parameters(), 0.01)
        by_epoch = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
        return [optimizer], [{"scheduler": by_epoch, "interval": "epoch", "monitor": "loss"}]

class Dies(Callback):
    def at(self, trainer, where):
        if (int(os.environ["HOLDFAST_ROUND"]), trainer.global_step, where, trainer.global_rank) in DEATHS:
            os.kill(os.getpid(), 9)

    def on_before_zero_grad(self, trainer, *rest):
        self.at(trainer, "forward")

    def on_before_optimizer_step(self, trainer, *rest):
        self.at(trainer, "backward")

    def on_train_batch_end(self, trainer, *rest):
        self.at(trainer, "end")

    def on_validation_end(self, trainer, *rest):
        self.at(trainer, "validation")

    def on_train_batch_start(self, trainer, module, batch, index):
        if trainer.global_rank == 0:
            say("batch", trainer.current_epoch, index, trainer.global_step, batch[0][0][0].item())

def data(count):
    return TensorDataset(torch.randn(count, 4, generator=torch.Generator().manual_seed(0)))

def train(life):
    seed_everything(1, verbose=False)
    trainer = Trainer(
        accelerator="cpu", devices=2, strategy="ddp", logger=False, enable_progress_bar=False,
        enable_model_summary=False, max_epochs=3, accumulate_grad_batches=3, val_check_interval=0.5,
        callbacks=[Dies(), InPlaceCallback(life), ModelCheckpoint(os.environ["OUTPUT"], save_last=True, every_n_train_steps=2)],
    )
    net = Net()
    last = os.environ["OUTPUT"] + "/last.ckpt"  # which nobody goes on from: all have what is newer
    loaders = DataLoader(data(64), batch_size=4, shuffle=True), DataLoader(data(16), batch_size=4)
    trainer.fit(net, *loaders, ckpt_path=last if os.path.exists(last) else None)
    total = torch.cat([value.flatten().double() for value in net.state_dict().values()]).sum()
    say("end", trainer.global_step, trainer.callback_metrics["loss"].item().hex(), total.item().hex())

client.run_in_place(train)
"""

TRANSFORMERS = """
import os, torch
from torch import nn
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint
from holdfast import client
from holdfast.integrations.transformers_in_place import train_in_place

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Dropout(0.2), nn.Linear(8, 1))

    def forward(self, inputs, labels):
        outputs = self.layers(inputs)
        return {"loss": nn.functional.mse_loss(outputs, labels), "logits": outputs}

def data(count):
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(0))
    return [{"inputs": row, "labels": row.sum(dim=0, keepdim=True)} for row in inputs]

class Dies(TrainerCallback):
    def at(self, args, state, where):
        if (int(os.environ["HOLDFAST_ROUND"]), state.global_step, where, args.process_index) in DEATHS:
            os.kill(os.getpid(), 9)

    def on_step_begin(self, args, state, control, **kwargs):
        self.at(args, state, "forward")

    def on_optimizer_step(self, args, state, control, **kwargs):
        self.at(args, state, "end")

    def on_evaluate(self, args, state, control, **kwargs):
        self.at(args, state, "validation")

def train(life):
    torch.manual_seed(0)
    arguments = TrainingArguments(
        output_dir=os.environ["OUTPUT"], num_train_epochs=3, gradient_accumulation_steps=2, per_device_train_batch_size=4,
        eval_strategy="epoch", save_strategy="epoch", logging_strategy="epoch", learning_rate=0.05, report_to=[],
        disable_tqdm=True, use_cpu=True,
    )
    trainer = Trainer(model=Net(), args=arguments, train_dataset=data(64), eval_dataset=data(16), callbacks=[Dies()])
    train_in_place(trainer, life, resume_from_checkpoint=get_last_checkpoint(os.environ["OUTPUT"]))
    total = torch.cat([value.flatten().double() for value in trainer.model.state_dict().values()]).sum()
    losses = [told["eval_loss"] for told in trainer.state.log_history if "eval_loss" in told]
    say("end", trainer.state.global_step, [loss.hex() for loss in losses], total.item().hex())

client.run_in_place(train)
"""


@pytest.mark.parametrize(
    ("library", "source", "deaths"),
    [
        ("lightning", LIGHTNING, [(1, 1, "validation"), (2, 3, "validation"), (3, 4, "forward"), (4, 7, "end")]),
        ("transformers", TRANSFORMERS, [(1, 2, "forward"), (2, 5, "end"), (3, 8, "validation"), (4, 12, "validation")]),
    ],
    ids=["Lightning", "Transformers"],
)
def test_whenever_a_rank_is_killed_no_step_counts_twice_and_none_is_lost(
    holdfast: Any, script: Any, tmp_path: Path, library: str, source: str, deaths: list[tuple[int, int, str]]
) -> None:
    """In a forward of accumulated gradients, in an update, in a validation, in one after the last step."""
    need(library)
    job = ("run", "--nproc-per-node", 2, "--max-restarts", 4, "--backoff", 0, "--warm-mode", "fork")
    outputs = [tmp_path / "undisturbed", tmp_path / "output"]
    for folder in outputs:
        folder.mkdir()
    env, own = ({"OUTPUT": str(folder)} for folder in outputs)
    undisturbed = holdfast(*job, script("DEATHS = []\n" + source), env=env, timeout=PATIENCE_S)
    kills = [(*death, number % 2) for number, death in enumerate(deaths, start=1)]  # one rank, and then the other
    ran = holdfast(*job, script(f"DEATHS = {kills!r}\n" + source), env=own, timeout=PATIENCE_S)
    assert undisturbed.returncode == 0 and ran.returncode == 0, undisturbed.output + ran.output
    assert len(holdfast.events("RoundFormed")) == 1 + len(deaths)
    assert len(lines("end", undisturbed)) == 1
    assert lines("end", ran) == lines("end", undisturbed) and lines("batch", ran) == lines("batch", undisturbed)
    assert "did not let go" in ran.stderr or any(event.get("in_place") for event in holdfast.events("WorkerStarted"))


def lines(word: str, ran: Any) -> set[str]:
    return {line for line in ran.stdout.splitlines() if line.startswith(word)}


REFUSED = {
    "lightning": """
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from holdfast import client
from holdfast.integrations.lightning_in_place import InPlaceCallback

class Net(LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
    def training_step(self, batch, index):
        return self.layer(batch).mean()
    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), 0.1)

def train(life):
    trainer = Trainer(accelerator="cpu", logger=False, enable_checkpointing=False, max_steps=1,
                      callbacks=[WeightAveraging(), InPlaceCallback(life)])
    trainer.fit(Net(), torch.utils.data.DataLoader(torch.randn(4, 1)))
client.run_in_place(train)
""",
    "transformers": """
import torch
from transformers import Trainer, TrainingArguments
from holdfast import client
from holdfast.integrations.transformers_in_place import train_in_place
arguments = TrainingArguments(output_dir="out", use_cpu=True, report_to=[])
client.run_in_place(lambda life: train_in_place(Trainer(model_init=lambda: torch.nn.Linear(1, 1), args=arguments), life))
""",
}


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ("lightning", "ValueError: WeightAveraging has its state in a checkpoint only (on_load_checkpoint)"),
        ("transformers", "ValueError: train_in_place: a trainer cannot go on in its process with model_init="),
    ],
)
def test_what_cannot_go_on_in_its_process_says_why(tmp_path: Path, library: str, said: str) -> None:
    need(library)
    command = (sys.executable, "-c", REFUSED[library])
    ran = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE_S, cwd=tmp_path, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert ran.returncode == 1 and said in ran.stderr, ran
