"""Attributes the latency of a model to its ops, and that of a subgraph to its work and borders."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.engines.layers._naming import SERVICES, fits
from qdqtune.engines.layers._wiring import LayerWiring
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import (
    DEQUANTIZE,
    QDQ_OPS,
    QUANTIZE,
    WEIGHTED_OPS,
    is_op,
    weight_axis,
)
from qdqtune.records._layers import BETWEEN, MappedLayer
from qdqtune.records._measurement import LayerTime

# Below this, the known layers are no better than an estimate from sizes.
_LEAST_KNOWN = 0.5

_OUTPUT_OF = " output "
_FLOATS = frozenset({"float32", "bfloat16", "float16"})


def shares_of_latency(index: GraphIndex, layers: Sequence[LayerTime]) -> dict[str, float]:
    """Return the share of the latency that each node accounts for, where known.

    Ops fused into the layer of another op (a Relu in a Conv) are counted with that op.

    Args:
        index: The float model.
        layers: The layers that the engine reported; empty if it can't.

    Returns:
        Node name to a share; the shares of known nodes add up to at most 1.
    """
    spent: dict[str, float] = {}
    total = 0.0
    for layer in nodes_of_layers(index, layers):
        total += layer.ms
        names = _responsible(index, layer)
        for name in names:
            spent[name] = spent.get(name, 0.0) + layer.ms / len(names)
    if total <= 0.0 or sum(spent.values()) < _LEAST_KNOWN * total:
        return estimated_shares(index)
    return {name: ms / total for name, ms in spent.items()}


def estimated_shares(index: GraphIndex) -> dict[str, float]:
    """Estimate shares from sizes: multiplications of weighted ops, and values read and written."""
    work = {node.name or "": _work(index, node) for node in index.nodes}
    total = sum(work.values())
    return {name: value / total for name, value in work.items()} if total else {}


def _responsible(index: GraphIndex, layer: MappedLayer) -> list[str]:
    """Return the main nodes of a layer: the rest was fused into them."""
    weighted = [name for name in layer.nodes if is_op(index.node[name], *WEIGHTED_OPS)]
    fitting = [name for name in layer.nodes if fits(layer.op_type, index.node[name].op_type)]
    return weighted or fitting or list(layer.nodes)


def _work(index: GraphIndex, node: ir.Node) -> float:
    sizes = [_size(index, value) for value in (*node.inputs, *node.outputs)]
    moved = float(sum(sizes))
    if not is_op(node, *WEIGHTED_OPS) or len(node.inputs) < 2 or node.inputs[1] is None:
        return moved
    weight = index.shape(node.inputs[1].name or "") or ()
    channels = weight[weight_axis(node)] if len(weight) > 1 else 1
    batch = math.prod(dim or 1 for dim in weight[:-2]) if is_op(node, "MatMul") else 1
    per_value = _size(index, node.inputs[1]) / ((channels or 1) * batch)
    return moved + _size(index, node.outputs[0]) * per_value / 8.0


def _size(index: GraphIndex, value: ir.Value | None) -> int:
    shape = index.shape(value.name) if value is not None and value.name else None
    return math.prod(dim or 1 for dim in shape) if shape else 0


@dataclass
class Borders:
    """The time of a subgraph, split into parts.

    Attributes:
        inside_ms: Its work, including every Q and DQ that is not at a border.
        conversion_ms: By input or output: Q and DQ at that border.
        layout_ms: By input or output: layout changes at that border, including conversions to and
            from the float type that the engine computes in.
    """

    inside_ms: float = 0.0
    conversion_ms: dict[str, float] = field(default_factory=dict)
    layout_ms: dict[str, float] = field(default_factory=dict)

    @property
    def total_ms(self) -> float:
        """The total time."""
        borders = (*self.conversion_ms.values(), *self.layout_ms.values())
        return self.inside_ms + sum(borders)


def split_at_borders(
    index: GraphIndex,
    layers: Sequence[LayerTime],
    inputs: Collection[str],
    outputs: Collection[str],
) -> Borders:
    """Split the time of a subgraph.

    Args:
        index: The subgraph as opened, with its Q and DQ.
        layers: The layers that the engine reported.
        inputs: The subgraph's inputs.
        outputs: The subgraph's outputs.
    """
    mapped = nodes_of_layers(index, layers)
    wires = LayerWiring(layers)
    known: dict[int, str] = {}
    serving: list[int] = []
    for number, (layer, named) in enumerate(zip(layers, mapped, strict=True)):
        is_service = layer.op_type in SERVICES or named.how == BETWEEN
        can_be = named.executes or is_service
        border = _conversion_at(index, named, inputs, outputs) if can_be else ""
        if border:
            known[number] = border
        elif is_service:
            serving.append(number)
    for number in serving:
        before = [_before(tensor, known, wires) for tensor in layers[number].inputs]
        if at_input := [border for border in before if border in inputs]:
            known[number] = at_input[0]
    for number in reversed(serving):
        if number not in known and layers[number].outputs:
            readers = [known.get(reader, "") for reader in wires.fed(number)]
            known[number] = _behind(layers[number], readers, outputs)
    found = Borders()
    for number, layer in enumerate(layers):
        border = known.get(number, "")
        if not border:
            found.inside_ms += layer.ms
            continue
        types = {layers[each].precision for each in (number, *wires.fed(number))}
        # Q and DQ convert types, other than between floats.
        is_qdq = mapped[number].converts and (mapped[number].executes or not types <= _FLOATS)
        spent = found.conversion_ms if is_qdq else found.layout_ms
        spent[border] = spent.get(border, 0.0) + layer.ms
    return found


def _before(tensor: str, known: Mapping[int, str], wires: LayerWiring) -> str:
    """Return the border of the layer that writes a tensor, or the tensor if none does."""
    maker = wires.producer.get(tensor)
    # Engines add a suffix to the name of an input.
    return tensor.partition(_OUTPUT_OF)[0] if maker is None else known.get(maker, "")


def _behind(layer: LayerTime, readers: Sequence[str], outputs: Collection[str]) -> str:
    """Return the output that a layer precedes; empty if it precedes none.

    Args:
        layer: The layer.
        readers: The borders of the layers that read from it; empty for those at none.
        outputs: The subgraph's outputs.
    """
    if not readers:
        name = f"{layer.name} {' '.join(layer.outputs)}"
        named = [tensor for tensor in outputs if tensor in name]
        return max(named, key=len, default="") or next(iter(outputs), "")
    return readers[0] if set(readers) == {readers[0]} and readers[0] in outputs else ""


def _conversion_at(
    index: GraphIndex, layer: MappedLayer, inputs: Collection[str], outputs: Collection[str]
) -> str:
    """Return the border of the Q/DQ that a layer executes or serves; empty if it does more."""
    if not layer.nodes or not QDQ_OPS.issuperset(layer.node_types):
        return ""
    for name in layer.nodes:
        node = index.node[name]
        read = node.inputs[0].name if node.inputs[0] is not None else ""
        if node.op_type == QUANTIZE and read in inputs:
            return read or ""
    for name in reversed(layer.nodes):
        node = index.node[name]
        if node.op_type == DEQUANTIZE and node.outputs[0].name in outputs:
            return node.outputs[0].name or ""
    return ""
