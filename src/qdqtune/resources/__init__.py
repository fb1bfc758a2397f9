"""What this process and its children may take of the machine, and when they end."""

from __future__ import annotations

__all__: list[str] = []
