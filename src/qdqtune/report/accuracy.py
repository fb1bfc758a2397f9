"""What is said about accuracy, whatever the command."""

from __future__ import annotations


def near_limit_line(sqnr_db: float, min_sqnr_db: float) -> str:
    """The warning that a result has just been accurate enough."""
    return (
        f"Only {sqnr_db - min_sqnr_db:.1f} dB above the limit of {min_sqnr_db:g} dB: check the "
        "model on your own task, or raise --min_sqnr."
    )
