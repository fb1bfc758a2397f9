"""Region mode: placements are tried on the whole model."""

from __future__ import annotations

from qdqtune.autotune.search.placement_search import PlacementSearch
from qdqtune.autotune.search.space import Space
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.workflows.tuning.calibrate import Calibration
from qdqtune.workflows.tuning.modes import Mode
from qdqtune.workflows.tuning.preflight import latency_shares, seeds_of
from qdqtune.workflows.tuning.search_problem import SearchProblem


class RegionMode(Mode):
    """Every group of ops is a choice; the engine's profile of the float model says which matter."""

    def profile(self) -> None:
        """Find out where the float model's time goes, unless that is known."""
        journal, target, baseline = self.records.journal, self.target, self.baseline
        if journal.shares is None:
            told = "asking the engine where the float model's time goes"
            self.ctx.reporter.tell("profile", told)
            shares = latency_shares(
                self.ctx.engines.engine, baseline.file, target.feeds, baseline.base.index,
                target.provider.shapes,
            )  # fmt: skip
            journal.keep_shares(shares)

    def prepare(self, planner: QuantizationPlanner, calibration: Calibration) -> SearchProblem:
        """All groups, and a search among them."""
        request, grouping = self.target.request, calibration.grouping
        space = Space(planner, grouping.groups, self.records.journal.shares or {})
        seeds = seeds_of(space, self.target.given, grouping)
        limits = request.preset.limits(
            len(space.groups), grouping.patterns,
            request.config.max_benchmarks, request.config.schemes_per_region,
        )  # fmt: skip
        search = PlacementSearch(space, seeds, limits, request.config.seed)
        return SearchProblem(space, search, seeds)
