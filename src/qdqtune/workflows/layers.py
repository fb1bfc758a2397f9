"""The layers that an engine runs for a model, in terms of the model's nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from qdqtune.calibration.random_inputs import random_inputs
from qdqtune.engines import registry
from qdqtune.engines.custom_ops import advice_on
from qdqtune.engines.interface import SessionOptions
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.engines.layer_nodes import nodes_of_layers
from qdqtune.graph.dynamic_dims import measured_shapes
from qdqtune.graph.files import load_model
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.shapes import infer_shapes
from qdqtune.records.errors import EngineError
from qdqtune.records.inputs import InputRequest, ShapesOrRequest, request_of
from qdqtune.records.layers import LayersRecord
from qdqtune.workflows.arguments import check_arguments
from qdqtune.workflows.comparison import engine_info
from qdqtune.workflows.model_argument import AnyModel, as_file, name_of
from qdqtune.workflows.tuning.shape_ranges import (
    check_takes_ranges,
    options_with_ranges,
    timed_request,
)

DEFAULT_RUNS = 20

_SEE_BENCH = "`qdqtune bench` says whether it runs the model at all."


def layers_of(
    model: AnyModel,
    *,
    engine: str = registry.AUTO,
    engine_options: Mapping[str, str] | None = None,
    threads: int | None = None,
    runs: int = DEFAULT_RUNS,
    inputs: ShapesOrRequest | None = None,
    min_shapes: ShapesOrRequest | None = None,
    max_shapes: ShapesOrRequest | None = None,
) -> LayersRecord:
    """Run a model on random inputs, and report which of its nodes each layer executes.

    An engine that can't run models here may still build them; times are then missing.

    Args:
        model: A path, a proto or an `onnx_ir.Model`, float or with Q/DQ; it is run unchanged.
        engine: What runs it; ``auto`` is the first engine that can measure here.
        engine_options: The engine's own options.
        threads: Threads per run; None is the engine's default.
        runs: Number of runs for the times.
        inputs: Shapes by input, or a request with ranges and seed of the inputs, too.
        min_shapes: The smallest inputs to build for, as a request or as sizes by input; only for
            engines that support this.
        max_shapes: The largest ones.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    check_arguments(engine=engine, engine_options=engine_options, threads=threads, runs=runs)
    request = request_of(inputs) or InputRequest()
    least, most = request_of(min_shapes, "min_shapes"), request_of(max_shapes, "max_shapes")
    name = registry.resolve(engine, engine_options, only_layers=True)
    is_timed = registry.available(name, engine_options).usable
    check_takes_ranges(name, min_shapes, max_shapes)
    with as_file(model) as path:
        source = load_model(path)
        infer_shapes(source)
        index = GraphIndex(source)
        shapes = measured_shapes(source, timed_request(source, request, least, most))
        options = options_with_ranges(engine_options or {}, name, source, shapes, least, most)
        feeds = next(random_inputs(index, 1, replace(request, shapes=shapes, dims={})))
        with Worker(name, SessionOptions(threads, options)) as worker:
            info = engine_info(worker, name)
            try:
                opened = worker.open(path)
                worker.feed(opened, feeds)
                layers = worker.layers(opened, runs)
            except WorkerFailure as failure:
                raise EngineError(
                    f"{name} does not tell the layers of {path}: {str(failure).strip()}",
                    advice_on(failure, source, name, _SEE_BENCH),
                ) from None
        mapped = tuple(nodes_of_layers(index, layers))
    executed = {node for layer in mapped if layer.executes for node in layer.nodes}
    unexecuted = tuple(node.name or "" for node in index.nodes if node.name not in executed)
    return LayersRecord(name_of(model), info, runs, len(index.nodes), mapped, unexecuted, is_timed)
