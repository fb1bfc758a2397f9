"""Models on onnx_ir: loading, saving, indexing, fingerprints, folding and shapes.

Public names are imported lazily.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from qdqtune._lazy import lazy_names

if TYPE_CHECKING:
    from qdqtune.graph._files import load_model as load_model
    from qdqtune.graph._files import save_model as save_model
    from qdqtune.graph._folding import fold as fold
    from qdqtune.graph._index import GraphIndex as GraphIndex
    from qdqtune.graph._input_shapes import resolve_shapes as resolve_shapes
    from qdqtune.graph._precision import convert_precision as convert_precision
    from qdqtune.graph._prepared_model import PreparedModel as PreparedModel
    from qdqtune.graph._shapes import at_shapes as at_shapes

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "qdqtune.graph._files": "load_model save_model",
        "qdqtune.graph._folding": "fold",
        "qdqtune.graph._index": "GraphIndex",
        "qdqtune.graph._input_shapes": "resolve_shapes",
        "qdqtune.graph._precision": "convert_precision",
        "qdqtune.graph._prepared_model": "PreparedModel",
        "qdqtune.graph._shapes": "at_shapes",
    },
)
