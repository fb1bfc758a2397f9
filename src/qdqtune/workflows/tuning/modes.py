"""The ways to search, by the names that `--workflow` has for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from qdqtune.config import REGION, SUBGRAPH
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.workflows.tuning.baseline import Baseline
from qdqtune.workflows.tuning.calibrate import Calibration
from qdqtune.workflows.tuning.context import RunContext
from qdqtune.workflows.tuning.region_mode import RegionMode
from qdqtune.workflows.tuning.run_records import RunRecords
from qdqtune.workflows.tuning.search_problem import SearchProblem
from qdqtune.workflows.tuning.setup import TuningTarget
from qdqtune.workflows.tuning.subgraph_mode import SubgraphMode


class Mode(Protocol):
    """A way to search."""

    def profile(self) -> None:
        """Find out about the float model what has to be known before calibration."""
        ...

    def prepare(self, planner: QuantizationPlanner, calibration: Calibration) -> SearchProblem:
        """What can be chosen, and who chooses; nothing if there was no time to find it out."""
        ...


MODES: Mapping[str, Callable[[RunContext, TuningTarget, RunRecords, Baseline], Mode]] = {
    REGION: RegionMode,
    SUBGRAPH: SubgraphMode,
}
