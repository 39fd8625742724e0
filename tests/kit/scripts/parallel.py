"""Starts children in each way that multiprocessing has. They import this module again, and find its classes and functions."""

from __future__ import annotations

import multiprocessing
import os
import sys


class Answer:
    def __init__(self, name: str, **seen: object) -> None:
        self.name = name
        self.seen = seen


def ask(method: str) -> Answer:
    import __main__

    return Answer(
        __name__,
        method=method,
        main=getattr(__main__, "__file__", None),
        argv=sys.argv,
        path=sys.path,
        environment=sorted(name for name in os.environ if "HOLDFAST" in name or name == "PYTHONPATH"),
        page=getattr(sys.modules.get("_holdfast_bootstrap"), "words", None),
    )


def fail() -> None:
    raise ValueError("in a child")


if __name__ == "__main__":
    for method in ("spawn", "forkserver", "fork"):
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            answer = pool.apply(ask, (method,))
        print(type(answer) is Answer, answer.name, sorted(answer.seen.items()))
        child = context.Process(target=fail, name="child")
        child.start()
        child.join()
        print("exit code", child.exitcode)
