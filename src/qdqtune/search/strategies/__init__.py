"""Search strategies: they ask for trials and are told their scores."""

from __future__ import annotations

__all__: list[str] = []
