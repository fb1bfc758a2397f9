"""Regions, and how a graph is divided into them."""

from __future__ import annotations

__all__: list[str] = []
