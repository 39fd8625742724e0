"""A spare worker and what its agent does with it, by hand: `Spare(argv, …)`, `ready()`, `become(…)`."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from holdfast.agent.workers import launch
from holdfast.core.page.layout import HOOK_MODULES, HOOK_SIGNS
from holdfast.runtime.process import process
from holdfast.runtime.shm.pages import Page, create_page

PATIENCE_S = 30.0


class Spare:
    """A parked interpreter. What it is told is what `agent.spares.pool` tells."""

    def __init__(
        self, argv: list[str], env: Mapping[str, str], cwd: Path, *, modules: Iterable[str] = (), mode: str = "spawn"
    ) -> None:
        process.set_subreaper()  # a forked worker is to be our child
        self.mode = mode
        self.link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.env = launch.spare_env(
            launch.bootstrap_env(env, page_fd=0), fd=theirs.fileno(), agent=os.getpid(), hook=HOOK_SIGNS | HOOK_MODULES
        )
        kept = [os.memfd_create("output") for _ in range(2)]
        self.process = subprocess.Popen(
            argv, cwd=cwd, env=self.env, stdin=subprocess.PIPE, stdout=kept[0], stderr=kept[1], pass_fds=[theirs.fileno()]
        )
        theirs.close()
        names = os.memfd_create("modules")
        os.write(names, "\n".join(modules).encode())
        os.lseek(names, 0, os.SEEK_SET)
        socket.send_fds(self.link, [f"load\0{mode}".encode()], [names])
        for fd in (*kept, names):
            os.close(fd)

    def hear(self) -> list[str]:
        """What it says next; empty words: it has ended."""
        assert select.select([self.link], [], [], PATIENCE_S)[0], "the spare says nothing"
        return self.link.recv(65536).decode().split("\0")

    def become(self, env: Mapping[str, str], said: bytes = b"") -> tuple[list[str], Page, bytes, bytes, int | None]:
        """Have it become a worker with this environment, whose stdin is `said`. Returns its answer, the page, stdout, stderr,
        and the exit code; None where it refused."""
        page = create_page(HOOK_SIGNS | HOOK_MODULES)
        out, err = os.pipe(), os.pipe()
        names = {*env, *self.env} - {"PYTHONPATH", launch.SPARE, launch.USER_PYTHONPATH}
        changes = [f"{name}={env[name]}" if name in env else name for name in names if env.get(name) != self.env.get(name)]
        order = b"\0".join([b"become", b"p12", *map(os.fsencode, changes)])
        socket.send_fds(self.link, [order], [page.fd, out[1], err[1]])
        for fd in (out[1], err[1]):
            os.close(fd)
        answer = self.hear()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ends without a look at it
            self.process.stdin.write(said)
            self.process.stdin.close()
        texts = _read_both(out[0], err[0])
        if answer[0] != "taken":
            return answer, page, *texts, None
        if self.mode == "spawn":
            return answer, page, *texts, self.process.wait(PATIENCE_S)
        return answer, page, *texts, os.waitstatus_to_exitcode(os.waitpid(int(answer[1]), 0)[1])

    def close(self) -> None:
        """It ends when nobody is there any more."""
        self.link.close()
        self.process.wait(PATIENCE_S)


def _read_both(*fds: int) -> tuple[bytes, bytes]:
    texts = dict.fromkeys(fds, b"")
    left = list(fds)
    while left:
        for fd in select.select(left, [], [], PATIENCE_S)[0]:
            if more := os.read(fd, 65536):
                texts[fd] += more
            else:
                left.remove(fd)
                os.close(fd)
    out, err = texts.values()
    return out, err
