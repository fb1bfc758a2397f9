"""The parts of a tuning run."""

from __future__ import annotations

__all__: list[str] = []
