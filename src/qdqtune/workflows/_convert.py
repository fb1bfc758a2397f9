"""`convert`: a model in another float precision with its error measured.

Also the choice of the float type that a run tunes in.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import onnx_ir as ir

from qdqtune.calibration._instrumentation import first_overflow
from qdqtune.calibration._output_error import output_sqnr
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.engines import _registry as registry
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._options import chooses_float_types, float_type_options, preferred_float_type
from qdqtune.engines._reference_engine import AS_WRITTEN, has_reference, reference_worker
from qdqtune.engines._worker import StoredFeeds, Worker, WorkerFailure
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._files import check_result, check_writable, load_model, publish, save_model
from qdqtune.graph._index import GraphIndex, values_in
from qdqtune.graph._op_classes import HALF_TYPES, dtype_of
from qdqtune.graph._precision import compute_in_float32, convert_precision
from qdqtune.graph._precision_rules import SENSITIVE_OPS
from qdqtune.graph._shapes import infer_shapes
from qdqtune.graph._weights import unread_weights
from qdqtune.records._errors import EngineError, ModelError, QdqtuneError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import EngineInfo, Verdict
from qdqtune.records._precision import AUTO, FLOAT_TYPES, Precision
from qdqtune.records._results import ConvertReport
from qdqtune.records._tuning import AS_GIVEN
from qdqtune.search.strategies._strategy import Effort
from qdqtune.workflows._source_model import Source, has_types
from qdqtune.workflows.tuning._preflight import check_runs
from qdqtune.workflows.tuning._time_budget import Preset

if TYPE_CHECKING:
    from qdqtune._command_configs import ConvertConfig

_logger = logging.getLogger(__name__)

_EVALUATION_SAMPLES = 2


def convert_model(
    model: str | os.PathLike[str], output: str | os.PathLike[str], config: ConvertConfig
) -> ConvertReport:
    """Convert a model to another float type, check it and write it.

    Both models are run on random inputs to compare their outputs; half precision is computed in
    float32 and rounded op by op (`qdqtune.graph._precision`), which matches GPUs and
    runs on CPUs.

    Args:
        model: A model in any precision, with or without Q/DQ.
        output: Where to write.
        config: The settings.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    source, target, precision = Path(model), Path(output), Precision(config.to)
    check_writable(target, force=config.force)
    loaded = load_model(source)
    missing = sorted(set(config.keep_ops).difference(node.op_type for node in loaded.graph))
    if missing:
        raise UsageError(f"The model has no {', '.join(missing)}.", "Ops are spelled as in ONNX.")
    sensitive = frozenset() if precision is Precision.FP32 else SENSITIVE_OPS
    infer_shapes(loaded)
    original = loaded.clone()
    conversion = convert_precision(
        loaded,
        precision,
        keep_io=config.keep_io,
        keep_nodes=config.keep_nodes,
        keep_ops=sensitive.union(config.keep_ops),
        is_typed=True,
    )
    sqnr_db, overflow = dict[str, float](), ""
    with TemporaryFolder(target.parent) as folder:
        staged = save_model(loaded, folder / target.name)
        check_result(staged, source)
        if conversion.modified:
            before, after = LoadedFile(source, original), LoadedFile(staged, loaded)
            sqnr_db, overflow = random_error(before, after, config.input_request)
        publish(folder, target.parent, force=config.force)
    return ConvertReport(target, conversion, sqnr_db, overflow)


class LoadedFile(NamedTuple):
    """A file and the model in it, with inferred types.

    Loading a model takes a second for 25,000 nodes or weights: what is in memory is passed on.
    """

    path: Path
    model: ir.Model

    @classmethod
    def load(cls, path: Path) -> LoadedFile:
        """Load a model and infer its types."""
        model = load_model(path)
        infer_shapes(model)
        return cls(path, model)


def random_error(
    source: LoadedFile, changed: LoadedFile, request: InputRequest
) -> tuple[dict[str, float], str]:
    """Like `measured_error`, on random inputs."""

    def samples(model: ir.Model) -> Iterable[Feeds]:
        return random_inputs(GraphIndex(model), _EVALUATION_SAMPLES, request)

    return measured_error(source, changed, samples)


def measured_error(
    source: LoadedFile, changed: LoadedFile, samples: Callable[[ir.Model], Iterable[Feeds]]
) -> tuple[dict[str, float], str]:
    """Return decibels per output and the first node that overflows; empty if unknown.

    Args:
        source: The model to compare with.
        changed: Its converted form. Half floats in either become float32, in place.
        samples: Generates inputs for the source, in a form that CPUs can run.

    Raises:
        UsageError: If no inputs can be generated.
    """
    if not has_reference():
        title = registry.title(registry.REFERENCE)
        _logger.warning("its error could not be measured: %s is not installed", title)
        return {}, ""
    with TemporaryFolder() as folder, reference_worker() as worker:
        reference, _ = _runnable(source, folder / "before.onnx")
        candidate, rounded = _runnable(changed, folder / "after.onnx")
        try:
            sqnr_db = output_sqnr(
                worker, reference, candidate, samples(source.model), options=AS_WRITTEN
            )
            overflow = ""
            if any(db == -math.inf for db in sqnr_db.values()):
                first = next(iter(samples(source.model)))
                overflow = first_overflow(changed.model, rounded, worker, first, folder)
        except (WorkerFailure, EngineError, ModelError) as failure:
            _logger.warning("its error could not be measured here: %s", failure)
            return {}, ""
    return sqnr_db, overflow


def _runnable(file: LoadedFile, twin: Path) -> tuple[Path, dict[str, str]]:
    """Return a file that runs on CPUs, and its results that are rounded."""
    path, model = file
    if not any(dtype_of(value) in HALF_TYPES for value in values_in(model.graph)):
        return path, {}
    rounded = compute_in_float32(model)
    for value in unread_weights(model.graph):
        model.graph.initializers.pop(value.name or "")
    return save_model(model, twin), rounded


@dataclass(frozen=True)
class FloatForm:
    """The form in which a model is tuned.

    Attributes:
        model: The converted model; None if it is tuned as given.
        name: The user's name for its float type, or `AS_GIVEN`.
        sqnr_db: SQNR of its worst output against the original model; None if unknown.
        speedup: Its speedup over the original model; None if unknown.
        reason: Why it was not converted as requested.
    """

    model: Path | None = None
    name: str = AS_GIVEN
    sqnr_db: float | None = None
    speedup: float | None = None
    reason: str = ""


def told_options(asked: str, info: EngineInfo, options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the engine's options, with the requested float type if the engine chooses it itself.

    Args:
        asked: One of `CHOICES`.
        info: The engine.
        options: The user's options.

    Raises:
        UsageError: If the options contradict the request.
    """
    if asked == AUTO or not chooses_float_types(info):
        return options
    return float_type_options(FLOAT_TYPES[asked], options)


def convertible(asked: str, float_types: frozenset[ir.DataType]) -> frozenset[ir.DataType] | None:
    """Return the float types that can be quantized unconverted; None if none may be converted.

    Args:
        asked: One of `CHOICES`; an explicit half-precision type is kept.
        float_types: The types for which the dialect has integer kernels.
    """
    return float_types if asked == AUTO or FLOAT_TYPES[asked] is Precision.FP32 else None


def wanted_type(asked: str, info: EngineInfo, source: Source) -> Precision | None:
    """Return the type to convert a model to; None if it stays as it is.

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
    """Convert a model and write it, if it is accurate enough and not slower.

    Converting the same model again writes the same file, so that a run can be resumed.

    Args:
        precision: The new type.
        source: The model.
        target: Where to write it.
        samples: Generates the inputs that it is evaluated on.
        engine: The engine that will run it.
        feeds: The inputs that it is timed on.
        least_db: Minimum SQNR of every output against the original model; None for no limit.
            Outputs that are no longer finite never pass.
        preset: How thoroughly it is compared with the original model.
        may_be_slower: Whether to accept it even if it is slower.

    Raises:
        EngineError: If the engine does not run the original model, either.
    """
    name = next(name for name, each in FLOAT_TYPES.items() if each is precision)
    try:
        model = source.model.clone()
        convert_precision(model, precision)
        save_model(model, target, force=True)
        check_result(target, source.path)
        given = LoadedFile.load(source.path)
        found, overflow = measured_error(given, LoadedFile(target, model), lambda _: samples())
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
    (as_given, converted), (compared,) = compare_files(
        engine, [source.path, target], feeds, rounds=rounds, budget_s=seconds
    )
    if not converted.ok:
        check_runs(engine, Path(source.path), feeds)
        return _as_given(f"in {name} the engine does not run it: {converted.error}")
    if compared is not None and compared.verdict is Verdict.SLOWER and not may_be_slower:
        return _as_given(f"in {name} it is slower, {compared.ratio:.2f}x as fast")
    if not as_given.ok:
        _logger.info("the engine runs the model in %s only: %s", name, as_given.error)
    is_known = worst is not None and math.isfinite(worst)
    speedup = compared.ratio if compared is not None else None
    return FloatForm(target, name, worst if is_known else None, speedup)


def _as_given(reason: str) -> FloatForm:
    first = reason.splitlines()[0].rstrip(".")
    _logger.warning("the model is tuned as given: %s", first)
    return FloatForm(reason=first)


def written_type(model: ir.Model) -> Precision:
    """Return the smallest float type of a model."""
    for dtype, precision in (
        (ir.DataType.FLOAT16, Precision.FP16),
        (ir.DataType.BFLOAT16, Precision.BF16),
    ):
        if has_types(model, {dtype}):
            return precision
    return Precision.FP32
