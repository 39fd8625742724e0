"""What is taken from Slurm and Kubernetes where the user says nothing, and that the user's word goes first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kit.stages.command_lines import config, error, host, told, warnings

from holdfast.core.errors import UsageError
from holdfast.core.resolve import slurm
from holdfast.core.resolve.infrastructure import infrastructure
from holdfast.core.resolve.scheduler import scheduler_given

JOB = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NAME": "llama",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_NODELIST": "n[1-3]",
    "SLURM_JOB_NUM_NODES": "3",
    "SLURM_NNODES": "3",
}
STEP = JOB | {
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "3",
    "SLURMD_NODENAME": "n2",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
}
"""As seen on Slurm 22.05: `srun -N3`, the third of the job. A heterogeneous step over all components looks the same."""
ALONE = STEP | {
    "SLURM_NNODES": "1",
    "SLURM_PROCID": "0",
    "SLURM_NTASKS": "1",
    "SLURMD_NODENAME": "n3",
    "SLURM_STEP_NODELIST": "n3",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
"""`srun -N1 -w n3` in a job of three nodes."""
BATCH = JOB | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "n1", "SLURM_TASKS_PER_NODE": "8(x3)"}
SALLOC = JOB | {"SLURM_TASKS_PER_NODE": "1(x3)"}
ONE_NODE = {"SLURM_JOB_NODELIST": "n1", "SLURM_NODELIST": "n1", "SLURM_JOB_NUM_NODES": "1", "SLURM_NNODES": "1"}
PORT = 20000 + (17 * 32 + 2) % 9216
"""Of that step."""

POD = {"JOB_COMPLETION_INDEX": "1", "HOSTNAME": "train-1", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
PODS = host(full_name="train-1.train.ml.svc.cluster.local")
JOBSET = POD | {
    "HOSTNAME": "train-workers-1-1",
    "JOBSET_NAME": "train",
    "JOBSET_REPLICATEDJOB_NAME": "workers",
    "JOBSET_REPLICATEDJOB_REPLICAS": "2",
    "JOBSET_JOB_INDEX": "1",
    "JOB_COMPLETIONS": "4",
}
PYTORCHJOB = {
    "KUBERNETES_SERVICE_HOST": "10.0.0.1",
    "HOSTNAME": "bert-worker-0",
    "MASTER_ADDR": "bert-master-0",
    "MASTER_PORT": "23456",
    "WORLD_SIZE": "3",
    "RANK": "1",
}


def alone(env: dict[str, str], *argv: str) -> bool:
    found = config(*argv, env=env)
    return (found.rdzv_backend, found.max_nodes) == ("memory", 1)


# --- Slurm --------------------------------------------------------------------------------------------------------------


def test_srun_needs_no_flag():
    found = told(env=STEP | {"SLURM_GPUS_ON_NODE": "8"})
    config, origins = found.config, found.origins
    assert (config.min_nodes, config.max_nodes, config.nproc_per_node) == (3, 3, 8)
    assert (config.rdzv_backend, config.rdzv_endpoint, config.is_host) == ("embedded", f"n1:{PORT}", False)
    assert (config.rdzv_id, config.node_name) == ("17.2-llama", "n2")
    assert {field: origins[field] for field in ("max_nodes", "rdzv_endpoint", "rdzv_id", "nproc_per_node", "is_host")} == {
        "max_nodes": "SLURM_STEP_NUM_NODES",
        "rdzv_endpoint": "SLURM_STEP_NODELIST, SLURM_JOB_ID",
        "rdzv_id": "SLURM_JOB_ID",
        "nproc_per_node": "SLURM_GPUS_ON_NODE",
        "is_host": "SLURM_NODEID",
    }
    assert told(env=STEP).config.nproc_per_node == 1


def test_the_first_node_hosts_the_coordinator():
    assert config(env=STEP | {"SLURM_PROCID": "0", "SLURM_NODEID": "0"}).is_host is True
    arbitrary = {"SLURM_PROCID": "0", "SLURM_NODEID": "1"}  # srun --distribution=arbitrary, with n2 before n1
    assert config(env=STEP | arbitrary).is_host is False
    assert config("--rdzv-backend", "static", env=STEP | arbitrary).node_rank == 1
    assert infrastructure(STEP | arbitrary).rank == 0


@pytest.mark.parametrize(
    ("argv", "env", "expected"),
    [
        (("--nnodes", "2:3"), {}, {"min_nodes": 2, "max_nodes": 3, "rdzv_endpoint": f"n1:{PORT}", "rdzv_id": "17.2-llama"}),
        (("--rdzv-id", "mine"), {}, {"rdzv_id": "mine", "max_nodes": 3, "rdzv_endpoint": f"n1:{PORT}"}),
        (("--nproc-per-node", "2"), {"SLURM_GPUS_ON_NODE": "8"}, {"nproc_per_node": 2}),
        (("--node-name", "me"), {}, {"node_name": "me"}),
        (("--rdzv-endpoint", "h:1"), {}, {"rdzv_endpoint": "h:1", "max_nodes": 3, "is_host": None, "rdzv_id": "17.2-llama"}),
        (("--rdzv-endpoint", "h:1"), {"SLURM_GPUS_ON_NODE": "8"}, {"nproc_per_node": 1}),
        (("--rdzv-backend", "c10d"), {}, {"rdzv_backend": "embedded", "rdzv_endpoint": f"n1:{PORT}"}),
        (("--rdzv-backend", "etcd", "--rdzv-endpoint", "e"), {}, {"max_nodes": 3, "rdzv_id": "17.2-llama", "is_host": None}),
        # Nodes of several Slurm jobs may make one of ours: what the user says of their number, he says of their name.
        (("--nnodes", "6", "--rdzv-backend", "c10d", "--rdzv-endpoint", "h:1"), {}, {"rdzv_id": "none", "max_nodes": 6}),
        ((), {"PET_NNODES": "2", "PET_RDZV_ID": "x"}, {"max_nodes": 2, "rdzv_id": "x"}),
        (("--rdzv-backend", "static"), {}, {"node_rank": 1, "master_addr": "n1", "master_port": PORT, "max_nodes": 3}),
        (("--master-port", "77"), {}, {"rdzv_backend": "static", "node_rank": 1, "master_addr": "n1", "master_port": 77}),
        (("--node-rank", "2", "--master-addr", "h"), {}, {"rdzv_backend": "static", "node_rank": 2, "master_addr": "h"}),
    ],
)
def test_the_users_word_goes_first_and_slurm_says_the_rest(argv, env, expected):
    found = config(*argv, env=STEP | env)
    assert {field: getattr(found, field) for field in expected} == expected


@pytest.mark.parametrize("argv", [("--standalone",), ("--rdzv-backend", "memory"), ("--nnodes", "1")])
def test_one_node_is_one_node_whatever_slurm_says(argv):
    assert alone(STEP, *argv)
    assert alone(STEP | {"SLURM_STEP_TASKS_PER_NODE": "8(x3)"}, *argv)  # a job for each task, as somebody may mean it


def test_a_step_of_one_node_is_a_job_of_its_own():
    assert alone(ALONE)
    found = config(env=ALONE)
    assert found.rdzv_id == "17-llama" and found.node_name == "n3"


def test_steps_of_one_node_each_meet_when_their_number_is_given():
    steps = ({"SLURMD_NODENAME": f"n{i}", "SLURM_STEP_NODELIST": f"n{i}", "SLURM_STEP_ID": str(i)} for i in (1, 3))
    first, third = (config("--nnodes", "3", env=ALONE | step) for step in steps)
    assert first.rdzv_endpoint == third.rdzv_endpoint == f"n1:{slurm.port(17, 0)}"
    assert first.rdzv_id == third.rdzv_id == "17-llama"
    assert (first.is_host, third.is_host) == (True, False)


def test_a_batch_script_runs_on_one_node_and_of_several_says_that_srun_is_missing():
    assert alone(BATCH | ONE_NODE)
    said = error(env=BATCH)
    assert "Slurm job 17 has 3 nodes" in said and "srun holdfast run" in said
    assert alone(BATCH, "--nnodes", "1")
    inherited = {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NODELIST": "n1"}
    assert "srun holdfast run" in error(env=BATCH | inherited)  # submitted from within a step


def test_a_shell_under_salloc_is_one_node_and_says_so():
    assert alone(SALLOC) and alone(SALLOC | ONE_NODE)
    assert "this is a shell beside them" in warnings(env=SALLOC)
    assert not warnings(env=SALLOC | ONE_NODE)
    inside = SALLOC | {"SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0", "SLURM_STEP_NUM_NODES": "1"}
    assert alone(inside) and "this is a shell" in warnings(env=inside)


@pytest.mark.parametrize("argv", [(), ("--nnodes", "3"), ("--rdzv-endpoint", "h:1")])
def test_several_agents_on_one_node_are_refused_with_the_way_out(argv):
    said = error(*argv, env=STEP | {"SLURM_STEP_TASKS_PER_NODE": "8(x3)", "SLURM_LOCALID": "3"})
    assert "several agents per node (tasks: 8(x3))" in said and "--ntasks-per-node=1" in said


def test_several_agents_on_one_node_are_taken_from_those_who_ask_for_them():
    several = {"SLURM_STEP_TASKS_PER_NODE": "2(x3)", "SLURM_NTASKS": "6", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"}
    found = config(env=STEP | several | {"NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE": "1"})
    assert (found.max_nodes, found.is_host) == (6, False)


def test_a_requeued_job_is_a_stranger_to_its_former_life():
    assert config(env=STEP | {"SLURM_RESTART_COUNT": "2"}).rdzv_id == "17.2-llama-r2"
    assert config(env=STEP | {"SLURM_RESTART_COUNT": "0"}).rdzv_id == "17.2-llama"
    assert config(env=STEP | {"SLURM_JOB_NAME": "a b/ü"}).rdzv_id == "17.2-a-b"


def test_a_node_whose_name_does_not_resolve_is_asked_for():
    found = told(env=STEP, on=host(slurm={"n1": "10.0.0.1"}))
    assert found.config.rdzv_endpoint == f"10.0.0.1:{PORT}"
    assert found.origins["rdzv_endpoint"] == "SLURM_STEP_NODELIST, its NodeAddr, SLURM_JOB_ID"


@given(st.integers(1, 10**9), st.integers(0, 31), st.integers(0, 287), st.integers(0, 31))
def test_steps_of_neighbouring_jobs_have_ports_of_their_own(job, step, later, other):
    port = slurm.port(job, step)
    assert 20000 <= port < 29216
    assert (port == slurm.port(job + later, other)) == ((later, other) == (0, step))


# --- Kubernetes ---------------------------------------------------------------------------------------------------------


def test_an_indexed_job_that_tells_its_size_needs_no_flag():
    found = told(env=POD | {"JOB_COMPLETIONS": "4"}, on=PODS)
    assert (found.config.max_nodes, found.origins["max_nodes"]) == (4, "JOB_COMPLETIONS")
    assert found.config.rdzv_endpoint == "train-0.train.ml.svc.cluster.local:29400"
    assert (found.config.rdzv_id, found.config.is_host) == ("train", False)
    assert config("--nnodes", "2:4", env=POD, on=PODS).rdzv_endpoint == "train-0.train.ml.svc.cluster.local:29400"


def test_a_pod_that_is_not_told_how_many_there_are_runs_alone_and_says_so():
    assert alone(POD) and "the number of pods is not known" in warnings(env=POD)
    assert not warnings("--standalone", env=POD)


def test_pods_that_have_no_names_cannot_meet():
    assert "headless service" in error(env=POD | {"JOB_COMPLETIONS": "4"}, on=host(full_name="train-1"))


def test_a_jobset_s_first_pod_is_the_head():
    found = config(env=JOBSET, on=host(full_name="train-workers-1-1.train.ml.svc.cluster.local"))
    assert (found.max_nodes, found.rdzv_id, found.is_host) == (8, "train", False)
    assert found.rdzv_endpoint == "train-workers-0-0.train.ml.svc.cluster.local:29400"
    assert config(env=JOBSET).rdzv_endpoint == "train-workers-0-0.train:29400"
    found = config(env=JOBSET | {"JOBSET_COORDINATOR": "a.b"})
    assert (found.rdzv_endpoint, found.is_host) == ("a.b:29400", None)  # it need not be the pod of rank 0
    assert config(env=JOBSET | {"JOBSET_RESTART_ATTEMPT": "3"}).rdzv_id == "train-r3"
    assert config(env=JOBSET | {"JOBSET_JOB_INDEX": "0", "JOB_COMPLETION_INDEX": "0"}).is_host is True


def test_pytorchjob_s_variables_are_static_ranks():
    found = config(env=PYTORCHJOB)
    assert (found.rdzv_backend, found.max_nodes, found.node_rank) == ("static", 3, 1)
    assert (found.master_addr, found.master_port, found.rdzv_id) == ("bert-master-0", 23456, "bert")
    newer = PYTORCHJOB | {"WORLD_SIZE": "24", "PET_NNODES": "3", "PET_NODE_RANK": "1", "PET_NPROC_PER_NODE": "8"}
    found = config(env=newer | {"PET_MASTER_ADDR": "m", "PET_MASTER_PORT": "5"})
    assert (found.max_nodes, found.nproc_per_node, found.master_addr, found.master_port) == (3, 8, "m", 5)


@pytest.mark.parametrize("without", ["KUBERNETES_SERVICE_HOST", "RANK"])
def test_a_master_address_alone_is_no_pytorchjob(without):
    assert alone({name: value for name, value in PYTORCHJOB.items() if name != without})
    assert alone(PYTORCHJOB | {"LOCAL_RANK": "0"})  # inside a worker of another launcher


# --- anything -----------------------------------------------------------------------------------------------------------

ANY = st.text("n[0-3],.:x ü", max_size=5)
NAMES = sorted({*STEP, *JOBSET, *PYTORCHJOB, "SLURM_RESTART_COUNT", "SLURM_GPUS_ON_NODE"})


@given(st.dictionaries(st.sampled_from(NAMES), st.one_of(ANY, st.integers(0, 9).map(str))))
def test_any_environment_is_understood_or_refused(environ):
    try:
        scheduler_given(environ)
        config(env=environ)
    except UsageError as error:
        assert error.what


@given(st.dictionaries(st.sampled_from([name for name in NAMES if name.startswith(("SLURM", "JOB"))]), ANY))
def test_standalone_looks_at_nothing(environ):
    assert alone(environ, "--standalone")
