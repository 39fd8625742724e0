"""What is in deploy/helm/holdfast? The manifests of deploy/kubernetes as a chart: the same text, with values in some places."""

from __future__ import annotations

from typing import Any

import yaml
from kit import ROOT

from holdfast import __version__

CHART, MANIFESTS = ROOT / "deploy" / "helm" / "holdfast", ROOT / "deploy" / "kubernetes"

PLACES = (
    ("image: registry.example/holdfast:1", 'image: "{{ .Values.image.repository }}:{{ .Values.image.tag }}"'),
    ("namespace: default}", "namespace: {{ .Release.Namespace }} }"),
    ("storage: 1Gi}", "storage: {{ .Values.supervisor.storage }} }"),
)
"""Text of a manifest, and what stands there in the chart."""

STANDBY, KERNEL_LOG = "supervisor-standby.yaml", "daemon-kernel-log.yaml"
"""What stands there in the place of supervisor.yaml where there are two, and of daemon.yaml where it reads the kernel's log."""

IF = {
    "daemon.yaml": "and .Values.daemon.enabled (not .Values.daemon.kernelLog)",
    KERNEL_LOG: "and .Values.daemon.enabled .Values.daemon.kernelLog",
    "google-sensor.yaml": ".Values.googleSensor.enabled",
    "servicemonitor.yaml": ".Values.monitoring.enabled",
    "supervisor.yaml": "not .Values.supervisor.standby",
    STANDBY: ".Values.supervisor.standby",
}
"""Files that are only there if a value says so."""

MADE = "# Made from deploy/kubernetes by `make reference`. Do not edit.\n"

VALUES = """\
image:
  repository: registry.example/holdfast # which you build yourself: deploy/Dockerfile
  tag: "1"
supervisor:
  standby: false # two, over a Lease and ConfigMaps, on different nodes
  storage: 1Gi # for what one remembers; two need none
daemon:
  enabled: true # for jobs that report through Google's resiliency client
  kernelLog: false # privileged: it tells of Xid errors too
googleSensor:
  enabled: false # for nodes that keep Google's host daemons: then leave ours out, `daemon.enabled: false`
monitoring:
  enabled: false # a ServiceMonitor, for Prometheus' operator
"""

HEAD = f"""\
apiVersion: v2
name: holdfast
description: Holdfast's supervisor and host daemons, in the namespace of the jobs
type: application
version: {__version__}
"""


def files() -> dict[str, str]:
    """All of the chart, by path in it."""
    names = yaml.safe_load((MANIFESTS / "base/kustomization.yaml").read_text())["resources"]
    beside = ("monitoring/servicemonitor.yaml", "google-sensor/google-sensor.yaml")
    sources = [*(MANIFESTS / "base" / name for name in names), *(MANIFESTS / name for name in beside)]
    texts = {source.name: source.read_text() for source in sources}
    texts |= {STANDBY: _patched("supervisor.yaml", "standby", but="PersistentVolumeClaim")}
    texts |= {KERNEL_LOG: _patched("daemon.yaml", "kernel-log")}
    made = {f"templates/{name}": _template(name, text) for name, text in texts.items()}
    return {"Chart.yaml": MADE + HEAD, "values.yaml": MADE + VALUES, **made}


def _patched(name: str, overlay: str, but: str = "") -> str:
    """A file of the base, as that overlay of deploy/kubernetes has it; `but`: a kind that it leaves out."""
    patch = yaml.safe_load((MANIFESTS / overlay / name).read_text())
    things = yaml.safe_load_all((MANIFESTS / "base" / name).read_text())
    left = [thing for thing in things if thing["kind"] != but]
    made = [merged(thing, patch) if thing["kind"] == patch["kind"] else thing for thing in left]
    return yaml.safe_dump_all(made, sort_keys=False, width=1000)


def merged(base: Any, patch: Any) -> Any:
    """As kustomize merges them: null takes something away, and of lists of things with names those of a name are merged."""
    if isinstance(patch, dict):
        if patch.get("$patch") == "replace":
            return {key: value for key, value in patch.items() if key != "$patch"}
        kept = dict(base or {})
        for key, value in patch.items():
            kept[key] = merged(kept.get(key), value)
        return {key: value for key, value in kept.items() if value is not None}
    if isinstance(patch, list) and base and all(isinstance(one, dict) and "name" in one for one in [*base, *patch]):
        named, there = {one["name"]: one for one in patch}, {one["name"] for one in base}
        new = [one for one in patch if one["name"] not in there]
        return new + [merged(one, named.get(one["name"], {})) for one in base]
    return patch


def _template(name: str, text: str) -> str:
    assert "{{" not in text, f"{name}: Helm would read that"
    for old, new in PLACES:
        text = text.replace(old, new)
    condition = IF.get(name)
    return MADE + (f"{{{{- if {condition} }}}}\n{text}{{{{- end }}}}\n" if condition else text)


def write() -> None:
    """Write the chart."""
    for name, text in files().items():
        path = CHART / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
