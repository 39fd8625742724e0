"""Which messages mean what? One table for each of those who write them; the columns are `diagnosis.rule.COLUMNS`.

Messages are facts about other software: each row names the document or source file that has it. How to write one is told
in docs/how-to/write-a-rule.md.
"""

from __future__ import annotations

Row = tuple[str, str, int, int, str, str, str, str, str, str]
"""name, class, depth, confidence (percent), words, pattern, what it says, what to do, source, sample (`diagnosis.rule`)"""

EFFECT, SYMPTOM, CAUSE, MACHINE = 0, 1, 2, 3
"""How near to the beginning of it all a message is: what others' failure brings about · that it failed, not why · why it
failed · what broke below the process."""

DEPTHS = ("effect", "symptom", "cause", "machine")  # Their names.
