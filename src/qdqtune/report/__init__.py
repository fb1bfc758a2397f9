"""What people look at, made from records and nothing else."""

from __future__ import annotations

__all__: list[str] = []
