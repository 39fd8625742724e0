"""Do the documents name only what exists: links and their anchors, files, functions, tests?"""

from __future__ import annotations

import argparse
import functools
import re
from pathlib import Path

import pytest
from kit import KIT, ROOT

from holdfast.agent.workers.launch import worker_env
from holdfast.cli.main import ASKING, LAUNCHING, command_module
from holdfast.core.config.config import RunConfig
from holdfast.core.config.flags import FLAGS, NVRX_FLAGS
from holdfast.core.wire.messages import Assigned

OUTSIDE_DOCS = ("README.md", "SECURITY.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "tests/kit/README.md")
DOCUMENTS = [*(ROOT / name for name in OUTSIDE_DOCS), *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = ROOT / "docs" / "decisions"
HOW_IT_IS_BUILT = [ROOT / "ARCHITECTURE.md", *sorted(DECISIONS.glob("*.md"))]
"""Pages that name files and names of the code."""
MADE = {"docs/benchmarks.md": "make bench"}
"""What a command makes; it may not be there yet."""
PLACES = ("", "src/holdfast", "docs", "tests")
"""Where a name in these pages may begin."""
OTHERS_FLAGS = """
    --bind --checkpoint --config --cpunodebind --cpus --deepspeed --fail-at --from-literal --gpu-reset --gpus --kill-each
    --label --launcher --local --membind --module --multi --no-deps --num --output --port --require-hashes --save
    --save-every --sections --spares --steps
""".split()
"""Flags of other programs and of the examples. Those of our commands are read from their parsers."""
SLURMS_FLAGS = ("--kill-on-bad-exit", "--multi-prog", "--no-kill", "--nodes", "--ntasks-per-node", "--requeue", "--wait")
by_path = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
by_page = pytest.mark.parametrize("path", HOW_IT_IS_BUILT, ids=lambda path: path.name)


@functools.cache
def source() -> str:
    """All of ours."""
    return "\n".join(path.read_text() for path in sorted((ROOT / "src").rglob("*.py")))


@functools.cache
def flags_of_commands() -> set[str]:
    """Those of every command other than `holdfast run`, as its parser has them."""
    found: set[str] = set()
    for command in ASKING:
        parser = argparse.ArgumentParser()
        command_module(command).arguments(parser)
        found |= {name for action in parser._actions for name in action.option_strings}
    return found


@functools.cache
def names_of_the_code() -> set[str]:
    """Functions, classes, attributes and fields of ours."""
    made = re.findall(r"\b(?:def|class) (\w+)|self\.(\w+)|^    (\w+)(?:: | = )|(\w+) = staticmethod", source(), re.MULTILINE)
    return {name for names in made for name in names}


def prose(path: Path) -> str:
    """A document without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@by_path
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(path)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        found = (path.parent / name).resolve() if name else path
        if str(found.relative_to(ROOT)) in MADE and not found.exists():
            continue
        assert found.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(found), f"{target}: no such heading"


@by_path
def test_every_block_ends_with_a_line_of_its_own(path):
    fences = re.findall(r"^ *```(.*)$", path.read_text(), re.MULTILINE)
    assert len(fences) % 2 == 0 and not any(fences[1::2])


@by_path
def test_every_page_is_reached_from_the_index(path):
    """A decision from the decisions' own index, and that one, as all others, from the documents' index."""
    if path.parts[len(ROOT.parts)] == "docs" and path != ROOT / "docs" / "index.md":
        folder = DECISIONS if path.parent == DECISIONS and path.name != "index.md" else ROOT / "docs"
        named = f"({path.relative_to(folder)})" in (folder / "index.md").read_text()
        assert named, f"no line of {folder.relative_to(ROOT)}/index.md links to {path.relative_to(folder)}: add one"


@pytest.mark.parametrize("command", [*ASKING, *LAUNCHING, "torchrun", "wrap"])
def test_every_command_has_its_row_in_the_reference(command):
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    row = re.search(rf"^\| .*`holdfast {command}\b", page, re.MULTILINE)
    row_or_link = row or f"`holdfast {command}` is described in" in page
    assert row_or_link, f"docs/reference/commands.md has no row for `holdfast {command}`: add one"


@by_path
def test_flags_that_are_named_exist(path):
    known = {*SLURMS_FLAGS, *OTHERS_FLAGS, *flags_of_commands(), "--help-all"}
    known |= {name for flag in (*FLAGS, *NVRX_FLAGS) for name in flag.names}
    text = re.sub(r"^```(?!console).*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"(?<![\w-])(--[a-z][a-z-]+)", text))
    wanted = {name for name in named if not any(flag.startswith(name) for flag in known)}
    exempt = ("CONTRIBUTING.md", "benchmarks.md", "rules.md", "simulator.md", "goodput.md", "torchrun.md")
    said = f"no command has {', '.join(sorted(wanted))}: mend the page, or name another program's flag in OTHERS_FLAGS here"
    assert not wanted or path.name in exempt, said


@by_page
def test_files_that_are_named_exist(path):
    text = re.sub(r"\]\([^)]*\)", "]", prose(path))
    for name in set(re.findall(r"[\w/.]+\.(?:py|md)\b", text)):
        assert any((ROOT / place / name).exists() for place in PLACES), f"{name}: no such file"


def test_the_tree_has_every_folder_and_no_other():
    tree = (ROOT / "ARCHITECTURE.md").read_text().split("## The tree", 1)[1].split("```")[1]
    there = {file.parent.name for file in (ROOT / "src" / "holdfast").glob("*/__init__.py")}
    assert sorted(re.findall(r"^[├└]── (\w+)/ +\w", tree, re.MULTILINE)) == sorted(there)
    for name in re.findall(r"\b(\w+)/", tree.rpartition("└──")[2].split("\n", 1)[1]):
        assert (ROOT / name).is_dir(), f"{name}/: no such folder"


@by_page
def test_names_that_are_named_exist(path):
    for name in set(re.findall(r"`([A-Z]\w+(?:\.\w+)?|_?[a-z]\w+(?=` in `))`?", prose(path))):
        owner, _, method = name.partition(".")
        what = method or owner
        if owner.isupper() or owner == "False":
            assert owner in source(), name
            continue
        assert what in names_of_the_code(), f"{name}: no such name"


def test_tests_in_architecture_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = re.findall(r"\[`(test_\w+)`\]\(([\w/]+\.py)\)", text)
    assert len(named) == text.count("`test_")
    for test, path in named:
        assert f"def {test}(" in (ROOT / path).read_text(), f"{path}::{test}: no such test"
    invariants = text.split("## Invariants", 1)[1].split("\n## ", 1)[0]
    for invariant in re.split(r"^- ", invariants, flags=re.MULTILINE)[1:]:
        assert "[`test_" in invariant, f"no test holds it: {invariant}"


@pytest.mark.parametrize("path", [page for page in HOW_IT_IS_BUILT[1:] if page.name != "index.md"], ids=lambda path: path.name)
def test_a_decision_says_its_context_and_its_costs(path):
    parts = re.findall(r"^\*\*(Context|Decision|Measured|Costs)\.\*\* ", path.read_text(), re.MULTILINE)
    assert parts in (["Context", "Decision", "Costs"], ["Context", "Decision", "Measured", "Costs"])


def test_the_environment_page_has_every_variable():
    place = dict.fromkeys(Assigned.__fields__, 0) | {"master_addr": "node0", "nodes": (), "reason": ""}
    config = RunConfig(training_script="train.py", state_dir="/state")
    given = worker_env({}, config, Assigned(**place), 0, error_file="", job="job")
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    assert not {name for name in given if f"`{name}`" not in page}


def test_the_readme_s_numbers_are_those_of_the_last_benchmarks():
    rows = re.findall(r"\| (?:(\d\S*) \w+|not offered) \| (\d\S*) (\w+) \|", (ROOT / "README.md").read_text())
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    assert len(rows) == 5
    for theirs, ours, unit in rows:
        assert f"| {ours} {unit} | {theirs or '–'} |" in page, ours


def test_nothing_in_the_readme_is_longer_than_a_screen():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 60


def test_the_kit_s_page_names_all_that_is_in_it():
    """A folder's files stand in its row; programs for ranks, each explained in its first line, are too many to name."""
    page = (KIT / "README.md").read_text()
    for path in KIT.rglob("*.py"):
        name = path.relative_to(KIT)
        if name.parts[0] == "scripts" or path.parent.name == "nvml":
            continue
        row = page if len(name.parts) == 1 else page.split(f"| `{name.parts[0]}/` |", 1)[1].split("\n")[0]
        assert f"`{path.name}`" in row or path.name.startswith("failure_causes"), f"{name} is not on the kit's page"
