"""A call of `tune` with everything that its config refers to looked up."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from qdqtune.calibration.user_code import UserFunction
from qdqtune.config import TuneConfig
from qdqtune.engines.interface import SessionOptions
from qdqtune.qdq.dialect import Dialect
from qdqtune.workflows.tuning.settings import Preset


@dataclass(frozen=True)
class TuneRequest:
    """A call of `qdqtune.tune`.

    Attributes:
        model: The model as given.
        config: What is asked for.
        engine: The engine that runs it, by name.
        options: How it opens models.
        dialect: How Q/DQ is written for it.
        preset: How thorough to be.
        evaluate: The user's metric, if there is one.
        converted: The model in another float type, which is tuned instead; None if it is as given.
    """

    model: Path
    config: TuneConfig
    engine: str
    options: SessionOptions
    dialect: Dialect
    preset: Preset
    evaluate: UserFunction | None = None
    converted: Path | None = None

    def conditions(self, model_sha256: str, calibration: str, precision: str) -> dict[str, Any]:
        """What a result has to satisfy, as `Summary` has it.

        Args:
            model_sha256: Of the file that was given.
            calibration: A digest of what the data gave; empty for random inputs.
            precision: The float type that the model was converted to, if it was.
        """
        found: dict[str, Any] = {"model_sha256": model_sha256, "calibration": calibration}
        found |= self.config.identity()
        found["evaluate"] = self.evaluate.label if self.evaluate is not None else None
        # Results of versions that did not convert have no such entry.
        return found if self.converted is None else {**found, "precision": precision}

    @property
    def state_file(self) -> Path | None:
        """The state file that the user names."""
        return None if self.config.state_file is None else Path(self.config.state_file)

    @property
    def file(self) -> Path:
        """The model that is tuned, and handed back if nothing is faster."""
        return self.converted or self.model
