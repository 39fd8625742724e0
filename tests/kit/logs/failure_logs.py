# ruff: noqa: E501 (messages stand as they are written)
"""Makes logs of failed jobs: a cause, what follows from it on the other ranks, and a training log's ordinary noise around it.

`make(seed, cause, folder)` writes the files of one failure, in one of five layouts: torch's own `[rank3]:` on one console, torchrun's
tee with one file a node, srun --label, one file a rank, and kubectl's prefixes. Others can be asked for: mpirun's tags, Ray's,
DeepSpeed's over pdsh, and torchx's. Every fourth has its cause 2,500 lines above the end, further than any distance that
counts (`scan._progressed`: 1,000).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

LAYOUTS = ("console", "tee", "srun", "files", "pods")
DEEP = 2_500
NO_NAMES = ("pods", "ray", "torchx")
"""Layouts that call nodes otherwise than `Rank.node` does, or not at all."""
STUCK = ("{timeouts-but-one}", "{behind}", "{mismatch}", "{all-stuck}")


class Case(NamedTuple):
    """One failure, with what is to be found."""

    name: str
    kind: str
    rank: int | None
    node: str
    paths: list[str]


class Rank(NamedTuple):
    """One rank of the job."""

    rank: int
    local: int
    node: str
    pid: int


class Line(NamedTuple):
    """One line; `by` None: not a rank's."""

    by: Rank | None
    text: str


def make(seed: int, cause: tuple[str, str, str], folder: Path, layouts: Sequence[str] = LAYOUTS) -> Case:
    """Write the logs of one failure. A line of its text that begins with `@peer` is another rank's, and about the culprit."""
    rng = random.Random(seed)
    kind, whose, text = cause
    nodes, per_node = rng.choice([(1, 8), (2, 4), (2, 8), (4, 4), (4, 8)])
    names = [f"gpu-{rng.randrange(100, 999)}" for _ in range(nodes)]
    while len(set(names)) < nodes:
        names = [f"gpu-{rng.randrange(100, 999)}" for _ in range(nodes)]
    ranks = [Rank(rank, rank % per_node, names[rank // per_node], 40_000 + 64 * rng.randrange(20_000) + rank) for rank in range(nodes * per_node)]
    culprit = rng.choice(ranks)
    layout = layouts[seed % len(layouts)]
    if "@job srun" in text and whose == "one":
        layout = "srun"
    lines = _noise(rng, ranks, rng.randrange(200, 1500))
    job: list[str] = []
    kernel: dict[str, list[str]] = {name: _dmesg(rng) for name in names}
    if text in STUCK:
        lines += _stuck(rng, ranks, culprit, text.strip("{}"))
    else:
        for who in ranks if whose == "all" else [culprit]:
            told = text
            for key, value in (("rank", who.rank), ("local", who.local), ("node", who.node), ("pid", who.pid), ("n", rng.randrange(2, 9))):
                told = told.replace("{" + key + "}", str(value))
            for line in told.split("\n"):
                if line.startswith("@kernel "):
                    kernel[who.node].append(line.removeprefix("@kernel "))
                elif line.startswith("@job "):
                    job.append(line.removeprefix("@job "))
                elif line.startswith("@peer "):
                    lines.append(Line(ranks[who is ranks[0]], line.removeprefix("@peer ")))
                else:
                    lines.append(Line(who, line))
        if whose != "all" and "@peer" not in text:
            lines += _consequences(rng, ranks, culprit, whose)
    if seed % 4 == 3:
        lines += _afterwards(rng, [one for one in ranks if one is not culprit], DEEP)
    died = -9 if kind == "oom-host" and not any(line.by is culprit and "Error" in line.text for line in lines[-400:]) else 1
    if "segfault" in text or "Segmentation" in text:
        died = -11
    named = whose in ("one", "all") and "@peer" not in text and not (whose == "all" and all(line.startswith("@job") for line in text.split("\n")))
    paths = _write(folder, layout, lines, job, kernel if "@kernel" in text or rng.random() < 0.3 else {}, ranks, culprit if named else None, died)
    rank = culprit.rank if whose == "one" else None
    return Case(f"{seed}-{layout}-{kind}", kind, rank, culprit.node if whose in ("one", "node") and layout not in NO_NAMES else "", paths)


def _noise(rng: random.Random, ranks: list[Rank], number: int) -> list[Line]:
    step, made = rng.randrange(100, 90_000), []
    for count in range(number):
        who = rng.choice(ranks)
        what = rng.random()
        if what < 0.62:
            step += 1
            made.append(Line(ranks[0], f" iteration {step:8d}/ 500000 | consumed samples: {step * 1024} | elapsed time per iteration (ms): {rng.uniform(900, 1200):.1f} | learning rate: 1.5E-04 | lm loss: {rng.uniform(1.6, 2.4):.6E} | grad norm: {rng.uniform(0.1, 2):.3f} |"))
        elif what < 0.8:
            made.append(Line(who, f"{who.node}:{who.pid}:{who.pid + 900} [{who.local}] NCCL INFO Channel {rng.randrange(16):02d}/0 : {who.rank}[{who.local}] -> {(who.rank + 1) % len(ranks)}[{(who.local + 1) % 8}] via P2P/CUMEM"))
        elif what < 0.9:
            made.append(Line(who, f"{rng.randrange(100)}%|{'█' * rng.randrange(10)}| {rng.randrange(9999)}/10000 [00:{rng.randrange(60):02d}<01:12, {rng.uniform(1, 9):.2f}it/s]"))
        else:
            made.append(Line(who, rng.choice([
                "/opt/venv/lib/python3.11/site-packages/torch/utils/checkpoint.py:460: FutureWarning: torch.cpu.amp.autocast is deprecated",
                "WARNING: could not import triton kernels (ModuleNotFoundError), falling back",
                "INFO:root:saving checkpoint to /ckpt: no error so far, 0 failed shards",
                "[WARNING] request to feature store failed, retrying in 2 s (attempt 1 of 5)",
                "UserWarning: Detected call of lr_scheduler.step() before optimizer.step()",
                "W0304 05:06:07.123000 140 torch/_logging/_internal.py:1089] [0/0] Profiler is not initialized: failed to load kineto",
                "skipping sample 8812: ValueError in tokenizer, 1 bad record so far",
                "wandb: Network error (ConnectTimeout), entering retry loop.",
            ])))  # fmt: skip
        if count == number // 3 and rng.random() < 0.4:
            made += [Line(who, "ERROR:data:sample could not be decoded, it is skipped"), *(Line(who, part) for part in ("Traceback (most recent call last):", '  File "/workspace/data.py", line 31, in get', "OSError: image file is truncated (3 bytes not processed)"))]
    return made


def _dmesg(rng: random.Random) -> list[str]:
    return [rng.choice([
        "docker0: port 3(veth12ab) entered forwarding state", "perf: interrupt took too long (2513 > 2500), lowering kernel.perf_event_max_sample_rate to 79000",
        "nvidia-uvm: Loaded the UVM driver, major device number 510.", "systemd-journald[812]: Sent WATCHDOG=1 notification.", "EXT4-fs (nvme0n1p2): mounted filesystem with ordered data mode",
    ]) for _ in range(rng.randrange(5, 40))]  # fmt: skip


def _watchdog(who: Rank, seq: int, op: str) -> list[str]:
    head = f"[rank{who.rank}]:[E0304 05:06:07.{who.rank:09d} ProcessGroupNCCL.cpp"
    return [
        f"{head}:629] [Rank {who.rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=41943040, NumelOut=41943040, Timeout(ms)=600000) ran for 600{who.rank:03d} milliseconds before timing out.",
        f"{head}:2168] [PG ID 0 PG GUID 0(default_pg) Rank {who.rank}] failure detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq + 3}, last completed work: {seq - 1}",
        f"{head}:681] [Rank {who.rank}] Some NCCL operations have failed or timed out. Due to the asynchronous nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data.",
        f"{head}:695] [Rank {who.rank}] To avoid data inconsistency, we are taking the entire process down.",
    ]


def _stuck(rng: random.Random, ranks: list[Rank], culprit: Rank, how: str) -> list[Line]:
    seq, made = rng.randrange(1000, 90_000), []
    for who in rng.sample(ranks, len(ranks)):
        number, op = seq, "ALLREDUCE"
        if who is culprit and how == "timeouts-but-one":
            made.append(Line(who, "loading the next shard of the validation set"))
            continue
        if who is culprit and how == "behind":
            number = seq - 1
        if who is culprit and how == "mismatch":
            op = "_ALLGATHER_BASE"
        made += [Line(who, text) for text in _watchdog(who, number, op)]
    return made


def _consequences(rng: random.Random, ranks: list[Rank], culprit: Rank, whose: str) -> list[Line]:
    made, style = [], rng.randrange(4)
    lost = {one.rank for one in ranks if one.node == culprit.node} if whose == "node" and rng.random() < 0.5 else {culprit.rank}
    if whose == "none":
        return [Line(one, "Received signal 15: terminating workers") for one in ranks]
    for who in rng.sample([one for one in ranks if one.rank not in lost], len(ranks) - len(lost)):
        if style == 0:
            told = _watchdog(who, 4711, "ALLREDUCE")
        elif style == 1:
            told = ["Traceback (most recent call last):", '  File "/workspace/train.py", line 91, in main', "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1970, remote process exited or there was a network error, NCCL version 2.20.5",
                    "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.", "Last error:", f"socketProgress: Connection closed by remote peer {culprit.node}.cluster<4{rng.randrange(1000, 9999)}>"]
        elif style == 2:
            told = ["Traceback (most recent call last):", '  File "/workspace/train.py", line 91, in main', f"RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.{rng.randrange(9)}.4]:{rng.randrange(20000, 60000)}"]
        else:
            told = [f"{who.node}:{who.pid}:{who.pid + 901} [{who.local}] misc/socket.cc:50 NCCL WARN socketProgress: Connection closed by remote peer {culprit.node}<38201>",
                    f"{who.node}:{who.pid}:{who.pid + 901} [{who.local}] NCCL INFO misc/socket.cc:752 -> 6", f"[rank{who.rank}]:[W0304 05:06:08.{who.rank:09d} TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=64, addr=[{who.node}]:41822, remote=[{culprit.node}]:29500): Connection reset by peer"]
        made += [Line(who, text) for text in told]
    return made


def _afterwards(rng: random.Random, ranks: list[Rank], number: int) -> list[Line]:
    made = []
    for _ in range(number):
        who = rng.choice(ranks)
        made.append(Line(who, rng.choice([
            f"{who.node}:{who.pid}:{who.pid + 1} [{who.local}] NCCL INFO comm 0x{rng.randrange(16**8):x} rank {who.rank} nranks {len(ranks)} cudaDev {who.local} busId {rng.randrange(99)}000 - Abort COMPLETE",
            f"frame #{rng.randrange(30)}: c10d::ProcessGroupNCCL::watchdogHandler() + 0x{rng.randrange(16**4):x} (0x7f{rng.randrange(16**8):x} in /opt/venv/lib/libtorch_cuda.so)",
            f"[rank{who.rank}]:[W0304 05:06:09.000000000 TCPStore.cpp:106] [c10d] sendBytes failed on SocketImpl(fd=64): Broken pipe",
        ])))  # fmt: skip
    return made


def _write(folder: Path, layout: str, lines: list[Line], job: list[str], kernel: dict[str, list[str]], ranks: list[Rank], culprit: Rank | None, died: int) -> list[str]:
    files: dict[str, list[str]] = {}
    for number, line in enumerate(lines):
        name, text = _shown(layout, line, ranks, number)
        files.setdefault(name, []).append(text)
    main = {"files": "launcher.log", "tee": f"{ranks[0].node}.log"}.get(layout, "job.log")
    end = files.setdefault(main, [])
    if layout == "ray":
        end[:0] = _ray_begins(ranks)
    end += job
    if layout in ("console", "tee") and culprit is not None:
        if layout == "tee":
            end = files.setdefault(f"{culprit.node}.log", [])
        end += _box(culprit, died)
    if layout == "srun" and culprit is not None and not any("task" in text for text in job):
        how = {-9: "Killed", -11: "Segmentation fault (core dumped)"}.get(died, "Exited with exit code 1")
        end.append(f"srun: error: {culprit.node}: task {culprit.rank}: {how}")
    if layout in LAUNCHERS and culprit is not None:
        end += _launcher_ends(layout, culprit, ranks, died)
    if layout in ("files", "pods") and culprit is not None:
        if layout == "files":
            end.append(f"E0304 05:06:10.000000 90 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: {died}) local_rank: {culprit.local} (pid: {culprit.pid}) of binary: /usr/bin/python3")
        end += _box(culprit, died)
    for node, said in kernel.items():
        files[f"dmesg-{node}.log"] = [f"Mar  4 05:{number % 60:02d}:07 {node} kernel: [{8000 + number}.{number:06d}] {text}" for number, text in enumerate(said)]
    folder.mkdir(parents=True, exist_ok=True)
    for name, texts in files.items():
        (folder / name).write_text("\n".join(texts) + "\n")
    return [str(folder)]


def _shown(layout: str, line: Line, ranks: list[Rank], number: int) -> tuple[str, str]:
    who = line.by or ranks[0]
    marked = line.text.startswith(("[rank", f"{who.node}:")) or " iteration " in line.text or "%|" in line.text
    if layout == "console":
        return "job.log", line.text if marked or line.text.startswith("[W") else f"[rank{who.rank}]: {line.text}"
    if layout == "tee":
        return f"{who.node}.log", f"[default{who.local}]:{line.text}"
    if layout == "srun":
        return "job.log", f"{who.rank:2d}: {line.text}"
    if layout == "files":
        return f"rank_{who.rank}.log", line.text
    if layout == "mpi":
        return "job.log", f"[1,{who.rank}]<std{'out' if marked else 'err'}>:{line.text}"
    if layout == "ray":
        return "job.log", f"\x1b[36m(RayTrainWorker pid={who.pid}, ip={_address(who, ranks)})\x1b[0m {line.text}"
    if layout == "pdsh":
        return "job.log", f"{who.node}: " + (line.text if marked or line.text.startswith("[W") else f"[rank{who.rank}]: {line.text}")
    if layout == "torchx":
        return "job.log", f"trainer/{_place(who, ranks)} [{who.local}]:{line.text}"
    return "job.log", f"[pod/train-worker-{who.rank}/trainer] 2026-03-04T05:{number // 60 % 60:02d}:{number % 60:02d}.123456789Z {line.text}"


LAUNCHERS = ("mpi", "ray", "pdsh", "torchx")


def _place(who: Rank, ranks: list[Rank]) -> int:
    """Its node's number."""
    return list(dict.fromkeys(one.node for one in ranks)).index(who.node)


def _address(who: Rank, ranks: list[Rank]) -> str:
    return f"10.0.{_place(who, ranks)}.4"


def _ray_begins(ranks: list[Rank]) -> list[str]:
    head = f"\x1b[36m(TorchTrainer pid=1138, ip={_address(ranks[0], ranks)})\x1b[0m"
    told = [f"- (node_id=3ea81f12c0f73ebf{_place(one, ranks)}, ip={_address(one, ranks)}, pid={one.pid}) world_rank={one.rank}, local_rank={one.local}, node_rank={_place(one, ranks)}" for one in ranks]
    return [f"{head} Started distributed worker processes: ", *(f"{head} {one}" for one in told)]


def _launcher_ends(layout: str, culprit: Rank, ranks: list[Rank], died: int) -> list[str]:
    """What that launcher says of it in the end."""
    if layout == "torchx":
        return [f"trainer/{_place(culprit, ranks)} {line}" for line in _box(culprit, died)]
    if layout == "pdsh":
        head = f"{culprit.node}: [2026-03-04 05:06:09,123]"
        killed = [f"{head} [INFO] [launch.py:319:sigkill_handler] Killing subprocess {one.pid}" for one in ranks if one.node == culprit.node]
        return [*killed, f"{head} [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank={culprit.local}', '--deepspeed'] exits with return code = {died}", f"pdsh@gpu-1: {culprit.node}: ssh exited with exit code 1"]
    if layout == "ray" and died < 0:
        return [f"(raylet, ip={_address(culprit, ranks)}) A worker died or was killed while executing a task by an unexpected system error. To troubleshoot the problem, check the logs for the dead worker. RayTask ID: ffffffff4586a18aa58bf9747eb504000000 Worker ID: 0c62b78d30f3642bc1fc9a6f3cb2 Node ID: 38300cefdc3b42caebdba478cc1d Worker IP address: {_address(culprit, ranks)} Worker port: 10016 Worker PID: {culprit.pid} Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or other unexpected errors."]
    if layout == "ray":
        return [f"ray.exceptions.RayTaskError(RuntimeError): ray::_RayTrainWorker__execute.get_next() (pid={culprit.pid}, ip={_address(culprit, ranks)}, actor_id=5712cc6b027323366a2b484b06000000, repr=<ray.train._internal.worker_group.RayTrainWorker object at 0x7f0294243a00>)"]
    rule = "-" * 74
    if died < 0:
        how = {-9: "Killed", -11: "Segmentation fault", -7: "Bus error"}.get(died, "Aborted")
        return [rule, f"mpirun noticed that process rank {culprit.rank} with PID {culprit.pid} on node {culprit.node} exited on signal {-died} ({how}).", rule]
    return [rule, "Primary job  terminated normally, but 1 process returned", "a non-zero exit code. Per user-direction, the job has been aborted.", rule, rule, "mpirun detected that one or more processes exited with non-zero status, thus causing", "the job to be terminated. The first process to do so was:", "", f"  Process name: [[23455,1],{culprit.rank}]", f"  Exit code:    {died}", rule]


def _box(culprit: Rank, died: int) -> list[str]:
    signal = {-9: f"Signal 9 (SIGKILL) received by PID {culprit.pid}", -11: f"Signal 11 (SIGSEGV) received by PID {culprit.pid}"}
    return [
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ", "=" * 60, "train.py FAILED", "-" * 60, "Failures:", "  <NO_OTHER_FAILURES>", "-" * 60,
        "Root Cause (first observed failure):", "[0]:", "  time      : 2026-03-04_05:06:09", f"  host      : {culprit.node}",
        f"  rank      : {culprit.rank} (local_rank: {culprit.local})", f"  exitcode  : {died} (pid: {culprit.pid})", "  error_file: <N/A>",
        f"  traceback : {signal.get(died, 'To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html')}", "=" * 60,
    ]  # fmt: skip
