"""The user-facing operations, each from start to finish."""

from __future__ import annotations

__all__: list[str] = []
