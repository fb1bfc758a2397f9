"""Models on onnx_ir: loading, saving, indexing, fingerprints, folding and shapes.

Public names are imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.graph.files import load_model, save_model
    from qdqtune.graph.folding import fold
    from qdqtune.graph.index import GraphIndex
    from qdqtune.graph.input_shapes import resolve_shapes
    from qdqtune.graph.precision import convert_precision
    from qdqtune.graph.prepared_model import PreparedModel
    from qdqtune.graph.shapes import at_shapes

__all__ = [
    "GraphIndex",
    "PreparedModel",
    "at_shapes",
    "convert_precision",
    "fold",
    "load_model",
    "resolve_shapes",
    "save_model",
]

_HOMES = {
    "GraphIndex": "qdqtune.graph.index",
    "PreparedModel": "qdqtune.graph.prepared_model",
    "at_shapes": "qdqtune.graph.shapes",
    "convert_precision": "qdqtune.graph.precision",
    "fold": "qdqtune.graph.folding",
    "load_model": "qdqtune.graph.files",
    "resolve_shapes": "qdqtune.graph.input_shapes",
    "save_model": "qdqtune.graph.files",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
