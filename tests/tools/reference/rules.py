"""What does docs/reference/rules.md say? Made from the tables of rules."""

from __future__ import annotations

from holdfast.core.job.finding import ACTIONS, CLASSES
from holdfast.diagnosis.rule import DEPTHS, load
from tools.reference.torchrun import cell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.diagnosis.rule import Rule

HEAD = """\
# Rules: which messages mean what

Made from the tables in `src/holdfast/diagnosis/tables`. `holdfast diagnose --list-rules` shows them too, with your own;
[how to write one](../how-to/write-a-rule.md); [how a cause is chosen among them](../explanation/attribution.md).

Depth says how near a message is to the beginning: an *effect* is what others' failure brings about, a *symptom* that something
failed, a *cause* why, and *machine* what broke below the process. What is advised is done only where a finding is sure
([policies](../explanation/policies.md#what-a-finding-changes)).
"""


def page() -> str:
    """The whole page."""
    rules = load().rules
    parts = [HEAD, _words("class", CLASSES), _words("advised", ACTIONS)]
    for kind, means in CLASSES.items():
        mine = [rule for rule in rules if rule.kind == kind]
        parts.append(f"## {kind}\n\n{means[0].upper()}{means[1:]}. {len(mine)} rules.\n\n{_table(mine)}")
    return "\n".join(parts)


def _words(name: str, words: dict[str, str]) -> str:
    rows = "\n".join(f"| `{word}` | {means} |" for word, means in words.items())
    return f"| {name} | meaning |\n|---|---|\n{rows}\n"


def _table(rules: list[Rule]) -> str:
    rows = [
        f"| `{rule.name}` | {DEPTHS[rule.depth]} | {rule.confidence:.0%} | {rule.action} | {cell(rule.says)} | "
        f"`` {cell(rule.sample)} `` | {_source(rule.source)} |"
        for rule in rules
    ]
    head = "| rule | depth | sure | advised | it says | a message | source |\n|---|---|---|---|---|---|---|"
    return "\n".join([head, *rows, ""])


def _source(source: str) -> str:
    url, _, path = source.partition(": ")
    return f"[{path or 'page'}]({url})"
