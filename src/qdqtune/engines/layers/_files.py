"""Layers read from a file instead of from a running engine."""

from __future__ import annotations

from qdqtune.engines.tensorrt._layer_info import read_layer_info
from qdqtune.engines.tensorrt._layer_naming import map_layers

__all__ = ["WRITTEN_BY", "map_layers", "read_layer_info"]

WRITTEN_BY = "tensorrt"
"""The engine that writes such files."""
