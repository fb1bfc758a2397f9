"""The float type that a model is tuned in: for some engines it is converted first."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from qdqtune.calibration.inputs import Feeds
from qdqtune.engines.float_types import preferred_float_type
from qdqtune.engines.isolated import StoredFeeds, Worker
from qdqtune.graph.files import check_result, save_model
from qdqtune.graph.precision import convert_precision
from qdqtune.graph.precision_types import HALF_TYPES
from qdqtune.records.errors import EngineError, QdqtuneError, UsageError
from qdqtune.records.measurement import EngineInfo
from qdqtune.records.precision import Precision
from qdqtune.workflows.precision import judge_conversion
from qdqtune.workflows.source import Source, has_types
from qdqtune.workflows.tuning.scouting import check_runs

_logger = logging.getLogger(__name__)

AUTO = "auto"
NAMES = {
    "float32": Precision.FP32,
    "float16": Precision.FP16,
    "bfloat16": Precision.BF16,
}
"""What users call them."""
CHOICES = (AUTO, *NAMES)


@dataclass(frozen=True)
class Converted:
    """A model in another float type.

    Attributes:
        precision: Which.
        sqnr_db: How far its worst output is from the model as given; None if unknown.
    """

    precision: Precision
    sqnr_db: float | None

    @property
    def name(self) -> str:
        """What users call the type."""
        return next(name for name, each in NAMES.items() if each is self.precision)


def check_precision(precision: str) -> None:
    """Make sure that there is such a float type.

    Raises:
        UsageError: If there isn't.
    """
    if precision not in CHOICES:
        raise UsageError(f"There is no precision {precision!r}.", f"Choices: {', '.join(CHOICES)}.")


def wanted_type(asked: str, info: EngineInfo, source: Source) -> Precision | None:
    """What a model is to be converted to; None if it stays as it is.

    Args:
        asked: One of `CHOICES`.
        info: The engine.
        source: The model.
    """
    precision = preferred_float_type(info) if asked == AUTO else NAMES[asked]
    if precision is Precision.FP32:
        return None
    if source.reading is not None or has_types(source.model, HALF_TYPES):
        if asked != AUTO:
            has = "Q/DQ" if source.reading is not None else "half floats"
            _logger.warning("the model has %s already: it is not converted to %s", has, asked)
        return None
    return precision


def convert_to(
    precision: Precision,
    source: Source,
    target: Path,
    samples: Callable[[], Iterable[Feeds]],
    engine: Worker,
    feeds: StoredFeeds,
    least_db: float | None,
) -> Converted | None:
    """Convert a model and write it, if that is accurate enough and the engine runs it.

    Args:
        precision: To what.
        source: The model.
        target: Where to write it.
        samples: Makes the inputs that it is judged on.
        engine: What is to run it.
        feeds: What it is run on.
        least_db: How near every output must be to the model as given; None is not asked.

    Returns:
        What came of it; None if the model is better left as it is.
    """
    name = precision.value
    try:
        model = source.model.clone()
        convert_precision(model, precision)
        save_model(model, target, force=True)
        check_result(target, source.path)
        found, overflow = judge_conversion(source.path, target, lambda _: samples())
        worst = min(found.values(), default=None)
        if least_db is not None and worst is not None and worst < least_db:
            why = (
                f"{overflow} is no longer finite" if overflow else f"its outputs are {worst:.1f} dB"
            )
            _logger.warning(
                "in %s the model is not accurate enough, it is tuned as given: %s", name, why
            )
            return None
        check_runs(engine, target, feeds)
    except EngineError as error:
        _logger.warning("in %s the model does not run, it is tuned as given: %s", name, error.what)
        return None
    except QdqtuneError as error:
        _logger.warning("the model can't be converted to %s: %s", name, error.what)
        return None
    is_known = worst is not None and math.isfinite(worst)
    return Converted(precision, worst if is_known else None)


def written_type(model: ir.Model) -> Precision:
    """The smallest float type of a model."""
    for dtype, precision in (
        (ir.DataType.FLOAT16, Precision.FP16),
        (ir.DataType.BFLOAT16, Precision.BF16),
    ):
        if has_types(model, {dtype}):
            return precision
    return Precision.FP32
