"""Find where a quantized model loses accuracy, by comparing outputs and layers with float."""

from __future__ import annotations

import contextlib
import logging
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import onnx_ir as ir

from qdqtune._command_configs import CompareConfig
from qdqtune.calibration._expected_inputs import expected_inputs
from qdqtune.calibration._layer_errors import Wiring, op_errors
from qdqtune.calibration._layer_errors_pairs import Pairing
from qdqtune.calibration._output_error import Reference
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.calibration._sample_set import open_samples
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._reference_engine import AS_WRITTEN, advice_on, reference_worker
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._measured_shapes import measured_shapes
from qdqtune.graph._op_classes import DEQUANTIZE, is_op
from qdqtune.graph._shapes import infer_shapes
from qdqtune.options import configured_on_pair
from qdqtune.qdq._dynamic import find_dynamic_ops
from qdqtune.qdq._insert import CORRECTED_BIASES
from qdqtune.qdq._read_back import mentioned
from qdqtune.qdq._smoothing import SMOOTHED_INPUTS
from qdqtune.records._accuracy import ErrorReport, LayerError, OutputError
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.records._ranges import CalibrationSource
from qdqtune.workflows._accuracy_evaluator import Kernels, kernels_of
from qdqtune.workflows._arguments import AnyModel, as_file, name_of
from qdqtune.workflows._bench import common_request, engine_info, signature
from qdqtune.workflows._progress_reporter import ProgressReporter
from qdqtune.workflows._source_model import float32_twin, has_types

_logger = logging.getLogger(__name__)

_OTHER_INPUTS = "Feed it with what it gets in use; of open dims, not all sizes may be possible."
_RANDOM_SAMPLES = 8
_ROUNDS = {Wiring.OWN: "error of each op alone", Wiring.ACCUMULATED: "accumulated error"}
_MOST_SAMPLES = 32

_Samples = Callable[[], Iterable[Feeds]]


@configured_on_pair(CompareConfig)
def compare(float_model: AnyModel, quantized_model: AnyModel, config: CompareConfig) -> ErrorReport:
    """Run both models on the same inputs, and report the quantized one's errors and their origin.

    Layers are always run as written, because an engine fuses them.

    Args:
        float_model: A path, a proto or an `onnx_ir.Model`; one in memory is not changed.
        quantized_model: A Q/DQ version of it, from any tool; of a float version, only outputs are
            compared.
        config: The settings; any of its fields can be given as a keyword instead.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    name = _with_kernels(config.engine)
    options = SessionOptions(threads=config.threads, engine_options=config.engine_options or {})
    with contextlib.ExitStack() as stack:
        reporter = ProgressReporter(config.callbacks)
        reporter.tell("model", "reading the models")
        original = _open(stack.enter_context(as_file(float_model, "float_model")))
        quantized = _open(stack.enter_context(as_file(quantized_model, "quantized_model")))
        _check_roles(original, quantized)
        source, samples, describe = _samples(original, quantized, config)
        runner = stack.enter_context(reference_worker())
        room = stack.enter_context(tempfile.TemporaryDirectory(dir=runner.scratch))
        worker = runner if name is None else stack.enter_context(Worker(name, options))
        info = engine_info(worker, worker.engine)
        kernels = Kernels(worker.engine, worker, AS_WRITTEN)
        if name is not None:
            kernels = kernels_of(worker, worker, info)
        reporter.tell("outputs", f"running both models on {describe()}")
        outputs = _outputs(original, quantized, kernels, samples, Path(room))
        pairing = Pairing(original.model, quantized.model)
        if not outputs and not pairing.ops:
            raise UsageError(
                f"{original.name} and {quantized.name} have no output and no quantized op in "
                "common, by name.",
                "Is one made from the other?",
            )
        layers: tuple[LayerError, ...] = ()
        failure = ""
        try:
            own, accumulated = (
                op_errors(
                    runner,
                    pairing,
                    wiring,
                    samples(),
                    Path(room),
                    reporter.counter("layers", f"samples, {what}"),
                )
                for wiring, what in _ROUNDS.items()
            )
            layers = tuple(LayerError(error, accumulated.get(node)) for node, error in own.items())
        except EngineError as error:
            if name is None:
                raise
            failure = error.what
    return ErrorReport(
        float_model=name_of(float_model, "float_model"),
        quantized_model=name_of(quantized_model, "quantized_model"),
        engine=info,
        as_written=name is None,
        source=source,
        samples=describe(),
        outputs=outputs,
        layers=layers,
        unpaired=tuple(node.name or "" for node in pairing.unpaired),
        failure=failure,
        corrected_biases=mentioned(quantized.model, CORRECTED_BIASES),
        smoothed_inputs=mentioned(quantized.model, SMOOTHED_INPUTS),
    )


def _with_kernels(engine: str | None) -> str | None:
    """Return the engine with this name, if it computes outputs."""
    name = registry.resolve(engine) if engine is not None else None
    if name is not None and not registry.entry(name).measures:
        raise EngineError(
            f"{registry.title(name)} has no kernels that could compute the outputs.",
            "Leave --engine out, or name another one.",
        )
    return name


@dataclass(frozen=True)
class _Opened:
    """A model and its file."""

    path: Path
    model: ir.Model

    @property
    def name(self) -> str:
        return str(self.path)


def _open(path: Path) -> _Opened:
    return _Opened(path, load_model(path))


def _check_roles(original: _Opened, quantized: _Opened) -> None:
    def is_quantized(model: ir.Model) -> bool:
        nodes = (node for graph in model.graphs() for node in graph)
        return any(is_op(node, DEQUANTIZE) for node in nodes) or any(find_dynamic_ops(model.graph))

    if is_quantized(quantized.model):
        return
    if is_quantized(original.model):
        raise UsageError(
            f"{quantized.name} has no DequantizeLinear and no dynamic op, and {original.name} has.",
            "Name the float model first.",
        )
    _logger.warning(
        "%s has no DequantizeLinear and no dynamic op: only outputs are compared", quantized.name
    )


def _samples(
    original: _Opened, quantized: _Opened, config: CompareConfig
) -> tuple[CalibrationSource, _Samples, Callable[[], str]]:
    """Return the source of the inputs, a generator for them, and a function that describes them."""
    model, request, limit = original.model, config.input_request, config.samples
    infer_shapes(model)
    both = [signature(each.name, each.model) for each in (original, quantized)]
    known = common_request(both, request)
    if config.data is None:
        count = limit or _RANDOM_SAMPLES
        index = GraphIndex(model)
        shapes = measured_shapes(model, known, takes_data=True)
        fixed = replace(request, shapes=shapes, dims={})
        words = f"{count} random sample{'s' * (count != 1)}, seed {request.seed}"
        return CalibrationSource.RANDOM, lambda: random_inputs(index, count, fixed), lambda: words
    expected = [
        replace(each, dims=known.shapes.get(each.name, each.dims))
        for each in expected_inputs(model)
    ]
    found = open_samples(
        config.data, expected, limit=limit or _MOST_SAMPLES, images=config, model=original.path
    )
    return CalibrationSource.DATA, lambda: found, found.describe


def _outputs(
    original: _Opened, quantized: _Opened, kernels: Kernels, samples: _Samples, folder: Path
) -> tuple[OutputError, ...]:
    """Return the errors of the outputs; each model is run alone."""
    running = original
    try:
        path = _runnable(original, folder / "float.onnx", kernels.engine)
        exact = kernels.exact_options or kernels.options
        reference = Reference(kernels.worker, path, samples(), options=exact)
        with contextlib.closing(reference):
            running = quantized
            path = _runnable(quantized, folder / "quantized.onnx", kernels.engine)
            return reference.compare(path, kernels.options).errors()
    except WorkerFailure as failure:
        raise EngineError(
            f"{registry.title(kernels.engine)} does not run {running.name}: {failure}",
            advice_on(failure, running.model, kernels.engine, _OTHER_INPUTS),
        ) from None


def _runnable(opened: _Opened, path: Path, engine: str) -> Path:
    """Return the model as a file that the engine can run: the original one if possible."""
    model = opened.model
    if not registry.entry(engine).runs_bfloat16 and has_types(model, {ir.DataType.BFLOAT16}):
        return save_model(float32_twin(model), path)
    return opened.path
