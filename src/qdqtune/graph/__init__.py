"""Models on onnx_ir: loading, saving, indexing, fingerprints, folding and shapes.

Public names are imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.graph._files import load_model, save_model
    from qdqtune.graph._folding import fold
    from qdqtune.graph._index import GraphIndex
    from qdqtune.graph._input_shapes import resolve_shapes
    from qdqtune.graph._precision import convert_precision
    from qdqtune.graph._prepared_model import PreparedModel
    from qdqtune.graph._shapes import at_shapes

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
    "GraphIndex": "qdqtune.graph._index",
    "PreparedModel": "qdqtune.graph._prepared_model",
    "at_shapes": "qdqtune.graph._shapes",
    "convert_precision": "qdqtune.graph._precision",
    "fold": "qdqtune.graph._folding",
    "load_model": "qdqtune.graph._files",
    "resolve_shapes": "qdqtune.graph._input_shapes",
    "save_model": "qdqtune.graph._files",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
