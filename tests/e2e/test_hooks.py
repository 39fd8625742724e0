"""What an unmodified script does is a sign of life, with the real torch; and the script cannot tell, nor can we harm it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kit import LIGHT_TORCH

from holdfast.agent.workers import launch
from holdfast.core.page.signs import Moments, Signs
from holdfast.runtime.shm.pages import create_page

TRAIN = """
import torch
model = torch.nn.Linear(4, 4)
def loss():
    return model(torch.ones(2, 4)).square().sum()
def train(optimizer, steps, accumulate=1):
    for _ in range(steps):
        for _ in range(accumulate):
            loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
"""


def run(
    script: str, folder: Path, *, hook: bool = True, env: dict[str, str] | None = None, moments: list[Moments] | None = None
) -> tuple[Signs, str, str]:
    """What its page says at its end, and what it printed."""
    (folder / "train.py").write_text(script)
    page = create_page(hook=hook)
    environment = launch.bootstrap_env(os.environ | {"PYTHONWARNINGS": "ignore"} | (env or {}), page_fd=page.fd)
    done = subprocess.run(
        [sys.executable, "-u", "train.py"], cwd=folder, env=environment, pass_fds=[page.fd], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert page.trouble == ""
    seen = page.signs()
    if moments is not None:
        moments.append(page.moments)
    page.close()
    return seen, done.stdout, done.stderr


def closed(seen: Signs) -> dict[str, int]:
    """How often each section has been closed; none may be open."""
    assert [section.name for section in seen.sections if section.open_since is not None] == []
    return {section.name: section.count for section in seen.sections}


# --- steps --------------------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.parametrize(
    ("training", "step", "beats"),
    [
        ("train(torch.optim.SGD(model.parameters(), lr=0.01), 7)", 7, 7),
        ("train(torch.optim.AdamW(model.parameters(), lr=0.01, fused=True), 3, accumulate=5)", 3, 3),
        (
            "optimizer = torch.optim.LBFGS(model.parameters(), max_iter=4)\n"
            "def closure():\n    optimizer.zero_grad()\n    value = loss()\n    value.backward()\n    return value\n"
            "for _ in range(3): optimizer.step(closure)",
            3,
            3,
        ),
        (
            "one, two = (torch.optim.SGD([p], lr=0.01) for p in model.parameters())\n"
            "for _ in range(4):\n    train(one, 1); train(two, 2)",
            8,
            12,
        ),
        (
            "class Mine(torch.optim.Optimizer):\n"
            "    def __init__(self, parameters): super().__init__(parameters, {})\n"
            "    def step(self): pass\n"
            "train(Mine(model.parameters()), 2)",
            2,
            2,
        ),
        (
            "import holdfast.client\n"
            "holdfast.client.progress(100)\n"
            "train(torch.optim.SGD(model.parameters(), lr=0.01), 7)\n"
            "holdfast.client.progress(101)",
            101,
            9,
        ),
    ],
    ids=["plain", "fused, accumulating", "closure", "several", "the script's own class", "the script tells itself"],
)
def test_an_optimizer_s_steps_are_heartbeats_and_progress(tmp_path: Path, training: str, step: int, beats: int) -> None:
    seen, _, _ = run(TRAIN + training, tmp_path)
    assert (seen.step, seen.beats) == (step, beats)
    assert seen.step_took_s > 0 and seen.first_beat_at is not None and seen.beat_at is not None
    assert seen.first_beat_at < seen.beat_at
    assert seen.sections == () and seen.out_since is None


@pytest.mark.torch
def test_the_step_by_which_a_checkpoint_s_reader_makes_the_optimizer_s_state_is_none_of_training_s(tmp_path: Path) -> None:
    """It is before the state is loaded; were it the first step, nobody would learn how long the loading took."""
    script = """
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
def state():
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer)))
if LOADS:
    kept = state()
    dcp.load(kept, checkpoint_id="saved", no_dist=True)
    set_state_dict(model, optimizer, model_state_dict=kept["model"], optim_state_dict=kept["optimizer"])
train(optimizer, 3)
if not LOADS:
    dcp.save(state(), checkpoint_id="saved", no_dist=True)
"""
    seen, _, _ = run(TRAIN + script.replace("LOADS", "False"), tmp_path)
    assert (seen.step, seen.beats) == (3, 3)
    moments: list[Moments] = []
    seen, _, _ = run(TRAIN + script.replace("LOADS", "True"), tmp_path, moments=moments)
    assert (seen.step, seen.beats) == (3, 4)
    (told,) = moments
    assert told.restored_at is not None and told.stepped_at is not None
    assert told.restored_at < told.stepped_at and told.restore_s > 0


@pytest.mark.torch
def test_so_is_the_one_of_deepspeed_s_optimizers_even_if_it_fails(tmp_path: Path) -> None:
    """DeepSpeed needs a compiler and is not among the tests' packages: a module of its name, and a method of its."""
    (tmp_path / "deepspeed/runtime/zero").mkdir(parents=True)
    (tmp_path / "deepspeed/runtime/zero/stage3.py").write_text("""
class DeepSpeedZeroOptimizer_Stage3:
    def initialize_optimizer_states(self):
        self.optimizer.step()
        raise MemoryError
""")
    script = """
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3 as Zero
zero = Zero()
zero.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
try:
    zero.initialize_optimizer_states()
except MemoryError:
    train(zero.optimizer, 2)
"""
    seen, _, _ = run(TRAIN + script, tmp_path)
    assert (seen.step, seen.beats) == (2, 3)


COMPILED = """
class Mine(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})
    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-0.1)

from torch._dynamo.utils import counters
def compiled(optimizer, fullgraph):
    step = torch.compile(lambda: optimizer.step(), fullgraph=fullgraph, backend="eager")
    for _ in range(5):
        loss().backward()
        step()
        optimizer.zero_grad(set_to_none=False)
    print(dict(counters["graph_break"]), dict(counters["stats"]))
    counters.clear()

compiled(torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01)), False)
compiled(Mine(model.parameters()), True)
"""


@pytest.mark.torch
@pytest.mark.timeout(300)  # torch is imported twice, with its compiler
def test_compiled_optimizers_are_compiled_as_without_us(tmp_path: Path) -> None:
    """The steps of torch's own, which break the graph themselves, are seen; of one within a single graph nobody hears."""
    seen, graphs, _ = run(TRAIN + COMPILED, tmp_path)
    _, plainly, _ = run(TRAIN + COMPILED, tmp_path, hook=False)
    assert graphs == plainly
    assert (seen.step, seen.beats) == (5, 5)


# --- checkpoints --------------------------------------------------------------------------------------------------------


@pytest.mark.torch
def test_saves_are_sections_whatever_name_they_are_called_by(tmp_path: Path) -> None:
    script = """
import io, torch
from torch import save
torch.save({"a": 1}, "one.pt")
torch.serialization.save({"a": 1}, io.BytesIO())
save(torch.ones(2), "three.pt", _use_new_zipfile_serialization=False)
try:
    torch.save({}, "/no/such/folder/x.pt")
except RuntimeError:
    pass
print(torch.load("one.pt"), torch.load("three.pt").sum())
"""
    seen, printed, _ = run(script, tmp_path)
    assert closed(seen) == {"checkpoint": 4}
    assert seen.sections[0].longest_s > 0
    assert seen.out_since is None, "the script itself uses no sections, so it is never out of them"
    assert printed == "{'a': 1} tensor(2.)\n"


@pytest.mark.torch
def test_distributed_checkpoints_are_sections(tmp_path: Path) -> None:
    script = """
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import async_save
state = {"weight": torch.ones(8)}
dcp.save(state, checkpoint_id="first")
async_save(state, checkpoint_id="second").result()
state["weight"].zero_()
dcp.load(state, checkpoint_id="second")
print(state["weight"].sum())
"""
    seen, printed, _ = run(script, tmp_path)
    assert printed == "tensor(8.)\n"
    assert closed(seen)["checkpoint"] >= 2


@pytest.mark.torch
def test_so_are_those_of_scripts_that_use_its_older_name(tmp_path: Path) -> None:
    script = """
from torch.distributed.checkpoint import FileSystemWriter, save_state_dict
save_state_dict({}, FileSystemWriter("first"), no_dist=True)  # nothing in it that torch.save would write
"""
    seen, _, _ = run(script, tmp_path)
    assert closed(seen) == {"checkpoint": 1}


@pytest.mark.torch
def test_a_script_that_has_used_up_all_names_saves_all_the_same(tmp_path: Path) -> None:
    script = """
import io, torch, holdfast.client as client
for number in range(32):
    with client.section(f"part {number}"): pass
torch.save({}, io.BytesIO())
"""
    seen, _, _ = run(script, tmp_path)
    assert len(closed(seen)) == 32 and "checkpoint" not in closed(seen)


@pytest.mark.torch
def test_the_script_s_own_sections_and_ours_are_one_account(tmp_path: Path) -> None:
    script = """
import io, torch, holdfast.client as client
with client.section("step"): pass
torch.save({}, io.BytesIO())
with client.section("checkpoint"): torch.save({}, io.BytesIO())
"""
    seen, _, _ = run(script, tmp_path)
    assert closed(seen) == {"step": 1, "checkpoint": 2}
    assert seen.out_since is not None and seen.longest_out_s > 0


PROMPTS = {
    "pdb": ("pdb", "breakpoint()", "c"),
    "code": ("code", "import code; code.interact()", ""),
    "ipdb": ("IPython", "from IPython.terminal.debugger import TerminalPdb; TerminalPdb().set_trace()", "c"),
    "embed": ("IPython", "import IPython; IPython.embed()", "exit"),
}


@pytest.mark.parametrize("prompt", PROMPTS)
def test_the_time_at_a_prompt_is_a_section(tmp_path: Path, prompt: str) -> None:
    library, opens, answer = PROMPTS[prompt]
    pytest.importorskip(library, reason=f"{library} is not installed")
    script = f"""
import os
read, write = os.pipe()
os.write(write, b"{answer}\\n" if "{answer}" else b"")
os.close(write)
os.dup2(read, 0)
{opens}
print("went on")
"""
    seen, printed, _ = run(script, tmp_path, env={"IPYTHONDIR": str(tmp_path), "HOME": str(tmp_path), "TERM": "dumb"})
    assert printed.endswith("went on\n") and closed(seen) == {"debugger": 1}


# --- unseen -------------------------------------------------------------------------------------------------------------

LOOKS = """
import importlib.machinery, inspect, pickle, sys, traceback, warnings
import torch, torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.state_dict_saver as saver
print(torch.save is torch.serialization.save, dcp.save is saver.save, dcp.async_save is saver.async_save)
for function in (torch.save, dcp.save, dcp.async_save):
    print(function.__name__, function.__qualname__, function.__module__, inspect.signature(function), len(function.__doc__))
    print(pickle.loads(pickle.dumps(function)) is function, len(inspect.getsource(function)), inspect.isfunction(function))
compiler = [] if "light_torch" in sys.modules else [torch._dynamo.config]
for module in (sys.modules["torch.optim.optimizer"], torch.serialization, saver, *compiler):
    print(sorted(vars(module.__loader__)), sorted(vars(module.__spec__.loader)), module.__spec__ == module.__spec__)
print(len(sys.meta_path), len(sys.path_hooks), inspect.signature(importlib.machinery.PathFinder.find_spec))
print(inspect.ismethod(importlib.machinery.PathFinder.find_spec), sorted(m for m in sys.modules if m.startswith("torch")))
optimizer = torch.optim.Adam([torch.ones(2, requires_grad=True)])
optimizer.step()
print(sorted(vars(optimizer)), optimizer.state_dict())
"""


@pytest.mark.torch
@pytest.mark.timeout(300)  # torch is imported twice, with its compiler
@pytest.mark.parametrize("torch", ["light", "whole"])
def test_a_script_that_looks_for_us_finds_torch_as_it_is(tmp_path: Path, torch: str) -> None:
    looks = LIGHT_TORCH + LOOKS if torch == "light" else LOOKS
    _, watched, errors = run(looks, tmp_path)
    _, alone, errors_alone = run(looks, tmp_path, hook=False)
    assert watched.splitlines() == alone.splitlines()
    assert errors == errors_alone


BROKEN = {
    "no hook to register with": "",
    "what breaks on import": "import nowhere_to_be_found",
    "what warns its caller": "import warnings\nwarnings.warn('old', DeprecationWarning, stacklevel=2)",
    "what raises": "1 / 0",
    "what exits": "raise SystemExit(3)",
    "what is no function": "save = register_optimizer_step_post_hook = 3",
}


@pytest.mark.parametrize("how", BROKEN)
def test_another_torch_breaks_as_it_would_without_us(tmp_path: Path, how: str) -> None:
    """The modules that we look for, with something else in them."""
    for name in ("torch/optim/optimizer.py", "torch/serialization.py", "torch/distributed/checkpoint/state_dict_saver.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(BROKEN[how])
    (tmp_path / "torch/__init__.py").write_text("from torch import serialization\nimport torch.optim.optimizer\n")
    (tmp_path / "train.py").write_text("import torch\nimport torch.distributed.checkpoint.state_dict_saver\nprint('trained')\n")
    results = []
    for hook in (False, False, True):  # once before, so that .pyc files are there for all
        page = create_page(hook=hook)
        env = launch.bootstrap_env({"PATH": os.environ["PATH"], "PYTHONWARNINGS": "always"}, page_fd=page.fd)
        command = [sys.executable, "-u", "train.py"]
        done = subprocess.run(command, cwd=tmp_path, env=env, pass_fds=[page.fd], capture_output=True, text=True)
        assert page.trouble == ""
        page.close()
        results.append((done.returncode, done.stdout, done.stderr))
    assert results[2] == results[1]


def test_a_script_without_torch_gets_none_from_us(tmp_path: Path) -> None:
    script = "import sys, json, email\nprint([m for m in sys.modules if m.startswith(('torch', '_holdfast'))])"
    seen, printed, _ = run(script, tmp_path)
    assert printed == "['_holdfast_bootstrap']\n"
    assert seen.beats == 0 and seen.sections == ()


@pytest.mark.torch
def test_when_monitoring_is_off_nothing_is_marked(tmp_path: Path) -> None:
    script = TRAIN + "import io\ntrain(torch.optim.SGD(model.parameters(), lr=0.01), 2)\ntorch.save({}, io.BytesIO())\n"
    seen, _, _ = run(script + "print(torch.save.__module__, hasattr(torch.save, '__wrapped__'))", tmp_path, hook=False)
    assert seen.beats == 0 and seen.sections == ()


@pytest.mark.torch
def test_the_forked_children_of_a_data_loader_say_nothing(tmp_path: Path) -> None:
    script = (
        TRAIN
        + """
import io
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index):
        torch.save({}, io.BytesIO())
        return torch.ones(4)
if __name__ == "__main__":
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for batch in torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2):
        model(batch).sum().backward()
        optimizer.step()
"""
    )
    seen, _, _ = run(script, tmp_path)
    assert (seen.step, seen.sections) == (2, ())


@pytest.mark.parametrize(("flags", "wished"), [([], "1"), (["--monitor", "auto"], "1"), (["--monitor", "off"], "0")])
def test_the_command_decides_whether_we_watch(holdfast, script, flags: list[str], wished: str) -> None:
    look = "print(boot.words[boot.layout.HOOK] & boot.layout.HOOK_SIGNS)"
    probe = script(f"import sys\nboot = sys.modules['_holdfast_bootstrap']\n{look}")
    done = holdfast("run", *flags, probe)
    assert (done.returncode, done.stdout) == (0, f"{wished}\n")


@pytest.mark.torch
def test_a_hang_of_an_unmodified_script_is_found_and_the_job_goes_on(holdfast, script) -> None:
    hangs = """
import io, os, time
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
def load():
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        time.sleep(600)
train(optimizer, 5)
torch.save(model.state_dict(), io.BytesIO())
load()
train(optimizer, 5)
"""
    done = holdfast("run", "--max-restarts", "1", "--ft-rank-heartbeat-timeout", "8", script(TRAIN + hangs))
    assert done.returncode == 0, done.output
    (hung,) = holdfast.events("RankHung")
    assert hung["reason"].startswith("no heartbeat for "), hung
    assert "at step 5, in load (script.py:" in done.stderr
