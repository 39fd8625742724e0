"""What does a message mean that no rule knows? Weighs the terms in it, the exception that it is, and the frame that raised it.

Each sign speaks for a class by as much as it is sure, and signs of one class add up. So a `RuntimeError` of unknown words that
the code which reads data has raised says less than `OSError: [Errno 5]`, and both say less than both together.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from holdfast.core.job.finding import ADVISED, UNSURE, Action, Class
from holdfast.core.value import Value, replace
from holdfast.diagnosis.tables import CAUSE, EFFECT, MACHINE, SYMPTOM
from holdfast.diagnosis.terms import Term, exceptions, kinds_of_lines, signs

MOST = 0.92
"""No sum of signs is surer, unless one of them is: from 0.93 on a finding may end a job (`recovery.findings`)."""

OF_ANYTHING, MOST_OF_ANYTHING = ("python-runtime", "python-exception"), 0.75
"""Exceptions whose name says nothing, and how sure words and frames alone may be."""

BETWEEN_PROCESSES = re.compile(r"/multiprocessing/(?:connection|managers|queues|reduction|resource_sharer|synchronize)\.py$")
CHILD, CHILD_GONE = "child-gone", "a process that it had started (of a data loader, a pool, a manager) is gone"
SEE_CHILD = "see what that process wrote last, and whether it was killed (`dmesg`)"
OF_PIPES = ("EOFError", "ConnectionResetError", "BrokenPipeError", "ConnectionRefusedError", "ConnectionAbortedError")

GUESS = 0.45  # No guess by words alone is surer.
SURE = 0.62  # From this on a message says why.
NEAR = 8  # Frames, from the innermost, that are looked at.
OF_TERM = 1.6  # What a term speaks for its class, by what the exception's name does.
OF_WORDS = 0.4  # What words in general speak, where a term says why.
OF_FRAMES = 0.8
USERS, TORCHS, VERSIONS = 0.9, 0.4, 2.8
"""What speaks for the script where the user's own file raised, or torch; for the installation where one library has called
another one as it was, or will be, in another version."""
IN_LIBRARY = 0.4  # What an exception that most often is the script's speaks, where a library raised it.
STRONG = 1.6  # What an exception that is most often an effect must have of other signs to be more.

EXCEPTION = re.compile(
    r"(?P<path>(?:\w+\.)*)(?P<name>[A-Z]\w*|[a-z]\w*(?:Error|Exception|error|failed)|error)(?:\((?P<inner>\w+)\))?"
    r"(?::(?: |$)(?P<said>.*)|$)",
    re.DOTALL,
)
CARRIER = re.compile(
    r"(?:terminated with exception|what\(\)|[Cc]aused by|because of the following error(?: \(look up to see its traceback\))?"
    r"|[Cc]aught (?:an )?exception(?: in \S+)?|[Ff]ail(?:ed|ure) [Rr]eason"
    r"|raised an (?:error|exception)|failed with (?:the )?(?:error|exception)"
    r"|got (?:error|exception)|terminate called after throwing an instance of '[^']+'|Uncaught exception|Unhandled exception"
    r"|exited with error|[Ee]rror message)(?::|\s)\s*(?P<inner>\S.*)",
    re.DOTALL,
)
"""What hands on another one's message, and that."""

_ENDS = re.compile(r"(?:Error|Exception|Exit|Interrupt|Failure|Failed|Fault|Timeout)$")
_LIBRARY = re.compile(r"/(?:site|dist)-packages/(?P<name>\w+)")
_STANDARD = re.compile(r"/lib(?:64)?/python\d|^<frozen|/python\d\.\d+/(?!(?:site|dist)-packages)")
_OF_CALLS = ("TypeError", "AttributeError", "ImportError", "NameError")
_OF_VERSIONS = re.compile(
    r"unexpected keyword argument|has no attribute|missing \d+ required|takes \d+ positional|cannot import name"
)

_OF_PYTHONS_OWN = re.compile(r"'(?:NoneType|str|int|float|bool|list|dict|tuple|set|bytes|function|generator|ellipsis)' object")

HELPS = {
    Class.USER_CODE: "fix the script at the line that its traceback names",
    Class.DATA: "find the file, and leave it out or fetch it anew",
    Class.FRAMEWORK: "see the library's own message; another version of it may help",
    Class.ENVIRONMENT: "install versions that belong together, on every node",
    Class.OOM_HOST: "load less at once, use fewer data loader workers, or give the job more memory",
    Class.OOM_GPU: "lower the batch or sequence length, shard or checkpoint more",
    Class.GPU: "see the kernel log of that node for an Xid, and have the GPU tested",
    Class.FABRIC: "see the links of that node, and the switch",
    Class.STORAGE: "see the disk or file server, and its limits",
    Class.NODE_LOST: "see that node",
    Class.PREEMPTED: "it comes back when there is room",
    Class.INJECTED: "there is nothing to mend",
    Class.UNKNOWN: "see the first failure",
}
"""What helps, by class, where nothing more is known."""


class Frame(Value):
    """One frame of a traceback."""

    path: str
    function: str = ""
    source: str = ""

    @property
    def library(self) -> str:
        """The package that it is of; `-`: Python's own; empty: the user's."""
        if found := _LIBRARY.search(self.path):
            return found["name"]
        return "-" if _STANDARD.search(self.path) else ""


class Judged(Value):
    """What a message means."""

    term: Term  # What says most of it, as sure and as near to the beginning as all signs together make it.
    likely: tuple[tuple[Class, float], ...] = ()  # The three likeliest classes, and how likely each is.


def judged(text: str, terms: Sequence[Term], frames: Sequence[Frame], *, is_raised: bool) -> Judged | None:
    """What the line means. `terms`: those in it; `is_raised`: it is the end of a traceback. None: nothing."""
    found = _innermost(text)
    known = _of_exception(found, is_raised=is_raised) if found is not None else None
    if is_of_a_child(text, frames):
        return Judged(term=replace(exceptions()["ChildProcessError"], name=CHILD, says=CHILD_GONE, helps=SEE_CHILD))
    if known is None and not is_raised:
        return _plain(text, terms)
    name, words = (found["name"], found["said"] or "") if found is not None else ("", text)
    causes = _causes(terms)
    weights = _weighed(terms, known, causes, words, frames, name)
    effect = next((term for term in (*terms, *([known] if known else ())) if term.depth == EFFECT), None)
    if effect is not None and not causes and (not is_raised or max(weights.values(), default=0.0) < STRONG):
        return Judged(term=effect)
    return _likeliest(weights, known, causes) if weights else None


def is_of_a_child(text: str, frames: Sequence[Frame]) -> bool:
    """Whether a process of the rank's own, as a data loader's worker, is gone: it was spoken to, and no file or other rank."""
    return text.startswith(OF_PIPES) and bool(frames) and BETWEEN_PROCESSES.search(frames[-1].path) is not None


def _causes(terms: Sequence[Term]) -> list[Term]:
    """Those that say why. What the system says of a call counts where nothing says which call that was."""
    causes = [term for term in terms if term.depth > EFFECT]
    return [term for term in causes if not term.name.startswith("errno-")] or causes


def guessed(text: str) -> Judged | None:
    """What a line that tells of a failure, and that nothing knows, is about by its words alone."""
    if not is_failing(text):
        return None
    weights: dict[Class, float] = {}
    for kind, weight in _of_words(text):
        weights[kind] = weights.get(kind, 0.0) + weight
    if not weights:
        return None
    found = _likeliest(weights, None, ())
    said = f"its last words tell of it: {text.strip()[:120]}"
    term = replace(found.term, name="words", depth=SYMPTOM, sure=min(found.term.sure, GUESS), says=said)
    return Judged(term=replace(term, action=_advised(term.kind, SYMPTOM)), likely=found.likely)


def is_failing(text: str) -> bool:
    """Whether a line that is no exception tells of a failure, by its words."""
    return any(one.search(text) for one in kinds_of_lines("fails")) and not _passes(text)


def _passes(text: str) -> bool:
    return any(one.search(text) for one in kinds_of_lines("passes"))


def _plain(text: str, terms: Sequence[Term]) -> Judged | None:
    """Of a line that is no exception only its terms tell."""
    passes = _passes(text)
    those = [term for term in terms if term.depth == MACHINE or not passes]
    return None if not those else Judged(term=max(those, key=lambda term: (term.depth, term.sure)))


def _exception_in(text: str) -> re.Match[str] | None:
    """The last line of a traceback, or what looks like it."""
    found = EXCEPTION.match(text)
    if found is None or (found["said"] is None and not _ENDS.search(found["name"]) and found["name"] not in exceptions()):
        return None
    return found


def _innermost(text: str) -> re.Match[str] | None:
    """The exception that the line ends with, where one that nobody knows hands on another one's words."""
    found = _exception_in(text)
    while found is not None and found["name"] not in exceptions() and found["said"]:
        inner = _exception_in(found["said"])
        if inner is None or inner["name"] not in exceptions():
            break
        found = inner
    return found


def _of_exception(found: re.Match[str], *, is_raised: bool) -> Term | None:
    """What the exception's class means by itself."""
    known, name = exceptions(), found["name"]
    if not is_raised and name in ("Error", "error") and not found["path"]:
        return None  # so any program begins a line that tells of a failure
    for one in (found["inner"], found["path"] + name, name):
        if one in known:
            return known[one]
    if not is_raised and not _ENDS.search(name):
        return None
    some = replace(known["RuntimeError"], name="python-exception", says=f"it raised {name}")
    for sign in signs("names"):
        if sign.pattern.search(name):
            depth = CAUSE if sign.weight else EFFECT
            sure, action = sign.weight or 0.35, _advised(sign.kind, depth)
            return replace(some, kind=sign.kind, depth=depth, sure=sure, helps=HELPS[sign.kind], action=action)
    return some


def _weighed(
    terms: Sequence[Term], known: Term | None, causes: Sequence[Term], words: str, frames: Sequence[Frame], name: str
) -> dict[Class, float]:
    """What speaks for each class."""
    weights: dict[Class, float] = {}
    signs_of = [(term.kind, OF_TERM * _logit(term.sure)) for term in causes]
    if known is not None and known.depth > EFFECT:
        of_library = known.kind == Class.USER_CODE and known.name != "python-config" and _is_of_library(frames, words)
        signs_of.append((known.kind, _logit(known.sure) * (IN_LIBRARY if of_library else 1.0)))
    share = OF_WORDS if causes else 1.0
    signs_of += [(kind, weight * share) for kind, weight in (*_of_words(words), *_of_frames(frames, words, name, known))]
    for kind, weight in signs_of:
        weights[kind] = weights.get(kind, 0.0) + weight
    return weights


def _is_of_library(frames: Sequence[Frame], words: str) -> bool:
    """Whether a library ran into it, and did not refuse what it was given: that it raises itself, and is the script's doing."""
    outside = [frame for frame in frames[-NEAR:] if frame.library != "-"]
    if not outside or not outside[-1].library or (outside[-1].library == "torch" and words):
        return False
    last = f"{outside[-1].path} {outside[-1].function}"
    reads = any(sign.kind in (Class.DATA, Class.STORAGE) and sign.pattern.search(last) for sign in signs("callers"))
    return reads or not frames[-1].source.startswith("raise")


def _of_words(words: str) -> Iterator[tuple[Class, float]]:
    for sign in signs("words"):
        if sign.pattern.search(words):
            yield sign.kind, sign.weight


def _of_frames(frames: Sequence[Frame], words: str, name: str, known: Term | None) -> Iterator[tuple[Class, float]]:
    """What it did, and whose code raised it."""
    inner = frames[-NEAR:]
    shown = [f"{frame.path} {frame.function} {frame.source}" for frame in inner]
    for sign in signs("callers"):
        if any(sign.pattern.search(one) for one in shown):
            yield sign.kind, sign.weight * OF_FRAMES
    outside = [frame.library for frame in inner if frame.library != "-"]
    if not outside:
        return
    if not outside[-1] and (known is None or known.kind == Class.USER_CODE):
        yield Class.USER_CODE, USERS
    elif outside[-1] and name in _OF_CALLS and _OF_VERSIONS.search(words) and not _OF_PYTHONS_OWN.search(words):
        yield Class.ENVIRONMENT, VERSIONS
    elif outside[-1] == "torch":
        yield Class.USER_CODE, TORCHS


def _likeliest(weights: dict[Class, float], known: Term | None, causes: Sequence[Term]) -> Judged:
    """The class that most speaks for, said as its surest sign says it."""
    shares = {kind: math.exp(weight) for kind, weight in weights.items()}
    whole = sum(shares.values()) + 1.0
    order = sorted(shares, key=lambda kind: -shares[kind])
    likely = tuple((kind, round(shares[kind] / whole, 2)) for kind in order[:3])
    kind = order[0]
    saying = [term for term in (*causes, *([known] if known else ())) if term.kind == kind]
    sure = min(shares[kind] / whole, _most(known, causes, saying))
    if of_cause := [term for term in saying if term in causes]:
        return Judged(term=replace(max(of_cause, key=lambda term: term.sure), sure=sure), likely=likely)
    term = saying[0] if saying else replace(known or exceptions()["RuntimeError"], kind=kind, helps=HELPS[kind], depth=CAUSE)
    depth = CAUSE if term.depth == CAUSE and sure >= SURE else SYMPTOM
    action = term.action if saying and depth == CAUSE else _advised(kind, depth)
    return Judged(term=replace(term, sure=sure, depth=depth, action=action), likely=likely)


def _most(known: Term | None, causes: Sequence[Term], saying: Sequence[Term]) -> float:
    """How sure all signs together may be. Of an exception whose name says nothing, words and frames only tell."""
    if known is not None and known.name in OF_ANYTHING and not causes:
        return MOST_OF_ANYTHING
    return max([MOST, *(term.sure for term in saying)])


def _advised(kind: Class, depth: int) -> Action:
    return (Action.RESTART, UNSURE[kind], ADVISED[kind], ADVISED[kind])[depth]


def _logit(sure: float) -> float:
    return math.log(sure / (1 - sure))
