"""Which tests does a change reach, and in which order? `tools/changed.py`, over checkouts that are made up."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from tools.changed import Graph

TREE = {
    "src/holdfast/__init__.py": "",
    "src/holdfast/__main__.py": "from holdfast.cli.main import main",
    "src/holdfast/cli/__init__.py": "",
    "src/holdfast/cli/main.py": "def main(command):\n    return import_module(f'holdfast.cli.{command}')",
    "src/holdfast/cli/why.py": "from holdfast.core import page",
    "src/holdfast/core/__init__.py": "",
    "src/holdfast/core/page.py": "PAGE = 1",
    "src/holdfast/core/unused.py": "",
    "src/holdfast/agent/__init__.py": "",
    "src/holdfast/agent/look.py": "if TYPE_CHECKING:\n    from ..core.page import PAGE",
    "src/holdfast/agent/group.py": "def look():\n    from holdfast.agent import look",
    "tests/conftest.py": "from kit.command import Holdfast\ndef holdfast(tmp_path): ...",
    "tests/kit/__init__.py": "SCRIPTS = 1",
    "tests/kit/command.py": "LINE = ['python', '-m', 'holdfast']",
    "tests/kit/relay.py": "",
    "tests/kit/scripts/stamps.py": "",
    "tests/kit/scripts/hang_told.py": "",
    "tests/kit/scripts/hang_plain.py": "",
    "tests/unit/test_page.py": "from holdfast.core.page import PAGE",
    "tests/unit/test_group.py": "import holdfast.agent.group",
    "tests/unit/test_text.py": "'''Says page.py, and the command why.'''",
    "tests/sim/test_look.py": "from holdfast.agent.look import look",
    "tests/e2e/conftest.py": "from kit import relay\ndef job(holdfast): ...\ndef hosts(job): ...",
    "tests/e2e/test_cli.py": "def test_it(holdfast, tmp_path): ...",
    "tests/e2e/test_host.py": "def test_it(hosts): ...",
    "tests/e2e/test_alone.py": "from holdfast.core import page",
    "tests/e2e/test_main.py": "LINE = [sys.executable, '-m', 'holdfast', 'why']",
    "tests/e2e/test_stamps.py": "from kit import SCRIPTS\nSTAMPS = SCRIPTS / 'stamps.py'",
    "tests/e2e/test_hangs.py": "from kit import SCRIPTS\nALL = [SCRIPTS / f'hang_{how}.py' for how in ('told', 'plain')]",
    "tests/e2e/test_client.py": "RANK = '''\\\nimport os\n    from holdfast.agent import group, look\n'''",
    "tests/e2e/test_docs.py": "ALL = (ROOT / 'docs').rglob('*.md')",
    "tests/unit/test_names.py": "PAGE = (ROOT / 'docs' / 'reference' / 'names.md').read_text()",
    "tests/security/test_fuzz.py": "FUZZER = Path(__file__).with_name('fuzzer.py')",
    "tests/security/fuzzer.py": "import beside",
    "tests/security/beside.py": "",
}


def reached(*changed: str, tree: dict[str, str] = TREE) -> list[str]:
    """Names of the test files that run, in their order."""
    gone = [path for path in changed if path not in tree]
    return names(Graph(tree, gone).choose(set(changed)))


def names(paths: Iterable[str]) -> list[str]:
    return [path.removeprefix("tests/").removesuffix(".py").replace("/test_", " ") for path in paths]


def test_the_nearest_come_first_and_of_those_the_ones_that_start_no_process() -> None:
    assert reached("src/holdfast/core/page.py") == [
        "unit page", "e2e alone",  # import it
        "sim look", "e2e client",  # import what does, for types; the latter in the text of a script
        "unit group",  # imports what imports that, in a function
        "e2e cli", "e2e host", "e2e main",  # run the command that does
    ]  # fmt: skip


def test_a_test_file_that_has_changed_comes_before_all() -> None:
    assert reached("src/holdfast/core/page.py", "tests/e2e/test_cli.py")[:2] == ["e2e cli", "unit page"]


def test_what_nobody_imports_is_reached_by_no_test() -> None:
    assert reached("src/holdfast/core/unused.py") == []


def test_a_command_is_reached_by_who_runs_the_program() -> None:
    assert reached("src/holdfast/cli/why.py") == ["e2e cli", "e2e host", "e2e main"]


def test_a_package_s_own_file_runs_with_whatever_is_in_it() -> None:
    assert reached("src/holdfast/agent/__init__.py") == ["sim look", "unit group", "e2e client"]


def test_a_conftest_counts_as_imported_by_all_below_it() -> None:
    in_e2e = [name for name in names(Graph(TREE).tests) if name.startswith("e2e")]
    assert reached("tests/e2e/conftest.py") == sorted(in_e2e)
    assert reached("tests/kit/relay.py") == sorted(in_e2e)
    assert len(reached("tests/conftest.py")) == len(Graph(TREE).tests)


def test_a_program_is_reached_by_who_names_its_file() -> None:
    assert reached("tests/kit/scripts/stamps.py") == ["e2e stamps"]
    assert reached("tests/kit/scripts/hang_told.py") == reached("tests/kit/scripts/hang_plain.py") == ["e2e hangs"]
    assert reached("tests/security/beside.py") == ["security fuzz"]


@pytest.mark.parametrize(
    ("path", "tests"),
    [
        ("docs/reference/names.md", ["unit names", "e2e docs"]),
        ("docs/guide.md", ["e2e docs"]),
        ("examples/demo.py", []),
        ("Makefile", []),
    ],
)
def test_a_document_is_reached_by_who_names_it_or_lists_its_folder(path: str, tests: list[str]) -> None:
    assert reached(path) == tests


def test_a_module_that_is_gone_is_missed_by_who_still_imports_it() -> None:
    tree = {path: text for path, text in TREE.items() if path != "src/holdfast/agent/look.py"}
    assert reached("src/holdfast/agent/look.py", tree=tree) == ["sim look", "e2e client", "unit group"]


def test_a_tree_that_lists_the_source_is_reached_by_every_module() -> None:
    tree = TREE | {"tests/unit/test_style.py": "for path in (ROOT / 'src').rglob('*.py'): ..."}
    assert reached("src/holdfast/core/unused.py", tree=tree) == ["unit style"]
