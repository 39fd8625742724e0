# ruff: noqa: E501 (messages stand as they are written)
"""Who says what is wrong is often not who hands it on: loggers, servers, compilers and boxes that are drawn around a traceback."""

from __future__ import annotations

import json

import pytest

from holdfast.core.job.finding import Action, Class, Finding
from holdfast.diagnosis.attribute import attribute
from holdfast.diagnosis.gather import of_text
from holdfast.diagnosis.rule import load

LIBRARY = '  File "/opt/venv/lib/python3.11/site-packages/{}", line 7, in {}\n    {}\n'
TRACEBACK = "Traceback (most recent call last):\n"


def found(text: str) -> Finding:
    return attribute(of_text(text, load()))


def test_an_exception_that_ends_with_a_colon_hands_on_the_next_one():
    text = TRACEBACK + LIBRARY.format("torch/_dynamo/output_graph.py", "call", "raise BackendCompilerFailed")
    text += "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nRuntimeError: Failed to find C compiler."
    assert found(text).kind == Class.ENVIRONMENT


def test_an_exception_that_nobody_knows_hands_on_the_one_in_its_words():
    text = TRACEBACK + LIBRARY.format("jax/core.py", "error", "raise")
    text += "jax._src.UnfilteredStackTrace: jax._src.errors.ConcretizationTypeError: Abstract tracer value encountered"
    assert found(text).kind == Class.USER_CODE


def test_what_a_loader_raises_again_is_said_by_its_worker():
    text = TRACEBACK + LIBRARY.format("torch/_utils.py", "reraise", "raise exception")
    text += "IndexError: Caught IndexError in DataLoader worker process 2.\nOriginal " + TRACEBACK
    text += LIBRARY.format("streaming/base/format/mds/reader.py", "get_sample_data", "raise IndexError(")
    assert found(text + "IndexError: sample index 5205 is not present in the shard.01000.mds file.").kind == Class.DATA


def test_so_is_one_whose_class_is_named_with_its_module():
    text = TRACEBACK + LIBRARY.format("torch/_utils.py", "reraise", "raise self.exc_type(msg)")
    text += "decord._ffi.base.DECORDError: Caught DECORDError in DataLoader worker process 1.\nOriginal " + TRACEBACK
    text += '  File "/srv/job/dataset.py", line 166, in __getitem__\n    frames = decord.VideoReader(path)\n'
    told = found(text + "decord._ffi.base.DECORDError: video_reader.cc:151: ERROR cannot find video stream with wanted index: -1")
    assert "Caught" not in told.evidence[0].text and told.kind == Class.DATA


def test_that_another_rank_has_ended_horovod_is_no_cause():
    shut = "Horovod has been shut down. This was caused by an exception on one of the ranks or an attempt to allreduce a tensor"
    assert found(f"tensorflow.python.framework.errors_impl.UnknownError: {shut}\n").kind == Class.UNKNOWN


def test_a_traceback_in_a_box_is_one():
    text = "╭──── Traceback (most recent call last) ────╮\n│ /opt/lib/python3.10/multiprocess/pool.py:774 in get │\n│ 774 raise self._value │\n"
    said = found(text + "╰────────╯\nKeyError: 'conversations'")
    assert (said.kind, said.rule) == (Class.USER_CODE, "python-key")


def test_columns_that_stand_before_a_traceback_stand_before_its_end():
    head = "2023-04-29 06:01:12.9{} [177/train/578 (pid 28936)] [09c561ee] "
    lines = (TRACEBACK + LIBRARY.format("torch/serialization.py", "_save", "zip_file.write_record()")).splitlines()
    lines.append("OSError: [Errno 28] No space left on device")
    said = found("\n".join(head.format(number) + line for number, line in enumerate(lines, 10)))
    assert (said.kind, said.rule) == (Class.STORAGE, "errno-28")


@pytest.mark.parametrize(
    "head", ["I0209 14:21:07.402110 139951 xla_bridge.py:355] ", "2023-02-09 14:21:07.1: I tsl/platform/x.cc:1] "]
)
def test_what_a_program_tells_at_its_level_of_information_is_no_cause(head):
    text = f"{head}Unable to initialize backend 'tpu_driver': NOT_FOUND: Unable to find driver in registry given worker:\n"
    assert found(text + "XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 56 bytes.").kind == Class.OOM_GPU


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("(Worker_TP1 pid=389) RuntimeError: CUDA error: uncorrectable ECC error encountered", 1),
        ("[2025-01-29 08:52:46 TP2] RuntimeError: CUDA error: uncorrectable ECC error encountered", 2),
        ("[2025-01-29 08:52:46 DP0 TP3 EP3] RuntimeError: CUDA error: uncorrectable ECC error encountered", 3),
    ],
)
def test_a_server_names_ranks_by_their_place_in_tensor_parallelism(line, rank):
    assert found(line).rank == rank


def test_only_the_first_line_of_a_record_may_say_whose_it_is():
    text = f"[2025-01-29 08:52:46 TP2] Scheduler hit an exception: {TRACEBACK}"
    text += LIBRARY.format("torch/cuda/__init__.py", "synchronize", "return torch._C._cuda_synchronize()")
    assert found(text + "RuntimeError: CUDA error: uncorrectable ECC error encountered").rank == 2


def test_a_spawned_process_is_named_above_its_traceback():
    text = "torch.multiprocessing.spawn.ProcessRaisedException: \n\n-- Process 2 terminated with the following error:\n" + TRACEBACK
    text += '  File "/home/u/train.py", line 7, in run\n    loss.item()\nRuntimeError: CUDA error: device-side assert triggered'
    assert (found(text).kind, found(text).rank) == (Class.USER_CODE, 2)


def test_a_library_that_calls_another_ones_function_wrongly_is_of_another_version():
    frames = LIBRARY.format("transformers/trainer_callback.py", "load_from_json", "return cls(**json.loads(text))")
    said = found(TRACEBACK + frames + "TypeError: TrainerState.__init__() got an unexpected keyword argument 'stateful_callbacks'")
    assert said.kind == Class.ENVIRONMENT
    of_none = "AttributeError: 'NoneType' object has no attribute 'shape'"
    assert found(TRACEBACK + '  File "/home/u/train.py", line 7, in step\n    x.shape\n' + of_none).kind == Class.USER_CODE


def test_a_clouds_record_holds_the_programs_own():
    record = {"jsonPayload": {"levelname": "ERROR", "message": "The replica master 0 ran out-of-memory and exited"}, "severity": "ERROR"}
    assert found(json.dumps(record)).kind == Class.OOM_HOST


def test_a_node_that_lacks_memory_lacks_no_disk():
    text = "4m   Warning   EvictionThresholdMet  node/n1   Attempting to reclaim memory\n"
    assert found(text + "3m   Warning   Evicted   pod/train-x   The node was low on resource: memory.").kind == Class.OOM_HOST


def test_a_network_that_fails_everybody_alike_is_looked_at_by_a_person():
    line = "tp-pod:{0}:440 [{0}] transport/nvls.cc:251 NCCL WARN Cuda failure 1 'invalid argument'"
    assert found("\n".join(line.format(local) for local in range(4))).action == Action.ASK
    assert found(line.format(0)).action == Action.RESTART


def test_one_complaint_about_an_address_loses_no_node():
    text = TRACEBACK + LIBRARY.format("torch/distributed/distributed_c10d.py", "recv", "pg.recv().wait()")
    said = found(text + "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [18.25.6.30]:30872")
    assert said.kind == Class.UNKNOWN
