# ruff: noqa: E501 (messages stand as they are written)
"""Who speaks, and how did it end, in the logs of launchers that are not torchrun? And what no rule takes for a failure."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.core.job.finding import Finding
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.gather import gather
from holdfast.diagnosis.logs.prefix import Speaker, index, split
from holdfast.diagnosis.logs.scan import Scanner
from holdfast.diagnosis.rule import load

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB"


def judged(path: Path, *lines: str) -> Finding:
    path.write_text("\n".join(lines) + "\n")
    return attribute(gather([str(path)], load()))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[1,3]<stderr>:ValueError: x", Speaker(rank=3, mark="[1,3]<stderr>:")),
        ("[prterun-n1-4711@1,12]<stdout>: ValueError: x", Speaker(rank=12, mark="[prterun-n1-4711@1,12]<stdout>: ")),
        ("(RayTrainWorker pid=77, ip=10.0.1.4) ValueError: x", Speaker(pid=77, node="10.0.1.4")),
        ("(pid=77) ValueError: x", Speaker(pid=77)),
        ("trainer/1 [3]:ValueError: x", Speaker(node="trainer/1", local=3, mark="trainer/1 [3]:")),
        ("i.pretrain/0 ValueError: x", Speaker(node="i.pretrain/0", mark="i.pretrain/0 ")),
        ("worker-1: torch.OutOfMemoryError: x", Speaker(node="worker-1", mark="worker-1: ")),
        ("[0]:ValueError: x", Speaker(local=0, mark="[0]:")),
        ("172.31.20.74: ValueError: x", Speaker(node="172.31.20.74")),
        ("worker-1: worker-1:77:91 [3] ValueError: x", Speaker(node="worker-1", local=3, pid=77)),
        ("stderr: ValueError: x", Speaker()),
        ("(Actor pid=585) (EngineCore_DP0 pid=586) ERROR 03-05 00:25:45 [core.py:1094] ValueError: x", Speaker(pid=586)),
        ("2025-10-31 03:11:02,475 - SimpleTuner - INFO - [rank7]: ValueError: x", Speaker(rank=7)),
        ("2026-11-15 16:03:15.140058: E tsl/service.cc:954] ValueError: x", Speaker()),
    ],
)
def test_a_writer_is_known_by_what_its_launcher_puts_before_its_lines(line: str, said: Speaker) -> None:
    speaker, text = split(line, Speaker())
    assert text.endswith("Error: x") and text.split(":")[0].endswith("Error")
    assert (speaker.rank, speaker.local, speaker.node, speaker.pid) == (said.rank, said.local, said.node, said.pid)
    assert not said.mark or speaker.mark == said.mark


def test_a_mark_is_kept_without_its_colours() -> None:
    line = "\x1b[36m(RayTrainWorker pid=77, ip=10.0.1.4)\x1b[0m ValueError: x"
    speaker, text = split(line, Speaker())
    assert text == "ValueError: x" and speaker.mark == "(RayTrainWorker pid=77, ip=10.0.1.4) "


@pytest.mark.parametrize(
    ("pod", "number"),
    [("train-worker-3", 3), ("train-3-x7k2p", 3), ("set-workers-0-5-abcde", 5), ("web-5c5b57cf9c-kvjxn", None), ("launcher", None)],
)
def test_which_pod_of_its_job_it_is(pod: str, number: int | None) -> None:
    assert index(pod) == number


RAY = [
    f"(TorchTrainer pid=1, ip=10.0.0.4) - (node_id=ab, ip=10.0.{node}.4, pid={4000 + rank}) "
    f"world_rank={rank}, local_rank={rank % 2}, node_rank={node}"
    for rank, node in enumerate((0, 0, 1, 1))
]


def test_ray_tells_which_process_is_which_rank(tmp_path: Path) -> None:
    found = judged(tmp_path / "ray.log", *RAY, f"(RayTrainWorker pid=4002, ip=10.0.1.4) {OOM}")
    assert (found.kind, found.rank) == ("oom-gpu", 2)
    everybody = [f"(RayTrainWorker pid={4000 + rank}, ip=10.0.{rank // 2}.4) {OOM}" for rank in range(4)]
    assert judged(tmp_path / "all.log", *RAY, *everybody).everywhere


def test_of_an_actor_that_died_its_pid_stands_in_a_later_line(tmp_path: Path) -> None:
    told = ["ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.", "\tclass_name: W", "\tpid: 4003"]
    found = judged(tmp_path / "ray.log", *RAY, *told)
    assert (found.kind, found.rank) == ("oom-host", 3)


@pytest.mark.parametrize("name", ["[[23455,1],2]", "[prterun-head-147515@1,2]"])
@pytest.mark.parametrize(("code", "kind"), [("137", "oom-host"), ("139", "framework"), ("3", "unknown")])
def test_mpirun_names_the_process_that_ended_first(tmp_path: Path, name: str, code: str, kind: str) -> None:
    found = judged(tmp_path / "mpi.log", "[1,0]<stderr>:Broken pipe", f"  Process name: {name}", f"  Exit code:    {code}")
    assert (found.kind, found.rank) == (kind, 2)


def test_hydra_tells_who_died(tmp_path: Path) -> None:
    lines = ["n1: rank 0 died from signal 15", "n1: rank 5 exited with code 139"]
    assert judged(tmp_path / "hydra.log", *lines).rank == 5


def test_deepspeed_names_a_place_whose_rank_is_known_by_the_others(tmp_path: Path) -> None:
    others = [f"w-{rank // 4}: [rank{rank}]: ncclRemoteError: A call failed" for rank in range(8)]
    end = "w-1: [2026-04-14 13:11:27,885] [ERROR] [launch.py:434:sigkill_handler] ['python', '--local_rank=2'] exits with return code = -9"
    found = judged(tmp_path / "pdsh.log", *others, end)
    assert (found.kind, found.rank, found.node) == ("oom-host", 6, "w-1")
    assert judged(tmp_path / "few.log", *others[:2], others[4], end).rank is None, "of that node too few have spoken"


def test_torchx_calls_hosts_by_numbers_and_its_box_by_their_names(tmp_path: Path) -> None:
    box = ["Root Cause (first observed failure):", "[0]:", "  host      : n9", "  rank      : 5 (local_rank: 1)", "  exitcode  : 1 (pid: 7)"]
    lines = ["trainer/0 [0]:Broken pipe", f"trainer/1 [1]:{OOM}", *(f"trainer/1 {line}" for line in box)]
    found = judged(tmp_path / "torchx.log", *lines)
    assert (found.kind, found.rank, found.node) == ("oom-gpu", 5, "n9")


DESCRIBED = ["Name:             train-worker-2", "Namespace:        ml", "Node:             gpu-7/10.0.3.7", "Containers:"]


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        (["    State:          Terminated", "      Reason:       OOMKilled", "      Exit Code:    137"], "oom-host"),
        (["    Last State:     Terminated", "      Reason:       Error", "      Exit Code:    137"], "oom-host"),
        (["Events:", "  Warning  NodeNotReady  2m3s  node-controller  Node is not ready"], "node-lost"),
    ],
)
def test_what_kubectl_describes_is_that_pod_s(tmp_path: Path, lines: list[str], kind: str) -> None:
    found = judged(tmp_path / "describe.txt", *DESCRIBED, *lines)
    assert (found.kind, found.rank, found.node) == (kind, None, "gpu-7"), "how many ranks a pod has is not told"
    others = [f"[pod/train-worker-{rank}/main] ncclRemoteError: A call failed" for rank in (0, 1)]
    found = judged(tmp_path / "with-pods.txt", *DESCRIBED, *lines, *["quiet"] * 250, *others)
    assert (found.kind, found.rank, found.node) == (kind, 2, "gpu-7"), "there each pod has one"


def test_a_description_ends_and_a_rank_s_own_file_has_none(tmp_path: Path) -> None:
    assert judged(tmp_path / "late.txt", *DESCRIBED, *["quiet"] * 300, OOM).rank is None
    assert judged(tmp_path / "rank_5.log", "Name:   conv-1", OOM).rank == 5


@pytest.mark.parametrize(
    "lines",
    [
        ["Stalled ops:HorovodBroadcast_a [missing ranks: 2]"],
        ["Missing ranks:", "2: [HorovodAllreduce_a, HorovodAllreduce_b]", "done"],
        ["[1,0]<stderr>:Missing ranks:", "[1,0]<stderr>:2: [allreduce.noname.1]"],
    ],
)
def test_horovod_names_who_is_missing(tmp_path: Path, lines: list[str]) -> None:
    found = judged(tmp_path / "hvd.log", *lines)
    assert (found.kind, found.rank) == ("unknown", 2) and "rank 2 never reached" in found.sentence
    raised = judged(tmp_path / "raised.log", *lines, "[1,2]<stderr>:RuntimeError: what no rule knows")
    assert (raised.evidence[0].text, raised.rank) == ("RuntimeError: what no rule knows", 2), "what it has said tells more"
    assert {kind for kind, _ in raised.likely[:1]} == {"user-code"}


def test_where_many_are_missing_nobody_is_blamed(tmp_path: Path) -> None:
    lines = ["Missing ranks:", *(f"{rank}: [allreduce.{rank}]" for rank in range(1, 8))]
    assert judged(tmp_path / "hvd.log", *lines).rank is None


@pytest.mark.parametrize(
    "line",
    [
        "'(ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out. (read timeout=10)\"), '(Request ID: 5e)')' thrown while requesting GET https://huggingface.co/x",
        "'(MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): (Caused by SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]')))\"))' thrown while requesting HEAD https://huggingface.co/x",
        "Retrying in 1s [Retry 1/5].",
        "[W socket.cpp:663] [c10d] The client socket has failed to connect to [::ffff:10.0.0.7]:29500 (errno: 111 - Connection refused).",
        " iteration 7/ 9 | lm loss: 1.6E+00 | loss scale: 1.0 | grad norm: 0.3 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        "| epoch 028 | loss 3.976 | num_updates 9165 | gnorm 0.635 | clip 0.000 | oom 0.000 | loss_scale 0.000",
        "/etc/bash.bashrc: line 7: nvidia-smi: command not found",
        "/opt/train.sh: line 3: module: command not found",
        'n7:402:402 [0] init.cc:179 NCCL WARN Missing "iommu=pt" from kernel command line which can lead to system instablity or hang!',
        "Name:    encoder.layer.0   Type: Linear   Params: 4096",
        "Lustre: 10110:0:(import.c:1) scratch-OST0001: Connection restored to 10.0.0.9@tcp",
        "Exit code: 0",
        "Fetching 8 files from s3://bucket/train: 100%",
        "[INFO] Querying registry for permission grant",
    ],
)  # fmt: skip
def test_an_ordinary_line_says_nothing(line: str) -> None:
    log = Scanner(load()).text(line)
    assert not [one.rule.name for one in log.sightings.values() if one.rule.depth] and not log.ends
