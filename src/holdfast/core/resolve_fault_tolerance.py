"""How is the job to be watched, judged and placed? The settings of `core.fault_tolerance`, from flags and variables."""

from __future__ import annotations

from holdfast.core import grammar
from holdfast.core.errors import UsageError
from holdfast.core.fault_tolerance import MONITORS, ON_STRAGGLER, FaultTolerance

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from holdfast.core.resolve import Draft


def choose_fault_tolerance(draft: Draft) -> None:
    """Settle `ft`. Its fields' origins are kept as `ft.monitor` and so on."""
    fields: dict[str, Any] = {}
    for dest, choices in (("monitor", MONITORS), ("on_straggler", ON_STRAGGLER)):
        word = draft.text(dest)
        if word not in choices:
            raise UsageError(f"{draft.name(dest)}: there is no {word!r}", hint=grammar.did_you_mean(word, choices))
        fields[dest] = word
    fields["progress_regex"] = _regex(draft)
    for field in fields:
        draft.origins[f"ft.{field}"] = draft.settings[field].origin
    draft.fields["ft"] = FaultTolerance(**fields)


def _regex(draft: Draft) -> str | None:
    text = draft.text("progress_regex")
    if not text:
        return None
    import re

    try:
        re.compile(text)
    except re.error as error:
        raise UsageError(f"{draft.name('progress_regex')}: {text!r} is no regular expression: {error}") from None
    return text
