"""qdqtune: quantized ONNX models that are actually faster.

Importing this package is cheap; engines are imported when they are used, in a process of their own.
"""

from __future__ import annotations

from qdqtune._version import __version__

__all__ = ["__version__"]
