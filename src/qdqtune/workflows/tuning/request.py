"""What was asked for, all of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from qdqtune.calibration.user_code import UserFunction
from qdqtune.engines.interface import SessionOptions
from qdqtune.qdq.dialect import Dialect
from qdqtune.records.inputs import InputRequest
from qdqtune.records.precision import AUTO
from qdqtune.records.ranges import RangeMethod
from qdqtune.records.tuning import TuneEvent
from qdqtune.workflows.name_filters import NameFilters
from qdqtune.workflows.tuning.settings import Preset

REGION, SUBGRAPH = "region", "subgraph"
WORKFLOWS = (REGION, SUBGRAPH)
"""How the search goes about it."""

Callback = Callable[[TuneEvent], None]


@dataclass(frozen=True)
class TuneRequest:
    """A call of `qdqtune.tune`, looked over; see there for what the fields mean.

    Attributes:
        converted: The model in another float type, which is tuned instead; None if it is as given.
    """

    model: Path
    engine: str
    options: SessionOptions
    dialect: Dialect
    quant_type: str
    preset_name: str
    preset: Preset
    seed: int
    budget_s: float | None
    max_benchmarks: int | None
    schemes_per_region: int | None
    inputs: InputRequest
    method: RangeMethod | None
    min_sqnr_db: float | None
    evaluate: UserFunction | None
    max_drop: float
    threshold: float
    qdq_baseline: Path | None = None
    pattern_cache: Path | None = None
    state_file: Path | None = None
    node_filter: tuple[str, ...] = ()
    region_filter: tuple[str, ...] = ()
    filters: NameFilters = field(default_factory=NameFilters)
    optimize: bool = True
    workflow: str = REGION
    graph_json: Path | None = None
    incremental_validation: bool = True
    min_shapes: InputRequest | None = None
    max_shapes: InputRequest | None = None
    precision: str = AUTO
    converted: Path | None = None
    callbacks: tuple[Callback, ...] = ()
    command: str = ""

    def conditions(self, model_sha256: str, calibration: str, precision: str) -> dict[str, Any]:
        """What a result has to satisfy, as `Summary` has it.

        Args:
            model_sha256: Of the file that was given.
            calibration: A digest of what the data gave; empty for random inputs.
            precision: The float type that the model was converted to, if it was.
        """
        conditions: dict[str, Any] = {
            "model_sha256": model_sha256,
            "calibration": calibration,
            "calibration_method": self.method.value if self.method is not None else None,
            "node_filter": sorted(self.node_filter),
            "min_sqnr_db": self.min_sqnr_db,
            "evaluate": self.evaluate.label if self.evaluate is not None else None,
            "max_drop": self.max_drop if self.evaluate is not None else None,
            "performance_threshold": self.threshold,
        }
        # Results of versions that always folded and had no filters have no such entries.
        if not self.optimize:
            conditions["optimize"] = False
        if self.converted is not None:
            conditions["precision"] = precision
        if self.region_filter:
            conditions["region_filter"] = sorted(self.region_filter)
        if self.filters:
            conditions["filters"] = {name: list(each) for name, each in vars(self.filters).items()}
        return conditions

    @property
    def file(self) -> Path:
        """The model that is tuned, and handed back if nothing is faster."""
        return self.converted or self.model
