"""How does a rank hear that it is to let go of its round, how does it get out of whatever it does, and what is it given then?

A thread waits in the page for the agent's word (`layout.LIFE_ASKED`). When it comes, it ends what the main thread may wait for
in C code (`groups.interrupt`), and sends it a signal whose handler raises `Regroup`: that reaches Python code, `sleep`, locks
and `select` alike. A handler that finds the main thread in `OURS` raises nothing.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import sys
import threading
from _thread import start_new_thread
from _warnings import warn
from contextlib import suppress
from importlib import import_module

from holdfast.client.in_place import groups, mistakes
from holdfast.client.in_place.device import Device
from holdfast.client.worker import this_worker
from holdfast.core.job.lost_peers import follows
from holdfast.core.page import layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, ModuleType

    from holdfast.client.in_place.state import State

SIGNAL = 59
"""A real-time signal, near those of the bootstrap that show stacks. A script that has a handler for it keeps that."""

AGAIN_S = 0.5
"""After so long a main thread that has not come out is sent the signal again: code that catches everything, or a finaliser in
which Python drops exceptions, may have swallowed the first."""

SOON_S, OFTEN = 0.01, 100
"""After so long, so often, where its handler has not raised: it was in our own code, in an update or in one of `HALVES`, or C
code holds it. For that second an update may come to its end: all ranks are in it at the same time, and if all are torn, no
rank has a whole state."""

TOO_OFTEN = 3
"""As it is raised so often, the script is told that it catches what it must not. A finaliser may drop the first."""

OURS = ("holdfast.client.in_place.lives", "holdfast.client.in_place.channel")
"""Code that looks for the agent's word by itself."""

HALVES = ("__enter__", "__exit__")
"""Functions that leave half of a change behind when they are interrupted: autocast would be on, with the weights of then in its
cache, for all lives to come."""

HELPERS = ("threading", "contextlib")
"""Code that works for its caller, ours or the script's."""

FOLLOWS_S = 1.0
"""An error that tells of another rank's end often comes before the agent's word: so long is that waited for. The agent knows of
a death within milliseconds; of a node's, when its lease is over: where there are several nodes, that is added."""


class Channel:
    """This process's side of it."""

    def __init__(self, bootstrap: ModuleType, regroup: type[BaseException], tear_down: Callable[[], object] | None) -> None:
        self.bootstrap, self.exception, self.tear_down = bootstrap, regroup, tear_down
        self.main = threading.get_ident()
        self.device = Device()
        self.state: State | None = None  # What the script keeps in memory, if it does.
        self.inside = False  # The script's code runs: `Regroup` may be raised in it.
        self.raised, self.sent = 0, 0  # How often it was, since the agent last asked; how often the signal was sent.
        self.before: frozenset[str] = frozenset()  # The sockets that were open when the life began.
        self.heard = bootstrap.words[layout.LIFE_ASKED]  # The last word of the agent's.
        self.is_asked = threading.Event()  # The agent wants this round left.
        self.is_out = threading.Event()  # The main thread has left the script's code.
        self.tries = threading.Lock()  # Over what the thread does to torch's groups.
        self.is_told = threading.Event()  # The agent has said something since the main thread last looked.
        self.is_awaited = False  # The agent has said what the next life is, and waits for the script's code to be called.
        self.children = mistakes.Children()
        self.follows_s = FOLLOWS_S
        self.has_grad = True  # Torch was to record what gradients need, as the life began.

    def watch(self, state: State) -> None:
        """From now on that is not torn where it can be helped."""
        self.state = state

    # --- the main thread ------------------------------------------------------------------------------------------------

    def enter(self) -> None:
        """The script's code begins. If it need not, it is interrupted as soon as it has."""
        self.is_out.clear()
        self.before = groups.sockets()
        self.follows_s = FOLLOWS_S + float(os.environ.get("HOLDFAST_NODE_LOST_AFTER_S") or 0)
        if (torch := sys.modules.get("torch")) is not None:
            self.has_grad = torch.is_grad_enabled()
        if self.is_awaited:
            self.is_awaited = False
            this_worker.tell_life(layout.IN_PLACE)
        self.inside = True
        if self.is_asked.is_set():
            start_new_thread(self.interrupt, ())

    def leave(self, error: BaseException | None, is_regroup: bool) -> bool:
        """The script's code has ended. Whether another life follows; else this process is as any other from now on."""
        is_cut_short = error is not None and (is_regroup or (follows(error) and self.is_asked.wait(self.follows_s)))
        if is_cut_short and self.is_asked.is_set():
            _end_frames(error)
        self.inside = False
        self.is_out.set()
        if (error is not None and not is_cut_short) or not self.is_asked.is_set():
            this_worker.tell_life(layout.NOT_IN_PLACE)
            return False
        return True

    def regroup(self) -> None:
        """Let go of the round, and wait for the next."""
        with self.tries:
            pass  # none reaches what the next life opens
        if self.tear_down is not None:
            self.tear_down()
        groups.tear_down(self.before)
        if (torch := sys.modules.get("torch")) is not None:  # `no_grad` may have been interrupted before its block began
            torch.set_grad_enabled(self.has_grad)
        self._check_device(wait=True)
        if self.state is not None:
            _keep(self.state)
            self.state.tell()
        this_worker.begin_anew()
        page = self.bootstrap.words
        answered = page[layout.LIFE_ASKED]
        this_worker.tell_life(layout.LET_GO)
        gc.collect()  # of what the round has left: nobody waits for that now
        self.children.look()
        groups.end_life()
        while True:
            self.is_told.wait()
            self.is_told.clear()
            word = page[layout.LIFE_ASKED]
            if word % 2 == 0:
                break
            if word != answered:  # that life had begun and was to be left before anybody here has seen it
                answered = word
                self._take_life()  # what follows is told as what differs from it
                this_worker.tell_life(layout.LET_GO)
        self.is_asked.clear()
        if page[layout.LIFE_ASKED] % 2:
            self.is_asked.set()  # again, meanwhile
        self._take_life()
        self.is_awaited = True

    def _take_life(self) -> None:
        page, at = self.bootstrap.words, layout.LIFE * 8
        begin(self.bootstrap, json.loads(bytes(page.cast("B")[at : at + page[layout.LIFE_BYTES]])))

    def interrupted(self, signum: int, frame: FrameType | None) -> None:
        """The signal's handler, in the main thread."""
        is_half = _is_within_half(frame)
        while frame is not None and _module_of(frame) in HELPERS:
            frame = frame.f_back
        is_ours = (frame is not None and _module_of(frame) in OURS) or (
            self.sent < OFTEN and (is_half or (self.state is not None and self.state.in_update()))
        )
        if self.inside and self.is_asked.is_set() and not is_ours:
            self._check_device(wait=False)
            self.raised += 1
            if self.raised == TOO_OFTEN and frame is not None:
                mistakes.caught(frame, self.raised - 1)
            raise self.exception()

    def _check_device(self, *, wait: bool) -> None:
        """Where this process can use its GPU no more, it ends, and at once: torch aborts one that unwinds, when it gives memory
        of such a GPU back."""
        if why := self.device.error(wait=wait):
            sys.stdout.flush()
            sys.stderr.write(f"holdfast: this rank's GPU takes no more work of this process, so a new one follows: {why}\n")
            sys.stderr.flush()
            this_worker.tell_life(layout.NOT_IN_PLACE)
            os._exit(1)

    # --- the thread -----------------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Wait for the agent's word, for ever."""
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the script's threads
        while (page := self.bootstrap.words) is not None:
            word = page[layout.LIFE_ASKED]
            if word == self.heard:
                self.bootstrap.sleep_on(word, layout.LIFE_ASKED)
                continue
            self.heard = word
            if word % 2:
                self.interrupt()
            self.is_told.set()

    def interrupt(self) -> None:
        """Get the main thread out of the script's code, however often it takes."""
        self.is_asked.set()
        if self.state is not None:
            self.state.settle()
        self.raised = 0
        if signal.getsignal(SIGNAL) != self.interrupted:
            mistakes.handled(SIGNAL)
        for self.sent in itertools.count():
            with self.tries, suppress(Exception):  # no descriptor is left, or torch is another one: the signal may do alone
                is_time = self.sent & self.sent - 1 == 0 or self.sent > OFTEN  # torch tries again after pauses that grow
                if is_time and not self.is_out.is_set():
                    groups.interrupt(self.before)
                    if self.sent:
                        groups.answer_for_others(self.before)
            if not self.is_out.is_set():
                send_signal(self.main)
            if self.is_out.wait(AGAIN_S if self.raised or self.sent > OFTEN else SOON_S):
                return


def send_signal(main: int) -> None:
    """`SIGNAL` to the main thread."""
    try:
        signal.pthread_kill(main, SIGNAL)
    except BlockingIOError:  # too many signals of this user's wait (`ulimit -i`): the kernel then takes one from kill() only
        os.kill(os.getpid(), SIGNAL)


def open_channel(bootstrap: ModuleType, regroup: type[BaseException], tear_down: Callable[[], object] | None) -> Channel:
    """Tell the agent that this rank can begin again in place. ValueError: not in the main thread."""
    if getattr(signal.getsignal(SIGNAL), "__func__", None) is Channel.interrupted:
        raise ValueError("only the first of a script's loops over lives can, and this is a later one")
    if signal.getsignal(SIGNAL) != signal.SIG_DFL:
        raise ValueError(f"its script handles signal {SIGNAL} itself")
    channel = Channel(bootstrap, regroup, tear_down)
    signal.signal(SIGNAL, channel.interrupted)
    this_worker.meet_between(groups.await_store, groups.hold)
    start_new_thread(channel.listen, ())
    this_worker.tell_life(layout.IN_PLACE)
    if "torch.optim" in sys.modules:
        with suppress(Exception):
            import_module("torch._dynamo")  # as the first optimizer does, and 0.1 million objects with it
    gc.freeze()  # what the script has imported stays: to look through torch's objects takes 0.1 s at each life's end
    return channel


def begin(bootstrap: ModuleType, given: dict[str, object]) -> None:
    """Put the next round's environment and log files in place."""
    changed: dict[str, str] = given["set"]  # type: ignore[assignment]
    for name in given["unset"]:  # type: ignore[attr-defined]
        os.environ.pop(name, None)
    stash_at = changed.pop("HOLDFAST_STASH", "")
    for name in ("PYTHONPATH", "HOLDFAST_PAGE_FD", "HOLDFAST_USER_PYTHONPATH"):
        changed.pop(name, None)
    os.environ.update(changed)
    for fd, stream in ((1, sys.stdout), (2, sys.stderr)):
        if (path := given[str(fd)]) is not None:
            _redirect(fd, str(path), stream)
    bootstrap.go_on(stash_at)
    stash = sys.modules.get("holdfast.client.stash")
    if stash is not None:
        stash.begin_life()


def _end_frames(error: BaseException | None) -> None:
    """Let go of all that the script's functions had. A finaliser that waits, as a data loader's does for its processes, is the
    script's code still, and is interrupted."""
    passed: list[BaseException] = []
    while error is not None and error not in passed:
        passed.append(error)
        trace = error.__traceback__
        while trace is not None:
            with suppress(RuntimeError):  # it runs: it is whose `with` this is
                trace.tb_frame.clear()
            trace = trace.tb_next
        error = error.__context__


def _keep(state: State) -> None:
    """What is in memory stays for the next life, if it can."""
    try:
        state.end_life()
    except Exception as error:
        state.forget()
        lost = f"this rank's state in memory could not be kept ({type(error).__name__}: {error})"
        warn(f"{lost}; it is given another rank's, if one has it", RuntimeWarning, 5)


def _redirect(fd: int, path: str, stream: object) -> None:
    try:
        if stream is not None:
            stream.flush()  # type: ignore[attr-defined]
        new = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
    except OSError:  # a disk that is gone: what it writes goes where it went
        return
    os.dup2(new, fd)
    os.close(new)


def _is_within_half(frame: FrameType | None) -> bool:
    """Whether a context manager of torch's is about to begin or to end, or what it calls for that."""
    for _ in range(3):
        if frame is None or not str(_module_of(frame)).startswith("torch."):
            return False
        if frame.f_code.co_name in HALVES:
            return True
        frame = frame.f_back
    return False


def _module_of(frame: FrameType) -> object:
    return frame.f_globals.get("__name__")
