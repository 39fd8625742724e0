"""What does one value of an option mean? The small grammars: `MIN:MAX`, `k=v,…`, `host:port`, `0:1,10:3`, `SIGTERM,SIGINT`.

Each function takes the text and the name it goes by in messages (`--tee`, or `PET_TEE` when it came from there), and
returns a value or raises `UsageError`. How several options fit together is `core.config.config`'s matter.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from holdfast.core.errors import UsageError
from holdfast.core.signals import NUMBERS

MAX_PORT = 65535
STREAMS = {"0": 0, "1": 1, "2": 2, "3": 3}  # 0 none, 1 stdout, 2 stderr, 3 both.

YES, NO = ("true", "1", "yes", "t", "y", "on"), ("false", "0", "no", "f", "n", "off", "none", "null")

UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

LONGEST_S = 1e9
"""The longest duration that an option may have: no clock of the kernel's, and no message, has a word for infinity."""


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, if any is alike."""
    import difflib  # 5 ms: only when something is already wrong

    pool = {name.lower(): name for name in known}
    word = word.lower()
    if found := difflib.get_close_matches(word, pool, n=1, cutoff=0.6):
        return pool[found[0]]
    shared = {name: _shared_start(word, name) for name in pool}  # `nprox` is far from `nproc-per-node`, but starts like it.
    best = max(shared, key=lambda name: shared[name], default="")
    return pool[best] if best and shared[best] >= max(3, len(word) / 2) else None


def _shared_start(one: str, other: str) -> int:
    return next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A hint that names the nearest known word, or all of them."""
    names = list(known)
    found = nearest(word, names)
    return f"did you mean {found}?" if found else f"known: {', '.join(names)}"


def whole(text: str, name: str, *, at_least: int | None = None, at_most: int | None = None) -> int:
    """An int, as Python reads one."""
    try:
        number = int(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a whole number", hint="write it in digits, such as 3") from None
    if at_least is not None and number < at_least:
        raise UsageError(f"{name}: {number} is too small", hint=f"give {at_least} or more")
    if at_most is not None and number > at_most:
        raise UsageError(f"{name}: {number} is too large", hint=f"give {at_most} or less")
    return number


def seconds(text: str, name: str, *, zero: bool = True) -> float:
    """A duration: a float that is not negative, not zero unless `zero`, and not beyond LONGEST_S."""
    try:
        number = float(text)
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a number of seconds", hint=_seconds_meant(text)) from None
    if not (number >= 0 if zero else number > 0):
        raise UsageError(f"{name}: {text} is {'negative' if zero else 'not above zero'}", hint="give seconds, such as 2.5")
    if number > LONGEST_S:
        raise UsageError(f"{name}: {text} is too long", hint=f"give {LONGEST_S:.0f} seconds or less, which is 31 years")
    return number


def some_seconds(text: str, name: str) -> float:
    """A duration above zero."""
    return seconds(text, name, zero=False)


def _seconds_meant(text: str) -> str:
    """What `1h` or `30 sec` is in seconds."""
    said = re.fullmatch(r"([0-9]*\.?[0-9]+)\s*(ms|s|m|h|d)[a-z]*", text.strip().lower())
    if said is None:
        return "give seconds, such as 2.5"
    return f"write it in seconds, without a unit: {float(said[1]) * UNITS_S[said[2]]:.10g}"


def memory(text: str, name: str) -> str:
    """An amount of memory: `40%` stays as it is, `1.5GB` becomes a number of bytes, as text."""
    word = text.strip().upper().removesuffix("B")
    units = {"%": 0.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "KI": 2.0**10, "MI": 2.0**20, "GI": 2.0**30, "TI": 2.0**40}
    unit = next((unit for unit in sorted(units, key=len, reverse=True) if word.endswith(unit)), "")
    try:
        number = float(word.removesuffix(unit))
    except ValueError:
        number = -1.0
    if not 0 <= number <= (100 if unit == "%" else 1e15):
        hint = "give a share such as 40%, a size such as 64GB, or 0"
        raise UsageError(f"{name}: {text!r} is not an amount of memory", hint=hint)
    if unit == "%":
        return f"{number:g}%" if number else "0"
    return str(int(number * units.get(unit, 1.0)))


def switch(text: str, name: str) -> bool:
    """A switch's variable: an int, where 0 is off, as torchrun reads it."""
    try:
        return bool(int(text))
    except ValueError:
        raise UsageError(f"{name}: {text!r} is not a whole number", hint="1 switches it on, 0 leaves it off") from None


def truth(text: str, name: str) -> bool:
    """Yes or no: `true`, `1`, `on`, and so on."""
    word = text.lower()
    if word not in (*YES, *NO):
        raise UsageError(f"{name}: {text!r} is neither yes nor no", hint="give true or false")
    return word in YES


def join_paths(paths: Iterable[str]) -> str:
    """Absolute paths with `:` between them. In a path it stays as it is, unless `/` follows: then it is `\\:`."""
    return ":".join(path.replace(":/", "\\:/") for path in paths)


def split_paths(text: str) -> list[str]:
    """And back."""
    return [path.replace("\\:/", ":/") for path in filter(None, re.split(r"(?<!\\):(?=/)", text))]


def comma_list(text: str) -> tuple[str, ...]:
    """`a,b` → a and b; `,,` is a comma."""
    return tuple(item.replace("\0", ",") for item in text.replace(",,", "\0").split(","))


def ranges(numbers: Iterable[int], width: int = 0) -> str:
    """`0 1 2 6` → `0-2,6`, as the kernel lists CPUs, in the order given; each number has at least `width` digits."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] == number - 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ",".join("-".join(f"{end:0{width}d}" for end in run) for run in runs)


def node_range(text: str, name: str) -> tuple[int, int]:
    """`N` or `MIN:MAX` → (min, max)."""
    parts = text.split(":")
    try:
        low, high = int(parts[0]), int(parts[-1])
    except ValueError:
        parts = []
    if len(parts) not in (1, 2):
        raise UsageError(f"{name}: {text!r} is not a number of nodes", hint="give N, or MIN:MAX such as 2:4")
    if low < 1:
        raise UsageError(f"{name}: {text}: a job needs at least one node", hint="give N, or MIN:MAX such as 2:4")
    if low > high:
        raise UsageError(f"{name}: {text}: the least, {low}, is more than the most, {high}", hint=f"did you mean {high}:{low}?")
    return low, high


def settings(text: str, name: str) -> dict[str, str]:
    """`k=v,k=v`: both trimmed; a value may hold `=` but no comma."""
    found: dict[str, str] = {}
    for pair in text.split(",") if text.strip() else ():
        key, _, value = (part.strip() for part in pair.partition("="))
        if not key or not value:
            raise UsageError(
                f"{name}: {pair.strip()!r} is not KEY=VALUE", hint="give them as join_timeout=600,last_call_timeout=30"
            )
        found[key] = value
    return found


def endpoint(text: str, name: str, *, default_port: int | None) -> tuple[str, int]:
    """`host`, `host:port`, `[ipv6]:port`, `[ipv6]` or bare IPv6 → (host without brackets, port). No host: `localhost`.

    No port: `default_port`, or an error where that is None."""
    text = text.strip()
    host, port = _host_and_port(text, name)
    if not _may_be_a_host(host):
        raise UsageError(
            f"{name}: {host!r} is not a host name or address", hint="give HOST:PORT; an IPv6 address as [::1]:29400"
        )
    if port:
        if not host:
            hint = f"give HOST:{port}; if it was $SOMETHING:{port}, that variable is empty"
            raise UsageError(f"{name}: {text!r} names no host", hint=hint)
        return host, port_number(port, name)
    if default_port is None:
        raise UsageError(f"{name}: {text!r} has no port", hint=f"give {text or 'HOST'}:29500")
    return host or "localhost", default_port


def host(text: str, name: str) -> str | None:
    """A host's name or address, IPv6 with brackets or without. None: empty."""
    found = text.strip("[]")
    if not _may_be_a_host(found):
        raise UsageError(f"{name}: {found!r} is not a host name or address", hint="give a name, or an address as 10.0.0.7")
    return found or None


def _may_be_a_host(text: str) -> bool:
    """No name consists of numbers and dots: that is an address, of four numbers up to 255."""
    if text.replace(".", "").isdecimal():
        numbers = text.split(".")
        return len(numbers) == 4 and all(number.isdecimal() and int(number) < 256 for number in numbers)
    return all(char.isalnum() or char in "._:-%" for char in text)


def _host_and_port(text: str, name: str) -> tuple[str, str]:
    if text.count(":") > 1 and "[" not in text:
        if not _is_ipv6(text):
            bare, _, port = text.rpartition(":")
            hint = f"an IPv6 address stands in brackets: [{bare}]:{port}" if _is_ipv6(bare) else "give HOST:PORT"
            raise UsageError(f"{name}: {text!r} is not a host name or address", hint=hint)
        return text, ""  # An IPv6 address without brackets; torchrun cuts it at its last colon.
    if ":" not in text or (text.startswith("[") and text.endswith("]")):
        return _bare(text), ""
    host, _, port = text.rpartition(":")
    if not port:
        raise UsageError(f"{name}: {text!r} ends before the port", hint="give HOST:PORT, or HOST alone")
    return _bare(host), port


def _is_ipv6(text: str) -> bool:
    """Whether it looks like one, which may end in an IPv4 address, or `%` and its interface's name."""
    *groups, last = text.partition("%")[0].split(":")
    groups += ["0", "0"] if "." in last else [last]
    digits = set("0123456789abcdefABCDEF")
    is_whole = len(groups) == 8 or (len(groups) <= 9 and "::" in text)
    return is_whole and all(len(group) <= 4 and set(group) <= digits for group in groups)


def _bare(host: str) -> str:
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def port_number(text: str, name: str) -> int:
    """0 to 65535."""
    if not (text.isascii() and text.isdigit() and int(text) <= MAX_PORT):
        raise UsageError(f"{name}: {text!r} is not a port", hint=f"give a number from 0 to {MAX_PORT}")
    return int(text)


def port_range(text: str, name: str) -> tuple[int, int]:
    """`29410` or `29410-29419` → (first, last); `0` → (0, 0), any."""
    first, dash, last = text.partition("-")
    low = port_number(first, name)
    high = port_number(last, name) if dash else low
    if low > high or (dash and not low):
        raise UsageError(f"{name}: {text!r} is not a range of ports", hint="give one, or FIRST-LAST such as 29410-29419")
    return low, high


def endpoints(text: str, name: str, *, default_port: int) -> tuple[str, ...]:
    """`A,B` → where one of several may be, as `host:port` each. Empty: nowhere."""
    return tuple(shown_endpoint(*endpoint(one, name, default_port=default_port)) for one in text.split(",") if text)


def shown_endpoint(host: str, port: int) -> str:
    """`host:port`, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def streams(text: str, name: str, nproc: int) -> dict[int, int]:
    """`3`, or `0:1,10:3` → local rank to streams, for each of `nproc` local ranks; those not named have 0."""
    if text in STREAMS:
        return dict.fromkeys(range(nproc), STREAMS[text])
    chosen = dict.fromkeys(range(nproc), 0)
    for item in text.split(","):
        rank, _, value = item.partition(":")
        if value not in STREAMS or not (rank.isascii() and rank.isdigit()):
            raise UsageError(
                f"{name}: {item!r} names no streams",
                hint="give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), or LOCAL_RANK:VALUE,… as in 0:1,10:3",
            )
        if int(rank) < nproc:
            chosen[int(rank)] = STREAMS[value]
    return chosen


def absolute(path: str, cwd: str) -> str:
    """`path` seen from anywhere: a worker that changes directory still finds its error file."""
    return path if not path or path.startswith("/") else f"{cwd.rstrip('/')}/{path}"


def local_ranks(text: str, name: str) -> frozenset[int] | None:
    """`0,2` → those local ranks; nothing → None, meaning all."""
    if not text:
        return None
    try:
        ranks = frozenset(map(int, text.split(",")))
    except ValueError:
        ranks = frozenset((-1,))
    if min(ranks) < 0:
        raise UsageError(f"{name}: {text!r} is not a list of local ranks", hint="give them as 0,1,2")
    return ranks


def signals(text: str, name: str) -> tuple[int, ...]:
    """`SIGTERM,SIGINT` → their numbers, each once, in the order given."""
    numbers: dict[int, None] = {}
    for word in filter(None, map(str.strip, text.split(","))):
        if word not in NUMBERS:
            raise UsageError(f"{name}: there is no signal {word}", hint=_meant_signal(word))
        if word in ("SIGKILL", "SIGSTOP"):
            raise UsageError(f"{name}: {word} cannot be handled by any program", hint="leave it out")
        numbers[NUMBERS[word]] = None
    return tuple(numbers)


def _meant_signal(word: str) -> str:
    with_prefix = f"SIG{word.upper().removeprefix('SIG')}"
    return f"did you mean {with_prefix}?" if with_prefix in NUMBERS else did_you_mean(word, NUMBERS)
