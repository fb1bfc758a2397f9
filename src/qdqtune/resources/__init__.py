"""Memory and time limits of this process and its children, and their termination."""

from __future__ import annotations

__all__: list[str] = []
