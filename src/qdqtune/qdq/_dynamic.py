"""Dynamic ops: integer kernels whose input is quantized at run time, without calibration.

What is special about each kind of them is in its form: how it is written and found in files.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir

from qdqtune.graph._fingerprint import tensor_digest
from qdqtune.graph._index import FreeNames
from qdqtune.graph._prepared_model import PreparedModel, constant_part, node_part
from qdqtune.qdq._at_run_time import why_not_dynamic
from qdqtune.qdq._dynamic_form import Candidate, DynamicForm, DynamicOp
from qdqtune.qdq._dynamic_lstm import DynamicLstm
from qdqtune.qdq._dynamic_product import INTEGER_PRODUCT, DynamicProduct
from qdqtune.qdq._encoder import Encoder
from qdqtune.qdq._encoding import quantize
from qdqtune.qdq._smoothing import dividing_node
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge

INTEGER_PRODUCTS = frozenset({INTEGER_PRODUCT, "ConvInteger"})
"""Ops that multiply integers and are no pair's; of the second we write none."""

_FORMS: tuple[DynamicForm, ...] = (DynamicProduct(), DynamicLstm())
FORMS: Mapping[str, DynamicForm] = {name: form for form in _FORMS for name in form.op_types}
"""How ops are written if they are dynamic, by op type."""

_SUFFIXES = (
    "_quantized", "_scale", "_zero_point", "_int32", "_cast", "_scales", "_product", "_smoothed",
    "_factors",
)  # fmt: skip

Key = tuple[str, bool]
"""A weight, and whether its last two axes are swapped: equal for equal initializers."""


class DynamicOps:
    """Writes dynamic ops of one model; what was serialized once is remembered.

    Args:
        base: The float model.
        encoder: Finds the encodings of weights.
        names: Generates names for new values.
    """

    def __init__(self, base: PreparedModel, encoder: Encoder, names: FreeNames) -> None:
        self._base = base
        self._encoder = encoder
        self._names = names
        self._prefixes: dict[str, str] = {}
        self._weights: dict[Key, tuple[list[str], bytes]] = {}

    def with_encoder(self, encoder: Encoder) -> DynamicOps:
        """Another one, with other weights."""
        other = copy.copy(self)
        other._encoder, other._weights = encoder, {}
        return other

    def check(self, ops: Collection[str], edges: Iterable[Edge]) -> None:
        """Make sure that ops can be dynamic.

        Args:
            ops: Names of the ops.
            edges: What is quantized beside them.

        Raises:
            UsageError: If one can't, or is not of this model.
        """
        index, dialect = self._base.index, self._encoder.dialect
        for name in sorted(ops):
            if name not in index.node:
                raise UsageError(
                    f"The placement names the node {name!r}, which the model doesn't have.",
                    "Is it a placement of another model?",
                )
            if reason := why_not_dynamic(index, dialect, index.node[name]):
                raise UsageError(
                    f"The node {name!r} can't be quantized dynamically: {reason}.",
                    "Take it out of the placement.",
                )
        for edge in edges if ops else ():
            if edge.node in ops and edge.position in self._positions(edge.node):
                raise UsageError(
                    f"The placement quantizes {edge.tensor!r} for {edge.node!r}, which is dynamic: "
                    "its weight is quantized anyway.",
                    "Take one of both out of the placement.",
                )

    def opsets(self, ops: Iterable[str]) -> dict[str, int]:
        """The opsets that dynamic ops need beside the standard one, by domain."""
        forms = (FORMS[self._base.index.node[name].op_type] for name in ops)
        return {domain: version for form in forms for domain, version in form.opsets.items()}

    def constants(self, name: str) -> list[tuple[Key, bytes]]:
        """The initializers of each weight of a dynamic op, as parts of a graph."""
        positions = self._positions(name)
        found = [(self._key(name, each), self._weight(name, each)[1]) for each in positions]
        if (smoothing := self._encoder.changes.smoothings.get(name)) is not None:
            label = f"{self._prefix(self._data(name))}_factors"
            values = ir.Tensor(smoothing.inverse.astype(np.float32))
            reference = self._base.store.reference((label, tensor_digest(values)), label, values)
            found.append(((label, False), constant_part(reference)))
        return found

    def _data(self, name: str) -> str:
        """The tensor that an op quantizes at run time."""
        return self._base.index.reads(self._base.index.node[name])[0]

    def new_candidate(self) -> Candidate:
        """What dynamic ops of one candidate have in common."""
        return Candidate(self._prefix)

    def nodes(self, name: str, proto: onnx.NodeProto, candidate: Candidate) -> bytes:
        """A dynamic op, as parts of a graph.

        Args:
            name: The op.
            proto: The op with the inputs and the outputs that it has in the candidate.
            candidate: What was written of it before.
        """
        node = self._base.index.node[name]
        stored = [self._weight(name, position)[0] for position in self._positions(name)]
        before = []
        if name in self._encoder.changes.smoothings:
            source = str(proto.input[0])
            divided = f"{self._prefix(source)}_smoothed"
            if divided not in candidate.quantized:
                factors = f"{self._prefix(self._data(name))}_factors"
                before.append(dividing_node(source, factors, divided))
            whole, proto = proto, onnx.NodeProto()
            proto.CopyFrom(whole)
            proto.input[0] = divided
        written = FORMS[node.op_type].nodes(node, proto, stored, candidate)
        return b"".join(map(node_part, (*before, *written)))

    def _positions(self, name: str) -> Mapping[int, bool]:
        """Where an op reads its weights, and whether it stores them with axes swapped."""
        node = self._base.index.node[name]
        return FORMS[node.op_type].weights(node)

    def _key(self, name: str, position: int) -> Key:
        weight = self._base.index.node[name].inputs[position]
        assert weight is not None
        return weight.name or "", self._positions(name)[position]

    def _weight(self, name: str, position: int) -> tuple[list[str], bytes]:
        """Names of the constants that stand for a weight; all of them, written."""
        tensor, is_turned = key = self._key(name, position)
        if key not in self._weights:
            weight, encoding = self._encoder.dynamic_weight(name, position)
            values = quantize(weight, encoding)
            prefix = self._prefix(f"{tensor}_transposed" if is_turned else tensor)
            form = FORMS[self._base.index.node[name].op_type]
            stored = form.constants(values.swapaxes(-1, -2) if is_turned else values, encoding)
            named = [(prefix + suffix, array, dtype) for suffix, array, dtype in stored]
            tensors = [
                self._base.store.reference((label, tensor_digest(each)), label, each)
                for label, array, dtype in named
                for each in [ir.Tensor(np.ascontiguousarray(array), dtype)]
            ]
            names = [label for label, _, _ in named]
            self._weights[key] = names, b"".join(map(constant_part, tensors))
        return self._weights[key]

    def _prefix(self, tensor: str) -> str:
        if tensor not in self._prefixes:
            self._prefixes[tensor] = self._names.prefix(f"{tensor}_dynamic", _SUFFIXES)
        return self._prefixes[tensor]


def find_dynamic_ops(graph: ir.Graph) -> Iterator[DynamicOp]:
    """Yield the dynamic ops of a graph, which may be changed in between."""
    for node in list(graph):
        for form in _FORMS:
            found = form.read(node)
            if found is not None:
                yield found
