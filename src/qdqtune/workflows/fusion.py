"""Divide a model into the subgraphs that an engine fuses, from its layers or a layer file."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from qdqtune.autotune.subgraphs.content import content_of
from qdqtune.autotune.subgraphs.fusion_groups import fusion_groups
from qdqtune.engines import registry
from qdqtune.engines.layer_files import WRITTEN_BY, map_layers, read_layer_info
from qdqtune.engines.native_dialect import native_dialect
from qdqtune.graph.files import load_model, save_model
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.input_shapes import resolve_shapes
from qdqtune.graph.shapes import at_shapes
from qdqtune.graph.temporary_files import TemporaryFolder
from qdqtune.qdq.dialect import Dialect
from qdqtune.qdq.quantization_planner import QuantizationPlanner
from qdqtune.records.errors import EngineError
from qdqtune.records.fusion import GroupRecord, GroupsRecord
from qdqtune.records.inputs import InputRequest, ShapesOrRequest, request_of
from qdqtune.records.layers import MappedLayer
from qdqtune.workflows.arguments import check_arguments
from qdqtune.workflows.layers import DEFAULT_RUNS, layers_of
from qdqtune.workflows.model_argument import AnyModel, as_file, name_of
from qdqtune.workflows.source_model import open_source
from qdqtune.workflows.tuning.layer_groups import check_mentions, spent_by_group
from qdqtune.workflows.tuning.shape_ranges import timed_request

_SHORT_KEY = 10


def groups_of(
    model: AnyModel,
    *,
    engine: str = registry.AUTO,
    engine_options: Mapping[str, str] | None = None,
    threads: int | None = None,
    runs: int = DEFAULT_RUNS,
    inputs: ShapesOrRequest | None = None,
    quant_type: str = "int8",
    graph_json: str | Path | None = None,
    min_shapes: ShapesOrRequest | None = None,
    max_shapes: ShapesOrRequest | None = None,
) -> GroupsRecord:
    """Divide a model into the subgraphs that an engine runs as one.

    Args:
        model: A path, a proto or an `onnx_ir.Model`; Q/DQ are removed first. It is cleaned up as
            for tuning; with `graph_json` it is taken unchanged.
        engine: The engine that runs it, and whose kernels decide what can be quantized; with
            `graph_json` only the latter, and ``auto`` is the engine that writes such files.
        engine_options: The engine's own options.
        threads: Threads per run; None is the engine's default.
        runs: Number of runs for the times.
        inputs: Shapes by input, or a request with ranges and seed of the inputs, too.
        quant_type: One of the dialect's quant types.
        graph_json: A file with the layers of a build of this model; nothing is run then.
        min_shapes: The smallest inputs to build for, as a request or as sizes by input; only for
            engines that support this.
        max_shapes: The largest ones.

    Raises:
        QdqtuneError: For any error that the user can act on.
    """
    check_arguments(
        engine=engine, engine_options=engine_options, threads=threads, runs=runs,
        quant_type=quant_type, graph_json=graph_json,
    )  # fmt: skip
    request = request_of(inputs) or InputRequest()
    least, most = request_of(min_shapes, "min_shapes"), request_of(max_shapes, "max_shapes")
    if graph_json is not None:
        with as_file(model) as path:
            found = _groups_of_file(str(path), engine, request, quant_type, os.fspath(graph_json))
        return replace(found, model=name_of(model))
    name = registry.resolve(engine, engine_options, only_layers=True)
    dialect = native_dialect(name, options=engine_options)
    with as_file(model) as path, TemporaryFolder() as folder:
        source = open_source(path, dialect.format_of(quant_type).least_opset)
        written = str(save_model(source.model, folder / "model.onnx"))
        try:
            ran = layers_of(
                written,
                engine=name,
                engine_options=engine_options,
                threads=threads,
                runs=runs,
                inputs=request,
                min_shapes=least,
                max_shapes=most,
            )
        except EngineError as error:
            raise EngineError(error.what.replace(written, name_of(model)), error.hint) from None
        timed = timed_request(source.model, request, least, most)
        with at_shapes(source.model, resolve_shapes(source.model, timed)):
            index = GraphIndex(source.model)
            groups = _records(index, dialect, quant_type, ran.layers, has_times=ran.is_timed)
    unmentioned = _unmentioned(index, ran.layers)
    shown = name_of(model)
    return GroupsRecord(shown, ran.engine, name, dialect.name, ran.nodes, unmentioned, groups)


def _groups_of_file(
    path: str, engine: str, inputs: InputRequest, quant_type: str, graph_json: str
) -> GroupsRecord:
    """Build the groups from a file with the model's node names: nothing may be folded."""
    dialect_choice = native_dialect(WRITTEN_BY if engine == registry.AUTO else engine)
    dialect_choice.format_of(quant_type)
    info = read_layer_info(graph_json)
    model = load_model(path)
    with at_shapes(model, resolve_shapes(model, inputs)):
        index = GraphIndex(model)
        layers = map_layers(index, info)
        check_mentions(index, layers, graph_json)
        groups = _records(index, dialect_choice, quant_type, layers, has_times=False)
    nodes, unmentioned = len(index.nodes), _unmentioned(index, layers)
    return GroupsRecord(path, None, graph_json, dialect_choice.name, nodes, unmentioned, groups)


def _records(
    index: GraphIndex,
    dialect: Dialect,
    quant_type: str,
    layers: Sequence[MappedLayer],
    *,
    has_times: bool,
) -> tuple[GroupRecord, ...]:
    units = QuantizationPlanner(index, dialect, quant_type).units
    groups = fusion_groups(index, layers)
    keys = [content_of(index, group.nodes).key for group in groups]
    alike = Counter(keys)
    spent = spent_by_group(groups, layers)
    total = sum(layer.ms for layer in layers) or 1.0
    return tuple(
        GroupRecord(
            number=group.number,
            nodes=group.nodes,
            op_types=tuple(index.node[name].op_type for name in group.nodes),
            layers=tuple(layers[number].name for number in group.layers),
            ms=ms if has_times else None,
            share=ms / total if has_times else None,
            structural=group.is_structural,
            quantizable=sum(name in units for name in group.nodes),
            alike=alike[key],
            key=key[:_SHORT_KEY],
        )
        for group, key, ms in zip(groups, keys, spent, strict=True)
    )


def _unmentioned(index: GraphIndex, layers: Sequence[MappedLayer]) -> int:
    mentioned = {name for layer in layers for name in layer.nodes}
    return sum(node.name not in mentioned for node in index.nodes)
