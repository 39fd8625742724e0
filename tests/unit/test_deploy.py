"""Is what lies in deploy/ valid, and does it give no more rights than it says?

Kubernetes' own published schemas are the judge, as in test_kubernetes_examples.py, and our own parser of the command lines.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from typing import Any

import pytest
import yaml
from kit import ROOT
from test_kubernetes_examples import documents as examples
from test_kubernetes_examples import validate
from tools.reference import helm

from holdfast.cli.arguments import CommandParser
from holdfast.cli.fleet import google_sensor
from holdfast.cli.main import command_module
from holdfast.cli.run import parser
from holdfast.integrations.kubernetes.fleet_store import PARTS

BASE, SLURM = ROOT / "deploy/kubernetes/base", ROOT / "deploy/slurm"
UNITS = sorted((ROOT / "deploy/systemd").glob("*.service"))
WHERE = "/opt/holdfast/bin/holdfast"


def base() -> list[dict[str, Any]]:
    """All objects that the kustomization has."""
    names = yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]
    return [thing for name in names for thing in yaml.safe_load_all((BASE / name).read_text())]


def sensor() -> list[dict[str, Any]]:
    """What there is beside the base where nodes keep Google's daemons."""
    return list(yaml.safe_load_all((BASE.parent / "google-sensor/google-sensor.yaml").read_text()))


def the(kind: str, things: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    (found,) = [thing for thing in things or base() if thing["kind"] == kind]
    return found


def pods() -> list[tuple[str, dict[str, Any]]]:
    of_base = [(kind, the(kind)["spec"]["template"]["spec"]) for kind in ("Deployment", "DaemonSet")]
    return [*of_base, ("google-sensor", the("Deployment", sensor())["spec"]["template"]["spec"])]


def options(command: list[str]) -> Any:
    """What `holdfast` makes of a command. SystemExit, UsageError: nothing."""
    assert command[0] == "holdfast"
    if command[1] == "run":
        return parser.read(command[2:])
    reader = CommandParser(allow_abbrev=False)
    command_module(command[1]).arguments(reader)
    return reader.parse_args(command[2:])


def test_every_file_of_the_base_is_in_its_kustomization_and_valid():
    files = {path.name for path in BASE.glob("*.yaml")} - {"kustomization.yaml"}
    assert files == {*yaml.safe_load((BASE / "kustomization.yaml").read_text())["resources"]}
    for thing in base():
        validate(thing)


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed: it judges the kustomization")
def test_kubectl_takes_the_base_and_an_overlay_moves_all_of_it(tmp_path):
    overlay = {"resources": [os.path.relpath(BASE, tmp_path)], "namespace": "training"}
    overlay["images"] = [{"name": "registry.example/holdfast", "newName": "registry.of.yours/holdfast", "newTag": "1"}]
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    things = list(yaml.safe_load_all(done.stdout))
    made, given = ([(thing["kind"], thing["metadata"]["name"]) for thing in some] for some in (things, base()))
    assert sorted(made) == sorted(given)
    for thing in things:
        validate(thing)
        assert thing["kind"].startswith(("Cluster", "PriorityClass")) or thing["metadata"]["namespace"] == "training"
        assert all(subject["namespace"] == "training" for subject in thing.get("subjects", ()))
        for container in thing.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            assert container["image"] == "registry.of.yours/holdfast:1"


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed: it judges the kustomization")
def test_two_supervisors_are_the_base_s_over_a_store_of_which_one_leads():
    done = subprocess.run(["kubectl", "kustomize", str(BASE.parent / "standby")], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    made = {(thing["kind"], thing["metadata"]["name"]): thing for thing in yaml.safe_load_all(done.stdout)}
    assert {(thing["kind"], thing["metadata"]["name"]) for thing in base()} - made.keys() == {
        ("PersistentVolumeClaim", "holdfast-supervisor")
    }
    for thing in made.values():
        validate(thing)
    spec = made["Deployment", "holdfast-supervisor"]["spec"]
    assert (spec["replicas"], spec["strategy"]["type"]) == (2, "Recreate")
    (container,) = spec["template"]["spec"]["containers"]
    (alone,) = the("Deployment")["spec"]["template"]["spec"]["containers"]
    assert {*container["command"]} - {*alone["command"]} == {"--store=kubernetes://holdfast-supervisor"}
    assert {*alone["command"]} <= {*container["command"]}
    scheme, _, name = options(container["command"]).store.partition("://")
    rights = [rule for thing in base() if thing["kind"] == "Role" for rule in thing["rules"]]
    named = {what: rule["resourceNames"] for rule in rights for what in rule["resources"] if "resourceNames" in rule}
    assert (scheme, named["leases"]) == ("kubernetes", [name])
    assert named["configmaps"] == [name, *(f"{name}-{part}" for part in range(PARTS))]
    state = next(one for one in spec["template"]["spec"]["volumes"] if one["name"] == "state")
    assert state == {"name": "state", "emptyDir": {}}


def test_google_s_daemons_report_to_a_sensor_that_the_supervisor_hears():
    for thing in sensor():
        validate(thing)
    pod, service = the("Deployment", sensor())["spec"]["template"], the("Service", sensor())
    policy = the("NetworkPolicy", sensor())["spec"]
    (container,) = pod["spec"]["containers"]
    asked, (port,) = options(container["command"]), container["ports"]
    assert asked.listen == f"0.0.0.0:{port['containerPort']}" == f"0.0.0.0:{google_sensor.PORT}"
    assert service["spec"]["ports"] == [{"name": port["name"], "port": port["containerPort"], "targetPort": port["name"]}]
    labels = pod["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= labels and policy["podSelector"]["matchLabels"].items() <= labels
    assert policy["ingress"][0]["ports"] == [{"protocol": "TCP", "port": port["containerPort"]}]
    supervisor = the("Service")
    assert asked.supervisor == f"{supervisor['metadata']['name']}:{supervisor['spec']['ports'][0]['port']}"
    assert policy["egress"][1]["to"] == [{"podSelector": {"matchLabels": supervisor["spec"]["selector"]}}]
    token = next(one for one in container["env"] if one["name"] == "HOLDFAST_SUPERVISOR_TOKEN")
    (of_supervisor,) = the("Deployment")["spec"]["template"]["spec"]["containers"]
    assert token in of_supervisor["env"]


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed: it judges the kustomization")
def test_a_host_has_google_s_daemon_or_ours():
    asked = ["kubectl", "kustomize", str(BASE.parent / "google-sensor")]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr
    made = [(thing["kind"], thing["metadata"]["name"]) for thing in yaml.safe_load_all(done.stdout)]
    given = [(thing["kind"], thing["metadata"]["name"]) for thing in (*base(), *sensor()) if thing["kind"] != "DaemonSet"]
    assert sorted(made) == sorted(given)


def rendered(namespace: str, **values: Any) -> list[dict[str, Any]]:
    """The chart's objects. For what it uses of Helm: values, the release's namespace, and files with a condition."""
    values = {part: fields | values.get(part, {}) for part, fields in yaml.safe_load(helm.VALUES).items()}

    def value(name: str) -> Any:
        part, _, field = name.partition(".")
        return values[part][field]

    found = []
    for name, text in helm.files().items():
        condition = re.search(r"\{\{- if (.*) \}\}\n", text)
        asked = re.findall(r"(not )?\.Values\.([\w.]+)", condition[1]) if condition else []
        if not name.startswith("templates/") or any(value(one) == bool(negated) for negated, one in asked):
            continue
        text = re.sub(r"\{\{- (?:if .*|end) \}\}\n", "", text).replace("{{ .Release.Namespace }}", namespace)
        text = re.sub(r"\{\{ \.Values\.(\S+) \}\}", lambda place: str(value(place[1])), text)
        assert "{{" not in text, "more of Helm than is rendered here"
        found += yaml.safe_load_all(text)
    return found


def test_the_chart_is_made_of_the_manifests():
    there = {str(path.relative_to(helm.CHART)): path.read_text() for path in helm.CHART.rglob("*") if path.is_file()}
    assert there == helm.files(), "run: make reference"


def test_the_chart_s_values_give_the_base_and_others_what_they_say():
    (monitor,) = yaml.safe_load_all((BASE.parent / "monitoring/servicemonitor.yaml").read_text())
    assert rendered("default") == base()
    assert rendered("default", monitoring={"enabled": True}) == [*base(), monitor]
    assert rendered("default", googleSensor={"enabled": True}) == [*base(), *sensor()]
    own = {"image": {"repository": "registry.of.yours/holdfast", "tag": "2"}, "supervisor": {"storage": "5Gi"}}
    made = rendered("training", **own, daemon={"enabled": False})
    assert [thing["kind"] for thing in made] == [thing["kind"] for thing in base() if thing["kind"] != "DaemonSet"]
    things = {thing["kind"]: thing for thing in made}
    assert all(subject["namespace"] == "training" for thing in made for subject in thing.get("subjects", ()))
    (container,) = things["Deployment"]["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.of.yours/holdfast:2"
    assert things["PersistentVolumeClaim"]["spec"]["resources"]["requests"] == {"storage": "5Gi"}


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl is not installed: it judges the kustomization")
@pytest.mark.parametrize(
    "overlay, values", [("standby", {"supervisor": {"standby": True}}), ("kernel-log", {"daemon": {"kernelLog": True}})]
)
def test_what_the_chart_s_values_choose_is_what_the_kustomization_of_that_name_has(overlay, values):
    done = subprocess.run(["kubectl", "kustomize", str(BASE.parent / overlay)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and not done.stderr, done.stderr

    wanted = {(thing["kind"], thing["metadata"]["name"]): thing for thing in yaml.safe_load_all(done.stdout)}
    made = {(thing["kind"], thing["metadata"]["name"]): thing for thing in rendered("default", **values)}
    for thing in wanted.values():
        validate(thing)
        thing["metadata"].pop("namespace", None)  # a chart's objects are in the release's
    assert made == wanted


def test_the_daemon_that_reads_the_kernel_s_log_is_the_base_s_with_a_check_more_and_that_device():
    def container(**values):
        daemon = the("DaemonSet", rendered("default", **values))["spec"]["template"]["spec"]
        return daemon, daemon["containers"][0]

    (plain, usual), (pod, asked) = container(), container(daemon={"kernelLog": True})
    assert asked["command"] == [*usual["command"], "--check=xid"] and options(asked["command"]).check == ["xid"]
    assert [one for one in pod["volumes"] if one not in plain["volumes"]] == [
        {"name": "kernel-log", "hostPath": {"path": "/dev/kmsg", "type": "CharDevice"}}
    ]
    assert asked["volumeMounts"][0] == {"name": "kernel-log", "mountPath": "/dev/kmsg", "readOnly": True}
    assert asked["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True}
    same = {"securityContext", "containers", "volumes"}
    assert {name: part for name, part in pod.items() if name not in same} == {
        name: part for name, part in plain.items() if name not in same
    }


@pytest.mark.parametrize("kind, pod", pods())
def test_no_pod_has_more_rights_than_a_user_s_own(kind, pod):
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    context = pod["securityContext"]
    assert context["runAsNonRoot"] and context["runAsUser"] and context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostPID", "hostIPC"} & {*pod} and not any("hostPath" in volume for volume in pod.get("volumes", ()))
    assert ("serviceAccountName" in pod) == (kind == "Deployment") or pod["automountServiceAccountToken"] is False


def test_who_shares_the_host_s_network_listens_at_its_loopback_only():
    for kind, pod in pods():
        command = pod["containers"][0]["command"]
        if pod.get("hostNetwork"):
            assert options(command).host == "127.0.0.1", kind


def test_the_supervisor_is_reached_where_it_listens_with_a_secret_that_agents_have_too():
    pod, service, policy = the("Deployment")["spec"]["template"], the("Service"), the("NetworkPolicy")
    (container,) = pod["spec"]["containers"]
    command = container["command"]
    port, http = [one["containerPort"] for one in container["ports"]]
    asked = options(command)
    assert (asked.listen, asked.http) == (f"0.0.0.0:{port}", f"0.0.0.0:{http}")
    assert [one["port"] for one in service["spec"]["ports"]] == [port, http]
    labels = pod["metadata"]["labels"].items()
    assert service["spec"]["selector"].items() <= labels and policy["spec"]["podSelector"]["matchLabels"].items() <= labels
    to_agents, to_http = policy["spec"]["ingress"]
    assert to_agents["ports"] == [{"protocol": "TCP", "port": port}]
    assert to_agents["from"][0] == {"podSelector": {"matchExpressions": [{"key": "holdfast/agent", "operator": "Exists"}]}}
    assert to_agents["from"][1] == {"podSelector": the("NetworkPolicy", sensor())["spec"]["podSelector"]}
    assert all({*one} == {"ipBlock"} for one in to_agents["from"][2:]), "host daemons have their node's address"
    assert to_http["ports"] == [{"protocol": "TCP", "port": http}]
    (jobset,) = examples("jobset.yaml").values()
    (part,) = jobset["spec"]["replicatedJobs"]
    agents = part["template"]["spec"]["template"]
    (agent,) = agents["spec"]["containers"]
    assert "holdfast/agent" in agents["metadata"]["labels"]
    assert f"--supervisor={service['metadata']['name']}:{port}" in agent["command"]

    def secret(of: dict[str, Any]) -> Any:
        (entry,) = [one for one in of["env"] if one["name"] == "HOLDFAST_SUPERVISOR_TOKEN"]
        reference = entry["valueFrom"]["secretKeyRef"]
        return reference["name"], reference["key"]

    host = the("DaemonSet")["spec"]["template"]["spec"]
    (daemon,) = host["containers"]
    assert secret(container) == secret(agent) == secret(daemon) == ("holdfast-supervisor", "token")
    assert f"--supervisor={service['metadata']['name']}:{port}" in daemon["command"]
    assert host["dnsPolicy"] == "ClusterFirstWithHostNet", "with the host's own resolver no Service has a name"
    assert "--node-name=$(HOLDFAST_NODE_NAME)" in daemon["command"], "the name that Kubernetes cordons"
    assert daemon["env"][0]["valueFrom"] == agent["env"][0]["valueFrom"] == {"fieldRef": {"fieldPath": "spec.nodeName"}}


def test_prometheus_reads_the_metrics_with_a_token_of_the_secret_that_the_supervisor_reads():
    (monitor,) = yaml.safe_load_all((BASE.parent / "monitoring/servicemonitor.yaml").read_text())
    (endpoint,), service = monitor["spec"]["endpoints"], the("Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    (volume,) = [one for one in the("Deployment")["spec"]["template"]["spec"]["volumes"] if "secret" in one]
    assert endpoint["authorization"]["credentials"]["name"] == volume["secret"]["secretName"]
    secret = re.search(r"generic holdfast-supervisor .*?\n\$", (ROOT / "docs/how-to/kubernetes.md").read_text(), re.DOTALL)
    assert secret is not None
    used = ["token", endpoint["authorization"]["credentials"]["key"], volume["secret"]["items"][0]["key"]]
    assert re.findall(r"--from-literal=([\w-]+)=", secret.group()) == used, "the how-to makes what the manifests read"


def test_pods_run_at_a_priority_that_is_there_and_on_gke_s_own_nodes_too():
    there = {thing["metadata"]["name"] for thing in base() if thing["kind"] == "PriorityClass"}
    assert {pod["priorityClassName"] for _, pod in pods()} == there
    required = the("DaemonSet")["spec"]["template"]["spec"]["affinity"]["nodeAffinity"]
    terms = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    keys = [one["key"] for term in terms for one in term["matchExpressions"]]
    assert keys == ["nvidia.com/gpu.present", "cloud.google.com/gke-accelerator"]


def test_its_rights_are_bound_to_its_account_and_to_nobody_else_s():
    things = {thing["kind"]: thing for thing in base()}
    account = things["ServiceAccount"]["metadata"]["name"]
    assert things["Deployment"]["spec"]["template"]["spec"]["serviceAccountName"] == account
    for binding, role in (("RoleBinding", "Role"), ("ClusterRoleBinding", "ClusterRole")):
        assert things[binding]["roleRef"]["name"] == things[role]["metadata"]["name"]
        assert [(one["kind"], one["name"]) for one in things[binding]["subjects"]] == [("ServiceAccount", account)]
        for rule in things[role]["rules"]:
            assert "*" not in {*rule["resources"], *rule["verbs"], *rule["apiGroups"]}


def test_the_image_has_what_it_copies_and_the_extras_that_it_names():
    text = (ROOT / "deploy/Dockerfile").read_text()
    copied = {source for line in re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE) for source in line.split()}
    assert all((ROOT / source).exists() for source in copied)
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = settings["tool"]["hatch"]["build"]["targets"]["wheel"]
    parts = {path.partition("/")[0] for path in (*wheel["packages"], settings["project"]["readme"])}
    assert {*parts, "pyproject.toml", "LICENSE"} == copied
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert let_in == {*copied, "examples"}
    (extras,) = re.findall(r"/src\[(.*)\]", text)
    known = settings["project"]["optional-dependencies"]
    assert {"kubernetes", "grpc", "supervisor"} == {*extras.split(",")} <= {*known}, "what Deployment and DaemonSet need"
    assert re.search(r"^USER [1-9]", text, re.MULTILINE)


def commands() -> list[list[str]]:
    """Each `holdfast` that is started in deploy/."""
    found = []
    for _, pod in pods():
        (container,) = pod["containers"]
        found += [container["command"], container["livenessProbe"].get("exec", {"command": container["command"]})["command"]]
    started = [re.findall(rf"^ExecStart={WHERE} (.*) \$OPTIONS$", unit.read_text(), re.MULTILINE) for unit in UNITS]
    (batch,) = re.findall(r"^srun .*? (holdfast run [^$]*?) \"\$", joined("train.sbatch"), re.MULTILINE)
    of_units = [["holdfast", *line.split(), *SCRIPT.get(line.split()[0], [])] for (line,) in started]
    return [*found, *of_units, [*batch.split(), "slurmctl:29800", "train.py"]]


SCRIPT = {"run": ["train.py"]}  # What a unit's OPTIONS have to bring.


def joined(name: str) -> str:
    return (SLURM / name).read_text().replace("\\\n", " ")


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_is_one_of_ours(command):
    assert options(command)


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd is not installed: it judges its units")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_takes_the_units_and_what_they_start_has_few_rights(unit, tmp_path):
    here = tmp_path / unit.name
    here.write_text(unit.read_text().replace(WHERE, f'"{sys.executable}"'))
    judged = subprocess.run(["systemd-analyze", "verify", str(here)], capture_output=True, text=True, timeout=60)
    assert judged.returncode == 0 and unit.name not in judged.stderr, judged.stderr
    most = 30 if "agent" in unit.name else 20  # of 100; 92 where nothing is said. Ranks need devices, and code that is made.
    ask = ["systemd-analyze", "security", "--offline=true", f"--threshold={most}", str(here)]
    rated = subprocess.run(ask, capture_output=True, text=True, timeout=60)
    if "unrecognized option" in rated.stderr:
        pytest.skip("this systemd-analyze is too old to rate a file")
    assert rated.returncode == 0, rated.stdout


def test_the_batch_script_is_one_of_a_shell_s_and_leaves_a_node_to_spare():
    script = SLURM / "train.sbatch"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=20)
    asked = int(re.findall(r"^#SBATCH --nodes=(\d+)$", script.read_text(), re.MULTILINE)[0])
    assert int(re.findall(r"--nnodes (\d+)", script.read_text())[0]) == asked - 1
