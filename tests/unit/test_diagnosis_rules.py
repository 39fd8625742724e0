"""Rules: each knows its own sample, says where its message is documented, and costs nothing before something has failed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from holdfast.core.errors import UsageError
from holdfast.core.job.finding import ACTIONS, CLASSES, Class
from holdfast.core.job.xid import CATALOGUE, REBOOT, RESET, SERVICE, Xid
from holdfast.diagnosis import rule as rules_of
from holdfast.diagnosis.logs.prefix import Speaker, split

RULES = rules_of.load()


def test_there_are_enough_for_every_class() -> None:
    assert len(RULES.rules) >= 120
    assert {rule.kind for rule in RULES.rules} == set(CLASSES) - {Class.INJECTED}, "no log says that: the agent knows it"


@pytest.mark.parametrize("rule", RULES.rules, ids=lambda rule: rule.name)
def test_a_rule_knows_its_own_sample_and_where_the_message_is_from(rule: rules_of.Rule) -> None:
    text = split(rule.sample, Speaker())[1]
    assert any(word in rule.sample for word in rule.words), f"none of its words is in {rule.sample!r}"
    assert RULES.match(rule, text), f"its pattern does not know {text!r}"
    assert rule.source.startswith("https://") and rule.says and rule.advice
    assert rule.kind in CLASSES and rule.action in ACTIONS and 0 < rule.confidence < 1
    best = RULES.best(text)
    assert best is not None and best[0].name == rule.name, f"{best and best[0].name} says more of it"


@pytest.mark.parametrize("rule", RULES.rules, ids=lambda rule: rule.name)
def test_what_a_rule_says_needs_no_more_than_its_pattern_gives(rule: rules_of.Rule) -> None:
    assert set(re.findall(r"\{(\w+)\}", rule.says)) <= re.compile(rule.pattern).groupindex.keys()


@pytest.mark.parametrize("one", CATALOGUE.values(), ids=lambda one: str(one.number))
def test_of_an_xid_the_rules_advise_what_the_checks_judge_by(one: Xid) -> None:
    line = f"NVRM: Xid (0000:1b:00): {one.number}, changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    best = RULES.best(line)
    assert best is not None and best[0].name == f"xid-{one.number}"
    of_the_node = one.action in (RESET, REBOOT, SERVICE)
    assert (best[0].action == "exclude") == (of_the_node and one.number != 109)


def test_an_xid_that_nobody_knows_and_a_gpu_that_needs_nothing_are_no_reason() -> None:
    unknown = RULES.best("NVRM: Xid (PCI:0000:1b:00): 4711, x")
    needless = RULES.best("NVRM: Xid (PCI:0000:1b:00): 154, GPU recovery action changed from 0x1 (Reset) to 0x0 (None)")
    assert unknown is not None and unknown[0].name == "xid-unknown" and unknown[1]["what"] == "4711"
    assert needless is not None and needless[0].action == "restart"


def test_no_two_rules_have_one_name() -> None:
    from importlib import import_module

    names = [row[0] for table in rules_of.TABLES for row in import_module(f"holdfast.diagnosis.tables.{table}").RULES]
    assert sorted(names) == sorted(set(names))


OWN = """
[[rule]]
name = "our-license-server"
class = "framework"
words = ["license server"]
pattern = 'cannot reach license server (?P<what>\\S+)'
says = "the license server {what} does not answer"
advice = "call the tools team"
sample = "FATAL: cannot reach license server lic3:27000"
"""


def test_a_rule_of_the_user_s_counts_like_ours(tmp_path: Path) -> None:
    (tmp_path / "rules.toml").write_text(OWN)
    found = rules_of.load([str(tmp_path / "rules.toml")]).best("FATAL: cannot reach license server lic3:27000")
    assert found is not None and found[0].name == "our-license-server" and found[1]["what"] == "lic3:27000"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("framework", "framwork"), "did you mean framework"),
        (("cannot reach", "cannot ("), "not a regular expression"),
        (("FATAL: cannot", "FATAL: could not"), "does not match its own sample"),
        (("advice =", "advise ="), "no advice"),
        (('["license server"]', '"license"'), "list of texts"),
        (("[[rule]]", "[[rules]]"), "may hold only"),
    ],
)
def test_a_rule_that_is_wrong_says_what_is_wrong(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    (tmp_path / "rules.toml").write_text(OWN.replace(*change))
    with pytest.raises(UsageError, match=said):
        rules_of.load([str(tmp_path / "rules.toml")])


def test_the_reference_page_is_made_from_the_tables() -> None:
    from tools.reference.rules import page

    written = Path(__file__).parents[2] / "docs" / "reference" / "rules.md"
    assert written.read_text() == page(), "run: make reference"


def test_a_sample_is_one_line_as_a_row_of_the_page_is() -> None:
    assert [rule.name for rule in rules_of.load().rules if "\n" in rule.sample] == []
