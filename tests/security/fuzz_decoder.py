"""Coverage-guided fuzzing of everything that reads a stranger's bytes: `python tests/security/fuzz_decoder.py [SECONDS]`.

Inputs that reach new branches are kept and changed further, so that it finds its way into the decoder, where random bytes
never get. Whatever is no message, no handshake and no frame must be a ProtocolError; anything else is a crash, is printed, and
ends it with a code other than 0. Needs atheris (`pip install .[fuzz]`); without it, it says so and exits with 0.
"""

from __future__ import annotations

import json
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

try:
    import atheris
except ImportError:
    print("skipped: atheris is not installed (pip install '.[fuzz]'; Linux, Python 3.11 to 3.13)")
    raise SystemExit(0) from None

with atheris.instrument_imports(include=["holdfast", "json"]):
    from holdfast.core.errors import ProtocolError
    from holdfast.core.job.failure import Failure
    from holdfast.core.job.report import JobReport
    from holdfast.core.wire.messages import Failed, Finish, Join, Message, Renew, StoreAnswer, StoreAsk
    from holdfast.runtime.net.codec import decode, encode
    from holdfast.runtime.net.frames import Frames, Handshake, Identity, Seal, frame

SECONDS = 20
NONCE, OTHER = "aa" * 16, "bb" * 16
IDENTITY = Identity("job", b"secret")


def one(data: bytes) -> None:
    """The first byte says who reads the rest."""
    kind, rest = data[:1], data[1:]
    if kind == b"h":
        shake(rest)
    elif kind == b"s":
        with suppress(ProtocolError):
            Seal(b"key").take(rest)
            raise AssertionError("a seal was forged")
    else:
        message(rest)


def message(data: bytes) -> None:
    """A message that is read can be told again."""
    try:
        found = decode(data)
    except ProtocolError as error:
        assert len(error.what) < 1000
        return
    assert isinstance(found, Message)
    repr(found)
    assert decode(encode(found)) == found


def shake(data: bytes) -> None:
    """Both sides of a handshake hear it."""
    for ours in (True, False):
        side, frames = Handshake(IDENTITY, NONCE, ours=ours), Frames()
        with suppress(ProtocolError):
            frames.feed(data)
            while (payload := frames.next()) is not None:
                side.take(payload)
        assert not side.done, "a handshake was forged"


def corpus(folder: Path) -> None:
    """Well-formed examples to begin with."""
    failure = Failure(node="n", rank=1, at_unix=1.0, error_record={"message": "x"}, log_tail=("a", "b"))
    report = JobReport(
        job="j", outcome="failed", exit_code=1, failures=(failure,), started_at_unix=0, ended_at_unix=1, reason="r"
    )
    messages = (
        Join(node="n", name="n", addr="h", master_port=1, nproc=1, role="default"),
        Renew(node="n", round=1, sent_at=1.0),
        Failed(node="n", round=1, failure=failure),
        Finish(report=report),
        StoreAsk(node="n", ask=1, round=1, op="set", keys=("k",), values=(b"v",), wait_s=1.0),
        StoreAnswer(ask=1, values=(b"v",), number=1, error="timeout", reason="r"),
    )
    hello = frame(json.dumps({"holdfast": 1, "nonce": OTHER}).encode())
    words = [b"m" + encode(message) for message in messages]
    words += [b"h" + hello + frame(b'{"proof": "00"}'), b"h" + frame(b'{"refused": "no"}'), b"s" + bytes(20)]
    for number, word in enumerate(words):
        (folder / str(number)).write_bytes(word)


def main() -> None:
    """Fuzz for the seconds given."""
    seconds = sys.argv[1] if len(sys.argv) > 1 else str(SECONDS)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
    corpus(folder)
    options = [f"-max_total_time={seconds}", "-max_len=4096", "-timeout=5", "-rss_limit_mb=1024", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *options, f"-artifact_prefix={folder}/crash-", str(folder)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
