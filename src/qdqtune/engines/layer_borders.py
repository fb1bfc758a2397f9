"""Splits the time of an extracted subgraph into its work and the cost of its borders.

In isolation, a subgraph starts and ends with floats in a plain layout. The whole model pays for
converting them to the form its kernels need, and back, only where a neighbour uses another form.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from qdqtune.engines.layer_kinds import SERVICES
from qdqtune.engines.layer_nodes import nodes_of_layers
from qdqtune.graph.index import GraphIndex
from qdqtune.graph.op_classes import DEQUANTIZE, QDQ_OPS, QUANTIZE
from qdqtune.records.layers import BETWEEN, MappedLayer
from qdqtune.records.measurement import LayerTime

_OUTPUT_OF = " output "
_FLOATS = frozenset({"float32", "bfloat16", "float16"})


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
    found = Borders()
    mapped = nodes_of_layers(index, layers)
    at = _Places(layers, mapped, inputs, outputs)
    serving: list[int] = []
    for number, (layer, named) in enumerate(zip(layers, mapped, strict=True)):
        is_service = layer.op_type in SERVICES or named.how == BETWEEN
        can_be = named.executes or is_service
        border = _conversion_at(index, named, inputs, outputs) if can_be else ""
        if border:
            at.known[number] = border
        elif is_service:
            serving.append(number)
    for number in serving:
        at.look_before(number)
    for number in reversed(serving):
        at.look_behind(number)
    for number, layer in enumerate(layers):
        border = at.known.get(number, "")
        if not border:
            found.inside_ms += layer.ms
            continue
        spent = found.conversion_ms if at.is_conversion(number) else found.layout_ms
        spent[border] = spent.get(border, 0.0) + layer.ms
    return found


class _Places:
    """The borders of a subgraph at which layers without computation are located."""

    def __init__(
        self,
        layers: Sequence[LayerTime],
        mapped: Sequence[MappedLayer],
        inputs: Collection[str],
        outputs: Collection[str],
    ) -> None:
        self.known: dict[int, str] = {}
        self._layers = layers
        self._mapped = mapped
        self._inputs = inputs
        self._outputs = outputs
        self._maker = {tensor: n for n, layer in enumerate(layers) for tensor in layer.outputs}
        self._readers: dict[str, list[int]] = {}
        for number, layer in enumerate(layers):
            for tensor in layer.inputs:
                self._readers.setdefault(tensor, []).append(number)

    def is_conversion(self, number: int) -> bool:
        """Whether a layer acts as Q or DQ: it converts types, other than between floats."""
        if not self._mapped[number].converts:
            return False
        layer, mapped = self._layers[number], self._mapped[number]
        if mapped.executes:
            return True
        fed = (each for tensor in layer.outputs for each in self._readers.get(tensor, ()))
        types = {layer.precision, *(self._layers[each].precision for each in fed)}
        return not types <= _FLOATS

    def look_before(self, number: int) -> None:
        """Determine whether a layer follows an input; the layers before it are already known."""
        for tensor in self._layers[number].inputs:
            maker = self._maker.get(tensor)
            before = self.known.get(maker, "") if maker is not None else _plain(tensor)
            if before in self._inputs:
                self.known[number] = before
                return

    def look_behind(self, number: int) -> None:
        """Determine whether a layer precedes an output; the layers after it are already known."""
        layer = self._layers[number]
        if number in self.known or not layer.outputs:
            return
        readers = [each for tensor in layer.outputs for each in self._readers.get(tensor, ())]
        if not readers:
            name = f"{layer.name} {' '.join(layer.outputs)}"
            named = [tensor for tensor in self._outputs if tensor in name]
            self.known[number] = max(named, key=len, default="") or next(iter(self._outputs), "")
        behind = {self.known.get(each, "") for each in readers}
        if len(behind) == 1 and behind <= set(self._outputs):
            self.known[number] = behind.pop()


def _plain(tensor: str) -> str:
    """Return a tensor's name without the output suffix that an engine adds."""
    return tensor.partition(_OUTPUT_OF)[0]


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
