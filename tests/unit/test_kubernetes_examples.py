"""Are the manifests in examples/kubernetes valid, and do the pods that they describe find each other?

Kubernetes' own published schemas are the judge of what it knows itself (strict: no unknown field), of JobSet and PyTorchJob the
pod templates in them. No API server is asked: those that can be had for a test know no Indexed Job.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kit.stages.command_lines import host

from holdfast.cli.run import parser
from holdfast.core.config.config import RunConfig
from holdfast.core.config.draft import gather
from holdfast.core.resolve.infrastructure import infrastructure
from holdfast.core.resolve.resolve import resolve

FOLDER = Path(__file__).parents[2] / "examples" / "kubernetes"
VERSION = "1.31"
JOBSET_FIELDS = {"coordinator", "failurePolicy", "managedBy", "network", "replicatedJobs", "startupPolicy", "successPolicy"}
JOBSET_FIELDS |= {"suspend", "ttlSecondsAfterFinished"}
NETWORK_FIELDS = {"enableDNSHostnames", "publishNotReadyAddresses", "subdomain"}
LABEL = "jobset.sigs.k8s.io/"


def documents(name: str) -> dict[str, dict[str, Any]]:
    """The documents of a manifest by their kind."""
    return {document["kind"]: document for document in yaml.safe_load_all((FOLDER / name).read_text())}


def validate(document: dict[str, Any]) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="schemas are not installed: pip install kubernetes-validate")
    schemas.validate(document, VERSION, strict=True)


def as_job(template: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": template}


def environment(pod: dict[str, Any], labels: dict[str, str]) -> dict[str, str]:
    """A pod's variables, as the kubelet makes them of its first container's `env`. Optional secrets are not there."""
    env = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    for entry in pod["containers"][0].get("env", ()):
        if "value" in entry:
            env[entry["name"]] = entry["value"]
        elif field := entry["valueFrom"].get("fieldRef"):
            labels = {"spec.nodeName": "gpu-7", "metadata.name": "train-x7", **labels}
            env[entry["name"]] = labels[field["fieldPath"].removeprefix("metadata.labels['").removesuffix("']")]
        else:
            reference = entry["valueFrom"]["secretKeyRef"]
            if not reference.get("optional"):
                env[entry["name"]] = f"the {reference['key']} of {reference['name']}"
    return env


def config(pod: dict[str, Any], env: dict[str, str], full_name: str) -> RunConfig:
    command = pod["containers"][0]["command"]
    assert command[:2] == ["holdfast", "run"]
    assert env["HOLDFAST_TOKEN"] == "the token of train-token", "no pod of these jobs starts without the secret"
    typed = parser.read(command[2:])
    env = env | {"HOSTNAME": full_name.partition(".")[0], "OMP_NUM_THREADS": "1"}
    facts = host(gpus=8, full_name=full_name)
    return resolve(gather(typed.given, env), typed.script, typed.script_args, env, facts).config


def test_the_schemas_refuse_what_kubernetes_does_not_know():
    job = documents("indexed-job.yaml")["Job"]
    job["spec"]["template"]["spec"]["subdomains"] = "train"
    with pytest.raises(Exception, match="subdomains"):
        validate(job)


def test_the_indexed_job_is_valid_and_its_pods_meet_at_the_first():
    service, job = documents("indexed-job.yaml").values()
    validate(service)
    validate(job)
    pod, name, count = job["spec"]["template"]["spec"], job["metadata"]["name"], job["spec"]["completions"]
    assert service["metadata"]["name"] == pod["subdomain"] and service["spec"]["selector"] == {"job-name": name}
    assert job["spec"]["parallelism"] == count
    for index in range(count):
        env = environment(pod, {"job-name": name}) | {"JOB_COMPLETION_INDEX": str(index)}
        found = config(pod, env, f"{name}-{index}.{pod['subdomain']}.ns.svc.cluster.local")
        assert (found.max_nodes, found.nproc_per_node, found.rdzv_id) == (4, 8, "train")
        assert found.rdzv_endpoint == "train-0.train.ns.svc.cluster.local:29400"
        assert infrastructure(env).rank == index and found.is_host == (index == 0)
        assert found.shutdown_timeout_s < pod["terminationGracePeriodSeconds"]


def test_the_witness_s_account_may_do_what_its_program_does():
    things = documents("witness.yaml")
    for thing in things.values():
        validate(thing)
    account = things["ServiceAccount"]["metadata"]["name"]
    assert things["Role"]["rules"] == [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}]
    assert things["ClusterRole"]["rules"] == [{"apiGroups": [""], "resources": ["nodes"], "verbs": ["get"]}]
    for binding, role in (("RoleBinding", "Role"), ("ClusterRoleBinding", "ClusterRole")):
        assert things[binding]["roleRef"]["name"] == things[role]["metadata"]["name"]
        assert [(one["kind"], one["name"]) for one in things[binding]["subjects"]] == [("ServiceAccount", account)]
    assert f"# serviceAccountName: {account} " in (FOLDER / "indexed-job.yaml").read_text()


def test_the_account_of_in_place_restarts_may_do_what_their_program_does():
    things = documents("in-place-restart.yaml")
    for thing in things.values():
        validate(thing)
    rights = {rule["resources"][0]: (rule["apiGroups"], rule["verbs"]) for rule in things["Role"]["rules"]}
    assert rights == {"jobsets": (["jobset.x-k8s.io"], ["list", "watch"]), "pods": ([""], ["patch"])}
    assert things["RoleBinding"]["roleRef"]["name"] == things["Role"]["metadata"]["name"]
    account = things["ServiceAccount"]["metadata"]["name"]
    assert things["RoleBinding"]["subjects"] == [{"kind": "ServiceAccount", "name": account}]
    pod = documents("jobset-in-place.yaml")["JobSet"]["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert pod["serviceAccountName"] == account == documents("witness.yaml")["ServiceAccount"]["metadata"]["name"]


def jobset_pods(jobset: dict[str, Any], attempt: int = 0) -> Iterator[tuple[dict[str, Any], dict[str, str], str]]:
    """Pod, environment and full name of each, with the labels that JobSet's controller puts on them."""
    name = jobset["metadata"]["name"]
    for part in jobset["spec"]["replicatedJobs"]:
        labels = {"jobset-name": name, "replicatedjob-name": part["name"], "restart-attempt": str(attempt)}
        labels["replicatedjob-replicas"] = str(part["replicas"])
        for job in range(part["replicas"]):
            for index in range(part["template"]["spec"]["completions"]):
                pod = part["template"]["spec"]["template"]["spec"]
                known = {f"{LABEL}{key}": value for key, value in (labels | {"job-index": str(job)}).items()}
                env = environment(pod, known) | {"JOB_COMPLETION_INDEX": str(index)}
                yield pod, env, f"{name}-{part['name']}-{job}-{index}.{name}.ns.svc.cluster.local"


def test_the_jobset_is_valid_and_its_pods_meet_at_the_first():
    jobset = documents("jobset.yaml")["JobSet"]
    assert set(jobset["spec"]) <= JOBSET_FIELDS and set(jobset["spec"]["network"]) <= NETWORK_FIELDS
    for part in jobset["spec"]["replicatedJobs"]:
        assert set(part) == {"name", "replicas", "template"}
        validate(as_job(part["template"]["spec"]))
    pods = list(jobset_pods(jobset))
    found = [config(*pod) for pod in pods]
    assert len(pods) == 8 and {one.max_nodes for one in found} == {7}, "one of them waits"
    assert {(one.node_name, one.supervisors) for one in found} == {("gpu-7", ("holdfast-supervisor:29800",))}
    assert {one.rdzv_endpoint for one in found} == {"train-rack-0-0.train.ns.svc.cluster.local:29400"}
    assert [infrastructure(env).rank for _, env, _ in pods] == list(range(8))
    assert [one.is_host for one in found] == [True] + [False] * 7
    assert {one.rdzv_id for one in found} == {"train"}
    assert [one.domain for one in found] == ["0"] * 4 + ["1"] * 4
    assert {config(*pod).rdzv_id for pod in jobset_pods(jobset, attempt=1)} == {"train-r1"}


def test_the_jobset_that_restarts_in_place_is_as_jobset_demands_and_its_agents_know_their_pod():
    jobset, plain = documents("jobset-in-place.yaml")["JobSet"], documents("jobset.yaml")["JobSet"]
    assert set(jobset["spec"]) <= JOBSET_FIELDS and jobset["spec"]["failurePolicy"]["restartStrategy"] == "InPlaceRestart"
    for part in jobset["spec"]["replicatedJobs"]:
        job = part["template"]["spec"]
        validate(as_job(job))
        assert (job["backoffLimit"], job["podReplacementPolicy"]) == (2**31 - 1, "Failed")
        assert job["completions"] == job["parallelism"]
    pods, others = list(jobset_pods(jobset)), list(jobset_pods(plain))
    assert {(env["POD_NAME"], env["JOBSET_NAME"]) for _, env, _ in pods} == {("train-x7", "train")}
    for found, other in zip((config(*pod) for pod in pods), (config(*pod) for pod in others), strict=True):
        assert found.in_place_restart and not other.in_place_restart
        assert (found.rdzv_endpoint, found.max_nodes, found.is_host) == (other.rdzv_endpoint, other.max_nodes, other.is_host)


def test_the_pytorchjob_is_valid_and_its_pods_have_the_ranks_that_its_operator_gives():
    job = documents("pytorchjob.yaml")["PyTorchJob"]
    roles = job["spec"]["pytorchReplicaSpecs"]
    pods = [(role, index, spec) for role, spec in roles.items() for index in range(spec["replicas"])]
    assert [role for role, _, _ in pods] == ["Master", "Worker", "Worker", "Worker"]
    for rank, (role, index, spec) in enumerate(pods):
        validate(as_job({"template": {"spec": spec["template"]["spec"] | {"restartPolicy": spec["restartPolicy"]}}}))
        pod, name = spec["template"]["spec"], f"train-{role.lower()}-{index}"
        assert pod["containers"][0]["name"] == "pytorch"
        old = {"MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456", "WORLD_SIZE": "4", "RANK": str(rank)}
        new = {"PET_NNODES": "4", "PET_NODE_RANK": str(rank), "PET_NPROC_PER_NODE": job["spec"]["nprocPerNode"]}
        new |= {"PET_MASTER_ADDR": "train-master-0", "PET_MASTER_PORT": "23456"}
        for env, workers in ((environment(pod, {}) | old, 1), (environment(pod, {}) | old | {"WORLD_SIZE": "32"} | new, 8)):
            found = config(pod, env, name)
            assert (found.rdzv_backend, found.max_nodes, found.node_rank, found.nproc_per_node) == ("static", 4, rank, workers)
            assert (found.master_addr, found.master_port) == ("train-master-0", 23456)
