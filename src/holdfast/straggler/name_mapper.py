"""Which number stands for a name, on all ranks the same? Names are exchanged only when there are new ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from holdfast.straggler.dist_utils import all_gather_object, is_all_true


class NameMapper:
    """Names of kernels and of sections, numbered from 0 each. A name keeps its number."""

    def __init__(self, pg: Any = None) -> None:
        self.group = pg
        self.kernel_name_to_id: dict[str, int] = {}
        self.id_to_kernel_name: dict[int, str] = {}
        self.section_name_to_id: dict[str, int] = {}
        self.id_to_section_name: dict[int, str] = {}

    @property
    def kernel_counter(self) -> int:
        return len(self.kernel_name_to_id)

    @property
    def section_counter(self) -> int:
        return len(self.section_name_to_id)

    def gather_and_assign_ids(self, kernel_names: Iterable[str], section_names: Iterable[str]) -> None:
        """Number what no rank has numbered yet. Collective."""
        kernels, sections = list(kernel_names), list(section_names)
        knows_all = self.kernel_name_to_id.keys() >= {*kernels} and self.section_name_to_id.keys() >= {*sections}
        if is_all_true(knows_all, self.group):
            return
        for others_sections, others_kernels in all_gather_object((sections, kernels), self.group):
            _number(others_sections, self.section_name_to_id, self.id_to_section_name)
            _number(others_kernels, self.kernel_name_to_id, self.id_to_kernel_name)

    def get_kernel_name(self, kernel_id: int) -> str:
        return self.id_to_kernel_name[kernel_id]

    def get_kernel_id(self, kernel_name: str) -> int:
        return self.kernel_name_to_id[kernel_name]

    def get_section_name(self, section_id: int) -> str:
        return self.id_to_section_name[section_id]

    def get_section_id(self, section_name: str) -> int:
        return self.section_name_to_id[section_name]


def _number(names: Iterable[str], ids: dict[str, int], named: dict[int, str]) -> None:
    for name in names:
        if name not in ids:
            named[len(ids)] = name
            ids[name] = len(ids)
