"""What is said about accuracy, whatever the command."""

from __future__ import annotations


def near_limit_line(sqnr_db: float, min_sqnr_db: float) -> str:
    """The warning that a result has just been accurate enough."""
    return (
        f"Only {sqnr_db - min_sqnr_db:.1f} dB above the limit of {min_sqnr_db:.3g} dB: check the "
        "model on your own task, or raise --min_sqnr."
    )


def float_error_line(float_type: str, sqnr_db: float) -> str:
    """What of an error is not quantization's."""
    return (
        f"The float model itself is {sqnr_db:.1f} dB from float32 there, computed in "
        f"{float_type or 'another type'}."
    )
