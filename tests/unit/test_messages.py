"""Are the messages to users plain? All of them are in: python tests/tools/messages.py"""

from __future__ import annotations

import re
from collections import Counter

from tools.messages import messages

RIDDLES = re.compile(
    r"\b(whoever|whatever|for want of|who is to|(is|are) to be|without a word)\b"
    r"|(?<!there )is no (port|number|level|YAML|amount)\b"
)
"""Words that a reader has to read twice. Say who does what: "the node did not answer", "PORT is not a port"."""
KNOWN = 7
"""Messages of other rooms that still have such a word. May only fall."""


def test_every_message_is_found() -> None:
    rooms = Counter(one.where.partition("/")[0] for one in messages())
    assert rooms["cli"] > 70 and rooms["core"] > 90 and sum(rooms.values()) > 400


def test_messages_say_plainly_what_happened() -> None:
    found = [f"{one.where}: {one.text}" for one in messages() if RIDDLES.search(one.text)]
    ours = [one for one in found if one.startswith(("cli/", "core/config/", "core/resolve/"))]
    assert not ours, "\n".join(ours)
    assert len(found) <= KNOWN, "\n".join(found)
