"""Which side of a link may say what: the one table, and the one question that every message is put to when it arrives.

A link leads from a node to one that may be the coordinator, or another elector. Who may say what in a message of a member is
`rendezvous.coordinator.belief`'s matter, and who leads `rendezvous.election.following`'s.
"""

from __future__ import annotations

from enum import Enum

from holdfast.core.wire.messages import (
    Assigned,
    Calculated,
    Failed,
    Finish,
    HangFound,
    Imports,
    Join,
    Leads,
    Leave,
    LookAround,
    Message,
    Notice,
    Pace,
    Paced,
    Positions,
    Propose,
    Refused,
    Renew,
    Renewed,
    Reply,
    Request,
    Saving,
    Seek,
    Stop,
    Stopped,
    StoreAnswer,
    StoreAsk,
    Succeeded,
    ToImport,
    Vote,
    Waiting,
)


class Speaker(Enum):
    """A side of a link, and whether it says who it is."""

    CALLER = "who made the link, and names itself"
    CALLED = "who was called, and names nobody"
    EITHER = "each in its own direction: the caller names itself, the called one does not"
    BOTH = "two electors that look for a coordinator, and name themselves"


SPEAKERS: dict[type[Message], Speaker] = {
    **dict.fromkeys((Join, Renew, Leave, Failed, Stopped, Succeeded, HangFound, Positions), Speaker.CALLER),
    **dict.fromkeys((Pace, Saving, Calculated, Imports, StoreAsk), Speaker.CALLER),
    **dict.fromkeys((Assigned, Waiting, Notice, Stop, LookAround, Paced, ToImport, Renewed), Speaker.CALLED),
    **dict.fromkeys((Finish, Refused, StoreAnswer), Speaker.CALLED),
    **dict.fromkeys((Request, Reply), Speaker.EITHER),
    Vote: Speaker.CALLER,
    Seek: Speaker.BOTH,
    **dict.fromkeys((Propose, Leads), Speaker.CALLED),
}


def objection(message: Message, *, to_caller: bool) -> str:
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
