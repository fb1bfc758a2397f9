"""Patterns: the common structure of regions, their insertion points, and measured schemes."""

from __future__ import annotations

__all__: list[str] = []
