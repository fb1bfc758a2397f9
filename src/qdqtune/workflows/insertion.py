"""Place Q/DQ by hand, in a float model or again in a quantized one."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qdqtune.calibration.observed_shapes import observe_shapes, unknown_tensors
from qdqtune.engines import registry
from qdqtune.engines.native_dialect import native_dialect
from qdqtune.engines.reference_engine import reference_worker
from qdqtune.graph.files import check_result, check_targets, save_model, write_text
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.precision_types import HALF_TYPES
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.graph.shapes import at_shapes
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.dialects import dialect_named
from qdqtune.qdq.existing_scales import is_kept, tells_range
from qdqtune.qdq.insert import Inserter
from qdqtune.qdq.read_result import ReadEncoding
from qdqtune.qdq.selection import Selection
from qdqtune.qdq.translate import translate
from qdqtune.records.errors import UsageError
from qdqtune.records.inputs import InputRequest, ShapesOrRequest, request_of
from qdqtune.records.insertion import InsertReport
from qdqtune.records.placement import Placement
from qdqtune.records.precision import Precision, precision_named
from qdqtune.records.ranges import RangeMethod, Ranges, method_named
from qdqtune.workflows.accuracy_evaluator import (
    AccuracyEvaluator,
    Quality,
    engine_of_dialect,
    open_kernels,
)
from qdqtune.workflows.arguments import check_arguments
from qdqtune.workflows.manual_selection import Choice, select
from qdqtune.workflows.model_argument import AnyModel, as_file, in_form_of, output_file
from qdqtune.workflows.sample_provider import (
    Progress,
    check_method,
    ranges_in_every_way,
    sample_provider,
)
from qdqtune.workflows.source_model import (
    Source,
    open_source,
)

__all__ = ["Choice", "insert", "insert_qdq"]

_logger = logging.getLogger(__name__)

_NOTHING_SAID = InputRequest()


def insert(
    model: AnyModel,
    output: str | os.PathLike[str] | None = None,
    *,
    ops: Sequence[str] = (),
    nodes: Sequence[str] = (),
    tensors: Sequence[str] = (),
    placement: str | os.PathLike[str] | None = None,
    engine: str = registry.AUTO,
    dialect: str | None = None,
    quant_type: str = "int8",
    high_precision_dtype: Precision | str | None = None,
    inputs: ShapesOrRequest | None = None,
    calibration_data: Any = None,
    calibration_samples: int | None = None,
    calibration_method: RangeMethod | str | None = None,
    save_placement: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> InsertReport:
    """Quantize chosen ops, nodes or tensors of a model, with calibration; see `insert_qdq`.

    Args:
        model: A path, a proto or an `onnx_ir.Model`, float or with Q/DQ.
        output: Where to write; required if `model` is a path.
        ops: Op types to quantize; these four arguments add up.
        nodes: Names of nodes.
        tensors: Names of tensors.
        placement: A placement file, used unchanged.
        engine: The engine whose dialect to write; it need not be installed.
        dialect: A dialect by name, instead of the engine's own on this machine.
        quant_type: One of the dialect's quant types.
        high_precision_dtype: The float type of what isn't quantized; None is the model's own.
        inputs: Shapes by input, or a request with ranges and seed of random inputs, too.
        calibration_data: As `qdqtune.calibration.open_samples` takes it; None is random.
        calibration_samples: The maximum number of samples to use.
        calibration_method: ``max``, ``entropy``, ``percentile`` or ``mse``; None takes the best.
        save_placement: Where to write the placement, too.
        force: Whether files may be replaced.
        progress: Called with the samples calibrated and their number, if known.

    Returns:
        The report; its `model` has the same form as the input model.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    check_arguments(
        output=output, ops=ops, nodes=nodes, tensors=tensors, placement=placement, engine=engine,
        dialect=dialect, quant_type=quant_type, calibration_samples=calibration_samples,
        save_placement=save_placement, force=force, progress=progress,
    )  # fmt: skip
    with as_file(model) as path, output_file(model, output) as target:
        report = insert_qdq(
            path,
            Choice(ops, nodes, tensors, placement),
            target,
            engine=engine,
            dialect=dialect,
            quant_type=quant_type,
            precision=precision_named(high_precision_dtype),
            inputs=request_of(inputs) or InputRequest(),
            data=calibration_data,
            samples=calibration_samples,
            method=method_named(calibration_method),
            save_placement=save_placement,
            force=force,
            progress=progress,
        )
        written = report.output if output is not None else None
        return replace(report, output=written, model=in_form_of(model, target))


def insert_qdq(
    model: str | Path,
    choice: Choice,
    output: str | Path,
    *,
    engine: str = registry.AUTO,
    dialect: str | None = None,
    quant_type: str = "int8",
    precision: Precision | None = None,
    inputs: InputRequest = _NOTHING_SAID,
    data: Any = None,
    samples: int | None = None,
    method: RangeMethod | None = None,
    save_placement: str | os.PathLike[str] | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> InsertReport:
    """Quantize the selection, with calibration, and write the model.

    Existing Q/DQ are removed first. Their scales are kept wherever the dialect can express them;
    tensors without a scale are calibrated. If nothing is selected, what was quantized in the model
    is quantized again.

    Args:
        model: A float or Q/DQ model.
        choice: What to quantize.
        output: Where to write.
        engine: The engine whose dialect to write; it need not be installed.
        dialect: A dialect by name, instead of the engine's own on this machine.
        quant_type: One of the dialect's quant types.
        precision: The float type of everything that isn't quantized; None is the model's own.
        inputs: Shapes to calibrate at; ranges and seed of random inputs.
        data: Calibration data, as `qdqtune.calibration.sample_set.open_samples` takes it; None
            is random.
        samples: The maximum number of samples to use.
        method: How ranges follow from the data; None tries every method and takes the one closest
            to the float model. Random inputs always use the full range.
        save_placement: Where to write the placement, too.
        force: Whether files may be replaced.
        progress: Called with the samples calibrated and their number, if known.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    if engine == registry.AUTO and not dialect:
        engine = registry.resolve(engine)
    dialect_choice = dialect_named(dialect) if dialect else native_dialect(engine)
    layout = dialect_choice.format_of(quant_type)
    check_targets(output, save_placement, model, force=force)
    source = open_source(model, layout.least_opset, precision)
    check_method(method, data)
    provider = sample_provider(source, inputs, data, samples)
    selection = _selection(source, provider.shapes, dialect_choice, quant_type, choice)
    room = TemporaryFolder(Path(output).parent)
    with (
        room as folder,
        reference_worker() as worker,
        open_kernels(engine_of_dialect(dialect_choice, engine), worker) as kernels,
    ):
        base = PreparedModel(source.model, folder)
        if dialect_choice.asks_for_shapes and unknown_tensors(base.index):
            observe_shapes(base, worker, next(iter(provider.evaluation_samples())))
            selection = _selection(source, provider.shapes, dialect_choice, quant_type, choice)
        given = source.reading.encodings if source.reading is not None else {}
        accuracy = AccuracyEvaluator(
            source, base, worker, provider.evaluation_samples, kernels=kernels
        )
        attempts: list[_Attempt] = []
        for way, ranges in ranges_in_every_way(
            source, base, worker, selection.placement, provider, layout, method, progress
        ):
            inserter = (
                attempts[0].inserter.with_ranges(ranges)
                if attempts
                else Inserter(base, dialect_choice, quant_type, ranges, given)
            )
            candidate = inserter.write(selection.placement, f"candidate_{way.value}")
            check_result(candidate, Path(model))
            attempts.append(_Attempt(way, ranges, inserter, accuracy.quality(candidate)))
        accuracy.close()
        best = max(attempts, key=lambda attempt: attempt.worst_db)
        quantized = best.inserter.model(selection.placement)
        written = save_model(quantized, output, force=force)
    if save_placement is not None:
        made_for = quantized.metadata_props["qdqtune.float_model"]
        write_text(save_placement, selection.placement.to_json(made_for), force=force)
    known = _given_tensors(base.index, selection.placement, given)
    kept = [name for name in known if is_kept(given[name], layout.activation)]
    return InsertReport(
        output=written,
        dialect=dialect_choice.name,
        quant_type=quant_type,
        quantized=selection.quantized,
        left_float=selection.left_float,
        placement=selection.placement,
        pairs=len(selection.placement.tensors),
        calibration=best.ranges.source,
        calibrated_on=provider.describe(),
        method=best.method,
        tried_db={attempt.method.value: attempt.worst_db for attempt in attempts},
        scales_kept=len(kept),
        ranges_kept=len(known) - len(kept),
        sqnr_db=best.quality.against_float,
        sqnr_given_db=best.quality.against_given,
    )


@dataclass(frozen=True)
class _Attempt:
    """One way to choose ranges, and its result."""

    method: RangeMethod
    ranges: Ranges
    inserter: Inserter
    quality: Quality

    @property
    def worst_db(self) -> float:
        return self.quality.worst_db


def _selection(
    source: Source,
    shapes: Mapping[str, tuple[int, ...]],
    dialect: Dialect,
    quant_type: str,
    choice: Choice,
) -> Selection:
    with at_shapes(source.model, shapes):
        index = GraphIndex(source.model)
        if choice or source.reading is None:
            selection = select(index, dialect, quant_type, choice)
        elif _same_language(source, dialect, quant_type):
            nodes = sorted({edge.node for edge in source.reading.placement.edges if edge.node})
            selection = Selection(source.reading.placement, tuple(nodes))
        else:
            selection = translate(index, dialect, quant_type, source.reading.placement)
    if selection.placement:
        return selection
    reasons = "; ".join(sorted(set(selection.left_float.values())))
    hint = "Activations such as Relu are quantized as a part of the op before them."
    left = " ".join(selection.left_float.values())
    if any(f"{dtype.name.lower()} tensors" in left for dtype in HALF_TYPES):
        hint = "Let its floats be float32: --high_precision_dtype fp32."
    raise UsageError(
        f"Nothing of what was chosen can be quantized{': ' + reasons if reasons else ''}.", hint
    )


def _same_language(source: Source, dialect: Dialect, quant_type: str) -> bool:
    """Whether qdqtune wrote the file in exactly the requested dialect."""
    labels = source.labels
    written = (labels.get("qdqtune.dialect"), labels.get("qdqtune.quant_type"))
    return written == (dialect.name, quant_type)


def _given_tensors(
    index: GraphIndex, placement: Placement, given: Mapping[str, ReadEncoding]
) -> list[str]:
    """Return the activations of a placement that already have a scale."""
    tensors = {edge.tensor for edge in index.effective(placement)}
    return [
        name
        for name in tensors
        if not index.is_constant(name) and name in given and tells_range(given[name])
    ]
