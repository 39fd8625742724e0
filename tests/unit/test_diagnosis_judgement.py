"""A message that no rule knows is judged by its terms, its exception and what raised it; and ranks by what they do not say."""

from __future__ import annotations

from typing import NoReturn

import pytest

from holdfast.core.job.failure import Cause, Failure
from holdfast.core.job.finding import Finding
from holdfast.diagnosis import collect, terms
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.gather import of_text
from holdfast.diagnosis.rule import load

RULES = load()


def judged(*lines: str) -> Finding:
    return attribute(of_text("\n".join(lines), RULES))


def raised(path: str, last: str, source: str = "x = f(y)") -> list[str]:
    return ["Traceback (most recent call last):", f'  File "{path}", line 7, in f', f"    {source}", last]


LIBRARY = "/opt/venv/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (raised("/srv/job/train.py", "mylib.core.ShardChecksumMismatch: crc of shard 17 differs"), "data"),
        (raised("/srv/job/train.py", "OSError: [Errno 116] Stale file handle: '/mnt/a'"), "storage"),
        (raised(f"{LIBRARY}/flash_attn/x.py", "RuntimeError: x.so: undefined symbol: _ZN3c104"), "environment"),
        (raised("/srv/job/train.py", "acme.PreemptedByOwner: the slice goes away"), "preempted"),
        (["[rank2]: what():  CUDA error: uncorrectable ECC error encountered"], "gpu"),
        (["[rank2]: Process group watchdog thread terminated with exception: CUDA error: unspecified launch failure"], "gpu"),
        (["srun: error: n7: task 3: Illegal instruction (core dumped)"], "environment"),
        (["All 10 retry attempts failed. The last failure: Unavailable: HTTP response code 503 with body ''"], "storage"),
        (["Nov 12 03:14:07 n4 systemd[1]: train.service: Main process exited, code=exited, status=203/EXEC"], "environment"),
        (["Nov 12 03:14:07 n4 kernel: amdgpu 0000:c1:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x21]"], "gpu"),
    ],
)
def test_what_a_message_says_is_known_without_a_rule_for_it(lines: list[str], kind: str) -> None:
    assert judged(*lines).kind == kind


@pytest.mark.parametrize(
    "last",
    ["ConnectionResetError: [Errno 104] Connection reset by peer", "EOFError", "BrokenPipeError: [Errno 32] Broken pipe"],
)
def test_a_pipe_between_processes_that_breaks_is_no_file_that_ends_nor_another_rank(last: str) -> None:
    """As a data loader's worker leaves it that is killed while its batch is fetched."""
    found = judged(*raised("/usr/lib/python3.11/multiprocessing/connection.py", last, "chunk = read(handle, remaining)"))
    assert (found.kind, found.confidence) == ("framework", 0.6) and "a process that it had started " in found.sentence
    assert "started" not in judged(*raised("/srv/job/train.py", last)).sentence


def test_what_signs_do_not_tell_is_unknown_with_the_likeliest_classes() -> None:
    found = judged(*raised(f"{LIBRARY}/acme/core.py", "RuntimeError: step 7 was not what was to come"))
    assert found.kind == "unknown" and found.action == "ask" and len(found.likely) >= 1 and "likeliest" in found.sentence


def test_one_library_that_calls_another_one_wrongly_is_of_another_version() -> None:
    frames = [f'  File "{LIBRARY}/{name}/x.py", line 3, in f' for name in ("accelerate", "transformers")]
    last = "TypeError: f() got an unexpected keyword argument 'dispatch_batches'"
    assert judged("Traceback (most recent call last):", *frames, last).likely[0][0] in ("environment", "user-code")


def timeout(rank: int, number: str = "SeqNum=9, ") -> str:
    told = f"Watchdog caught collective operation timeout: WorkNCCL({number}OpType=ALLREDUCE, Timeout(ms)=600000)"
    return f"[E ProcessGroupNCCL.cpp:587] [Rank {rank}] {told}"


@pytest.mark.parametrize("number", ["SeqNum=9, ", ""])
def test_the_rank_of_which_nothing_is_heard_is_the_one_that_was_waited_for(number: str) -> None:
    ends = "terminate called after throwing an instance of 'x'"
    found = judged(*(timeout(rank, number) for rank in range(8) if rank != 2), ends)
    assert (found.kind, found.rank) == ("unknown", 2)
    assert judged(*(timeout(rank, number) for rank in (1, 2, 3))).rank == 0
    assert judged(*(timeout(rank, number) for rank in range(8, 16))).kind == "fabric", "of a node's log all came"


def test_an_error_that_names_nobody_is_that_of_the_rank_that_was_waited_for() -> None:
    last = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 564.00 MiB."
    assert judged(*raised("/srv/job/train.py", last), *(timeout(rank) for rank in (0, 2, 3))).rank == 1


def test_a_crash_after_others_were_waited_for_is_no_cause() -> None:
    told = "ncclRemoteError: A call failed", "Fatal Python error: Aborted"
    lines = [f"[rank{rank}]: {text}" for rank in (0, 1) for text in told]
    assert judged(*lines, "[rank2]: Segmentation fault").rank == 2


def test_an_event_of_kubernetes_that_is_called_a_warning_tells_of_a_failure() -> None:
    assert judged("ml   8m   Warning  Failed   pod/moe-worker-3   Error: ImageInspectError").kind == "environment"
    assert judged("WARNING: cached ImageInspectError, retrying").kind == "unknown"


@pytest.mark.parametrize(
    "last",
    [
        "google.auth.exceptions.RefreshError: ('invalid_grant: Bad Request', {'error': 'invalid_grant'})",
        "botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling the GetObject operation: expired",
    ],
)
def test_credentials_that_are_no_longer_good_are_the_environment_s(last: str) -> None:
    found = judged(*raised("/srv/job/train.py", last))
    assert (found.kind, found.action) == ("environment", "ask")


def test_an_assertion_of_torch_without_words_tells_less_of_the_script_than_its_own() -> None:
    files = f"{LIBRARY}/torch/distributed/checkpoint/utils.py", "/srv/job/train.py"
    of_torch, of_script = (judged(*raised(file, "AssertionError", "assert a is not None")) for file in files)
    assert of_torch.likely[0][1] < 0.8 < of_script.likely[0][1]


def test_a_store_that_cannot_be_reached_is_the_network_and_one_that_went_away_a_node() -> None:
    reached = "torch.distributed.elastic.rendezvous.api.RendezvousConnectionError: The connection to the C10d store has failed."
    assert judged(reached).kind == "fabric"
    beat = "The node 'n2_3427_0' has failed to send a keep-alive heartbeat to the rendezvous 'job' due to an error"
    assert judged(f"{beat} of type RendezvousConnectionError.", reached).kind == "node-lost"


def test_a_container_that_ends_again_and_again_says_nothing_of_why() -> None:
    assert judged("    State:          Waiting", "      Reason:       CrashLoopBackOff").kind == "unknown"


def test_an_exception_whose_name_says_nothing_is_never_sure_by_words_alone() -> None:
    last = "FrobError: expected shape (3, 4) but got (4, 3): the argument must be an option of the config"
    found = judged(*raised("/srv/job/train.py", last))
    assert found.kind == "user-code" and found.confidence <= 0.75


def test_once_prepared_a_diagnosis_reads_nothing_of_ours_from_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the time of a failure it may have another version of us, or none, or hang."""
    for one in (terms.terms, terms.exceptions, terms.signs, terms.kinds_of_lines, terms.learned):
        one.cache_clear()
    collect.prepare()

    def gone(file: str) -> NoReturn:
        raise FileNotFoundError(file)

    monkeypatch.setattr(terms, "_lines", gone)
    for cause in Cause:
        for words in ("", "ValueError: x", "an ordinary line", "ncclSystemError: Connection refused"):
            failure = Failure(rank=0, local_rank=0, node="n0", cause=cause, message=words, log_tail=(words,), at_unix=1.0)
            assert collect.diagnose([failure]).sentence
