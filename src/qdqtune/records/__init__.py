"""Frozen dataclasses that are passed between layers."""

from __future__ import annotations

__all__: list[str] = []
