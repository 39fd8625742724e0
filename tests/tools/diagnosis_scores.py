"""How well are failures diagnosed? `make diagnosis` prints every score with its interval (Wilson, 95 %).

- `unseen`: public failures that were labelled before anything was scored (`kit.logs.failure_causes_unseen`).
- `fresh`: the next such part (`failure_causes_fresh`).
- `played`: failures that were played for this, labelled before they were (`kit.logs.failure_causes_played`).
- `own`: the corpus that rules were written with, by its parts; its scores say that nothing was lost, not what to expect.
- `left out`: the same, each failure judged without the table of rules, or the vocabulary, that knew it: what to expect of a
  framework or of messages that nobody has written a rule for.
- `changed`: how many right answers columns, mixed writers, lost parts and wrong clocks cost.

    python tests/tools/diagnosis_scores.py [unseen] [fresh] [played] [own] [left-out] [changed] [--part N] [--every N] [--wrong]
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from math import sqrt
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1] / room) for room in ("unit", "")]

from kit.logs import mutations  # noqa: E402
from kit.logs.failure_causes_unseen import FOLDER, FRESH, FRESH_PARTS, PLAYED, Failure, failures  # noqa: E402
from kit.logs.failure_logs import LAYOUTS, Case, make  # noqa: E402
from test_diagnosis_corpus import MORE_LAYOUTS, PARTS, SEEDS  # noqa: E402

from holdfast.core.job.finding import Class, Finding  # noqa: E402
from holdfast.diagnosis.attribute import attribute  # noqa: E402
from holdfast.diagnosis.gather import gather  # noqa: E402
from holdfast.diagnosis.meaning import Meanings  # noqa: E402
from holdfast.diagnosis.rule import TABLES, load  # noqa: E402
from holdfast.diagnosis.terms import FILES, exceptions, of_file  # noqa: E402

SURE = 0.7
LABELLED = {"unseen": FOLDER, "fresh": FRESH, "played": PLAYED}
Judge = Callable[[str], Finding]


def interval(right: int, of: int) -> str:
    """`77.3 % (69–84, 97 of 125)`"""
    if not of:
        return "– (0)"
    share, z = right / of, 1.96
    middle, width = share + z * z / (2 * of), z * sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    low, high = ((middle + sign * width) / (1 + z * z / of) for sign in (-1, 1))
    return f"{100 * share:.1f} % ({100 * low:.0f}–{100 * high:.0f}, {right} of {of})"


def judge(meanings: Meanings) -> Judge:
    return lambda path: attribute(gather([path], meanings))


def labelled(part: str, folder: Path, wrong: bool, number: int | None = None) -> None:
    look = judge(Meanings(load()))
    those = failures(folder)
    if folder == FRESH and number is not None:
        first = sum(FRESH_PARTS[: number - 1])
        part, those = f"{part} {number}", those[first : first + FRESH_PARTS[number - 1]]
    found = [(one, look(str(one.path))) for one in those]
    several = [pair for pair in found if pair[0].several]
    for name, pairs in (("all", found), ("several ranks", several)):
        print(f"{part}, {name}")
        _row("class right", [finding.kind in one.classes for one, finding in pairs])
        _row("class wrong, and not unknown", [_is_wrong(one, finding) for one, finding in pairs])
        _row(f"class wrong at {SURE} or more", [_is_wrong(one, told) and told.confidence >= SURE for one, told in pairs])
        _row("culprit right", [_is_culprit(one, finding) for one, finding in pairs])
        _row("advice right", [finding.action in one.advice for one, finding in pairs])
        _row(
            "class, culprit and advice",
            [f.kind in one.classes and _is_culprit(one, f) and f.action in one.advice for one, f in pairs],
        )
    for low, high in ((0.0, 0.5), (0.5, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 1.01)):
        pairs = [one for one in found if low <= one[1].confidence < high and one[1].kind != Class.UNKNOWN]
        _row(f"right of those at {low:.1f} to {min(high, 1):.1f}", [finding.kind in one.classes for one, finding in pairs])
    for one, finding in found if wrong else ():
        if finding.kind not in one.classes or not _is_culprit(one, finding) or finding.action not in one.advice:
            said = f"{finding.kind} {finding.rank} {finding.action} {finding.confidence} by {finding.rule}"
            print(f"  {one.log} {said}, not {one}")


def _is_wrong(one: Failure, finding: Finding) -> bool:
    return finding.kind not in one.classes and finding.kind != Class.UNKNOWN


def _is_culprit(one: Failure, finding: Finding) -> bool:
    rank = (one.nobody or not one.ranks) if finding.rank is None else finding.rank in one.ranks
    return rank and (not one.nodes or not finding.node or finding.node in one.nodes)


def _row(name: str, those: Iterable[bool]) -> None:
    told = list(those)
    print(f"  {name:34s} {interval(sum(told), len(told))}", flush=True)


def cases(folder: Path, every: int) -> list[tuple[str, Case]]:
    """(part, case) of every so many logs of the own corpus."""
    made = []
    for part, causes in PARTS.items():
        for seed in range(0, SEEDS * len(causes), every):
            number = 5000 * (part != "tuned") + seed
            place = folder / part.replace(" ", "-") / str(number)
            made.append((part, make(number, causes[seed // SEEDS], place, MORE_LAYOUTS.get(part, LAYOUTS))))
    return made


def own(folder: Path, every: int) -> None:
    look = judge(Meanings(load()))
    print("own corpus")
    for part in PARTS:
        those = [(case, look(case.paths[0])) for which, case in cases(folder / "own", every) if which == part]
        _row(f"{part}, class", [case.kind == finding.kind for case, finding in those])
        _row(f"{part}, culprit", [case.rank == finding.rank for case, finding in those])


def left_out(folder: Path, every: int) -> None:
    whole = judge(Meanings(load()))
    found = [(case, whole(case.paths[0])) for _, case in cases(folder / "out", every)]
    print("left out: each judged without what knew it")
    told: list[bool] = []
    for table in TABLES:
        names = {row[0] for row in import_module(f"holdfast.diagnosis.tables.{table}").RULES}
        without = judge(Meanings(load(tables=[one for one in TABLES if one != table])))
        right = [_right(case, without) for case, finding in found if finding.rule in names]
        _row(f"rules about {table}", right)
        told += right
    _row("all rules", told)
    told = []
    for file in (*FILES, "exceptions"):
        names = {term.name for term in (of_file(file) if file in FILES else exceptions().values())}
        without = judge(Meanings(load(), without=frozenset(names)))
        right = [_right(case, without) for case, finding in found if finding.rule in names]
        _row(f"terms of {file}", right)
        told += right
    _row("all vocabularies", told)


def _right(case: Case, look: Judge) -> bool:
    return look(case.paths[0]).kind == case.kind


def changed(folder: Path, every: int) -> None:
    look = judge(Meanings(load()))
    ways: dict[str, Callable[[mutations.Files, Case], mutations.Files]] = {
        **{f"behind {name}": (lambda files, case, name=name: mutations.prefixed(name, files)) for name in mutations.PREFIXES},
        **{
            f"mixed: {how}": (lambda files, case, how=how: mutations.interleaved(how, files, random.Random(case.name)))
            for how in ("one", "pieces", "swapped")
        },
        **{f"cut: {where}": (lambda files, case, where=where: mutations.cut(files, where)) for where in ("head", "tail")},
        "another rank's log is lost": lambda files, case: mutations.without(files, 1 if case.rank == 0 else 0),
        "clocks differ": lambda files, case: mutations.skewed(mutations.prefixed("iso", files), random.Random(case.name)),
    }
    print("changed: right answers, class and culprit, that are lost")
    those = [(case, look(case.paths[0])) for _, case in cases(folder / "plain", every)]
    for number, (name, way) in enumerate(ways.items()):
        lost, of = 0, 0
        for case, finding in those:
            files = mutations.read(Path(case.paths[0]))
            again = look(mutations.write(folder / str(number) / case.name, way(files, case)))
            right = (finding.kind == case.kind, finding.rank == case.rank)
            of += sum(right)
            lost += sum(was and not now for was, now in zip(right, (again.kind == case.kind, again.rank == case.rank)))
        print(f"  {name:34s} {interval(lost, of)}", flush=True)


def main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", default=["unseen", "fresh", "played", "own", "left-out", "changed"])
    parser.add_argument("--part", type=int, metavar="N", help="of fresh, only this part, from 1")
    parser.add_argument("--every", type=int, default=5, metavar="N", help="of the own corpus, every so many logs are looked at")
    parser.add_argument("--wrong", action="store_true", help="say what is wrong, too")
    options = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        for what in options.what:
            if what in LABELLED:
                labelled(what, LABELLED[what], options.wrong, options.part)
            else:
                {"own": own, "left-out": left_out, "changed": changed}[what](Path(folder), options.every)


if __name__ == "__main__":
    main(sys.argv[1:])
