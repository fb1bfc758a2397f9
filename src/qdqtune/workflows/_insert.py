"""`insert`: place Q/DQ by hand, in a float model or again in a quantized one."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from qdqtune._command_configs import InsertConfig
from qdqtune.calibration._instrumentation import observe_shapes, unknown_tensors
from qdqtune.engines._reference_engine import reference_worker
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._files import check_result, check_targets, save_model, write_text
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import HALF_TYPES
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import at_shapes
from qdqtune.options import configured_to_file
from qdqtune.qdq._dialect import Dialect
from qdqtune.qdq._encoding import is_kept, tells_range
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import merge
from qdqtune.qdq._quantization_planner import (
    Selection,
    select_dynamic,
    select_nodes,
    select_ops,
    select_tensors,
    translate,
)
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._quantization import InsertReport
from qdqtune.records._ranges import RangeMethod
from qdqtune.records._untrusted_files import parse_json, read_text
from qdqtune.workflows._accuracy_evaluator import (
    AccuracyEvaluator,
    engine_of_dialect,
    open_kernels,
)
from qdqtune.workflows._accuracy_fallback import Scaled
from qdqtune.workflows._arguments import (
    AnyModel,
    as_file,
    choose_dialect,
    in_form_of,
    output_file,
)
from qdqtune.workflows._progress_reporter import ProgressReporter
from qdqtune.workflows._sample_provider import (
    SampleProvider,
    check_method,
    ranges_in_every_way,
    sample_provider,
)
from qdqtune.workflows._source_model import Source, open_source

_logger = logging.getLogger(__name__)


@configured_to_file(InsertConfig)
def insert(
    model: AnyModel, output: str | os.PathLike[str] | None, config: InsertConfig
) -> InsertReport:
    """Quantize chosen ops, nodes or tensors of a model, with calibration.

    Existing Q/DQ are removed first. Their scales are kept wherever the dialect can express them;
    tensors without a scale are calibrated. If nothing is selected, the model's own placement is
    quantized again.

    Args:
        model: A path, a proto or an `onnx_ir.Model`, float or with Q/DQ.
        output: Where to write; required if `model` is a path.
        config: The settings; any of its fields can be given as a keyword instead.

    Returns:
        The report; its `model` has the same form as the input model.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    engine, dialect = choose_dialect(config.engine, config.dialect)
    reporter = ProgressReporter(config.callbacks)
    least_opset = dialect.format_of(config.quant_type).least_opset
    data, force, save_placement = config.calibration_data, config.force, config.save_placement
    with as_file(model) as path, output_file(model, output) as target:
        check_targets(target, save_placement, path, force=force)
        reporter.tell("model", f"reading and folding {path.name}")
        source = open_source(path, least_opset, config.float_type)
        check_method(config.range_method, data)
        provider = sample_provider(
            source, config.input_request, data, config.calibration_samples, config
        )
        with TemporaryFolder(target.parent) as folder:
            insertion = _Insertion(config, source, provider, engine, dialect, reporter)
            quantized, report = insertion.run(folder)
            save_model(quantized, target, force=force)
        if save_placement is not None:
            made_for = quantized.metadata_props["qdqtune.float_model"]
            write_text(save_placement, report.placement.to_json(made_for), force=force)
        written = target if output is not None else None
        return replace(report, output=written, model=in_form_of(model, target))


@dataclass(frozen=True)
class _Insertion:
    """A model, the selection to quantize, and how."""

    config: InsertConfig
    source: Source
    provider: SampleProvider
    engine: str
    dialect: Dialect
    reporter: ProgressReporter

    def run(self, folder: Path) -> tuple[ir.Model, InsertReport]:
        """Calibrate with every requested method, and return the most accurate result.

        Args:
            folder: The folder for candidates.
        """
        config, source, provider = self.config, self.source, self.provider
        layout = self.dialect.format_of(config.quant_type)
        selection = self._selection()
        attempts: dict[RangeMethod, Scaled] = {}
        with (
            reference_worker() as worker,
            open_kernels(engine_of_dialect(self.dialect, self.engine), worker) as kernels,
        ):
            base = PreparedModel(source.model, folder)
            if self.dialect.asks_for_shapes and unknown_tensors(base.index):
                observe_shapes(base, worker, next(iter(provider.evaluation_samples())))
                selection = self._selection()
            accuracy = AccuracyEvaluator(
                source, base, worker, provider.evaluation_samples, kernels=kernels
            )
            ways = ranges_in_every_way(
                source, base, worker, selection.placement, provider, layout, config.range_method,
                self.reporter.counter("calibration", "samples"),
            )  # fmt: skip
            first = next(iter(ways.values()))
            inserter = Inserter(base, self.dialect, config.quant_type, first, source.encodings)
            self.reporter.tell("accuracy", "comparing outputs with the float model")
            for way, ranges in ways.items():
                inserter = inserter.with_ranges(ranges)
                candidate = inserter.write(selection.placement, f"candidate_{way.value}")
                check_result(candidate, source.path)
                attempts[way] = Scaled(way.value, inserter, accuracy.quality(candidate))
            accuracy.close()
            best = max(attempts, key=lambda way: attempts[way].quality.worst_db)
            quantized = attempts[best].inserter.model(selection.placement)
        return quantized, self._report(base.index, selection, attempts, best)

    def _selection(self) -> Selection:
        source, config = self.source, self.config
        named = (config.ops, config.nodes, config.tensors, config.dynamic)
        is_chosen = any(named) or config.placement is not None
        with at_shapes(source.model, self.provider.shapes):
            index = GraphIndex(source.model)
            if is_chosen or source.reading is None:
                selection = select(index, self.dialect, config)
            elif self._is_same_language():
                nodes = sorted({edge.node for edge in source.reading.placement.edges if edge.node})
                selection = Selection(source.reading.placement, tuple(nodes))
            else:
                placement = source.reading.placement
                selection = translate(index, self.dialect, config.quant_type, placement)
        if selection.placement:
            return selection
        if config.placement is not None and not any(named):
            _logger.warning(
                "%s is empty, as a run that keeps the float model writes it: no Q/DQ is inserted",
                config.placement,
            )
            return selection
        reasons = "; ".join(sorted(set(selection.left_float.values())))
        hint = "Activations such as Relu are quantized as a part of the op before them."
        if config.dynamic:
            hint = "docs/guides/transformers.md lists what can be quantized at run time."
        if any(f"{dtype.name.lower()} tensors" in reasons for dtype in HALF_TYPES):
            hint = "Let its floats be float32: --high_precision_dtype fp32."
        raise UsageError(
            f"Nothing that was chosen can be quantized{': ' + reasons if reasons else ''}.", hint
        )

    def _is_same_language(self) -> bool:
        """Whether qdqtune wrote the file in exactly the requested dialect."""
        labels = self.source.labels
        written = (labels.get("qdqtune.dialect"), labels.get("qdqtune.quant_type"))
        return written == (self.dialect.name, self.config.quant_type)

    def _report(
        self,
        index: GraphIndex,
        selection: Selection,
        attempts: Mapping[RangeMethod, Scaled],
        best: RangeMethod,
    ) -> InsertReport:
        given, quant_type = self.source.encodings, self.config.quant_type
        layout = self.dialect.format_of(quant_type)
        known = [  # activations with a scale from the file
            given[name]
            for name in {edge.tensor for edge in index.effective(selection.placement)}
            if not index.is_constant(name) and name in given and tells_range(given[name])
        ]
        kept = sum(is_kept(each, layout.activation) for each in known)
        return InsertReport(
            output=None,
            dialect=self.dialect.name,
            quant_type=quant_type,
            quantized=selection.quantized,
            left_float=selection.left_float,
            placement=selection.placement,
            pairs=len(selection.placement.tensors),
            calibration=attempts[best].inserter.encoder.ranges.source,
            calibrated_on=self.provider.describe(),
            method=best,
            tried_db={way.value: each.quality.worst_db for way, each in attempts.items()},
            scales_kept=kept,
            ranges_kept=len(known) - kept,
            sqnr_db=attempts[best].quality.against_float,
            sqnr_given_db=attempts[best].quality.against_given,
        )


def select(index: GraphIndex, dialect: Dialect, config: InsertConfig) -> Selection:
    """Convert the selection to one placement.

    Raises:
        UsageError: If nothing was selected, or the model lacks part of the selection.
    """
    parts, dynamic = [], Selection(Placement())
    if config.dynamic:
        dynamic = _dynamic(index, dialect, config)
        parts.append(dynamic)
    if config.ops:
        left_out = frozenset(config.dynamic)
        parts.append(select_ops(index, dialect, config.ops, config.quant_type, left_out))
    if config.nodes:
        parts.append(select_nodes(index, dialect, config.nodes, config.quant_type))
    if config.tensors:
        parts.append(select_tensors(index, dialect, config.tensors))
    if config.placement is not None:
        parts.append(Selection(_read_placement(config.placement, index)))
    if not parts:
        raise UsageError(
            "Nothing was chosen to be quantized.",
            "Name op types (--ops Conv,MatMul), nodes, tensors, dynamic ops, or a placement file.",
        )
    for part in parts[1:] if config.dynamic else ():
        _check_forms(dynamic, part)
    left_float = {name: reason for part in parts for name, reason in part.left_float.items()}
    quantized = tuple(dict.fromkeys(name for part in parts for name in part.quantized))
    return Selection(merge(part.placement for part in parts), quantized, left_float)


def _dynamic(index: GraphIndex, dialect: Dialect, config: InsertConfig) -> Selection:
    """Return what `--dynamic` selects; nodes that are named elsewhere keep that form.

    Raises:
        UsageError: If something is named in two forms.
    """
    for flag, named in (("--ops", config.ops), ("--nodes", config.nodes)):
        for name in config.dynamic:
            if name in named:
                raise UsageError(
                    f"{name!r} is named by --dynamic and by {flag}.",
                    "An op is quantized at run time or by calibration: name it once.",
                )
    return select_dynamic(index, dialect, config.dynamic, config.quant_type, config.nodes)


def _check_forms(dynamic: Selection, other: Selection) -> None:
    """Make sure that no op is quantized at run time and by calibration.

    Raises:
        UsageError: If one is.
    """
    both = sorted(set(dynamic.quantized).intersection(other.quantized))
    if both:
        raise UsageError(
            f"The op {both[0]!r} is named by --dynamic, and would be calibrated with the rest.",
            "An op is quantized at run time or by calibration: name it once.",
        )


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
