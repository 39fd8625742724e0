"""Which side of a link may say what: the one table, and the one question that every message is put to when it arrives.

A link leads from a node to one that may be the coordinator, or another elector. Who may say what in a message of a member is
`rendezvous.coordinator.belief`'s matter, and who leads `rendezvous.election.following`'s.
"""

from __future__ import annotations

from enum import Enum

from holdfast.core.wire import messages as wire


class Speaker(Enum):
    """A side of a link, and whether it says who it is."""

    CALLER = "who made the link, and names itself"
    CALLED = "who was called, and names nobody"
    EITHER = "each in its own direction: the caller names itself, the called one does not"
    BOTH = "two electors that look for a coordinator, and name themselves"


SPEAKERS: dict[type[wire.Message], Speaker] = {
    **dict.fromkeys((wire.Join, wire.Renew, wire.Leave, wire.Failed, wire.Stopped, wire.Succeeded), Speaker.CALLER),
    **dict.fromkeys((wire.HangFound, wire.Positions, wire.Pace, wire.Saving, wire.Calculated), Speaker.CALLER),
    **dict.fromkeys((wire.Imports, wire.StoreAsk, wire.Vote), Speaker.CALLER),
    **dict.fromkeys((wire.Assigned, wire.Waiting, wire.Notice, wire.Stop, wire.LookAround, wire.Paced), Speaker.CALLED),
    **dict.fromkeys((wire.ToImport, wire.Renewed, wire.Finish, wire.Refused, wire.StoreAnswer), Speaker.CALLED),
    **dict.fromkeys((wire.Propose, wire.Leads), Speaker.CALLED),
    **dict.fromkeys((wire.Request, wire.Reply), Speaker.EITHER),
    wire.Seek: Speaker.BOTH,
}


def objection(message: wire.Message, *, to_caller: bool) -> str:
    """Why that message must not come over this link. Empty: it may. `to_caller`: we made the link. In the other family
    (`core.wire.fleet`) the caller's messages have a node."""
    node = getattr(message, "node", None)
    if (speaker := SPEAKERS.get(type(message))) is None:
        return f"it may not send {type(message).__name__}" if (node is not None) is to_caller else ""
    if speaker is Speaker.BOTH:
        return ""
    is_callers = bool(node) if speaker is Speaker.EITHER else speaker is Speaker.CALLER
    if is_callers is to_caller:
        return f"it may not send {type(message).__name__}"
    return f"its {type(message).__name__} names no node" if node == "" and is_callers else ""
