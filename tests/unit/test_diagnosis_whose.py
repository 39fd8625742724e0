"""Whose failure is it, where the line that tells the cause names nobody?"""

from __future__ import annotations

import pytest

from holdfast.core.job.finding import Finding
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.gather import of_text
from holdfast.diagnosis.rule import load

RULES = load()
KERNEL = "kernel: Out of memory: Killed process 4711 (python3) total-vm:201822140kB, anon-rss:121004188kB, file-rss:71680kB"
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 564.00 MiB. GPU {} has a total capacity of 22.20 GiB"
LAUNCH = "subprocess.CalledProcessError: Command '['/usr/bin/python3', '-u', 'train.py', '--local_rank=7', '--lr', '0.4']' "
COMPLETION = "n1:984:1357 [4] ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 172.36.143.59<44206> with status=12"
NCCL_ID = "communicator and {} ncclUniqueId from [0] via c10d key-value store by key '0', but get('0') got error: Timeout"
WORK = "WorkNCCL(SeqNum=1, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600022 milliseconds"


def judged(*lines: str) -> Finding:
    return attribute(of_text("\n".join(lines), RULES))


def ended(code: int, local: int, pid: int = 4711) -> str:
    """How torchrun says it before its box, which is cut off of many logs."""
    return f"ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: {code}) local_rank: {local} (pid: {pid})"


@pytest.mark.parametrize(
    ("lines", "rank"),
    [
        ([KERNEL, ended(-9, 5)], 5),
        (["[rank2]: Killed", "train.sh: line 14: 4711 Killed    python train.py --rank 2", "reason OOMKilled"], 2),
        ([ended(-7, 1)], 1),
        ([LAUNCH + "died with <Signals.SIGSEGV: 11>."], 7),
        (["torch.multiprocessing.spawn.ProcessExitedException: process 1 terminated with signal SIGABRT"], 1),
        ([OOM.format(3)], 3),
    ],
    ids=["by its pid", "by what its shell says", "by its place", "of the older launcher", "of spawn", "by its GPU"],
)
def test_of_one_node_a_place_a_pid_or_a_gpu_tells_the_rank(lines: list[str], rank: int) -> None:
    assert judged(*lines).rank == rank


@pytest.mark.parametrize(
    "lines",
    [
        [OOM.format(0)],
        [OOM.format(gpu) for gpu in (3, 1, 2)],
        ["ValueError: no such preset", ended(1, 2)],
        [COMPLETION],
        [f"[Rank 118] Watchdog caught collective operation timeout: {WORK}"],
    ],
    ids=["each may see one GPU", "of several", "all fail alike", "one of two ends of a link", "who waits like any other"],
)
def test_what_may_be_of_another_or_of_all_is_nobody_s(lines: list[str]) -> None:
    assert judged(*lines).rank is None


@pytest.mark.parametrize("spelled", ["retrieving", "retreiving"])
def test_who_waits_for_nccl_s_id_waits_for_the_first_rank(spelled: str) -> None:
    told = (f"[rank{rank}]: DistBackendError: [{rank}] is setting up NCCL {NCCL_ID.format(spelled)}" for rank in (1, 2, 3))
    found = judged("[rank0]: Running tokenizer on the dataset", *told)
    assert (found.kind, found.rank) == ("unknown", 0)


def test_what_a_watchdog_hands_on_counts_and_not_that_it_ends_its_process() -> None:
    of_group = "what():  [PG 0 Rank {0}] Process group watchdog thread terminated with exception: [Rank {0}] Watchdog caught "
    ends = "terminate called after throwing an instance of 'c10::DistBackendError'"
    told = (f"{of_group.format(rank)}collective operation timeout: {WORK}" for rank in range(4))
    assert judged(ends, *told).kind == "fabric", "all of them came"


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["[CUDA ERROR] at file train_gpt2.cu:961:", "an illegal memory access was encountered"], "framework"),
        (["/usr/bin/ld: cannot find -lcuda: No such file or directory"], "environment"),
        (["n1:1:2 [1] include/shm.h:28 NCCL WARN Call to posix_fallocate failed : No space left on device"], "oom-host"),
        (["UCX ERROR ibv_create_cq() failed: Cannot allocate memory. Please set max locked memory"], "environment"),
    ],
)
def test_of_two_terms_in_a_line_the_one_that_says_more_counts(lines: list[str], kind: str) -> None:
    assert judged(*lines).kind == kind


def box(*codes: int) -> list[str]:
    """torchrun's, of ranks that ended with these codes, the first of them first."""
    told = ["Failures:", *(line for rank in range(1, len(codes)) for line in field(rank, codes[rank]))]
    return [*told, "Root Cause (first observed failure):", *field(0, codes[0])]


def field(rank: int, code: int) -> list[str]:
    told = ("host      : n7", f"rank      : {rank} (local_rank: {rank})", f"exitcode  : {code} (pid: {40 + rank})")
    return [f"[{rank}]:", *(f"  {line}" for line in told)]


GLOO = "/third_party/gloo/gloo/transport/tcp"
RAISED = ["Traceback (most recent call last):", '  File "/workspace/train.py", line 2, in <module>', "KeyError: 'HF_HOME'"]


def test_what_as_many_say_as_failed_alike_is_everybody_s_though_no_line_names_its_rank() -> None:
    all_of_them = judged(*RAISED, *RAISED, *box(1, 1))
    assert all_of_them.everywhere and all_of_them.rank is None and all_of_them.kind == "user-code"
    assert judged(*RAISED, *box(1, -15)).rank == 0, "the other was ended for it"
    silent = judged("train.py: the batch of 7 cannot be shared by 2 ranks", *box(1, 1))
    assert silent.everywhere and silent.action == "ask" and silent.sentence.startswith("all ranks: ended with exit code 1")


def test_who_was_still_at_work_as_the_others_timed_out_is_the_one_that_they_waited_for() -> None:
    late = f"[rank0]: RuntimeError: [{GLOO}/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
    found = judged(late, *box(1, -15))
    assert (found.kind, found.rank, found.rule) == ("unknown", 1, "waited-for")
    logged = ["ERROR:root:reading failed", *RAISED[:2], "OSError: [Errno 5] Input/output error: '/mnt/data/shard-7'"]
    assert judged(*logged, late, *box(1, -15)).rank == 1, "and whose the error is"


TIMED_OUT = "[rank{}]:[E{} ProcessGroupNCCL.cpp:616] [Rank 1] Watchdog caught collective operation timeout: {}"
DETECTED = "[rank{}]:[E{} ProcessGroupNCCL.cpp:1795] [PG ID 11 PG GUID {} Rank {}] Exception detected by watchdog at work: {}"


@pytest.mark.parametrize("column", ["", "2025-02-18 12:54 ", " 2025-02-18 12:54:22 "])
@pytest.mark.parametrize("day", ["0218 04:54:22.864467604", "218 04:54:22.864467604"])
def test_a_rank_within_a_group_is_none_of_all_and_numbers_of_two_groups_are_not_compared(column: str, day: str) -> None:
    """Beside its own rank torch says the one within the group that it waited in."""
    told = (
        TIMED_OUT.format(13, day, WORK.replace("SeqNum=1", "SeqNum=216").replace("ALLREDUCE", "ALLTOALL_BASE")),
        DETECTED.format(13, day, 119, 1, 216),
        TIMED_OUT.format(15, day, WORK.replace("SeqNum=1", "SeqNum=57")),
        DETECTED.format(15, day, 112, 1, 57),
    )
    found = judged(*(column + line for line in told))
    assert found.rank is None and found.evidence[0].rank == 13


def test_of_tasks_that_did_not_come_one_is_blamed_and_seven_of_eight_are_not() -> None:
    said = "jaxlib.xla_extension.XlaRuntimeError: DEADLINE_EXCEEDED: Barrier timed out. Timed out task names:"
    named = [f"/job:jax_worker/replica:0/task:{task}" for task in range(1, 8)]
    assert judged("[7] here", said, *named[2:3]).rank == 3
    nobody = judged(said, *named)
    assert (nobody.kind, nobody.rank) == ("unknown", None)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("tsd client wait response fail, device response code[1]. unknown device error.[FUNC:WaitRsp]", "gpu"),
        ("RuntimeError: NPU out of memory. Tried to allocate 2.00 GiB (NPU 3; 61.00 GiB total capacity)", "oom-gpu"),
        ("RuntimeError: InnerRunOpApi:torch_npu/csrc/framework/OpParamMaker.cpp function error: HcclAllreduce", "unknown"),
        ("RuntimeError: synchronize:torch_npu/csrc/core/NPUStream.cpp:474 NPU function error: error code is 507054", "fabric"),
    ],
)
def test_what_an_ascend_npu_says_has_the_class_of_what_a_gpu_says(line: str, kind: str) -> None:
    assert judged(f"[rank1]: {line}").kind == kind


def test_who_only_lost_its_peer_is_not_guilty_and_a_process_of_this_host_is_no_node() -> None:
    closed = f"[rank0]: RuntimeError: [{GLOO}/pair.cc:553] Connection closed by peer [127.0.0.1]:26037"
    found = judged(closed, *box(1))
    assert (found.kind, found.rank, found.node) == ("unknown", None, "")


def test_a_term_that_tells_the_cause_counts_before_a_rule_that_tells_its_library() -> None:
    last = "torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in (None, '/opt/g++')"
    assert judged(*RAISED[:2], last).kind == "environment"
    assert judged(*RAISED[:2], "torch._inductor.exc.InductorError: LoweringException: x").kind == "framework"


def test_who_cannot_reach_another_one_is_not_to_blame_for_it() -> None:
    refused = "ipv4:10.186.213.145:13305: Failed to connect to remote host: Connection refused"
    found = judged(f"[rank3] UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: {refused}")
    assert (found.kind, found.rank) == ("fabric", None)


def test_a_rank_that_is_not_heard_of_is_waited_for_only_where_enough_are_heard() -> None:
    late = "[rank{0}]:[E ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation timeout: " + WORK
    assert judged(*(late.format(rank) for rank in (4, 6))).rank is None
    assert judged(*(late.format(rank) for rank in (4, 6, 7))).rank == 5
