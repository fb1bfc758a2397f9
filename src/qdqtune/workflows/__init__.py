"""What a user asks for, whole."""

from __future__ import annotations

__all__: list[str] = []
