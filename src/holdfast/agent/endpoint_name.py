"""Does the name of the job's endpoint resolve yet? A pod's or a node's name may come some time after its agent.

An agent waits for it before it has any machine: under which address other nodes reach this one, and whether the endpoint is
here, depends on what the name means.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from holdfast.core.errors import RendezvousError, Stopped
from holdfast.core.machine import Observation, Signalled
from holdfast.runtime.host import Host
from holdfast.runtime.net.names import Addresses, Names

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 1.0  # Between two questions; doubles.

NOTICE_S = 3.0  # Seconds without an answer that are not worth a line.


def wait_for_name(
    host: Host, names: Names, name: str, wait_s: float, warn: Callable[[str], None], *, stops: Collection[int]
) -> None:
    """Return once `name` resolves; `warn` tells a person if that takes long. RendezvousError: it did not within `wait_s`.
    Stopped: one of the signals `stops` came."""
    answers: list[Addresses] = []

    def answered(found: Addresses) -> list[Observation]:
        answers.append(found)
        return []

    began, pause_s, trouble = host.now(), FIRST_PAUSE_S, "no answer yet"
    ask_at, notice_at, until = began, began + NOTICE_S, began + wait_s
    is_asked = False
    while (now := host.now()) < until:
        if not is_asked and now >= ask_at:
            is_asked = True
            names.ask(name, 0, answered)
        if answers:
            found, is_asked = answers.pop(), False
            if not isinstance(found, OSError):
                return
            trouble, ask_at, pause_s = str(found.strerror), now + pause_s, min(LONGEST_PAUSE_S, 2 * pause_s)
        if now >= notice_at:
            notice_at = until
            warn(f"cannot resolve {name}, the name of the job's endpoint: {trouble}; trying for up to {wait_s:g} s")
        for seen in host.wait(min(until if is_asked else ask_at, notice_at)):
            if isinstance(seen, Signalled) and seen.signum in stops:
                raise Stopped(seen.signum)
    raise RendezvousError(
        f"cannot resolve {name}, the name of the job's endpoint: {trouble} within {wait_s:g} s",
        hint="does `getent hosts` know it on this host? Give an address in --rdzv-endpoint if not",
    )
