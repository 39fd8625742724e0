"""What the infrastructure hands down, and what we make of it: ranks in ft_launcher's order, domains, groups, switches."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.errors import UsageError
from holdfast.core.resolve.hostlist import expand
from holdfast.core.resolve.infrastructure import infrastructure, nvlink_domain

JOB = {"SLURM_JOB_ID": "17", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3"}
STEP = JOB | {
    "SLURM_NNODES": "3",
    "SLURM_PROCID": "1",
    "SLURMD_NODENAME": "n2",
    "SLURM_STEP_NODELIST": "n[1-3]",
    "SLURM_STEP_NUM_NODES": "3",
    "SLURM_STEP_TASKS_PER_NODE": "1(x3)",
    "SLURM_TOPOLOGY_ADDR": "n2",
    "SLURM_TOPOLOGY_ADDR_PATTERN": "node",
}
"""As seen on Slurm 22.05: `srun -N3`."""
ALONE = STEP | {
    "SLURM_NNODES": "1",
    "SLURM_PROCID": "0",
    "SLURMD_NODENAME": "n3",
    "SLURM_STEP_NODELIST": "n3",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
}
"""`srun -N1 -w n3` in a job of three nodes."""
BATCH = JOB | {"SLURM_NNODES": "3", "SLURM_PROCID": "0", "SLURMD_NODENAME": "n1", "SLURM_TASKS_PER_NODE": "8(x3)"}
"""The batch script itself."""
SALLOC = JOB | {"SLURM_NNODES": "3", "SLURM_TASKS_PER_NODE": "1(x3)"}
"""A shell under salloc."""


def rank(**environ: str) -> int | None:
    return infrastructure(environ).rank


def refusal(**environ: str) -> str:
    with pytest.raises(UsageError) as caught:
        infrastructure(environ)
    return str(caught.value)


def block(address: str, **more: str) -> dict[str, str]:
    return {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": "block.node"} | more


IN_ORDER = [
    {"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "nvl72134-T01"},
    {"CROSS_SLURM_PROCID": "42"},
    block("block5.node3"),
    {"OMPI_COMM_WORLD_RANK": "6", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"},
    {"SLURM_ARRAY_TASK_ID": "3", "SLURM_NNODES": "4", "SLURM_PROCID": "2"},
    {"SLURM_PROCID": "2"},
    {"GROUP_RANK": "15"},
    {"PET_NODE_RANK": "4"},
    {"JOBSET_NAME": "j", "JOB_GLOBAL_INDEX": "2", "JOB_COMPLETIONS": "4", "JOB_COMPLETION_INDEX": "3"},
    {},
]
RANKS = [7213401, 42, 50000000003, 6, 14, 2, 15, 4, 11, None]


@pytest.mark.parametrize(("at", "expected"), list(enumerate(RANKS)))
def test_the_first_source_that_applies_gives_the_rank(at: int, expected: int | None) -> None:
    later = {key: value for source in reversed(IN_ORDER[at:]) for key, value in source.items()}
    if at >= 5:
        later.pop("SLURM_ARRAY_TASK_ID", None)
    assert rank(**later) == rank(**IN_ORDER[at]) == expected


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_block_ranks_sort_like_block_and_node(block1: int, node1: int, block2: int, node2: int) -> None:
    one, other = rank(**block(f"b{block1}.n{node1}")), rank(**block(f"b{block2}.n{node2}"))
    assert one is not None and other is not None
    assert (one < other) == ((block1, node1) < (block2, node2))


def test_the_size_of_a_block_may_be_told() -> None:
    assert rank(**block("block5.node10", SLURM_TOPOLOGY_NODES_PER_BLOCK="1000")) == 5010
    assert rank(**block("b1l2.n6o7.cluster.org")) == 120000000067


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({"NVRX_INFRA_RANK_FROM_NODENAME": "1"}, "SLURMD_NODENAME environment variable is not set"),
        ({"NVRX_INFRA_RANK_FROM_NODENAME": "1", "SLURMD_NODENAME": "node"}, "contains no digits"),
        (block("block5"), "does not match expected format block.node"),
        (block("block.node5"), "the block part of SLURM_TOPOLOGY_ADDR=block.node5: 'block' contains no digits"),
        (block("block5.node"), "contains no digits"),
        (block("block1.node10000000000"), "block1.node10000000000 exceeds maximum supported value 9999999999"),
        ({"SLURM_ARRAY_TASK_ID": "1", "SLURM_PROCID": "0"}, "SLURM_NNODES/SLURM_JOB_NUM_NODES is not defined"),
        ({"SLURM_PROCID": "one"}, "SLURM_PROCID: 'one' is not a whole number"),
        ({"GROUP_RANK": "-1"}, "GROUP_RANK: -1 is too small"),
        (STEP | {"SLURM_STEP_TASKS_PER_NODE": "1(x2),8"}, "tasks: 1(x2),8"),
        ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "8"}, "8 agents on this node"),
    ],
)
def test_what_cannot_be_is_refused(environ: dict[str, str], said: str) -> None:
    assert said in refusal(**environ)


def test_several_agents_per_node_are_taken_from_those_who_ask_for_them() -> None:
    several = STEP | {"SLURM_STEP_TASKS_PER_NODE": "8(x3)", "SLURM_PROCID": "13"}
    assert "--ntasks-per-node=1" in refusal(**several)
    assert rank(**several, NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE="1") == 13


def test_a_step_over_all_nodes_has_its_procid() -> None:
    found = infrastructure(STEP)
    assert (found.rank, found.rank_from, found.switches, found.domain) == (1, "SLURM_PROCID", (), None)


def test_one_step_for_each_node_has_its_place_in_the_job() -> None:
    found = infrastructure(ALONE)
    assert (found.rank, found.rank_from) == (2, "place in SLURM_JOB_NODELIST")
    assert rank(**ALONE, SLURM_ARRAY_TASK_ID="2") == 2 * 3 + 2


def test_a_batch_script_is_the_first_node_whatever_its_tasks() -> None:
    assert rank(**BATCH) == 0


def test_a_shell_under_salloc_has_no_rank_and_the_words_say_so() -> None:
    found = infrastructure(SALLOC)
    assert found.rank is None and "not started by srun" in found.rank_from


def test_a_worker_of_another_launcher_is_no_node() -> None:
    assert rank(GROUP_RANK="1", LOCAL_RANK="3", LOCAL_WORLD_SIZE="8") is None
    assert rank(GROUP_RANK="1", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1") == 1


def test_mpirun_inside_slurm_goes_before_the_procid_of_its_daemons() -> None:
    mpi = {"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "1"}
    assert rank(**STEP, **mpi) == 2
    assert rank(PMI_RANK="3", MPI_LOCALNRANKS="1") == 3
    assert rank(**STEP, PMI_RANK="9") == 1  # Slurm's own PMI: the same as SLURM_PROCID where one task runs per node


def test_switches_and_blocks_come_from_the_pattern() -> None:
    tree = {"SLURM_TOPOLOGY_ADDR": "root.cell1.leaf4.n386", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.switch.node"}
    assert infrastructure(tree).switches == ("root", "cell1", "leaf4")
    assert infrastructure(block("b5.n3")).domain == "b5"
    assert infrastructure({"SLURM_TOPOLOGY_ADDR": "n1", "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.node"}).switches == ()


def test_a_replacement_group_is_named_or_an_array_task() -> None:
    assert infrastructure({}).group is None
    array = infrastructure(STEP | {"SLURM_ARRAY_TASK_ID": "5"})
    assert (array.group, array.group_size) == ("5", 3)
    named = infrastructure({"NVRX_REPLACEMENT_GROUP_ID": "rack7", "SLURM_ARRAY_TASK_ID": "5"})
    assert (named.group, named.group_size) == ("rack7", 0)


def test_the_gpus_domain_is_read_from_nvidia_smi() -> None:
    fabric = "    Fabric\n        State : Completed\n        CliqueId : 32766\n        ClusterUUID          : abc9-d4c8\n"
    assert nvlink_domain(4 * fabric) == "abc9-d4c8.32766"
    assert nvlink_domain("ClusterUUID : abc9-d4c8") == "abc9-d4c8"
    assert nvlink_domain("CliqueId : 0\nClusterUUID : 00000000-0000-0000-0000-000000000000") is None
    assert nvlink_domain("CliqueId : N/A\nClusterUUID : N/A") is None and nvlink_domain("") is None


def test_gpus_of_several_domains_put_their_node_in_none() -> None:
    assert nvlink_domain("CliqueId : 1\nClusterUUID : a-1\nCliqueId : 2\nClusterUUID : a-1") is None
    assert nvlink_domain("CliqueId : 1\nClusterUUID : a-1\nClusterUUID : N/A") is None


# --- node lists --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n[01-03,7],m1", "n01 n02 n03 n7 m1"),
        ("n1", "n1"),
        ("", ""),
        ("n[8-11]", "n8 n9 n10 n11"),
        ("n[098-101]", "n098 n099 n100 n101"),
        ("r[1-2]n[3,5]-ib", "r1n3-ib r1n5-ib r2n3-ib r2n5-ib"),
        ("a, b[1]", "a b1"),
    ],
)
def test_a_node_list_is_expanded(text: str, hosts: str) -> None:
    assert expand(text) == hosts.split()


@pytest.mark.parametrize("text", ["n[1-", "n1]", "n[[1]]", "n[a-b]", "n[3-1]", "n[]", "n[1-9999999]", "n[1-999]x[1-999]"])
def test_a_list_that_makes_no_sense_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="SLURM_NODELIST"):
        expand(text, "SLURM_NODELIST")


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 30), st.integers(1, 4)), min_size=1, max_size=4))
def test_every_number_of_a_range_is_there_once_and_as_wide_as_the_first(ranges: list[tuple[int, int, int]]) -> None:
    text = ",".join(f"{low:0{width}d}-{low + more}" for low, more, width in ranges)
    wanted = [f"n{i:0{max(width, len(str(low)))}d}" for low, more, width in ranges for i in range(low, low + more + 1)]
    assert expand(f"n[{text}]") == wanted


@given(st.text("n1[]-,x", max_size=12))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    try:
        assert all(host and "[" not in host and "," not in host for host in expand(text))
    except UsageError as error:
        assert error.hint


@given(st.dictionaries(st.sampled_from(sorted({key for source in (*IN_ORDER, STEP) for key in source})), st.text(max_size=4)))
def test_any_environment_is_understood_or_refused(environ: dict[str, str]) -> None:
    try:
        infrastructure(environ)
    except UsageError as error:
        assert error.what
