"""`insert`: place Q/DQ by hand, in a float model or again in a quantized one."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from qdqtune.calibration._tensor_capture import observe_shapes, unknown_tensors
from qdqtune.config import InsertConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._reference_engine import reference_worker
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._files import check_result, check_targets, save_model, write_text
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._precision_types import HALF_TYPES
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import at_shapes
from qdqtune.options import configured_to_file
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._existing_scales import ReadEncoding, is_kept, tells_range
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import merge
from qdqtune.qdq._selection import Selection, select_nodes, select_ops, select_tensors, translate
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._placement import Placement
from qdqtune.records._precision import Precision
from qdqtune.records._quantization import InsertReport
from qdqtune.records._ranges import RangeMethod, Ranges
from qdqtune.records._untrusted_files import parse_json, read_text
from qdqtune.workflows._accuracy_evaluator import (
    AccuracyEvaluator,
    Quality,
    engine_of_dialect,
    open_kernels,
)
from qdqtune.workflows._arguments import AnyModel, as_file, in_form_of, output_file
from qdqtune.workflows._sample_provider import (
    Progress,
    check_method,
    ranges_in_every_way,
    sample_provider,
)
from qdqtune.workflows._source_model import Source, open_source

__all__ = ["Choice", "insert", "insert_qdq"]


_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """What the user selected to quantize; the fields add up.

    Attributes:
        ops: Op types.
        nodes: Node names.
        tensors: Tensor names.
        placement: A placement file, used unchanged.
    """

    ops: Sequence[str] = ()
    nodes: Sequence[str] = ()
    tensors: Sequence[str] = ()
    placement: str | os.PathLike[str] | None = None

    def __bool__(self) -> bool:
        return bool(self.ops or self.nodes or self.tensors or self.placement is not None)


def select(index: GraphIndex, dialect: Dialect, quant_type: str, choice: Choice) -> Selection:
    """Turn a selection into one placement.

    Raises:
        UsageError: If nothing was selected, or the model lacks something in the selection.
    """
    parts = []
    if choice.ops:
        parts.append(select_ops(index, dialect, choice.ops, quant_type))
    if choice.nodes:
        parts.append(select_nodes(index, dialect, choice.nodes, quant_type))
    if choice.tensors:
        parts.append(select_tensors(index, dialect, choice.tensors))
    if choice.placement is not None:
        parts.append(Selection(_read_placement(choice.placement, index)))
    if not parts:
        raise UsageError(
            "Nothing was chosen to be quantized.",
            "Name op types (--ops Conv,MatMul), nodes, tensors, or a placement file.",
        )
    left_float = {name: reason for part in parts for name, reason in part.left_float.items()}
    quantized = tuple(dict.fromkeys(name for part in parts for name in part.quantized))
    return Selection(merge(part.placement for part in parts), quantized, left_float)


def _read_placement(path: str | os.PathLike[str], index: GraphIndex) -> Placement:
    try:
        text = read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"The placement file {path} can't be read: {error}.", "Check the path."
        ) from None
    placement = Placement.from_json(text, str(path))
    made_for = parse_json(text, str(path)).get("model")
    if made_for and made_for != fingerprint(index.model):
        _logger.warning("%s was made for another model, or another version of this one", path)
    return placement


_NOTHING_SAID = InputRequest()


@configured_to_file(InsertConfig)
def insert(
    model: AnyModel, output: str | os.PathLike[str] | None, config: InsertConfig
) -> InsertReport:
    """Quantize chosen ops, nodes or tensors of a model, with calibration; see `insert_qdq`.

    Args:
        model: A path, a proto or an `onnx_ir.Model`, float or with Q/DQ.
        output: Where to write; required if `model` is a path.
        config: The settings; any of its fields can be given as a keyword instead.

    Returns:
        The report; its `model` has the same form as the input model.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    with as_file(model) as path, output_file(model, output) as target:
        report = insert_qdq(
            path,
            Choice(config.ops, config.nodes, config.tensors, config.placement),
            target,
            engine=config.engine,
            dialect=config.dialect,
            quant_type=config.quant_type,
            precision=config.float_type,
            inputs=config.input_request,
            data=config.calibration_data,
            samples=config.calibration_samples,
            method=config.range_method,
            save_placement=config.save_placement,
            force=config.force,
            progress=config.progress,
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
        data: Calibration data, as `qdqtune.calibration._sample_set.open_samples` takes it; None
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
