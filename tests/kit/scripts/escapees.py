"""A worker with descendants that are hard to get rid of. Each leaves its pid as the name of a file in the directory given.

    escapees.py DIRECTORY [END]      END: wait (default), exit
"""

from __future__ import annotations

import os
import signal
import sys
import time


def stay(folder: str, *, stubborn: bool = True) -> None:
    if stubborn:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(signum, signal.SIG_IGN)
    open(os.path.join(folder, str(os.getpid())), "w").close()
    while True:
        time.sleep(60)


def start(body: object) -> None:
    if os.fork() == 0:
        try:
            body()  # type: ignore[operator]
        finally:
            os._exit(0)


def main(folder: str, end: str = "wait") -> None:
    def own_session() -> None:
        os.setsid()
        stay(folder)

    def daemon() -> None:  # its parent is gone, and it leads no session
        os.setsid()
        start(lambda: stay(folder))

    def family() -> None:  # a child below a child that has left the session
        os.setsid()
        start(lambda: (os.setsid(), stay(folder)))
        stay(folder)

    for body in (own_session, daemon, family, lambda: stay(folder)):
        start(body)
    while len(os.listdir(folder)) < 5:
        time.sleep(0.005)
    if end == "wait":
        stay(folder, stubborn=False)
    open(os.path.join(folder, str(os.getpid())), "w").close()


if __name__ == "__main__":
    main(*sys.argv[1:])
