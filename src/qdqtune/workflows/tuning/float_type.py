"""The float type that a model is tuned in: for some engines it is converted first."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from qdqtune.autotune.search.trial import Effort
from qdqtune.calibration.random_inputs import Feeds
from qdqtune.engines.comparison import compare_files
from qdqtune.engines.float_types import (
    chooses_float_types,
    float_type_options,
    preferred_float_type,
)
from qdqtune.engines.isolated import StoredFeeds, Worker
from qdqtune.graph.files import check_result, save_model
from qdqtune.graph.precision import convert_precision
from qdqtune.graph.precision_types import HALF_TYPES
from qdqtune.records.errors import QdqtuneError
from qdqtune.records.measurement import EngineInfo, Verdict
from qdqtune.records.precision import AUTO, FLOAT_TYPES, Precision
from qdqtune.records.tuning import AS_GIVEN
from qdqtune.workflows.precision import evaluate_conversion
from qdqtune.workflows.source_model import Source, has_types
from qdqtune.workflows.tuning.preflight import check_runs
from qdqtune.workflows.tuning.settings import Preset

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class FloatForm:
    """In which form a model is tuned.

    Attributes:
        model: The converted model; None if it is tuned as given.
        name: What users call its float type, or `AS_GIVEN`.
        sqnr_db: How far its worst output is from the model as given; None if unknown.
        speedup: How much faster it is than the model as given; None if unknown.
        reason: Why it was not converted, although that was wanted.
    """

    model: Path | None = None
    name: str = AS_GIVEN
    sqnr_db: float | None = None
    speedup: float | None = None
    reason: str = ""


def told_options(asked: str, info: EngineInfo, options: Mapping[str, str]) -> Mapping[str, str]:
    """The engine's own options, with the float type in them if it is to choose that itself.

    Args:
        asked: One of `CHOICES`.
        info: The engine.
        options: As the user gave them.

    Raises:
        UsageError: If they say something else.
    """
    if asked == AUTO or not chooses_float_types(info):
        return options
    return float_type_options(FLOAT_TYPES[asked], options)


def convertible(asked: str, float_types: frozenset[ir.DataType]) -> frozenset[ir.DataType] | None:
    """The float types that need no conversion to be quantized; None if none is to be made.

    Args:
        asked: One of `CHOICES`; who asks for half floats gets them.
        float_types: Those that the dialect has integer kernels for.
    """
    return float_types if asked == AUTO or FLOAT_TYPES[asked] is Precision.FP32 else None


def wanted_type(asked: str, info: EngineInfo, source: Source) -> Precision | None:
    """What a model is to be converted to; None if it stays as it is.

    Args:
        asked: One of `CHOICES`.
        info: The engine.
        source: The model.
    """
    precision = preferred_float_type(info) if asked == AUTO else FLOAT_TYPES[asked]
    if precision is Precision.FP32 and asked != AUTO and has_types(source.model, HALF_TYPES):
        if not source.converted_from:
            _logger.warning(
                "the model has half floats, and the engine has integer kernels for them: it is "
                "tuned as it is; `qdqtune convert --to fp32` makes it float32"
            )
        return None
    if precision is Precision.FP32 or source.converted_from or chooses_float_types(info):
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
    preset: Preset,
    *,
    may_be_slower: bool = False,
) -> FloatForm:
    """Convert a model and write it, if that is accurate enough, and not slower.

    The same model is converted to the same file again, so that a run can be resumed.

    Args:
        precision: To what.
        source: The model.
        target: Where to write it.
        samples: Makes the inputs that it is evaluated on.
        engine: What is to run it.
        feeds: What it is run on.
        least_db: How near every output must be to the model as given; None is not asked. What is
            no longer finite is never near enough.
        preset: How thoroughly it is compared with the model as given.
        may_be_slower: Whether it is taken even if that is faster.

    Raises:
        EngineError: If the engine does not run the model as given, either.
    """
    name = next(name for name, each in FLOAT_TYPES.items() if each is precision)
    try:
        model = source.model.clone()
        convert_precision(model, precision)
        save_model(model, target, force=True)
        check_result(target, source.path)
        found, overflow = evaluate_conversion(source.path, target, lambda _: samples())
    except QdqtuneError as error:
        return _as_given(f"it can't be converted to {name}: {error.what}")
    worst = min(found.values(), default=None)
    if overflow:
        return _as_given(f"in {name} it is not accurate enough: {overflow} is no longer finite")
    if least_db is not None and worst is None:
        return _as_given(f"in {name} its outputs could not be compared with the model as given")
    if least_db is not None and worst is not None and worst < least_db:
        return _as_given(f"in {name} it is not accurate enough: its outputs are {worst:.1f} dB")
    rounds, seconds = preset.rounds[Effort.CONFIRM], preset.seconds[Effort.CONFIRM]
    (given, converted), (compared,) = compare_files(
        engine, [source.path, target], feeds, rounds=rounds, budget_s=seconds
    )
    if not converted.ok:
        check_runs(engine, Path(source.path), feeds)
        return _as_given(f"in {name} the engine does not run it: {converted.error}")
    if compared is not None and compared.verdict is Verdict.SLOWER and not may_be_slower:
        return _as_given(f"in {name} it is slower, {compared.ratio:.2f}x as fast")
    if not given.ok:
        _logger.info("the engine runs the model in %s only: %s", name, given.error)
    is_known = worst is not None and math.isfinite(worst)
    speedup = compared.ratio if compared is not None else None
    return FloatForm(target, name, worst if is_known else None, speedup)


def _as_given(reason: str) -> FloatForm:
    first = reason.splitlines()[0].rstrip(".")
    _logger.warning("the model is tuned as given: %s", first)
    return FloatForm(reason=first)


def written_type(model: ir.Model) -> Precision:
    """The smallest float type of a model."""
    for dtype, precision in (
        (ir.DataType.FLOAT16, Precision.FP16),
        (ir.DataType.BFLOAT16, Precision.BF16),
    ):
        if has_types(model, {dtype}):
            return precision
    return Precision.FP32
