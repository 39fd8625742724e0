"""Pages that are made from tables."""

from __future__ import annotations

import re

from kit import ROOT
from tools.reference import checks, man


def test_the_page_is_made_from_the_table() -> None:
    assert (ROOT / "docs/reference/checks.md").read_text() == checks.page(), "run: make reference"


def test_the_manual_page_is_made_from_the_commands_and_flags() -> None:
    page = man.page()
    assert (ROOT / "docs/holdfast.1").read_text() == page, "run: make reference"
    requests = {line.split()[0] for line in page.splitlines() if line.startswith((".", "'"))}
    assert requests == {'.\\"', ".TH", ".SH", ".TP", ".B", ".br"}, "nothing else is taken for a request"
    assert not re.search(r"(?<!\\)-", page.split(".SH NAME")[1]), "a bare hyphen cannot be copied into a shell"
