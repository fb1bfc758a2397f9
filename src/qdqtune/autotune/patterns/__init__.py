"""Patterns: what regions have in common, places in them, and what is known of them."""

from __future__ import annotations

__all__: list[str] = []
