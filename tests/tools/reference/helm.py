"""What is in deploy/helm/holdfast? The manifests of deploy/kubernetes as a chart: the same text, with values in some places."""

from __future__ import annotations

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

IF = {"daemon.yaml": "daemon.enabled", "servicemonitor.yaml": "monitoring.enabled"}
"""Files that are only there if a value says so."""

MADE = "# Made from deploy/kubernetes by `make reference`. Do not edit.\n"

VALUES = """\
image:
  repository: registry.example/holdfast # which you build yourself: deploy/Dockerfile
  tag: "1"
supervisor:
  storage: 1Gi # for what it remembers
daemon:
  enabled: true # for jobs that report through Google's resiliency client
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
    sources = [*(MANIFESTS / "base" / name for name in names), MANIFESTS / "monitoring/servicemonitor.yaml"]
    made = {f"templates/{source.name}": _template(source.name, source.read_text()) for source in sources}
    return {"Chart.yaml": MADE + HEAD, "values.yaml": MADE + VALUES, **made}


def _template(name: str, text: str) -> str:
    assert "{{" not in text, f"{name}: Helm would read that"
    for old, new in PLACES:
        text = text.replace(old, new)
    condition = IF.get(name)
    return MADE + (f"{{{{- if .Values.{condition} }}}}\n{text}{{{{- end }}}}\n" if condition else text)


def write() -> None:
    """Write the chart."""
    for name, text in files().items():
        path = CHART / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
