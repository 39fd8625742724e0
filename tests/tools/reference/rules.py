"""What does docs/reference/rules.md say? Made from the tables of rules."""

from __future__ import annotations

from holdfast.core.job.finding import ACTIONS, CLASSES
from holdfast.diagnosis.rule import load
from holdfast.diagnosis.tables import DEPTHS
from holdfast.diagnosis.terms import FILES, of_file
from tools.reference.torchrun import cell

TYPE_CHECKING = False
if TYPE_CHECKING:
    from holdfast.diagnosis.rule import Rule
    from holdfast.diagnosis.terms import Term

HEAD = """\
# Rules: which messages mean what

Made from the tables in `src/holdfast/diagnosis/tables`. `holdfast diagnose --list-rules` shows them too, with your own;
[how to write one](../how-to/write-a-rule.md); [how a cause is chosen among them](../explanation/attribution.md).

Depth says how near a message is to the beginning: an *effect* is what others' failure brings about, a *symptom* that something
failed, a *cause* why, and *machine* what broke below the process. What is advised is done only where a finding is sure
([policies](../explanation/policies.md#what-a-finding-changes)).
"""

VOCABULARIES = """\
## Vocabularies

Of a message that no rule knows its terms are weighed, and the exception that it is. The files are in
`src/holdfast/diagnosis/vocabulary`; each begins with its source.
"""


def page() -> str:
    """The whole page."""
    rules = load().rules
    parts = [HEAD, _words("class", CLASSES), _words("advised", ACTIONS)]
    for kind, means in CLASSES.items():
        if mine := [rule for rule in rules if rule.kind == kind]:  # of `injected` the agents know
            parts.append(f"## {kind}\n\n{means[0].upper()}{means[1:]}. {len(mine)} rules.\n\n{_table(mine)}")
    return "\n".join([*parts, _vocabularies()])


def _vocabularies() -> str:
    """What is known beside the rules, by file."""
    rows = [
        f"| `{file}` | {name} | {term.kind} | {term.sure:.0%} | {term.action} | {cell(term.says)} | {_spelled(term)} |"
        for file in (*FILES, "exceptions")
        for name, term in sorted({term.name: term for term in of_file(file)}.items())
    ]
    head = "| vocabulary | term | class | sure | advised | it says | spellings |\n|---|---|---|---|---|---|---|"
    return "\n".join([VOCABULARIES, head, *rows, ""])


def _spelled(term: Term) -> str:
    first = ", ".join(f"`` {cell(one)} ``" for one in term.spellings[:4])
    return f"{first} and {len(term.spellings) - 4} more" if len(term.spellings) > 4 else first


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
