"""Human-readable reports, built from records only."""

from __future__ import annotations

__all__: list[str] = []
