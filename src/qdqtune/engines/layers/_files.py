"""Layers read from a file instead of from a running engine."""

from __future__ import annotations

from qdqtune.engines.layers._tensorrt_layer_info import LayerInfo, read_layer_info
from qdqtune.engines.layers._tensorrt_mapper import map_layers

__all__ = ["WRITTEN_BY", "LayerInfo", "map_layers", "read_layer_info"]

WRITTEN_BY = "tensorrt"
"""The engine that writes such files."""
