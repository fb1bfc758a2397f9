"""Lines about accuracy that several commands share."""

from __future__ import annotations


def near_limit_line(sqnr_db: float, min_sqnr_db: float) -> str:
    """Return the warning that a result is just within the accuracy limit."""
    return (
        f"Only {sqnr_db - min_sqnr_db:.1f} dB above the limit of {min_sqnr_db:.3g} dB: check the "
        "model on your own task, or raise --min_sqnr."
    )


def float_error_line(float_type: str, sqnr_db: float) -> str:
    """Return the part of an error that quantization did not cause."""
    return (
        f"The float model itself is {sqnr_db:.1f} dB from float32 there, computed in "
        f"{float_type or 'another type'}."
    )
