"""Drafts of models written as ONNX text."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir

from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._placement import Edge
from qdqtune.records._quantization import Decision
from qdqtune.rules._order import draft_placement
from qdqtune.rules._placement_draft import Constraints, Draft
from tests.conftest import model_from_text

_RNG = np.random.default_rng(11)


def normal(*shape: int) -> np.ndarray:
    return _RNG.normal(size=shape).astype(np.float32)


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def drafted(
    model: onnx.ModelProto,
    dialect: str,
    quant_type: str = "int8",
    constraints: Constraints | None = None,
) -> Draft:
    """What the rules of a dialect make of a model."""
    graph = ir.from_proto(model)
    fold(graph)
    planner = QuantizationPlanner(GraphIndex(graph), dialect_named(dialect), quant_type)
    return draft_placement(planner, quant_type, constraints)


def draft_of_text(
    text: str,
    dialect: str,
    quant_type: str = "int8",
    constraints: Constraints | None = None,
    opset: int = 17,
    **weights: np.ndarray,
) -> Draft:
    """The same for a text; a node is named after its first result."""
    model = model_from_text(f"g {text}", opset, **weights)
    for node in model.graph.node:
        node.name = node.output[0]
    return drafted(model, dialect, quant_type, constraints)


def decisions(draft: Draft) -> dict[str, Decision]:
    """What was decided, by node."""
    return {each.node: each for each in draft.decisions(draft.placement())}


def decision(draft: Draft, node: str) -> tuple[bool, str]:
    """Whether a node is quantized, and the rule that said so."""
    found = decisions(draft)[node]
    return found.quantized, found.rule


def edges_into(draft: Draft, node: str) -> set[Edge]:
    """The inputs of a node that are quantized."""
    effective = draft.index.effective(draft.placement())
    return {edge for edge in effective if edge.node == node}
