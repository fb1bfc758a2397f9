"""What a run claims beside what is measured."""

from __future__ import annotations

import pytest

from qdqtune.records._measurement import Comparison, EngineInfo
from qdqtune.records._verification import Claim

ENGINE = EngineInfo("simulated", "1", "machine", "cpu-vnni")


@pytest.mark.parametrize(
    ("claimed", "agrees"),
    [
        ((1.66, 1.65, 1.67), True),
        ((1.8, 1.2, 3.0), True),
        ((1.9, 1.8, 2.0), False),
        ((5.0, 0.0, float("inf")), False),
        ((5.0, 1.01, 9.0), False),
    ],
)
def test_a_claim_agrees_if_its_interval_does_and_it_is_not_far_above(
    claimed: tuple[float, float, float], agrees: bool
) -> None:
    measured = Comparison(1.66, 1.65, 1.67, 0.96, 24)
    speedup, low, high = claimed
    claim = Claim(speedup, (low, high), kept_float=False, engine=ENGINE)
    assert claim.agrees_with(measured) is agrees


@pytest.mark.parametrize(
    ("claimed", "is_supported"),
    [
        ((1.66, 1.65, 1.67), True),
        ((3.0, 2.4, 3.5), True),
        ((4.0, 3.9, 4.1), False),
        ((4.0, 1.0, 9.0), False),
    ],
)
def test_a_wide_interval_supports_no_claim_far_from_what_is_measured(
    claimed: tuple[float, float, float], is_supported: bool
) -> None:
    measured = Comparison(1.9, 0.7, 5.0, 0.96, 24)
    speedup, low, high = claimed
    claim = Claim(speedup, (low, high), kept_float=False, engine=ENGINE)
    assert claim.agrees_with(measured)
    assert claim.is_supported_by(measured) is is_supported
