"""Human-readable durations."""

from __future__ import annotations

_TENTHS, _MINUTE, _HOUR = 9.95, 60, 3600


def duration(seconds: float) -> str:
    """Format a duration: `0.4 s`, `42 s`, `3 min 05 s` or `2 h 10 min`."""
    whole = round(seconds)
    if seconds < _TENTHS:
        return f"{seconds:.1f} s"
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE} min {whole % _MINUTE:02d} s"
    minutes = round(seconds / _MINUTE)
    return f"{minutes // _MINUTE} h {minutes % _MINUTE:02d} min"
