"""trtexec, the program that comes with TensorRT: builds and times models in its own process."""

from __future__ import annotations

__all__: list[str] = []
