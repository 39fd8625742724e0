"""Which of all messages is the cause, and which rank or node does it blame? `Evidence` in, one `Finding` out; pure.

`precedence` orders the messages, and `places` finds whose each is. A message that its writer survived counts last: the writer
went on, wrote for long, or ended by another exception.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from holdfast.core.job.failure import NO_OOM_KILL, Cause, signal_name
from holdfast.core.job.finding import ADVISED, Action, Class, Finding, Quote
from holdfast.core.value import replace
from holdfast.diagnosis.evidence import End, Evidence, Sighting, quote, writer
from holdfast.diagnosis.hangs.recorder_file import compare
from holdfast.diagnosis.hangs.stack_groups import outlier
from holdfast.diagnosis.hangs.suspects import named
from holdfast.diagnosis.hangs.uneventful import uneventful
from holdfast.diagnosis.hangs.waiting import waited_for
from holdfast.diagnosis.judgement import HELPS
from holdfast.diagnosis.opinions.learned_words import weighed
from holdfast.diagnosis.places import Places, whom
from holdfast.diagnosis.precedence import first, last_words
from holdfast.diagnosis.tables import CAUSE, EFFECT, SYMPTOM

ALL = 0.9  # The share of ranks that says the same where all are meant: some are ended before they can.

UNSURE, UNSURE_CAUSE = 0.62, 0.5  # Below this the weighed signs do not make a class: it is unknown, with the likeliest ones.

OF_NOBODY = (Class.FABRIC, Class.NODE_LOST, Class.PREEMPTED)  # Not what one rank has done, which is then waited for.

MOST_QUOTES = 8

SIGNALS = {
    -9: (Class.OOM_HOST, 0.55, "was killed by SIGKILL: most often by the kernel, out of memory", "see its node's `dmesg`"),
    -11: (Class.FRAMEWORK, 0.5, "crashed in native code (SIGSEGV)", "look for libraries whose versions do not fit"),
    -6: (Class.FRAMEWORK, 0.4, "aborted in native code (SIGABRT)", "see what it wrote on stderr"),
    -7: (Class.OOM_HOST, 0.5, "died of a bus error (SIGBUS): often a full /dev/shm", "give the container more shared memory"),
    -4: (Class.ENVIRONMENT, 0.7, "ran an instruction that its CPU lacks (SIGILL)", "install a build for it on every node"),
    -8: (Class.FRAMEWORK, 0.5, "divided by zero in native code (SIGFPE)", "see the library in its stack, and its input"),
    -5: (Class.FRAMEWORK, 0.5, "ran into a trap in native code (SIGTRAP)", "see what it wrote on stderr"),
    -31: (Class.ENVIRONMENT, 0.7, "made a call that the system forbids (SIGSYS)", "see the container's seccomp profile"),
    -24: (Class.ENVIRONMENT, 0.7, "used up its processor time (SIGXCPU)", "raise `ulimit -t`, or train elsewhere"),
    -25: (Class.STORAGE, 0.7, "wrote a file larger than its limit (SIGXFSZ)", "raise `ulimit -f`"),
    -12: (Class.PREEMPTED, 0.5, "was told of its end by the scheduler (SIGUSR2)", "start it again"),
    -10: (Class.PREEMPTED, 0.5, "was told of its end by the scheduler (SIGUSR1)", "start it again"),
    -1: (Class.PREEMPTED, 0.5, "lost its terminal (SIGHUP)", "start it from a session that lasts"),
    -15: (Class.PREEMPTED, 0.5, "was terminated (SIGTERM)", "find the sender: most often the scheduler"),
    -2: (Class.PREEMPTED, 0.5, "was interrupted (SIGINT)", "start it again when you like"),
}  # fmt: skip
"""What an end by a signal most likely means, where nothing else tells."""


BY_SOMEBODY = (
    Class.PREEMPTED, 0.6, "was killed by SIGKILL, and not by the kernel, which has killed none because memory ran out",
    "find the sender: a scheduler, a script or a person",
)  # fmt: skip

OF_CHILDREN = ("loader-killed", "child-killed", "shell-killed", "signal-9")
"""Rules by which memory ran out where SIGKILL has ended a process that the rank had started: not where the kernel says no."""


UNEVEN = "have all ranks make the same number of steps, and leave together (exit codes are taken modulo 256: 256 is 0)"


OF_ONE_ERROR = 3
"""Lines, between the first and the last that tell of it."""

STANDS = "see where it was: `holdfast why` and `holdfast incidents` show its stack"


def attribute(evidence: Evidence) -> Finding:
    """What happened, to whom, why, and what to do. Where the rules are not sure, the words of the logs count as well."""
    return weighed(_by_rules(evidence), evidence.said)


def _by_rules(evidence: Evidence) -> Finding:
    places = Places(evidence)
    evidence = places.evidence
    alive = [_of_child(one, evidence.ends) for one in evidence.sightings if not one.recovered]
    symptoms = _own_symptoms(alive)
    if played := next((end for end in evidence.ends if end.first and end.injected), None):
        return _of_injected(played, evidence)
    if lost := next((end for end in evidence.ends if end.lost), None):  # what the others say of it comes after
        causes = [one for one in last_words(alive) if one.node == lost.node]
        return _finding(causes, places) if causes else _of_lost(lost, evidence)
    if causes := last_words(alive):
        return _finding(causes, places)
    if own := _known_end(symptoms, places):
        return own
    # Nobody says why. Then who was not where the others waited tells more than who complained.
    if found := _of_signs(evidence, symptoms):
        return _its_own(found, symptoms, places) or found
    if symptoms:
        return _finding(symptoms, places)
    return _of_guilty(alive, places) or _of_little(alive, places)


def _of_signs(evidence: Evidence, symptoms: Sequence[Sighting]) -> Finding | None:
    """What nobody says: who was elsewhere; where nothing failed either, what was unlike before."""
    signs = [compare(evidence.records), outlier(evidence.stacks), waited_for(evidence)]
    if all(one.rule.kind == Class.PREEMPTED for one in symptoms):
        signs.append(uneventful(evidence))
    return max(filter(None, signs), key=lambda one: one.confidence, default=None)


def _of_child(one: Sighting, ends: Sequence[End]) -> Sighting:
    """That message, judged by what the kernel says of the rank's node where it tells of a process that was killed."""
    if one.rule.name not in OF_CHILDREN or not any((end.rank, end.oom) == (one.rank, NO_OOM_KILL) for end in ends):
        return one
    kind, confidence, says, advice = BY_SOMEBODY
    rule = replace(one.rule, kind=kind, confidence=confidence, action=ADVISED[kind], advice=advice, likely=())
    return replace(one, rule=replace(rule, says=f"a process that it had started {says}"))


def _of_guilty(alive: Sequence[Sighting], places: Places) -> Finding | None:
    """How the first one ended that failed by itself, and does not only complain of others."""
    complain = {one.rank for one in alive if one.rule.depth == EFFECT} - {one.rank for one in alive if one.rule.depth > EFFECT}
    ends = places.evidence.ends
    guilty = [end for end in ends if not end.innocent and end.exitcode and (end.rank is None or end.rank not in complain)]
    if not guilty:
        return None
    end = min(guilty, key=lambda end: (not end.first, (end.exitcode or 0) > 0, end.line))
    if places.failed_alike < 2:
        return _of_end(end, places.evidence)
    found = _ended(replace(end, rank=None, node=""), "all ranks", places.evidence)
    return replace(found, everywhere=True, action=Action.ASK)


def _own_symptoms(alive: Sequence[Sighting]) -> list[Sighting]:
    """Those that do not follow from what their writer said before of others' failure. The text of one error has some lines."""
    begun: dict[tuple[str, int | None], int] = {}
    for one in alive:
        if one.rule.depth == EFFECT and one.rank is not None:
            begun[one.source, one.rank] = min(one.line, begun.get((one.source, one.rank), one.line))
    symptoms = [one for one in alive if one.rule.depth == SYMPTOM]
    return [one for one in symptoms if one.line < begun.get((one.source, one.rank), one.line) + OF_ONE_ERROR]


def _known_end(symptoms: list[Sighting], places: Places) -> Finding | None:
    """What our agents know to have ended first, by what it has said itself; else by how it ended."""
    for end in places.evidence.ends:
        if end.own:
            its = [one for one in symptoms if one.rank == end.rank or (one.rank is None and end.pid and one.pid == end.pid)]
            return _finding(its, places) if its else _of_end(end, places.evidence)
    return None


def _of_little(alive: list[Sighting], places: Places) -> Finding:
    """What is left where nothing tells of a failure: consequences, what was survived, or an end that was no failure."""
    evidence = places.evidence
    if effects := [one for one in alive if one.rule.depth == EFFECT]:
        return _finding([one for one in effects if one.rule.kind != Class.UNKNOWN] or effects, places)
    if gone := [one for one in evidence.sightings if one.recovered]:
        return _finding(gone, places)
    if evidence.ends:
        return _of_end(evidence.ends[0], evidence)
    return Finding(sentence="no rule matched: see the logs", advice="see the logs")


def _its_own(found: Finding, symptoms: list[Sighting], places: Places) -> Finding | None:
    """What the rank that others waited for has said, or died of itself: that it never came is what this led to."""
    if found.kind != Class.UNKNOWN or found.rank is None:
        return None
    evidence = places.evidence
    told = {end.rank for end in evidence.ends if end.first} == {found.rank}

    def its(one: Sighting) -> bool:
        # Of a line that names nobody: that the launcher takes this rank for the first to fail tells enough.
        return places.rank(one) == found.rank or (told and one.rank is None and not one.node and one.local is None)

    if own := [replace(one, rank=found.rank) for one in symptoms if not one.logged and its(one)]:
        return _finding(own, places)
    # Not SIGABRT: torch's watchdog ends a late rank by that, too. Not where it is known why: a rank that hangs is killed.
    ends = (end for end in evidence.ends if end.rank == found.rank and end.first and not end.what)
    died = (end for end in ends if end.exitcode in (-9, -11, -7, -4))
    end = next(died, None)
    return _of_end(end, evidence) if end is not None else None


def _finding(alike: Sequence[Sighting], places: Places) -> Finding:
    """What the first of these messages means."""
    evidence = places.evidence
    one = first(alike, evidence)
    same_depth = [seen for seen in alike if seen.rule.depth == one.rule.depth]
    writers = {writer(seen) for seen in same_depth if seen.rule.name == one.rule.name} - {None}
    everywhere = _is_everywhere(one, writers, places)
    # Less sure where another class is as likely, or its writer went on.
    others = any(seen.rule.kind != one.rule.kind and seen.rule.confidence >= 0.7 for seen in same_depth)
    confidence = one.rule.confidence * (0.8 if others else 1.0) * (0.8 if one.recovered else 1.0)
    rank = None if everywhere else _culprit(one, same_depth, places)
    node = "" if everywhere else one.node or (places.nodes.get(rank, "") if rank is not None else "")
    who = "all ranks" if everywhere else whom(rank, node)
    kind, sentence = _said(one, who, confidence)
    return Finding(
        kind=kind,
        rule=one.rule.name,
        confidence=round(confidence, 2),
        rank=rank,
        node=node,
        everywhere=everywhere,
        action=_action(one, everywhere),
        advice=one.rule.advice,
        sentence=sentence,
        likely=one.rule.likely,
        evidence=tuple(_quotes(one, evidence, rank)),
        effects=tuple(_effects(one, evidence)),
    )


def _action(one: Sighting, everywhere: bool) -> Action:
    """What is advised. A network that fails all ranks alike is mostly set up wrongly: a restart would meet it again."""
    alike = everywhere and one.rule.kind == Class.FABRIC and one.rule.action == Action.RESTART
    return Action.ASK if alike else one.rule.action


def _is_everywhere(one: Sighting, writers: set[object], places: Places) -> bool:
    """Whether all ranks say it: nearly each that has said anything, or where nobody is named as many as failed alike."""
    evidence = places.evidence
    if writers:
        return len(writers) > 1 and len(writers) >= ALL * max(evidence.writers, evidence.world_size or 0)
    return one.count >= places.failed_alike > 1


def _said(one: Sighting, who: str, confidence: float) -> tuple[Class, str]:
    """Its class, and the sentence."""
    says = one.rule.says.replace("{what}", one.what or "?")
    if not one.rule.likely or confidence >= (UNSURE if one.rule.depth == SYMPTOM else UNSURE_CAUSE):
        return one.rule.kind, f"{who}: {says}; {one.rule.advice}"
    likely = ", ".join(f"{kind} {share:.0%}" for kind, share in one.rule.likely)
    return Class.UNKNOWN, f"{who}: {says}; why is not known, likeliest are {likely}"


def _culprit(one: Sighting, same_depth: Sequence[Sighting], places: Places) -> int | None:
    """Which rank it blames."""
    if one.rule.depth == EFFECT:
        return None
    if one.rule.kind == Class.FABRIC and one.peer:
        return None  # which of both ends it is, one of them cannot know
    return _of_same_cause(one, same_depth, places)


def _of_same_cause(one: Sighting, same_depth: Sequence[Sighting], places: Places) -> int | None:
    """Whose it is; else whose another message of the same cause is, on the same node."""
    alike = (seen for seen in same_depth if seen.rule.kind == one.rule.kind and seen.node == one.node)
    found = next((rank for seen in (one, *alike) if (rank := places.rank(seen)) is not None), None)
    if found is None and one.rule.depth == CAUSE and one.local is None and one.rule.kind not in OF_NOBODY:
        # Of a line that names nobody: the rank that all others waited for has written it.
        waited = waited_for(places.evidence)
        return None if waited is None else waited.rank
    return found


def _of_lost(end: End, evidence: Evidence) -> Finding:
    advice = HELPS[Class.NODE_LOST]
    return Finding(
        kind=Class.NODE_LOST, confidence=0.95, node=end.node, action=ADVISED[Class.NODE_LOST], advice=advice,
        sentence=f"{end.node}: was lost: {end.what}; {advice}", evidence=(Quote(text=end.what, node=end.node),),
        effects=tuple(_effects(None, evidence)),
    )  # fmt: skip


def _of_injected(end: End, evidence: Evidence) -> Finding:
    says, advice = f"{end.what or 'was killed by SIGKILL'}; {end.injected}", HELPS[Class.INJECTED]
    return replace(
        _of_end(end, evidence), kind=Class.INJECTED, confidence=0.99, action=ADVISED[Class.INJECTED], advice=advice,
        sentence=f"{whom(end.rank, end.node)}: {says}; {advice}",
    )  # fmt: skip


def _of_end(end: End, evidence: Evidence) -> Finding:
    return _ended(end, whom(end.rank, end.node), evidence)


def _ended(end: End, who: str, evidence: Evidence) -> Finding:
    """What such an end means by itself."""
    code = end.exitcode
    kind, confidence, says, advice = SIGNALS.get(code or 0, (Class.UNKNOWN, 0.3, "", "see its log"))
    if end.cause in (Cause.HUNG, Cause.STUCK):  # we have killed it, for that
        kind, confidence, says, advice = Class.UNKNOWN, 0.5, end.what, STANDS
    elif end.cause is Cause.EARLY:
        kind, confidence, says, advice = Class.USER_CODE, 0.8, end.what, UNEVEN
    elif end.oom == NO_OOM_KILL and code == -9:
        kind, confidence, says, advice = BY_SOMEBODY
    elif end.oom not in ("", NO_OOM_KILL):
        kind, confidence, says, advice = Class.OOM_HOST, 0.95, f"was killed by the kernel: {end.oom}", HELPS[Class.OOM_HOST]
    if not says:
        says = f"ended with exit code {code}, and no rule matched" if code is not None else end.what or "ended"
        if code is not None and code < 0:
            says = f"was killed by {signal_name(code)}"
        elif end.own and end.what:
            says = f"exited with code {code}: {end.what}"
    rank = end.rank
    return Finding(
        kind=kind, confidence=confidence, rank=rank, node=end.node, action=ADVISED[kind], advice=advice,
        sentence=f"{who}: {says}; {advice}",
        evidence=(Quote(text=end.what or f"exit code {code}", source=end.source, line=end.line, rank=rank, node=end.node),),
        effects=tuple(_effects(None, evidence)),
    )  # fmt: skip


def _quotes(one: Sighting, evidence: Evidence, rank: int | None) -> Iterable[Quote]:
    """The line itself first, then what else is said of the same rank, then the nearest causes."""
    others = [seen for seen in evidence.sightings if seen is not one and seen.rule.depth]
    others.sort(key=lambda seen: (seen.rank != rank, -seen.rule.depth, seen.line))
    seen_rules = {one.rule.name}
    yield quote(one)
    for other in others:
        if other.rule.name not in seen_rules and len(seen_rules) < MOST_QUOTES:
            seen_rules.add(other.rule.name)
            yield quote(other)


def _effects(one: Sighting | None, evidence: Evidence) -> Iterable[str]:
    """Per rule: who said so, in one line each."""
    by_rule: dict[str, list[Sighting]] = {}
    for seen in evidence.sightings:
        if seen is not one and seen.rule.depth == EFFECT:
            by_rule.setdefault(seen.rule.says, []).append(seen)
    for says, those in sorted(by_rule.items(), key=lambda item: -len(item[1]))[:MOST_QUOTES]:
        ranks = {seen.rank for seen in those if seen.rank is not None}
        who = named(sorted(ranks)) if ranks else f"{len(those)} times"
        yield f"{who}: {says}"
