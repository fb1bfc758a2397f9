"""Write the layers of a float16 build to a file, as the autotuning guides require."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qdqtune.calibration.random_inputs import Feeds, random_inputs
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import Worker
from qdqtune.graph.dynamic_dims import measured_shapes
from qdqtune.graph.files import load_model, save_model
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.precision import convert_precision
from qdqtune.graph.shapes import infer_shapes
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.records.errors import EngineError
from qdqtune.records.inputs import InputRequest
from qdqtune.records.precision import FLOAT_TYPES, Precision
from qdqtune.workflows.benchmarks import TrtExecBenchmark
from qdqtune.workflows.comparison import engine_info
from qdqtune.workflows.source_model import open_source
from qdqtune.workflows.tuning.float_type import told_options, wanted_type
from qdqtune.workflows.tuning.folder import BUILD_LOG, LAYER_FILE
from qdqtune.workflows.tuning.layer_file import copy_log, write_layer_file

_FLOAT16 = next(name for name, each in FLOAT_TYPES.items() if each is Precision.FP16)
_HINT = "Give the fusion groups another way, or see `qdqtune doctor` and the log {}."


def generate_graph_json(
    onnx_path: str | os.PathLike[str],
    output_dir: str | os.PathLike[str],
    plugin_libraries: Sequence[str] | None = None,
    strongly_typed: bool = True,
    extra_trtexec_args: Sequence[str] | None = None,
) -> str:
    """Build a model once in float16 and write its layers.

    Args:
        onnx_path: The float model.
        output_dir: Where `MODEL.fp16.graph.json` and `MODEL.fp16.build.log` go.
        plugin_libraries: Libraries with custom ops to load.
        strongly_typed: Whether types are taken as written, if the version supports it: the model is
            converted to float16 first. Otherwise the engine chooses where to use float16.
        extra_trtexec_args: Further program arguments; those about shapes apply to the build.

    Returns:
        The path of the file with the layers, which `tune(graph_json=…)` takes.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    path, folder = Path(onnx_path), Path(output_dir)
    benchmark = guides_program(plugin_libraries, strongly_typed, extra_trtexec_args)
    load_model(path)  # a file that isn't a model is not the engine's fault
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / LAYER_FILE.format(path.stem, Precision.FP16.value)
    log = folder / BUILD_LOG.format(path.stem, Precision.FP16.value)
    target.unlink(missing_ok=True)
    with TemporaryFolder() as scratch:
        printed = scratch / "engine.log"
        options = SessionOptions(benchmark.threads, benchmark.engine_options)
        with Worker(benchmark.engine, options, log_path=printed) as worker:
            half = _in_half(path, worker, benchmark.engine, scratch)
            feeds = worker.store(_feeds(half, benchmark.inputs))
            is_written = write_layer_file(worker, half, feeds, target)
        copy_log(printed.parent / benchmark.engine / f"{half.stem}.log", log)
    if not is_written:
        raise EngineError(
            f"{benchmark.engine} writes no layers of {path}: it does not build the model.",
            _HINT.format(log),
        )
    return str(target)


def guides_program(
    plugin_libraries: Sequence[str] | None,
    strongly_typed: bool,
    extra_trtexec_args: Sequence[str] | None,
) -> TrtExecBenchmark:
    """Return the program that the guides measure with.

    Raises:
        EngineError: If it can't be used here.
    """
    benchmark = TrtExecBenchmark(
        plugin_libraries=plugin_libraries, trtexec_args=list(extra_trtexec_args or ())
    )
    if not strongly_typed:
        benchmark.engine_options["typing"] = "weak"
    return benchmark


def _in_half(path: Path, worker: Worker, engine: str, scratch: Path) -> Path:
    """Return the file to build: converted if the engine takes types as written."""
    info = engine_info(worker, engine)
    given: Mapping[str, str] = worker.options.engine_options
    worker.options = replace(
        worker.options, engine_options=dict(told_options(_FLOAT16, info, given))
    )
    source = open_source(path, optimize=False)
    if wanted_type(_FLOAT16, info, source) is None:
        return path
    convert_precision(source.model, Precision.FP16)
    return save_model(source.model, scratch / f"{path.stem}.onnx")


def _feeds(path: Path, inputs: InputRequest) -> Feeds:
    model = load_model(path)
    infer_shapes(model)
    request = replace(inputs, shapes=measured_shapes(model, inputs), dims={})
    return next(random_inputs(GraphIndex(model), 1, request))
