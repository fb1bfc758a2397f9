"""The autotuner that is asked and told, region by region."""

from __future__ import annotations

__all__: list[str] = []
