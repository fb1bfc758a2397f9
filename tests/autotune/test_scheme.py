"""Schemes and what is kept of them."""

from __future__ import annotations

import math

import pytest

from qdqtune.records._errors import InvalidSchemeError
from qdqtune.search.patterns._insertion_points import (
    ChildRegionInputInsertionPoint,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
)
from qdqtune.search.patterns._region_pattern import InsertionScheme, PatternSchemes, RegionPattern

A, B = NodeInputInsertionPoint(0, 0), NodeInputInsertionPoint(1, 0)


def full() -> InsertionScheme:
    return InsertionScheme(
        [A, B],
        [ChildRegionInputInsertionPoint(0, 1)],
        [RegionOutputInsertionPoint(None, 2, 0), RegionOutputInsertionPoint(1, None, 0)],
        1.5,
        profile_timestamp="2024-01-01T00:00:00+00:00",
    )


def test_the_hash_knows_points_and_nothing_else() -> None:
    one, two = InsertionScheme([A, B]), InsertionScheme([B, A], latency_ms=3.0)
    assert one.hash == two.hash
    assert len(one.hash) == 32
    assert one.hash != InsertionScheme([A]).hash
    child = InsertionScheme(child_region_inputs=[ChildRegionInputInsertionPoint(0, 0)])
    assert child.hash != InsertionScheme([A]).hash


def test_measured_or_not() -> None:
    assert not InsertionScheme().is_profiled
    assert InsertionScheme(latency_ms=1.0).is_profiled
    assert InsertionScheme(error=True).is_profiled
    assert InsertionScheme().is_empty
    assert not full().is_empty


def test_distance() -> None:
    assert full().distance(full()) == 0
    assert full().distance(InsertionScheme()) == 5
    assert InsertionScheme([A]).distance(InsertionScheme([B])) == 2


def test_file_form() -> None:
    body = full().to_dict()
    assert InsertionScheme.from_dict(body) == full()
    assert body["nodes_insertion_points"][1] == {"node_index": 1, "input_index": 0}
    assert body["region_outputs"][1] == {"region_index": 1, "node_index": None, "output_index": 0}
    assert body["hash"] == full().hash


@pytest.mark.parametrize(
    "body",
    [
        None,
        {"latency_ms": "fast"},
        {"nodes_insertion_points": {}},
        {"region_outputs": [{"node_index": 0}]},
        {"child_region_inputs": [3]},
    ],
)
def test_broken_file_forms_are_refused(body: object) -> None:
    with pytest.raises(InvalidSchemeError):
        InsertionScheme.from_dict(body)  # type: ignore[arg-type]


def test_the_best_scheme_is_measured_and_sound() -> None:
    fast, slow = InsertionScheme([A], latency_ms=1.0), InsertionScheme([B], latency_ms=2.0)
    broken, unknown = InsertionScheme(latency_ms=0.5, error=True), InsertionScheme()
    schemes = PatternSchemes(RegionPattern("Relu(e0)=>%0", 1), [slow, broken, unknown, fast])
    assert schemes.best_scheme is fast
    assert schemes.num_schemes == 4
    assert PatternSchemes(schemes=[broken, unknown]).best_scheme is None


def test_file_form_of_all_schemes() -> None:
    schemes = PatternSchemes(RegionPattern("Relu(e0)=>%0", 1), [full(), InsertionScheme()])
    read = PatternSchemes.from_dict(schemes.to_dict())
    assert read == schemes
    assert read.pattern_size == 1
    assert math.isinf(read.schemes[1].latency_ms)
    assert PatternSchemes().pattern_signature == ""
    other = RegionPattern("Tanh(e0)=>%0", 1)
    assert PatternSchemes.from_dict(schemes.to_dict(), other).pattern is other
    assert PatternSchemes.from_dict({}) == PatternSchemes()
    with pytest.raises(InvalidSchemeError):
        PatternSchemes.from_dict({"schemes": 3})
