"""The purposes of TensorRT's layers, and the nodes in their names."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator

from qdqtune.engines.layers._tensorrt_layers import LOW_PRECISION, Layer, LayerTensor
from qdqtune.graph._index import GraphIndex


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


_BY_TYPE = {
    "Constant": LayerKind.OTHER,
    "MyelinReformat": LayerKind.REFORMAT,
    "NoOp": LayerKind.OTHER,
    "shape_call": LayerKind.OTHER,
    "signal": LayerKind.OTHER,
    "trainStation": LayerKind.OTHER,
    "wait": LayerKind.OTHER,
}
_BY_ORIGIN = {"QDQ": LayerKind.QDQ}

_COPY = re.compile(r"^Reformatting CopyNode for | copy$|_copy_(?:input|output)$")
_REFORMAT = "Reformat"

# Generated kernels are named after their operations, in four letters each.
_GENERATED = re.compile(r"^__myl_(?P<does>[A-Z][A-Za-z0-9]*?)(?:_\d+)*_myl\d+_\d+$")
_MOVES = "(?:Move|Tran|Resh|Conc|Slic)*"
_COPIES = re.compile("^(?:Move|Tran|Resh|Cast)+$")
_QUANTIZES = re.compile(f"^{_MOVES}(?:Cast)?(?:Mul|Div)(?:MinMax|MaxMin)?(?:Roun)?Cast{_MOVES}$")
_DEQUANTIZES = re.compile(f"^{_MOVES}Cast{_MOVES}Mul(?:Cast)?{_MOVES}$")
_BOTH = re.compile(
    f"^{_MOVES}(?:Cast)?(?:Mul|Div)(?:MinMax|MaxMin)RounCastCastMul(?:Cast)?{_MOVES}$"
)
# Operations that remain after a kernel that sums up integer products.
_RESCALES = re.compile(f"^{_MOVES}Mul(?:Cast)?{_MOVES}$")


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
        return _BY_ORIGIN.get(layer.origin, LayerKind.REFORMAT)
    return LayerKind.QDQ if _changes_precision(layer) else LayerKind.REFORMAT


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


def _changes_precision(layer: Layer) -> bool:
    return _low(layer.inputs) != _low(layer.outputs)


def _low(tensors: tuple[LayerTensor, ...]) -> bool:
    return any(tensor.dtype in LOW_PRECISION for tensor in tensors)


_BETWEEN = re.compile(r" \+ | \|\| |\+|, |\.\.\.|[()\[\]{}]")
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
# Names with more separators are not searched for; every end is tried for each start.
_MOST_SEPARATORS = 40


def is_foreign(name: str) -> bool:
    """Whether a layer is a part of the network that was compiled as a whole."""
    return _FOREIGN.match(name) is not None


class NodeNames:
    """The node names of a model, for matching.

    Args:
        index: The model.
    """

    def __init__(self, index: GraphIndex) -> None:
        self._index = index
        # Weights are listed with the nodes that read them, and may be called anything as well.
        self._node: dict[str, str] = dict.fromkeys(index.model.graph.initializers, "")
        self._node.update((name, name) for name in index.node)
        self._longest = max(map(len, self._node), default=0)
        separators = (sum(1 for _ in _BETWEEN.finditer(name)) for name in self._node)
        self._most = min(max(separators, default=0), _MOST_SEPARATORS)

    def node(self, name: str) -> str:
        """Return the node that a name in metadata refers to; empty if none."""
        return self._exact(name) or self._unnamed(name) or ""

    def nodes(self, layer: str) -> tuple[str, ...]:
        """Return the nodes in the name of a layer, each once."""
        text = _KERNEL.sub("", _PROFILE.sub("", _HELPER.sub("", layer)))
        return tuple(dict.fromkeys(filter(None, self._terms(text))))

    def ends(self, layer: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the nodes in the first and the last name of a part compiled as a whole."""
        first, last = self._ends(layer)
        return self.nodes(first), self.nodes(last)

    def readers_at_start(self, layer: str) -> tuple[str, ...]:
        """Return the nodes that read the weight at the start of such a part."""
        first, _ = self._ends(layer)
        edges = self._index.readers(first) if self._node.get(first) == "" else ()
        return tuple(dict.fromkeys(edge.node for edge in edges if edge.node))

    def _ends(self, layer: str) -> tuple[str, str]:
        found = _FOREIGN.match(layer)
        text = found["ends"] if found else ""
        places = [match.start() for match in re.finditer(re.escape(_TO), text)]
        known = (place for place in places if self._is_between_names(text, place))
        place = next(known, places[0] if places else len(text))
        return text[:place], text[place + len(_TO) :]

    def _is_between_names(self, text: str, place: int) -> bool:
        """Whether the text before or after a position is a name of the model."""
        behind = place + len(_TO)
        # Texts are not copied to be looked up if no name is as long.
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
        for resolve in (self._exact, self._similar):
            for count in range(len(ends), 0, -1):
                node = resolve(text[start : ends[count - 1]])
                if node is not None:
                    return node, count
        return None

    def _exact(self, name: str) -> str | None:
        return self._node.get(name)

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
