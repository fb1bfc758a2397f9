"""What a way to search has to offer; `run.py` has a table of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.workflows.tuning.baseline import Baseline
from qdqtune.workflows.tuning.calibrate import Calibration
from qdqtune.workflows.tuning.context import RunContext
from qdqtune.workflows.tuning.run_records import RunRecords
from qdqtune.workflows.tuning.search_problem import SearchProblem
from qdqtune.workflows.tuning.setup import TuningTarget


@dataclass(frozen=True)
class Mode(ABC):
    """A way to search.

    Attributes:
        ctx: The run.
        target: What is tuned.
        records: What is known, and where what is found out goes.
        baseline: The float model.
    """

    ctx: RunContext
    target: TuningTarget
    records: RunRecords
    baseline: Baseline

    @abstractmethod
    def profile(self) -> None:
        """Find out about the float model what has to be known before calibration."""

    @abstractmethod
    def prepare(self, planner: QuantizationPlanner, calibration: Calibration) -> SearchProblem:
        """What can be chosen, and who chooses; nothing if there was no time to find it out."""
