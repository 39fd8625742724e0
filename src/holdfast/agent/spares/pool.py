"""Starts spare workers, and turns one into a worker when it is needed. Carries out what `agent.spares.machine` decides.

A spare is a child of the agent's like a worker, started with the same command line, with a socket in the place of a page
(`client.spare`). It is told what to import, says when it has done so, and is sent everything else once its time has come:
what of its environment has changed, the page, and its log files. It answers within a millisecond; one that does not is killed,
and the worker started anew. Loaded after the first workers have started.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import reduce
from itertools import accumulate

from holdfast.agent.component import Component
from holdfast.agent.group.messages import ImportsKnown, SparesAwaited
from holdfast.agent.logs.attempt_logs import RankLogs
from holdfast.agent.spares import messages
from holdfast.agent.spares.import_list import at_load, differences, is_line, merged
from holdfast.agent.spares.machine import Spares
from holdfast.agent.spares.state import Phase, SlotState, no_spares
from holdfast.agent.workers import launch
from holdfast.core.config.config import RunConfig
from holdfast.core.config.own_options import FORK
from holdfast.core.errors import StartError
from holdfast.core.job.events import Event, FailureSeen, StopSent
from holdfast.core.machine import NEVER, Action, Observation, Record, Say, Tick
from holdfast.core.value import replace
from holdfast.core.wire.messages import IMPORTS_CHARS, Assigned
from holdfast.runtime.hardware.memory import private_bytes, room_bytes
from holdfast.runtime.host import Host
from holdfast.runtime.process import process
from holdfast.runtime.shm.pages import Page
from holdfast.telemetry.record.io_thread import IoThread

ANSWER_S, LEAST_S = 1.0, 0.05
"""How long the spares of a round have to take over, in all, and each of them at least. It takes them half a millisecond each;
more on a host that is crowded, or where they are stopped. The agent does nothing else meanwhile, and a lease is 3 s."""

SAID_BYTES = 65536

SIZE_S = 0.05  # How long a spare's size is waited for.

NOWHERE = Assigned(
    round=0,
    restart_count=0,
    group_rank=0,
    group_world_size=1,
    base_rank=0,
    world_size=1,
    role_base_rank=0,
    role_world_size=1,
    master_addr="",
    master_port=0,
    nodes=(),
    reason="",
)
"""The place of a worker whose place is not known: most of it is another once it is."""


class ParkedSpare:
    """A spare's process, as its agent sees it."""

    def __init__(
        self, local_rank: int, argv: list[str], env: Mapping[str, str], link: socket.socket, *, captured: Collection[int] = ()
    ) -> None:
        """`captured`: streams whose output is kept until it is a worker's."""
        self.local_rank, self.argv, self.env, self.link, self.captured = local_rank, argv, env, link, captured


class SparePool(Component):
    """This node's spares."""

    notes = FailureSeen, StopSent

    def __init__(
        self,
        config: RunConfig,
        host: Host,
        given: dict[int, tuple[list[str], dict[str, str], RankLogs | None]],
        hook: int,
        local_ranks: Callable[[], Mapping[int, int]],
        *,
        perform: Callable[[Iterable[Action]], None],
        between: Callable[[], bool],
    ) -> None:
        """`given`, `hook`, `local_ranks`: as `agent.workers.workers` has them. `between`: whether a round is over, or coming to
        its end, and another follows."""
        self.config, self.host, self.perform, self.between = config, host, perform, between
        self.given, self.hook, self.local_ranks = given, hook, local_ranks
        self.awaited_until = -NEVER  # As the group has been told.
        self.told = 0  # So many modules have been told of in this round.
        self.fork = config.warm_mode == FORK and not config.bindings
        self.machine = Spares(no_spares(config.nproc_per_node, config.warm_spares, fork=self.fork))
        self.parked: dict[int, ParkedSpare] = {}  # By pid.
        self.loaded: dict[int, list[str]] = {}
        """Local rank → what it has loaded, and changed before, in all its lives: lines of `core.page.layout`."""
        self.patience_s = ANSWER_S  # What is left of it in this round.
        self.sizer = IoThread()

    # --- what the agent tells -------------------------------------------------------------------------------------------

    def begin_round(self, assigned: Assigned, started: Sequence[Observation]) -> list[Observation]:
        self.told = 0
        self._show(messages.RoundBegan())
        return []

    def recorded(self, event: Event, at_unix: float) -> None:
        """See `Component`: the workers are being ended, or end by themselves."""
        self.patience_s = ANSWER_S  # `begin_round` may come late: rounds may follow each other faster than an agent settles
        self._show(messages.RoundEnds())

    def stand_by(self, modules: Iterable[str]) -> None:
        """This node waits for a place; other nodes' workers have imported these."""
        self.loaded = {0: [line for line in modules if is_line(line)]}
        environ = dict(os.environ)
        most, ranks = self.config.max_nodes, self.config.max_nodes * self.config.nproc_per_node
        # Nodes wait only where as many as may be have a place: so these can be known.
        place = replace(NOWHERE, group_world_size=most, world_size=ranks, role_world_size=ranks)
        for local_rank in range(self.config.nproc_per_node):
            env = launch.environment(self.config, environ, place, local_rank, error_file="", paged=True)
            self.given[local_rank] = launch.command(self.config, local_rank), env, None
        self._show(messages.StandingBy())

    @property
    def due_at(self) -> float:
        """At once where the group does not know yet how long spares are worth waiting for."""
        is_news = self.machine.state.awaited_until != self.awaited_until
        return -NEVER if is_news else self.machine.deadline()

    def due(self) -> list[Observation]:
        """What the passing of time has brought, and what has come of it since."""
        seen = self._imports_known() if self.host.now() >= self.machine.deadline() else []
        if (until := self.machine.state.awaited_until) != self.awaited_until:
            self.awaited_until = until
            seen.append(SparesAwaited(until=until))
        return seen

    def _imports_known(self) -> list[Observation]:
        self._show(Tick())
        if self.machine.state.phase is not Phase.TRAINING:
            return []
        lines = [line.partition(" ")[0] if line[0] == "?" else line for line in self._to_load()]  # other nodes, other folders
        if len(lines) <= self.told:
            return []
        self.told = len(lines)
        ends = accumulate(map(len, lines))
        return [ImportsKnown(modules=tuple(line for line, end in zip(lines, ends) if end <= IMPORTS_CHARS))]

    def _to_load(self, local_rank: int = -1) -> list[str]:
        """What a spare for this one is to import, and where to stop. -1: for one that may become any."""
        return self.loaded[local_rank] if local_rank in self.loaded else reduce(merged, self.loaded.values(), [])

    def close(self) -> None:
        """Forget them; who kills the workers kills them too."""
        for one in self.parked.values():
            self.host.unwatch(one.link.fileno())
            one.link.close()
        self.parked = {}

    # --- handing over ---------------------------------------------------------------------------------------------------

    def take(
        self, local_rank: int, argv: list[str], env: Mapping[str, str], page: Page | None, files: RankLogs
    ) -> tuple[int | None, str]:
        """Have a spare become this worker: its pid, or None and why it has to start cold."""
        changed = {
            pid: differences(one.env, env, but=(launch.PAGE_FD,))
            for pid, one in self.parked.items()
            if self.fork or one.local_rank == local_rank
        }
        found = self._show(messages.WorkerDue(local_rank=local_rank, changed=changed))
        assert found is not None
        pid = found.pid
        if pid < 0:
            return None, found.cold_because
        one = self.parked[pid]
        orders, fds, why = self._orders(one, argv, page, files)
        if not why:
            changes = [os.fsencode(name if new is None else f"{name}={new}") for name, (_, new) in changed[pid].items()]
            taken, why = self._hand_over(pid, one, b"\0".join([b"become", orders.encode(), *changes]), fds)
        self._show(messages.Used(pid=pid, trouble=why))
        if why:
            self._drop(pid)
            return None, why
        if not self.fork:
            self._forget(pid)
        self.host.adopt(taken, page)
        return taken, ""

    def _orders(self, one: ParkedSpare, argv: list[str], page: Page | None, files: RankLogs) -> tuple[str, list[int], str]:
        """Which descriptors it is sent; or why it cannot be this worker."""
        if argv != one.argv:
            return "", [], "its command line is different"
        if page is None:
            return "", [], "there is no page to share"
        orders, fds = "p", [page.fd]
        for number, fd in ((1, files.stdout_fd), (2, files.stderr_fd)):
            if number in one.captured:
                orders += str(number)
                fds.append(number if fd is None else fd)
            elif fd is not None:
                return "", [], "its output goes elsewhere now"
        return orders, fds, ""

    def _hand_over(self, pid: int, one: ParkedSpare, order: bytes, fds: list[int]) -> tuple[int, str]:
        """Pid of the worker, or why there is none."""
        patience_s, began = max(LEAST_S, self.patience_s), self.host.now()
        try:
            socket.send_fds(one.link, [order], fds)
            waiting = select.poll()
            waiting.register(one.link, select.POLLIN)
            # One that would run if it had a processor is still sooner than a new process, which needs one for longer.
            if not waiting.poll(1000 * patience_s) and not (process.state(pid) == "R" and waiting.poll(1000 * patience_s)):
                return -1, f"it did not answer within {patience_s:.2g} s"
            word, *said = one.link.recv(SAID_BYTES).decode("utf-8", "replace").split("\0")
        except OSError as error:
            return -1, f"it cannot be reached: {error.strerror}"
        finally:
            self.patience_s -= self.host.now() - began
        if word == "taken":
            return int(said[0]), ""
        return -1, said[0] if said else "it has ended"

    # --- carrying out ---------------------------------------------------------------------------------------------------

    def _show(self, seen: Observation) -> messages.StartWith | None:
        """Carry out what follows; the answer to `WorkerDue`."""
        found = None
        for action in self.machine.observe(seen, self.host.now()):
            match action:
                case messages.Survey():
                    self._show(self._survey())
                case messages.MakeSpare(slot=slot, local_rank=local_rank):
                    self._make(slot, local_rank)
                case messages.EndSpare(pid=pid):
                    self._drop(pid)
                case messages.StartWith():
                    found = action
                case Record() | Say():
                    self.perform([action])
                case _:
                    raise AssertionError(f"nobody can do {action!r} with spares")
        return found

    def _survey(self) -> Observation:
        pages = [child.page for child in self.host.children.values()]
        stands_by = self.machine.state.phase is Phase.STANDING_BY
        between = self.between() and not stands_by
        if len(pages) < self.config.nproc_per_node and not stands_by and not between:
            return messages.RoundOver()
        count = 0
        for pid, child in self.host.children.items():
            if child.page is not None:
                lines = child.page.modules()
                count += len(lines)
                local_rank = self.local_ranks().get(pid, 0)
                self.loaded[local_rank] = merged(self.loaded.get(local_rank, []), lines)
        room, total = room_bytes()
        waiting = [slot.pid for slot in self.machine.state.slots_in(SlotState.WAITING)]
        return messages.Surveyed(
            reached=all(page is not None and page.pid for page in pages),
            between=between,
            beating=all(page is not None and page.beats for page in pages),
            modules=count,
            room_bytes=room,
            total_bytes=total,
            sizes={pid: self._size(pid) for pid in waiting},
        )

    def _make(self, slot: int, local_rank: int) -> None:
        argv, env, files = self.given[local_rank]
        # A terminal looks different to an import. Where a worker's output is not known to go there, nothing of it is shown yet.
        ours_too = (files.paths.stdout is None, files.paths.stderr is None) if files is not None else (False, False)
        shown = [number for number, inherited in zip((1, 2), ours_too) if inherited and os.isatty(number)]
        kept: dict[int, int] = {}
        opened: list[int] = []  # Closed whatever fails, descriptors being what most likely does.
        link: socket.socket | None = None
        try:
            link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            opened.append(theirs.detach())
            link.set_inheritable(False)
            for number in (1, 2):
                if number not in shown:
                    kept[number] = os.memfd_create("holdfast-output", os.MFD_CLOEXEC)
                    opened.append(kept[number])
            opened.append(names := os.memfd_create("holdfast-modules", os.MFD_CLOEXEC))
            lines = self._to_load(-1 if self.fork else local_rank)
            os.write(names, "\n".join(at_load(line) for line in lines).encode())
            os.lseek(names, 0, os.SEEK_SET)
            pid = self.host.park(
                argv,
                launch.spare_env(env, fd=launch.page_at(), agent=os.getpid(), hook=self.hook),
                {**kept, launch.page_at(): opened[0]},
                lambda exitcode: self._gone(pid, exitcode),
                self.config.bindings.get(local_rank),
            )
            socket.send_fds(link, [b"load\0" + (b"fork" if self.fork else b"spawn")], [names])
        except (StartError, OSError) as error:
            if link is not None:
                link.close()
            self._show(messages.Made(slot=slot, trouble=str(error)))
            return
        finally:
            for fd in opened:
                os.close(fd)
        self.parked[pid] = ParkedSpare(local_rank, argv, env, link, captured=kept)
        self._show(messages.Made(slot=slot, pid=pid))
        self.host.watch(link.fileno(), select.EPOLLIN, lambda events: self._heard(pid))

    def _heard(self, pid: int) -> list[Observation]:
        one = self.parked.get(pid)
        if one is None:
            return []
        try:
            word, *said = one.link.recv(SAID_BYTES).decode("utf-8", "replace").split("\0")
        except OSError:
            word = ""
        if word == "ready":
            import_s, threads, until, *reads = said
            if self.fork and int(threads) > 1:
                self._end(pid, f"it cannot be forked: its imports have started {int(threads) - 1} threads")
            else:
                size = self._size(pid)
                ready = messages.Ready(pid=pid, import_s=float(import_s), reads=frozenset(reads), until=until, size_bytes=size)
                self._show(ready)
        elif word:
            self._end(pid, said[0] if said else word)
        else:
            self.host.unwatch(one.link.fileno())  # its end follows
        return []

    def _size(self, pid: int) -> int:
        """In a thread: one that sleeps in the kernel may hold its memory's map."""
        return self.sizer.value(lambda: private_bytes(pid), SIZE_S) or 0

    def _gone(self, pid: int, exitcode: int) -> list[Observation]:
        self._forget(pid)
        self._show(messages.Lost(pid=pid, reason=f"it ended with {exitcode}"))
        return []

    def _end(self, pid: int, why: str) -> None:
        self._drop(pid)
        self._show(messages.Lost(pid=pid, reason=why))

    def _drop(self, pid: int) -> None:
        """Kill it; its end is noticed like any other."""
        self._forget(pid)
        self.host.kill([pid])

    def _forget(self, pid: int) -> None:
        if (one := self.parked.pop(pid, None)) is not None:
            self.host.unwatch(one.link.fileno())
            one.link.close()
