"""Placement rules: where Q/DQ goes when nobody measures. One rule per file, their order in one."""

from __future__ import annotations

__all__: list[str] = []
