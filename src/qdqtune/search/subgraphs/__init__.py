"""Subgraph mode: the subgraphs that an engine fuses, what each costs, and the best assembly."""

from __future__ import annotations

__all__: list[str] = []
