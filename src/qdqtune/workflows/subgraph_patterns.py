"""Subgraph mode in the words of the autotuning guides: one call, and a subgraph as a model."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from qdqtune.config import SUBGRAPH
from qdqtune.graph.extraction import Dims, extract
from qdqtune.graph.files import load_model, model_from_proto, save_model
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.graph.shapes import infer_shapes
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.records.errors import EngineError, UsageError
from qdqtune.workflows.benchmark_instance import current_benchmark
from qdqtune.workflows.graph_json import guides_program
from qdqtune.workflows.tune import tune

_Path = str | os.PathLike[str]


def subgraph_autotuning_workflow(
    model_path: _Path,
    output_dir: _Path,
    graph_json_path: _Path | None = None,
    quant_type: str = "int8",
    plugin_libraries: Sequence[str] | None = None,
    schemes_per_group: int | None = None,
    strongly_typed: bool = True,
    extra_trtexec_args: Sequence[str] | None = None,
    incremental_validation: bool = True,
    *,
    calibration_data: Any = None,
    seed: int = 0,
) -> str:
    """Tune a model along the engine's fusion groups: `qdqtune.tune(workflow="subgraph")`.

    It measures with the benchmark that `init_benchmark_instance` made. With `plugin_libraries`,
    `extra_trtexec_args` or `strongly_typed=False` it measures with the guides' program instead.

    Args:
        model_path: The float model.
        output_dir: Where everything is written.
        graph_json_path: A file with the layers of a build, as `generate_graph_json` writes it; None
            asks the engine.
        quant_type: One of the quant types of the engine's dialect.
        plugin_libraries: Libraries with custom ops to load.
        schemes_per_group: Measure at most so many candidates per pattern, taken together.
        strongly_typed: Whether the program takes types as written, where its version can.
        extra_trtexec_args: More arguments of the program.
        incremental_validation: Whether groups are tried one after the other on the whole model.
        calibration_data: As `qdqtune.tune` takes it; None is random.
        seed: Of the search and of random inputs.

    Returns:
        The path of the model that was chosen.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    asks_for_program = bool(plugin_libraries or extra_trtexec_args or not strongly_typed)
    benchmark = (
        guides_program(plugin_libraries, strongly_typed, extra_trtexec_args)
        if asks_for_program
        else current_benchmark()
    )
    if benchmark is None:
        raise EngineError(
            "There is nothing to measure with: the benchmark could not be made.",
            "See the log; call init_benchmark_instance with an engine that can measure here.",
        )
    result = tune(
        Path(model_path),
        engine=benchmark.engine,
        engine_options=benchmark.engine_options,
        threads=benchmark.threads,
        inputs=benchmark.inputs,
        workflow=SUBGRAPH,
        graph_json=graph_json_path if graph_json_path is None else Path(graph_json_path),
        incremental_validation=incremental_validation,
        schemes_per_region=schemes_per_group,
        quant_type=quant_type,
        calibration_data=calibration_data,
        seed=seed,
        output_dir=Path(output_dir),
    )
    return str(result.model)


def extract_subgraph(
    model: onnx.ModelProto | _Path,
    input_names: Sequence[str],
    output_names: Sequence[str],
    shapes: Mapping[str, Dims] | None = None,
) -> onnx.ModelProto:
    """Cut a subgraph out of a model, with the weights that it needs.

    Args:
        model: The model, or its file.
        input_names: Tensors that the subgraph begins with.
        output_names: Tensors that it ends with.
        shapes: Shapes of these tensors, where they are not those that the model tells.

    Raises:
        UsageError: If the model has no such tensor, or more than these inputs is needed.
        ModelError: If the subgraph can't be a model of its own.
    """
    loaded = model_from_proto(model) if isinstance(model, onnx.ModelProto) else load_model(model)
    infer_shapes(loaded)
    nodes = _between(GraphIndex(loaded), input_names, output_names)
    with TemporaryFolder() as folder:
        base = PreparedModel(loaded, folder)
        known = {name: base.index.shape(name) for name in (*input_names, *output_names)}
        dims: dict[str, Dims] = {name: dim for name, dim in known.items() if dim is not None}
        subgraph = extract(base, nodes, input_names, output_names, {**dims, **(shapes or {})})
        return onnx.load(save_model(subgraph, folder / "subgraph.onnx"))


def _between(index: GraphIndex, inputs: Sequence[str], outputs: Sequence[str]) -> set[str]:
    """The nodes that compute some tensors from others."""
    for name in (*inputs, *outputs):
        if name not in index.value:
            raise UsageError(f"The model has no tensor {name!r}.", "Tensors go by their names.")
    found: set[str] = set()
    tensors, seen = list(outputs), {*inputs, *outputs}
    while tensors:
        tensor = tensors.pop()
        node = index.value[tensor].producer()
        if node is None:
            raise UsageError(
                f"The subgraph also needs {tensor!r}.", "Name it among the subgraph's inputs."
            )
        found.add(node.name or "")
        read = [value.name for value in node.inputs if value is not None and value.name]
        more = [name for name in read if name not in seen and not index.is_constant(name)]
        seen.update(more)
        tensors += more
    return found
