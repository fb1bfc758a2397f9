"""The layers of an engine, mapped to the nodes of a model; the names that engines give them."""

from __future__ import annotations

__all__: list[str] = []
