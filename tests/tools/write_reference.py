"""Writes the pages and drawings of docs/ that are made from the code, and the chart of deploy/: `make reference`. A test
compares each with what is there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from kit import ROOT

from tools.draw_layers import drawn
from tools.reference import (
    checks,
    events,
    fleet,
    fleet_walk,
    ft_launcher,
    group,
    helm,
    http_api,
    injector,
    man,
    metrics,
    monitor,
    rounds,
    rules,
    spares,
    succession,
    torchrun,
)
from tools.reference.walk import walk

DIAGRAM = re.compile(r"```mermaid\n.*?\n```$", re.DOTALL | re.MULTILINE)


def main() -> None:
    """Write them all."""
    docs, steps, roles = ROOT / "docs", walk(), succession.walk()
    pages = {
        "torchrun": torchrun.page(),
        "ft_launcher": ft_launcher.page(),
        "checks": checks.page(),
        "events": events.page(),
        "http-api": http_api.page(),
        "metrics": metrics.page(),
        "rules": rules.page(),
        "rounds": rounds.page(steps),
        "succession": succession.page(roles),
        "fleet": fleet.page(fleet_walk.walk()),
        "node": group.page(group.walk()),
        "monitor": monitor.page(monitor.walk()),
        "injector": injector.page(injector.walk()),
        "spares": spares.page(*spares.walks()),
    }
    for name, text in pages.items():
        (docs / "reference" / f"{name}.md").write_text(text)
    helm.write()
    (docs / "holdfast.1").write_text(man.page())
    (docs / "layers.svg").write_text(drawn())
    for name, diagram in (("rounds", rounds.diagram(steps)), ("succession", succession.diagram(roles))):
        explained = docs / "explanation" / f"{name}.md"
        explained.write_text(DIAGRAM.sub(diagram.rstrip(), explained.read_text(), count=1))


if __name__ == "__main__":
    main()
