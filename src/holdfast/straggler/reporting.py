"""How well does each rank do, beside the best one and beside its own best? Summaries of durations in, a report out.

A score is the reference's median over the rank's own: 0.5 takes twice as long. For the relative scores the reference is the
fastest rank in this report, for the individual ones the rank's own best so far. A GPU has one score: the mean of its kernels',
each weighted by the time it took. What not all ranks did has no relative score (nan).
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from holdfast.straggler import dist_utils
from holdfast.straggler.name_mapper import NameMapper
from holdfast.straggler.statistics import Statistic, Summary

RELATIVE, INDIVIDUAL = "relative_perf_scores", "individual_perf_scores"
NAN = float("nan")
WAITING_KERNEL = "ncclDev"
"""Part of the names of NCCL's kernels, which take as long as the slowest rank is late: they tell of others."""


@dataclass(frozen=True)
class StragglerId:
    """A rank that is slow."""

    rank: int
    node: str


@dataclass(frozen=True)
class Report:
    """Scores by rank; of sections by their name first. With `gather_on_rank0` rank 0 has those of all, else each its own."""

    gpu_relative_perf_scores: Mapping[int, float]
    section_relative_perf_scores: Mapping[str, Mapping[int, float]]
    gpu_individual_perf_scores: Mapping[int, float]
    section_individual_perf_scores: Mapping[str, Mapping[int, float]]
    rank_to_node: Mapping[int, str]
    local_section_summaries: Mapping[str, Summary]  # Of this rank, in milliseconds.
    local_kernel_summaries: Mapping[str, Summary]  # Of this rank, in microseconds.
    generate_report_elapsed_time: float  # In milliseconds.
    gather_on_rank0: bool
    rank: int | None

    def identify_stragglers(
        self,
        gpu_rel_threshold: float = 0.75,
        section_rel_threshold: float = 0.75,
        gpu_indiv_threshold: float = 0.75,
        section_indiv_threshold: float = 0.75,
    ) -> dict[str, Any]:
        """Whose scores are below the thresholds: sets of `StragglerId`, of sections by their names."""

        def below(scores: Mapping[int, float], threshold: float) -> set[StragglerId]:
            return {StragglerId(rank, self.rank_to_node[rank]) for rank, score in scores.items() if score < threshold}

        def of_sections(scores: Mapping[str, Mapping[int, float]], threshold: float) -> dict[str, set[StragglerId]]:
            return {name: slow for name, by_rank in scores.items() if (slow := below(by_rank, threshold))}

        return {
            "straggler_gpus_relative": below(self.gpu_relative_perf_scores, gpu_rel_threshold),
            "straggler_gpus_individual": below(self.gpu_individual_perf_scores, gpu_indiv_threshold),
            "straggler_sections_relative": of_sections(self.section_relative_perf_scores, section_rel_threshold),
            "straggler_sections_individual": of_sections(self.section_individual_perf_scores, section_indiv_threshold),
        }


@dataclass(frozen=True)
class _Scores:
    """One rank's own."""

    gpu: float
    sections: Mapping[str, float]


NO_SCORES = _Scores(NAN, {})


class ReportGenerator:
    """Makes the reports of one rank. All ranks call `generate_report` together."""

    def __init__(
        self, scores_to_compute: Sequence[str], gather_on_rank0: bool = True, pg: Any = None, node_name: str = "<notset>"
    ) -> None:
        self.is_computing_rel_scores = RELATIVE in scores_to_compute
        self.is_computing_indiv_scores = INDIVIDUAL in scores_to_compute
        self.gather_on_rank0 = gather_on_rank0
        self.group, self.node_name = pg, node_name
        self.world_size, self.rank = dist_utils.get_world_size(pg), dist_utils.get_rank(pg)
        self.min_local_kernel_times: dict[str, float] = {}  # The best medians of this rank so far.
        self.min_local_section_times: dict[str, float] = {}
        self.name_mapper = NameMapper(pg=pg)
        self.rank_to_node: dict[int, str] = {}

    def generate_report(
        self, section_summaries: Mapping[str, Summary], kernel_summaries: Mapping[str, Summary]
    ) -> Report | None:
        """None: this is not rank 0, which has the report."""
        begun = time.perf_counter()
        self.world_size, self.rank = dist_utils.get_world_size(self.group), dist_utils.get_rank(self.group)
        sections = section_summaries
        kernels = {name: summary for name, summary in kernel_summaries.items() if WAITING_KERNEL not in name}
        self._exchange_nodes()
        if self.is_computing_rel_scores or self.gather_on_rank0:
            self.name_mapper.gather_and_assign_ids(kernels, sections)
        individual = self._individual(kernels, sections) if self.is_computing_indiv_scores else NO_SCORES
        relative = self._relative(kernels, sections) if self.is_computing_rel_scores else NO_SCORES
        by_rank = self._on_rank0(individual, relative) if self.gather_on_rank0 else {self.rank: (individual, relative)}
        if self.gather_on_rank0 and self.rank != 0:
            return None
        own = {rank: scores[0] for rank, scores in by_rank.items()} if self.is_computing_indiv_scores else {}
        others = {rank: scores[1] for rank, scores in by_rank.items()} if self.is_computing_rel_scores else {}
        return Report(
            gpu_relative_perf_scores={rank: one.gpu for rank, one in others.items()},
            section_relative_perf_scores=_by_section(others),
            gpu_individual_perf_scores={rank: one.gpu for rank, one in own.items()},
            section_individual_perf_scores=_by_section(own),
            rank_to_node=dict(self.rank_to_node),
            local_section_summaries=sections,
            local_kernel_summaries=kernels,
            generate_report_elapsed_time=(time.perf_counter() - begun) * 1e3,
            gather_on_rank0=self.gather_on_rank0,
            rank=self.rank,
        )

    def _exchange_nodes(self) -> None:
        """Once: names do not change."""
        if not self.rank_to_node:
            mine = self.rank, self.node_name
            self.rank_to_node = dict(dist_utils.all_gather_object(mine, self.group) if self.gather_on_rank0 else [mine])

    def _individual(self, kernels: Mapping[str, Summary], sections: Mapping[str, Summary]) -> _Scores:
        for best, summaries in ((self.min_local_kernel_times, kernels), (self.min_local_section_times, sections)):
            for name, summary in summaries.items():
                best[name] = min(best.get(name, math.inf), summary[Statistic.MED])
        return _scores(kernels, sections, self.min_local_kernel_times, self.min_local_section_times)

    def _relative(self, kernels: Mapping[str, Summary], sections: Mapping[str, Summary]) -> _Scores:
        """By the fastest rank's medians. A rank that has none of something says -1, which is the least of all."""
        mapper = self.name_mapper
        count = mapper.kernel_counter
        medians: Any = torch.full((count + mapper.section_counter,), -1.0, dtype=torch.float64)
        for name, summary in kernels.items():
            medians[mapper.get_kernel_id(name)] = summary[Statistic.MED]
        for name, summary in sections.items():
            medians[count + mapper.get_section_id(name)] = summary[Statistic.MED]
        medians = medians.to(dist_utils.get_device_for_backend(self.group))
        dist_utils.all_reduce(medians, op=torch.distributed.ReduceOp.MIN, group=self.group)
        least = [one if one >= 0 else NAN for one in medians.tolist()]
        of_kernels = {mapper.get_kernel_name(at): least[at] for at in range(count)}
        of_sections = {mapper.get_section_name(at): one for at, one in enumerate(least[count:])}
        return _scores(kernels, sections, of_kernels, of_sections)

    def _on_rank0(self, individual: _Scores, relative: _Scores) -> dict[int, tuple[_Scores, _Scores]]:
        """Each rank's scores, on rank 0; elsewhere nothing."""
        names = [self.name_mapper.get_section_name(at) for at in range(self.name_mapper.section_counter)]
        told = [
            value for scores in (individual, relative) for value in (scores.gpu, *(scores.sections.get(n, NAN) for n in names))
        ]
        gathered = dist_utils.gather_on_rank0(torch.tensor(told, dtype=torch.float64), self.group)
        found = {}
        for rank, tensor in enumerate(gathered or ()):
            values, half = tensor.tolist(), 1 + len(names)
            first, second = values[:half], values[half:]
            found[rank] = tuple(_Scores(part[0], dict(zip(names, part[1:]))) for part in (first, second))
        return found  # type: ignore[return-value]


def _scores(
    kernels: Mapping[str, Summary],
    sections: Mapping[str, Summary],
    kernel_reference: Mapping[str, float],
    section_reference: Mapping[str, float],
) -> _Scores:
    parts = [
        (kernel_reference[name] / summary[Statistic.MED], summary[Statistic.NUM] * summary[Statistic.AVG])
        for name, summary in kernels.items()
        if not math.isnan(kernel_reference[name])
    ]
    weights = sum(weight for _, weight in parts)
    gpu = sum(score * weight for score, weight in parts) / weights if weights else NAN
    return _Scores(gpu, {name: _ratio(section_reference[name], summary[Statistic.MED]) for name, summary in sections.items()})


def _ratio(reference: float, own: float) -> float:
    return reference / own if own else 1.0  # a section that takes no time takes no longer than any


def _by_section(by_rank: Mapping[int, _Scores]) -> dict[str, dict[int, float]]:
    names: Iterable[str] = dict.fromkeys(name for scores in by_rank.values() for name in scores.sections)
    return {name: {rank: scores.sections[name] for rank, scores in by_rank.items()} for name in names}
