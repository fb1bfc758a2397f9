"""Maps TensorRT's layers and their times to nodes: by the purposes of layers, and by names."""

from __future__ import annotations

import enum
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import onnx
import onnx_ir as ir

from qdqtune.engines.layers import _mapper as mapper
from qdqtune.engines.layers._naming import EXACT, Kind, NamedLayer, WholePart
from qdqtune.engines.tensorrt._layer_info import Layer, LayerTensor
from qdqtune.graph._index import GraphIndex
from qdqtune.records._layers import MappedLayer
from qdqtune.records._measurement import LayerTime

_LOW_PRECISION = frozenset({"Int8", "FP8"})
_COPY = re.compile(r"^Reformatting CopyNode for | copy$|_copy_(?:input|output)$")
_REFORMAT = "Reformat"
# Generated kernels are named after their operations, with four letters each.
_GENERATED = re.compile(r"^__myl_(?P<does>[A-Z][A-Za-z0-9]*?)(?:_\d+)*_myl\d+_\d+$")
_MOVES = "(?:Move|Tran|Resh|Conc|Slic)*"
_COPIES = re.compile("^(?:Move|Tran|Resh|Cast)+$")
_QUANTIZES = re.compile(f"^{_MOVES}(?:Cast)?(?:Mul|Div)(?:MinMax|MaxMin)?(?:Roun)?Cast{_MOVES}$")
_DEQUANTIZES = re.compile(f"^{_MOVES}Cast{_MOVES}Mul(?:Cast)?{_MOVES}$")
_BOTH = re.compile(
    f"^{_MOVES}(?:Cast)?(?:Mul|Div)(?:MinMax|MaxMin)RounCastCastMul(?:Cast)?{_MOVES}$"
)
# Operations that remain after a kernel that accumulates integer products.
_RESCALES = re.compile(f"^{_MOVES}Mul(?:Cast)?{_MOVES}$")
_BETWEEN = re.compile(r" \+ | \|\| |\+|, |\.\.\.|[()\[\]{}]")
_COPY_FOR = re.compile(r"^Reformatting CopyNode for (?:Input|Output) Tensor \d+ to ")
_FOREIGN = re.compile(r"^\{ForeignNode\[(?P<ends>.*)\]\}", re.DOTALL)
_TO = "..."
_PROFILE = re.compile(r" \[profile \d+\]")
_KERNEL = re.compile(r"_myl\d+_\d+$")
_CLONE = re.compile(r"_clone_\d+$")
_NUMBER = re.compile(r"_\d+$")
_UNNAMED = "node_of_"
_HELPER = re.compile(r"\(Unnamed Layer\* \d+\) \[\w+\]")
_AROUND = (
    "reshape_before_", "reshape_after_", "unsqueeze_node_after_", "copied_squeeze_after_",
    "squeeze_after_", "unsqueeze_after_",
)  # fmt: skip
# Reformats follow each other once or twice.
_FARTHEST = 10
# Names with more separators are not searched, since every end is tried for each start.
_MOST_SEPARATORS = 40


class LayerKind(enum.Enum):
    """What a layer spends its time on."""

    COMPUTE = "compute"
    """It executes ops of the model."""
    REFORMAT = "reformat"
    """It copies, to change a layout or a float type."""
    QDQ = "qdq"
    """It quantizes or dequantizes, which is the cost of a placement."""
    OTHER = "other"
    """It holds constants, computes shapes, or synchronizes streams."""


_KINDS = {
    LayerKind.COMPUTE: Kind.OTHER,
    LayerKind.REFORMAT: Kind.MOVE,
    LayerKind.QDQ: Kind.TYPE,
    LayerKind.OTHER: Kind.MOVE,
}
_BY_TYPE = {
    "Constant": LayerKind.OTHER,
    "MyelinReformat": LayerKind.REFORMAT,
    "NoOp": LayerKind.OTHER,
    "shape_call": LayerKind.OTHER,
    "signal": LayerKind.OTHER,
    "trainStation": LayerKind.OTHER,
    "wait": LayerKind.OTHER,
}


def kind_of(layer: Layer) -> LayerKind:
    """Classifies a layer by its type, its origin, its name and the types that it converts."""
    if layer.kind in _BY_TYPE:
        return _BY_TYPE[layer.kind]
    if _COPY.search(layer.name):
        return LayerKind.REFORMAT
    if layer.kind == _REFORMAT:
        return _kind_of_reformat(layer)
    generated = _GENERATED.match(layer.name)
    return _kind_of_generated(layer, generated["does"]) if generated else LayerKind.COMPUTE


def _kind_of_reformat(layer: Layer) -> LayerKind:
    if layer.origin:
        return LayerKind.QDQ if layer.origin == "QDQ" else LayerKind.REFORMAT
    changes = _low(layer.inputs) != _low(layer.outputs)
    return LayerKind.QDQ if changes else LayerKind.REFORMAT


def _kind_of_generated(layer: Layer, does: str) -> LayerKind:
    if _COPIES.match(does):
        return LayerKind.COMPUTE if layer.nodes else LayerKind.REFORMAT
    if _BOTH.match(does) or (_RESCALES.match(does) and not layer.nodes):
        return LayerKind.QDQ
    quantizes = bool(_QUANTIZES.match(does)) and _low(layer.outputs) and not _low(layer.inputs)
    # A weight that is stored quantized and dequantized for a float kernel is a constant.
    read = (*layer.inputs, *layer.constants)
    dequantizes = bool(_DEQUANTIZES.match(does)) and _low(read) and not _low(layer.outputs)
    return LayerKind.QDQ if quantizes or dequantizes else LayerKind.COMPUTE


def _low(tensors: tuple[LayerTensor, ...]) -> bool:
    return any(tensor.dtype in _LOW_PRECISION for tensor in tensors)


class NodeNames:
    """The node names of a model, for matching.

    Args:
        index: The model.
    """

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        # Weights are listed with the nodes that read them, and can have any name.
        self._node: dict[str, str] = dict.fromkeys(index.model.graph.initializers, "")
        self._node.update((name, name) for name in index.node)
        self._longest = max(map(len, self._node), default=0)
        separators = (sum(1 for _ in _BETWEEN.finditer(name)) for name in self._node)
        self._most = min(max(separators, default=0), _MOST_SEPARATORS)

    def told(self, layer: Layer) -> tuple[str, ...]:
        """Return the nodes in the metadata of a layer, or else in its name."""
        told = dict.fromkeys(self._node.get(name) or self._unnamed(name) for name in layer.nodes)
        known = tuple(name for name in told if name)
        is_named = not (_FOREIGN.match(layer.name) or _COPY_FOR.match(layer.name))
        return known or (self._nodes(layer.name) if is_named else ())

    def whole(self, layer: Layer) -> WholePart | None:
        """Return the ends of a layer that was compiled as a whole; None for other layers."""
        found = _FOREIGN.match(layer.name)
        if found is None:
            return None
        text = found["ends"]
        places = [match.start() for match in re.finditer(re.escape(_TO), text)]
        known = (place for place in places if self._is_between_names(text, place))
        place = next(known, places[0] if places else len(text))
        first, last = text[:place], text[place + len(_TO) :]
        edges = self._index.readers(first) if self._node.get(first) == "" else ()
        readers = dict.fromkeys(edge.node for edge in edges if edge.node)
        return WholePart(self._nodes(first), self._nodes(last), tuple(readers))

    def _nodes(self, name: str) -> tuple[str, ...]:
        """Return the nodes in a name, each once."""
        text = _KERNEL.sub("", _PROFILE.sub("", _HELPER.sub("", name)))
        return tuple(dict.fromkeys(filter(None, self._terms(text))))

    def _is_between_names(self, text: str, place: int) -> bool:
        """Whether the text before or after a position is a name of the model."""
        behind = place + len(_TO)
        # Texts longer than any name are not copied and looked up.
        return (place <= self._longest and text[:place] in self._node) or (
            len(text) - behind <= self._longest and text[behind:] in self._node
        )

    def _terms(self, text: str) -> Iterator[str]:
        """Yield terms of the text; the longest known name at each position is taken."""
        marks = [match.span() for match in _BETWEEN.finditer(text)]
        ends = [*(start for start, _ in marks), len(text)]
        starts = [0, *(end for _, end in marks)]
        at = 0
        while at < len(starts):
            found = self._term(text, starts[at], ends[at : at + self._most + 1])
            if found is None:
                at += 1
            else:
                yield found[0]
                at += found[1]

    def _term(self, text: str, start: int, ends: list[int]) -> tuple[str, int] | None:
        """Return the node at a position and the number of text parts it takes."""
        for resolve in (self._node.get, self._similar):
            for count in range(len(ends), 0, -1):
                node = resolve(text[start : ends[count - 1]])
                if node is not None:
                    return node, count
        return None

    def _unnamed(self, name: str) -> str | None:
        tensor = name.removeprefix(_UNNAMED)
        if tensor == name or tensor not in self._index.value:
            return None
        producer = self._index.value[tensor].producer()
        return producer.name if producer is not None else None

    def _similar(self, name: str) -> str | None:
        """Return the node that TensorRT derived a name from."""
        original = _CLONE.sub("", name)
        for prefix in _AROUND:
            original = original.removeprefix(prefix)
        if original in self._node:
            return self._node[original]
        return self._unnamed(original) or self._node.get(_NUMBER.sub("", original))


def _copies(layers: Sequence[Layer]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the original of each copied tensor, and its copies, from layers that only copy."""
    copied_from: dict[str, str] = {}
    copied_to: dict[str, str] = {}
    for layer in layers:
        is_single = len(layer.inputs) == len(layer.outputs) == 1
        if is_single and kind_of(layer) is not LayerKind.COMPUTE:
            read, written = layer.inputs[0].name, layer.outputs[0].name
            copied_from.setdefault(written, read)
            copied_to.setdefault(read, written)
    return copied_from, copied_to


def _in_model(
    index: GraphIndex, tensors: Sequence[LayerTensor], copies: dict[str, str]
) -> tuple[str, ...]:
    """Return the model's tensors that an engine's are, perhaps as copies; empty if unknown."""
    found = [tensor.name for tensor in tensors]
    for _ in range(_FARTHEST):
        found = [name if name in index.value else copies.get(name, "") for name in found]
    return tuple(name if name in index.value else "" for name in found)


def map_layers(index: GraphIndex, layers: Sequence[Layer]) -> list[MappedLayer]:
    """Find the nodes of every layer; a node may be in several.

    A part of the network that was compiled as a whole (`{ForeignNode[...]}`) gives several layers,
    one per natural sublayer, numbered after its name.

    Args:
        index: The model that the engine was built from, with its original nodes.
        layers: As TensorRT reports them.

    Returns:
        The layers in order of execution, without times.
    """
    return mapper.map_layers(index, _named_layers(index, layers), complete=True)


def _named_layers(index: GraphIndex, layers: Sequence[Layer]) -> list[NamedLayer]:
    names, (copied_from, copied_to) = NodeNames(index), _copies(layers)
    position = {layer.name: number for number, layer in reversed(list(enumerate(layers)))}
    found = []
    for layer in layers:
        kind, told, whole = kind_of(layer), names.told(layer), names.whole(layer)
        executes = kind in (LayerKind.COMPUTE, LayerKind.QDQ) and whole is None
        copy = _COPY_FOR.match(layer.name)
        types = {tensor.dtype for tensor in (*layer.inputs, *layer.outputs)}
        found.append(
            NamedLayer(
                layer.timed(),
                _KINDS[kind],
                told,
                claims=tuple((name, EXACT) for name in told if executes),
                reads=_in_model(index, layer.inputs, copied_from),
                writes=_in_model(index, layer.outputs, copied_to),
                whole=whole,
                serves=position.get(layer.name[copy.end() :]) if copy else None,
                converts=kind is LayerKind.QDQ or (kind is LayerKind.REFORMAT and len(types) > 1),
            )
        )
    return found


def layer_times_of(
    model: str, layers: Sequence[Layer], profile: Sequence[tuple[str, float]]
) -> list[LayerTime]:
    """Combines layers, their times and the model's nodes.

    Args:
        model: The model file; only its structure is read.
        layers: TensorRT's layers.
        profile: Names of layers and milliseconds, in order of execution; empty if not timed.
    """
    origins = _origins(model, layers)
    numbered: Counter[str] = Counter()
    times = []
    for layer, ms in ms_of_layers(layers, profile or [(layer.name, 0.0) for layer in layers]):
        time = layer.timed(ms)
        numbered[time.name] += 1  # times are looked up by name
        count = numbered[time.name]
        own_name = time.name if count == 1 else f"{time.name} ({count})"
        times.append(replace(time, name=own_name, origins=origins.get(time.name, time.origins)))
    return times


def ms_of_layers(
    layers: Sequence[Layer], profile: Sequence[tuple[str, float]]
) -> list[tuple[Layer, float]]:
    """Matches times with layers.

    Both are in order of execution, so layers with equal names are told apart by their order.

    Args:
        layers: The layers.
        profile: Names and times, as `parse_profile` returns them.

    Returns:
        A layer and its milliseconds per entry of the profile, in its order; of layers that are not
        among the given ones only the name is known.
    """
    waiting: defaultdict[str, deque[Layer]] = defaultdict(deque)
    for layer in layers:
        waiting[layer.name].append(layer)
    timed = []
    for name, ms in profile:
        same = waiting[name]
        timed.append((same.popleft() if same else Layer(name, ""), ms))
    if len(layers) == len(timed) and any(waiting.values()):
        # Some names are spelled differently, but the layers are the same.
        return [(layer, ms) for layer, (_, ms) in zip(layers, timed, strict=True)]
    return timed


def _origins(model: str, layers: Sequence[Layer]) -> dict[str, tuple[str, ...]]:
    """Return the nodes of each layer, where name or wiring reveals more than its metadata."""
    proto = onnx.load(model, load_external_data=False)
    found: defaultdict[str, list[str]] = defaultdict(list)
    for layer in map_layers(GraphIndex(ir.from_proto(proto)), layers):
        if layer.executes:
            found[layer.name.partition("#")[0]] += layer.nodes
    return {name: tuple(dict.fromkeys(nodes)) for name, nodes in found.items()}
