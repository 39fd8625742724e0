"""Which files of the checkout are in this wheel? Those that pyproject.toml lists, also in a source archive."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIB = "holdfast_client/lib"


class Files(BuildHookInterface):
    """hatchling's hook."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Name each file, and the place that it gets."""
        here = Path(self.root)
        if (here / LIB).exists():
            return  # a source archive, whose files are part of the folder
        src, license = here.parents[1] / "src", here.parents[1] / "LICENSE"
        found = {str(src / "holdfast" / name): f"{LIB}/holdfast/{name}" for name in self.config["files"]}
        build_data["force_include"].update(found | {str(license): "holdfast_client/LICENSE"})
