"""The model that a workflow starts from: float, or quantized with its Q/DQ removed."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import onnx_ir as ir

from qdqtune.graph._files import load_model
from qdqtune.graph._folding import fold, make_ready
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import DEQUANTIZE, HALF_TYPES, WEIGHTED_OPS, is_op
from qdqtune.graph._optimizing import optimize_graph
from qdqtune.graph._precision import convert_precision
from qdqtune.qdq._dynamic import FORMS
from qdqtune.qdq._encoding import ReadEncoding
from qdqtune.qdq._preprocess import Preparation, has_qdq, make_float
from qdqtune.qdq._read_back import ReadResult
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._precision import Precision
from qdqtune.records._ranges import CalibrationSource, Ranges

_logger = logging.getLogger(__name__)

# One in twenty may be lost to folding, or be written differently.
_MOST_DIFFERING = 0.05
_PRODUCTS = ("Gemm", "MatMul")

# Quantizers replace these by the saturation of a Q.
_LEFT_OUT = ("Clip", "Relu")
_Kind = tuple[str, tuple[int, ...]]


@dataclass(frozen=True)
class Source:
    """A model as the workflows use it.

    Attributes:
        path: The file.
        model: The float model, folded unless disabled: the file's own, or the one inside a Q/DQ
            file.
        reading: The Q/DQ read from the file; None if it is a float model.
        labels: What qdqtune wrote into the file's metadata when it quantized it.
        has_bfloat16: Whether the file has bfloat16, which CPUs can't run.
        converted_from: The half-precision type of the file, if the model was converted to float32
            because there are no integer kernels for that type; inputs and outputs keep it.
    """

    path: Path
    model: ir.Model
    reading: ReadResult | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    has_bfloat16: bool = False
    converted_from: str = ""

    @property
    def encodings(self) -> Mapping[str, ReadEncoding]:
        """The encodings in the file, by tensor."""
        return self.reading.encodings if self.reading is not None else {}

    @property
    def scales_from(self) -> CalibrationSource:
        """The source of the file's scales, as far as the file records it."""
        label = self.labels.get("qdqtune.calibration", "")
        known = {source.value: source for source in CalibrationSource}
        return known.get(label, CalibrationSource.GIVEN)


def open_source(
    path: str | Path,
    opset: int = 0,
    precision: Precision | None = None,
    *,
    optimize: bool = True,
    float_types: Collection[ir.DataType] | None = None,
) -> Source:
    """Read a model, clean it up, and remove its Q/DQ if it has any.

    A Q/DQ model is only folded: everything between its pairs stays, so that its tensors are still
    those that its scales were made for.

    Args:
        path: A float or Q/DQ model.
        opset: The minimum opset.
        precision: The float type to compute the model in; None for its own.
        optimize: Whether to clean it up; otherwise nothing is computed, absorbed or removed.
        float_types: Types for which there are integer kernels: a model in another type is computed
            in float32, unless `precision` is set. None takes the model as it is.

    Raises:
        ModelError: If it can't be read, or is quantized in a way that can't be undone.
    """
    model = load_model(path)
    converted_from = ""
    if precision is None and float_types is not None:
        without = HALF_TYPES.difference(float_types)
        converted_from = next((each.name.lower() for each in types_in(model, without)), "")
        precision = Precision.FP32 if converted_from else None
    prepare: Preparation = make_ready
    if optimize:  # quantized parts must not be merged or moved
        prepare = fold if has_qdq(model) else optimize_graph
    opened = make_float(model, path, opset, precision, prepare=prepare)
    done = "folded, " if optimize else ""
    _logger.info("%s: %s%d nodes left", path, done, len(model.graph))
    return Source(
        Path(path), model, opened.reading, opened.labels, opened.has_bfloat16, converted_from
    )


def float32_twin(model: ir.Model) -> ir.Model:
    """Return the model, or its float32 form if it has half precision, which CPUs hardly support."""
    if not has_types(model, HALF_TYPES):
        return model
    twin = model.clone()
    convert_precision(twin, Precision.FP32)
    return twin


def has_types(model: ir.Model, dtypes: Collection[ir.DataType]) -> bool:
    """Whether a tensor of the main graph has one of these types."""
    return bool(types_in(model, dtypes))


def types_in(model: ir.Model, dtypes: Collection[ir.DataType]) -> list[ir.DataType]:
    """Return those of some types that tensors of the main graph have."""
    index = GraphIndex(model)
    there = {index.dtype(name) for name in index.value}
    return [dtype for dtype in sorted(dtypes) if dtype in there]


def ranges_behind_casts(ranges: Ranges, index: GraphIndex) -> Ranges:
    """Add the ranges on the other side of Casts, where only the type differs."""
    known = dict(ranges.by_tensor)
    ends = [
        (node.inputs[0].name or "", node.outputs[0].name or "")
        for node in index.nodes
        if is_op(node, "Cast") and node.inputs[0] is not None
    ]
    for source, result in (*ends, *((result, source) for source, result in reversed(ends))):
        if source in known and index.is_float(result):
            known.setdefault(result, known[source])
    return Ranges(known, ranges.source, ranges.samples)


def check_same_model(model: ir.Model, other: ir.Model, path: Path) -> None:
    """Make sure that another model has the weighted ops of a model.

    Args:
        model: The model.
        other: The supposed quantized form of it, without its Q/DQ.
        path: The file of the other model.

    Raises:
        UsageError: If it is a form of another model.
    """
    own, others = _weighted_ops(model), _weighted_ops(other)
    missing, added = own - others, others - own
    most = max(own.total(), others.total())
    differing = max(missing.total(), added.total())
    if differing <= math.floor(_MOST_DIFFERING * most):
        return
    parts = [
        f"only {where} has {_listed(ops)}"
        for where, ops in ((f"{path}", added), ("the model", missing))
        if ops
    ]
    raise UsageError(
        f"{path} is a quantized form of another model: of up to {most} ops with weights, "
        f"{most - differing} are in both; {', and '.join(parts)}.",
        "Give --qdq_baseline a file that was quantized from this model, or leave it out.",
    )


def activations_in(
    model: ir.Model, other: ir.Model, placement: Placement
) -> tuple[int, frozenset[str]]:
    """Find the activations of a model that another tool's quantized form of it quantizes.

    Args:
        model: The model.
        other: The quantized form, without its Q/DQ.
        placement: The placement of its Q/DQ.

    Returns:
        Number of activations quantized there, and the names of those that the model has.
    """
    index, others = GraphIndex(model), GraphIndex(other)
    quantized = [tensor for tensor in placement.tensors if not others.is_constant(tensor)]
    found = set()
    for tensor in quantized:
        producer = others.value[tensor].producer()
        before = producer.inputs[0] if is_op(producer, *_LEFT_OUT) and producer else None
        # The quantizer may have removed the activation, and given its result's name to the tensor
        # before it.
        names = (tensor, before.name if before is not None else None)
        found.add(next((name for name in names if name in index.value), None))
    return len(quantized), frozenset(name for name in found if name)


def dynamic_ops_in(model: ir.Model, other: ir.Model, names: Collection[str]) -> frozenset[str]:
    """Find the ops of a model that another tool's quantized form of it has as dynamic ops.

    An op is found by its name, or else by the tensor that it writes; that of a Gemm may be written
    by the Add of its bias.

    Args:
        model: The model.
        other: The quantized form, with its dynamic ops made float.
        names: Names of the dynamic ops there.
    """
    index, others = GraphIndex(model), GraphIndex(other)
    found = set()
    for name in names:
        node: ir.Node | None = index.node.get(name)
        tensor = others.node[name].outputs[0]
        readers = [user for user, _ in tensor.uses()]
        written = [tensor]
        if len(readers) == 1 and is_op(readers[0], "Add"):
            written.append(readers[0].outputs[0])
        makers = (
            index.value[each.name or ""].producer() for each in written if each.name in index.value
        )
        for candidate in (node, *makers):
            if candidate is not None and is_op(candidate, *FORMS):
                found.add(candidate.name or "")
                break
    return frozenset(found)


def _weighted_ops(model: ir.Model) -> Counter[_Kind]:
    """Count the weighted ops of each kind and weight shape.

    Quantizers turn a Gemm into a MatMul and an Add, or the reverse, and transpose weights.
    """
    found: Counter[_Kind] = Counter()
    for node in model.graph:
        if not is_op(node, *WEIGHTED_OPS):
            continue
        shapes = (_constant_shape(value) for value in reversed(node.inputs[:2]))
        shape = next((shape for shape in shapes if shape is not None), None)
        if shape is None:
            continue
        if node.op_type in _PRODUCTS:
            found["MatMul", tuple(sorted(shape))] += 1
        else:
            found[node.op_type, shape] += 1
    return found


def _constant_shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """Return the shape of a constant, looking through a remaining DequantizeLinear."""
    producer = value.producer() if value is not None else None
    if is_op(producer, DEQUANTIZE):
        assert producer is not None
        value = producer.inputs[0]
    tensor = ir.convenience.get_const_tensor(value) if value is not None else None
    return None if tensor is None else tuple(tensor.shape.numpy())


def _listed(ops: Counter[_Kind]) -> str:
    """Return the number of ops, with an example of the most frequent kind."""
    ((op_type, shape), _) = max(ops.items(), key=lambda item: (item[1], item[0]))
    weights = "x".join(map(str, shape))
    more = ops.total() - 1
    return f"a {op_type} with weights {weights}" + (f" and {more} more" if more else "")
