"""TensorRT and TensorRT-RTX: one API, two libraries; and the files that both write."""

from __future__ import annotations

__all__: list[str] = []
