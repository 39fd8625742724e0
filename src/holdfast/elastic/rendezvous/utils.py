"""Endpoints and settings as text, whether a host is this host, and a periodic timer."""

from __future__ import annotations

import ipaddress
import random
import re
import socket
import time
import weakref
from collections.abc import Callable
from datetime import timedelta
from threading import Event, Thread, current_thread
from typing import Any


def _parse_rendezvous_config(config_str: str) -> dict[str, str]:
    """`k=v,k=v` as a dict. Both are trimmed; a value may contain `=` but no comma."""
    config: dict[str, str] = {}
    if not config_str.strip():
        return config
    for pair in config_str.split(","):
        key, _, value = (part.strip() for part in pair.partition("="))
        if not key:
            raise ValueError("The rendezvous configuration string must be in format <key1>=<value1>,...,<keyN>=<valueN>.")
        if not value:
            raise ValueError(f"The rendezvous configuration option '{key}' must have a value specified.")
        config[key] = value
    return config


def _try_parse_port(port_str: str) -> int | None:
    return int(port_str) if re.fullmatch(r"[0-9]{1,5}", port_str or "") else None


def parse_rendezvous_endpoint(endpoint: str | None, default_port: int) -> tuple[str, int]:
    """`host[:port]` → host and port. Empty: localhost. An IPv6 address stands in brackets."""
    endpoint = (endpoint or "").strip()
    if not endpoint:
        return "localhost", default_port
    if endpoint.startswith("[") and endpoint.endswith("]"):
        host, colon, port_str = endpoint, "", ""
    else:
        before, colon, after = endpoint.rpartition(":")
        host, port_str = (before, after) if colon else (endpoint, "")
    port = _try_parse_port(port_str) if colon else default_port
    if port is None or port >= 2**16:
        raise ValueError(f"The port number of the rendezvous endpoint '{endpoint}' must be an integer between 0 and 65536.")
    if len(host) > 1 and host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not re.fullmatch(r"[\w.:-]+", host):
        raise ValueError(
            f"The hostname of the rendezvous endpoint '{endpoint}' must be a dot-separated list of labels, "
            "an IPv4 address, or an IPv6 address."
        )
    return host, port


def _matches_machine_hostname(host: str) -> bool:
    """Whether `host` names this machine: its name, full name, loopback or an address its name resolves to.

    It can miss aliases and further network cards; `is_host` in the settings overrules it.
    """
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    this_host = socket.gethostname()
    if host == this_host:
        return True
    theirs = {found for _, found in _resolve(host)} | {str(address)}
    return any(canonical == host or found in theirs for canonical, found in _resolve(this_host))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _resolve(host: str) -> list[tuple[str, str]]:
    """(canonical name or "", address) for each address of `host`; nothing if it is not known."""
    try:
        found = socket.getaddrinfo(host, None, proto=socket.IPPROTO_TCP, flags=socket.AI_CANONNAME)
    except (ValueError, socket.gaierror):
        return []
    return [(canonical, str(address[0])) for _, _, _, canonical, address in found]


def _delay(seconds: float | tuple[float, float]) -> None:
    """Sleep; a pair stands for a random time between its two. Less than 10 ms is not worth a system call."""
    if isinstance(seconds, tuple):
        seconds = random.uniform(*seconds)
    if seconds >= 0.01:
        time.sleep(seconds)


class _PeriodicTimer:
    """Calls `function` every `interval` in a daemon thread, until cancelled or collected.

    The thread knows the function and its stop event, never the timer itself: it must not keep the timer alive.
    """

    def __init__(self, interval: timedelta, function: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        self._every_s = interval.total_seconds()
        self._call = (function, args, kwargs)
        self._stop = Event()
        self._name: str | None = None
        self._thread: Thread | None = None
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def name(self) -> str | None:
        """Name of its thread, if it was given one."""
        return self._name

    def set_name(self, name: str) -> None:
        """Name the thread, before it starts."""
        if self._thread:
            raise RuntimeError("The timer has already started.")
        self._name = name

    def start(self) -> None:
        """Start, once. The first call comes after one interval."""
        if self._thread:
            raise RuntimeError("The timer has already started.")
        self._thread = Thread(
            target=self._run, name=self._name or "PeriodicTimer", args=(self._stop, self._every_s, *self._call), daemon=True
        )
        self._finalizer = weakref.finalize(self, self._stop_thread, self._thread, self._stop)
        self._finalizer.atexit = False  # at exit the interpreter ends daemon threads itself; joining one then can hang
        self._thread.start()

    def cancel(self) -> None:
        """Stop and wait for the thread's end. Any number of times."""
        if self._finalizer:
            self._finalizer()

    @staticmethod
    def _run(stop: Event, every_s: float, function: Callable[..., None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        while not stop.wait(every_s):
            function(*args, **kwargs)

    @staticmethod
    def _stop_thread(thread: Thread, stop: Event) -> None:
        stop.set()
        if thread is not current_thread():  # the last to hold the timer may be the call that it makes
            thread.join()
