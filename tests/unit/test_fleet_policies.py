"""What each policy makes of a trouble, given what was done before."""

from __future__ import annotations

import re

import pytest

from holdfast.core.errors import UsageError
from holdfast.core.value import replace
from holdfast.core.wire.fleet import Deed
from holdfast.supervisor.fleet.policies import policy
from holdfast.supervisor.fleet.policies.case import Case, Standby
from holdfast.supervisor.fleet.policies.default import Default
from holdfast.supervisor.fleet.policies.google import Google
from holdfast.supervisor.fleet.policies.google_limits import given_limits

NOW = 1_700_000_000.0
WORKER = Case(trouble="worker", node="a", job="train", what="rank 3 was killed by SIGKILL", nodes=4, least=2)
LOST = replace(WORKER, trouble="lost", what="a was not heard for 5 s")
GPU = replace(WORKER, trouble="device", what="Xid 79, the GPU has fallen off the bus", xid=79, device="gpu0")
SPARES = {"spares": ("s1", "s2")}


def deeds(*acts: str, trouble: str = "worker", node: str = "a", ago_s: float = 60.0) -> list[Deed]:
    """Done a minute ago, each a second after the one before."""
    return [
        Deed(
            id=f"1-{number}",
            at_unix=NOW - ago_s + number,
            node=node,
            job="train",
            trouble=trouble,
            seen="",
            policy="",
            act=act,
            reason="",
        )
        for number, act in enumerate(acts)
    ]


# --- default --------------------------------------------------------------------------------------------------------------


def test_a_failed_rank_is_first_left_to_its_job():
    choice = Default().decide(WORKER, [], NOW)
    assert choice.act == "restart-workers" and "SIGKILL" in choice.reason


def test_the_ladder_is_climbed_where_the_rungs_below_are_spent_or_have_not_helped():
    ladder, other_nodes = Default(), "restart-workers"
    assert ladder.decide(WORKER, deeds(*[other_nodes] * 3, node="b"), NOW).act == "restart-job"
    assert ladder.decide(replace(WORKER, in_vain=("restart-workers",)), [], NOW).act == "restart-job"
    tried = replace(WORKER, in_vain=("restart-workers", "restart-job"))
    assert ladder.decide(replace(tried, **SPARES), [], NOW).act == "swap"
    assert ladder.decide(tried, [], NOW).act == "shrink"
    assert ladder.decide(replace(tried, nodes=2), [], NOW).act == "stop"


def test_what_was_done_an_hour_ago_counts_no_more():
    assert Default().decide(WORKER, deeds(*["restart-workers"] * 3, node="b", ago_s=3700), NOW).act == "restart-workers"


def test_a_second_restart_of_the_job_waits_a_little():
    spent = [*deeds(*["restart-workers"] * 3, node="b"), *deeds("restart-job", node="b")]
    assert Default().decide(WORKER, spent, NOW).delay_s == 5.0


def test_a_node_whose_ranks_fail_again_and_again_gives_way_to_a_spare():
    before = deeds("restart-workers", "restart-workers")
    assert Default().decide(replace(WORKER, **SPARES), before, NOW).act == "swap"
    assert Default().decide(WORKER, before, NOW).act == "restart-workers", "nobody is there to take over"
    once = [replace(before[0], outcome="in vain: no other round ran within 120 s"), replace(before[1], act="restart-job")]
    assert Default().decide(replace(WORKER, **SPARES), once, NOW).act == "restart-workers", "two deeds for one failure"


@pytest.mark.parametrize("case", [LOST, GPU, replace(LOST, trouble="unfit")])
def test_what_is_the_node_s_costs_the_node_at_once(case):
    assert Default().decide(replace(case, **SPARES), [], NOW).act == "swap"
    assert Default().decide(case, [], NOW).act == "shrink"
    needed = Default().decide(replace(case, nodes=2), [], NOW)
    assert needed.act == "replace" and "another is asked for" in needed.reason
    assert Default().decide(replace(case, takes_orders=False), [], NOW).act == "replace", "nobody can make its job smaller"


@pytest.mark.parametrize(("xid", "act"), [(13, "none"), (31, "none"), (43, "none"), (94, "none"), (63, "none"), (48, "swap")])
def test_an_xid_is_judged_by_what_it_means(xid, act):
    assert Default().decide(replace(GPU, xid=xid, what="", **SPARES), [], NOW).act == act


# --- a node that the orchestrator would give --------------------------------------------------------------------------------

SOON = {"standby": Standby(within_s=30.0, by="as the operator has said"), "restart_s": 60.0}
DRAIN = replace(WORKER, trouble="operator", what="its fan is loud")


def test_to_wait_for_another_node_is_weighed_against_one_node_less_and_a_second_restart():
    ladder, late = Default(), {**SOON, "standby": Standby(within_s=600.0, by="as the operator has said")}
    assert ladder.decide(replace(GPU, **SPARES, **SOON), [], NOW).act == "swap", "who waits takes over at once"
    waits = ladder.decide(replace(GPU, **SOON), [], NOW)
    assert waits.act == "replace" and "within 30 s, as the operator has said: the job waits for it" in waits.reason
    goes_on = ladder.decide(replace(GPU, **late), [], NOW)
    assert goes_on.act == "shrink" and "within 600 s" in goes_on.reason and "would cost more" in goes_on.reason
    assert ladder.decide(replace(GPU, in_vain=("replace",), **SOON), [], NOW).act == "shrink"
    runs_on = ladder.decide(replace(DRAIN, **late), [], NOW)
    assert runs_on.act == "replace" and "the job runs on until then" in runs_on.reason
    needed = ladder.decide(replace(GPU, nodes=2, **late), [], NOW)
    assert needed.act == "replace" and "needs all its nodes" in needed.reason and "within 600 s" in needed.reason


def test_a_node_whose_ranks_fail_again_and_again_gives_way_to_one_that_the_orchestrator_gives():
    before = deeds("restart-workers", "restart-workers")
    choice = Default().decide(replace(WORKER, nodes=2, **SOON), before, NOW)
    assert choice.act == "replace" and "a has failed 3 times within an hour" in choice.reason


def test_nobody_waits_for_a_node_that_comes_only_once_the_ranks_there_have_ended():
    evicts = {"standby": Standby(within_s=1.0, by="as the operator has said", evicts=True)}
    choice = Default().decide(replace(DRAIN, **evicts), [], NOW)
    assert choice.act == "shrink" and "not before the node's ranks have ended" in choice.reason


def test_googles_table_takes_a_node_that_comes_soon_for_a_spare():
    once, google = deeds("restart-job", trouble="device"), Google(workload_scaling_enabled=1)
    assert google.decide(replace(GPU, **SOON), once, NOW).act == "replace"
    assert google.decide(GPU, once, NOW).act == "shrink"
    assert google.decide(replace(DRAIN, **SOON), [], NOW).reason == "its fan is loud; another node comes within 30 s, " \
        "as the operator has said"  # fmt: skip


# --- google ---------------------------------------------------------------------------------------------------------------


def test_googles_table_row_by_row():
    google = Google(max_in_job_restarts=2, max_workload_restarts=1)
    assert google.decide(WORKER, [], NOW).act == "restart-workers"
    assert google.decide(WORKER, deeds("restart-workers", "restart-workers"), NOW).act == "restart-job"
    counted_anew = deeds("restart-workers", "restart-workers", "restart-job")
    assert google.decide(WORKER, counted_anew, NOW).act == "restart-workers"
    with_spare = replace(GPU, **SPARES)
    once = deeds("restart-job", trouble="device")
    assert google.decide(with_spare, [], NOW).act == "restart-job", "the first Xid leaves the broken node in its job"
    assert google.decide(with_spare, once, NOW).act == "swap"
    assert google.decide(with_spare, [*once, *deeds("swap", trouble="device", ago_s=50)], NOW).act == "restart-job"
    assert google.decide(GPU, once, NOW).act == "restart-job"
    assert Google(workload_scaling_enabled=1).decide(GPU, once, NOW).act == "shrink"


def test_a_job_gets_no_smaller_than_its_least_replicas_and_no_spare_beyond_its_most():
    once, four = deeds("restart-job", trouble="device"), replace(GPU, nodes=4, least=1)
    scaling = {"workload_scaling_enabled": 1, "num_nodes_per_data_replica": 2}
    assert Google(**scaling, min_num_data_replicas=1).decide(four, once, NOW).act == "shrink"
    assert Google(**scaling, min_num_data_replicas=2).decide(four, once, NOW).act == "restart-job", "one whole replica is left"
    assert Google(**scaling, max_num_data_replicas=2).decide(replace(four, **SPARES), once, NOW).act == "swap"
    assert Google(**scaling, max_num_data_replicas=1).decide(replace(four, **SPARES), once, NOW).act == "shrink"


def test_a_job_that_stays_down_is_made_smaller_where_it_may_be():
    in_vain = replace(WORKER, in_vain=("restart-job",))
    assert Google(workload_scaling_enabled=1).decide(in_vain, [], NOW).act == "shrink"
    assert Google().decide(in_vain, [], NOW).act == "none"
    assert Google().patience_s(WORKER) == 240.0
    assert Google(workload_downtime_threshold_s=20, container_termination_threshold_s=5).patience_s(WORKER) == 25.0


def test_the_operator_s_limit_counts_before_the_job_s_own_and_that_before_the_default():
    told = replace(WORKER, limits={"max_in_job_restarts": 1, "max_workload_restarts": 0})
    assert Google().decide(WORKER, [], NOW).act == "restart-job"
    assert Google().decide(told, [], NOW).act == "restart-workers"
    assert Google(max_in_job_restarts=0).decide(told, [], NOW).act == "restart-job"
    assert Google().decide(replace(GPU, limits=told.limits, **SPARES), [], NOW).act == "swap"


def test_limits_are_read_from_options_and_from_google_s_variables():
    environ = {"GCP_MAX_IN_JOB_RESTARTS": "3", "GCP_ENABLE_WORKLOAD_SCALING": "True", "GCP_NUM_NODES_PER_DP": "18"}
    assert given_limits(["max_in_job_restarts=5", "workload_downtime_threshold_s=20"], environ) == {
        "max_in_job_restarts": 5,
        "workload_scaling_enabled": 1,
        "num_nodes_per_data_replica": 18,
        "workload_downtime_threshold_s": 20,
    }


@pytest.mark.parametrize(
    ("options", "environ", "said"),
    [
        (["max_in_job_restart=1"], {}, "has no option 'max_in_job_restart'.*max_in_job_restarts"),
        (["max_in_job_restarts"], {}, "is not NAME=VALUE"),
        (["max_in_job_restarts=-1"], {}, "is too"),
        (["max_workload_restarts=99999999999"], {}, "is too"),
        (["workload_scaling_enabled=maybe"], {}, "neither yes nor no"),
        (["num_nodes_per_data_replica=0"], {}, "is too small"),
        (["min_num_data_replicas=3", "max_num_data_replicas=2"], {}, "more than"),
        ([], {"GCP_MAX_WORKLOAD_RESTARTS": "few"}, "GCP_MAX_WORKLOAD_RESTARTS: 'few'"),
    ],
)
def test_a_wrong_limit_is_told(options, environ, said):
    with pytest.raises(UsageError) as told:
        policy("google", options, environ)
    assert re.search(said, str(told.value), re.DOTALL)


def test_the_default_policy_has_no_options():
    with pytest.raises(UsageError, match="the policy default has none"):
        policy("default", ["max_in_job_restarts=1"])


def test_an_unknown_policy_is_told():
    assert policy("default").name == "default" and policy("google").name == "google"
    with pytest.raises(UsageError, match="there is no policy 'gogle'"):
        policy("gogle")
