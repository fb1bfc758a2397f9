"""Shapes taken from a run, where inference can't tell them."""

from __future__ import annotations

import onnx
import onnx_ir as ir
from onnx.helper import make_node, make_tensor_value_info

from qdqtune.calibration.random_inputs import Feeds
from qdqtune.engines.custom_ops import advice_on
from qdqtune.engines.isolated import Worker, WorkerFailure
from qdqtune.engines.reference_engine import AS_WRITTEN
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.prepared_model import PreparedModel
from qdqtune.records.errors import EngineError

_OTHER_SHAPES = "Check the input shapes: --shapes, --dim."


def observe_shapes(base: PreparedModel, worker: Worker, feeds: Feeds) -> dict[str, tuple[int, ...]]:
    """Run the model once and note the shapes that are not known yet.

    They are written into the index's values, but not into the graph's own outputs: those stay as
    open as they are. Inside `graph.shapes.at_shapes` the values are put back at its end.

    Args:
        base: The model.
        worker: Of the reference engine.
        feeds: One set of inputs.

    Returns:
        The shapes found, by tensor; tensors in control-flow bodies are not among them.

    Raises:
        EngineError: If the model does not run.
    """
    unknown = unknown_tensors(base.index)
    if not unknown:
        return {}
    path = base.write_for_now(_with_shapes(base, unknown).SerializeToString(), "shapes")
    try:
        opened = worker.open(path, AS_WRITTEN)
        outputs = worker.run(opened, feeds)
        worker.release(opened)
    except WorkerFailure as failure:
        raise EngineError(
            f"The model does not run, so its shapes can't be taken from a run: {failure}",
            advice_on(failure, base.index.model, worker.engine, _OTHER_SHAPES),
        ) from None
    finally:
        path.unlink(missing_ok=True)
    found = {
        tensor: tuple(int(size) for size in outputs[_output(position)])
        for position, tensor in enumerate(unknown)
    }
    for tensor, shape in found.items():
        if tensor not in base.index.outputs:
            base.index.value[tensor].shape = ir.Shape(shape)
    return found


def unknown_tensors(index: GraphIndex) -> list[str]:
    """Every computed tensor of the main graph whose shape is not wholly known."""
    return [
        value.name
        for node in index.nodes
        for value in node.outputs
        if value.name and _is_tensor(value) and not _is_known(index.shape(value.name))
    ]


def _is_known(shape: tuple[int | None, ...] | None) -> bool:
    return shape is not None and all(size is not None and size >= 0 for size in shape)


def _is_tensor(value: ir.Value) -> bool:
    return value.type is None or isinstance(value.type, ir.TensorType)


def _output(position: int) -> str:
    return f"qdqtune_shape_{position}"


def _with_shapes(base: PreparedModel, tensors: list[str]) -> onnx.ModelProto:
    """The base with the tensors' shapes as its only outputs."""
    proto: onnx.ModelProto = onnx.ModelProto.FromString(base.whole())
    graph = proto.graph
    del graph.output[:]
    for position, tensor in enumerate(tensors):
        name = _output(position)
        graph.node.append(make_node("Shape", [tensor], [name], name=name))
        graph.output.append(make_tensor_value_info(name, onnx.TensorProto.INT64, [None]))
    return proto
