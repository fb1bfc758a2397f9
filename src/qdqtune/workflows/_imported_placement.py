"""What another tool quantized in a model, in terms of the model: its pairs, and their scales."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from qdqtune.calibration._layer_errors_pairs import Pairing
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._op_classes import DEQUANTIZE, WEIGHTED_OPS, is_op
from qdqtune.graph._tensor_matching import Match, Matching, match_tensors
from qdqtune.graph._weights import values_of
from qdqtune.qdq._dynamic import FORMS
from qdqtune.qdq._encoding import Array, ReadEncoding, wider
from qdqtune.qdq._op_units import canonical
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Placement
from qdqtune.workflows._source_model import Source, open_source

# One in twenty may be lost to folding, or be written differently.
_MOST_DIFFERING = 0.05
_PRODUCTS = ("Gemm", "MatMul")
_Kind = tuple[str, tuple[int, ...]]
# How far rounding takes weights from their values, as a share of their energy: four bits, and less.
_MOST_ROUNDED = 0.05
# Maximum number of names in a message.
_MOST_NAMES = 3


@dataclass(frozen=True)
class ImportedPlacement:
    """What is quantized in a file, as far as the model has it.

    Attributes:
        path: The file.
        placement: Its tensors and dynamic ops, by the model's names.
        pairs: How many activations are quantized in it.
        unmapped: Those that the model doesn't have, by their names in the file, and why.
        dynamic: How many dynamic ops it has.
        encodings: Its scales, by the model's tensors that have the same values.
    """

    path: Path
    placement: Placement
    pairs: int
    unmapped: Mapping[str, str] = field(default_factory=dict)
    dynamic: int = 0
    encodings: Mapping[str, ReadEncoding] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        """How much of it is in the model, and what is not, in one line."""
        mapped = self.pairs - len(self.unmapped)
        ops = f" and {self.dynamic} dynamic ops" if self.dynamic else ""
        found = f"{mapped} and {len(self.placement.dynamic)}" if self.dynamic else f"{mapped}"
        text = (
            f"of the {self.pairs} activations{ops} that are quantized in {self.path}, {found} are "
            "in the model"
        )
        shown = [f"{name} ({why})" for name, why in self.unmapped.items()]
        more = len(shown) - _MOST_NAMES
        listed = ", ".join(shown[:_MOST_NAMES]) + (f" and {more} more" if more > 0 else "")
        return f"{text}; not: {listed}" if shown else text


def import_placement(model: ir.Model, path: Path, *, optimize: bool = True) -> ImportedPlacement:
    """Read what is quantized in another tool's form of a model.

    Args:
        model: The float model.
        path: The quantized file.
        optimize: As for the model; see `open_source`.

    Raises:
        UsageError: If the file has no Q/DQ, or is a form of another model.
        ModelError: If it can't be read.
    """
    other = open_source(path, optimize=optimize)
    if other.reading is None:
        raise UsageError(
            f"{path} has no Q/DQ to begin with.",
            "Name a quantized form of the model, or leave --qdq_baseline out.",
        )
    check_same_model(model, other.model, path)
    found = imported(model, other)
    if found.placement:
        return found
    ops = f" and {found.dynamic} dynamic ops" if found.dynamic else ""
    raise UsageError(
        f"None of the {found.pairs} activations{ops} that are quantized in {path} is in the model.",
        "Is it a form of this model? Nothing that it computes was found in the model, neither by "
        "name nor by structure.",
    )


def imported(model: ir.Model, other: Source) -> ImportedPlacement:
    """Find what is quantized in a form of a model that was opened; nothing is checked."""
    reading = other.reading
    assert reading is not None
    pairing = Pairing(model.clone(), other.model.clone())
    own, theirs = pairing.original, pairing.quantized
    matching = match_tensors(own, theirs, pairing.float_of)
    tensors, nodes = matching.tensors, matching.nodes
    quantized = reading.placement
    activations = [name for name in sorted(quantized.tensors) if not theirs.is_constant(name)]
    index = GraphIndex(model)
    edges = (each for edge in quantized.edges for each in matching.readers(edge))
    dynamic = (nodes[name] for name in quantized.dynamic if name in nodes)
    places = Placement(
        edges=frozenset(filter(index.has, edges)),
        dynamic=frozenset(name for name in dynamic if is_op(index.node.get(name), *FORMS)),
        unfused=frozenset(nodes.get(name, name) for name in quantized.unfused),
    )
    return ImportedPlacement(
        other.path,
        canonical(index, places),
        len(activations),
        {name: _why_not(matching, name) for name in activations if name not in tensors},
        len(quantized.dynamic),
        _known_scales(own, theirs, tensors, reading.encodings),
    )


def _known_scales(
    own: GraphIndex,
    theirs: GraphIndex,
    tensors: Mapping[str, Match],
    encodings: Mapping[str, ReadEncoding],
) -> dict[str, ReadEncoding]:
    """The scales of a file by the model's tensors, where these have the same values."""
    found: dict[str, ReadEncoding] = {}
    for name, encoding in encodings.items():
        match = tensors.get(name)
        if match is None or not match.is_same:
            continue
        fitting: ReadEncoding | None = encoding
        constants = theirs.value[name].const_value, own.value[match.tensor].const_value
        if constants[0] is not None and constants[1] is not None:
            fitting = _of_weight(encoding, values_of(constants[0]), values_of(constants[1]))
        if fitting is not None:
            found[match.tensor] = wider(found.get(match.tensor, fitting), fitting)
    return found


def _of_weight(encoding: ReadEncoding, theirs: Array, ours: Array) -> ReadEncoding | None:
    """The encoding of a weight that may be stored transposed; None if the values are others."""
    forms = [(theirs, encoding)]
    if theirs.ndim == 2:
        axis = 1 - encoding.axis % 2
        forms.append((theirs.T, replace(encoding, axis=axis)))
    most = _MOST_ROUNDED * float(np.square(ours, dtype=np.float32).sum())
    errors = [
        (float(np.square(values - ours, dtype=np.float32).sum()), number)
        for number, (values, _) in enumerate(forms)
        if values.shape == ours.shape
    ]
    error, number = min(errors, default=(math.inf, 0))
    return forms[number][1] if error <= most else None


def _why_not(matching: Matching, name: str) -> str:
    """Why the model has no such tensor."""
    theirs, tensors = matching.other, matching.tensors
    producer = theirs.value[name].producer()
    if producer is None:
        return "the model has no such input"
    own = matching.own.node.get(matching.nodes.get(producer.name or "", ""))
    if own is not None:
        return f"it is inside what the model has as one {own.op_type}"
    if any(each in tensors for each in theirs.reads(producer) if not theirs.is_constant(each)):
        return f"the model has no such {producer.op_type}"
    return f"its {producer.op_type} reads nothing that the model has"


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
