"""What may the coordinator ask of this node, in an operator's name? As much as `core.wire.demands` allows."""

from __future__ import annotations

from holdfast.agent.group.messages import FromCoordinator, Send
from holdfast.agent.group.state import State, Step
from holdfast.core.machine import Action, Say
from holdfast.core.value import replace
from holdfast.core.wire.demands import IMPORTS, too_large, too_many
from holdfast.core.wire.messages import Reply, Request, ToImport


def requested(state: State, asked: Request | ToImport, now: float) -> Step:
    """Have it carried out; what is too much is refused, and said once until something is not."""
    kind, why = (IMPORTS, "") if isinstance(asked, ToImport) else (asked.kind, too_large(asked))
    if not why:
        if (demands := state.demands.after(kind, now)) is not None:
            return replace(state, demands=demands, refused=""), [FromCoordinator(message=asked)]
        why = too_many(kind)
    said: list[Action] = []
    if state.refused != why:
        said = [Say(text=f"what the coordinator asks of this node is refused: {why}", level="warning")]
    state = replace(state, refused=why)
    if isinstance(asked, ToImport) or asked.ask is None:
        return state, said
    return state, [*said, Send(message=Reply(node=state.join.node, ask=asked.ask, ok=False, text=why))]
