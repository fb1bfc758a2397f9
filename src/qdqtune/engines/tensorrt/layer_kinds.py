"""The purposes of the layers of a TensorRT engine."""

from __future__ import annotations

import enum
import re

from qdqtune.engines.tensorrt.layers import LOW_PRECISION, Layer, LayerTensor


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
