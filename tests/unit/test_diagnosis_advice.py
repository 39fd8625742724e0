"""What is advised follows the class, and no sentence of a rule or term contradicts it."""

from __future__ import annotations

import re

import pytest

from holdfast.core.job.finding import ADVISED, Action, Class
from holdfast.diagnosis.rule import load
from holdfast.diagnosis.tables import CAUSE
from holdfast.diagnosis.terms import exceptions, terms

SAID = {
    **{f"rule {rule.name}": (rule.says, rule.advice, rule.action, rule.depth, rule.kind) for rule in load().rules},
    **{
        f"term {term.name}": (term.says, term.helps, term.action, term.depth, term.kind)
        for term in (*terms(), *exceptions().values())
    },
}
CONTRADICTIONS = (
    (re.compile(r"(?i)\b(?:drain|take) (?:the|that) node|\bthe node out\b|replace the (?:node|instance)"), {Action.EXCLUDE}),
    (re.compile(r"(?i)undefined symbol|\brebuild\b|\binstall\b|\bABI\b|update the driver"), {"stop", "exclude"}),
    (re.compile(r"(?i)\bretry\b|\btry again\b|a restart opens|start it again|it comes back"), {"restart", "exclude"}),
    (re.compile(r"(?i)fix the (?:script|line|command)|correct the"), {Action.STOP}),
)
"""What a sentence says, and what may then be advised of a cause."""


@pytest.mark.parametrize("name", SAID)
def test_no_sentence_contradicts_what_is_advised(name: str) -> None:
    says, helps, action, depth, _ = SAID[name]
    for words, may in CONTRADICTIONS if depth >= CAUSE else ():
        assert not words.search(f"{says}; {helps}") or action in may, f"{action} beside {says!r}, {helps!r}"


def test_what_is_installed_wrongly_is_not_tried_again() -> None:
    assert ADVISED[Class.ENVIRONMENT] == Action.STOP
    assert {action for _, _, action, depth, kind in SAID.values() if kind == Class.ENVIRONMENT and depth >= CAUSE} <= {
        Action.STOP, Action.EXCLUDE, Action.RESTART, Action.ASK,
    }  # fmt: skip
