"""Placements and ranges as files."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._ranges import CalibrationSource, Ranges

names = st.text(min_size=1, max_size=8)
edges = st.builds(Edge, names, names, st.integers(0, 9))
placements = st.builds(
    Placement, st.frozensets(edges), *[st.frozensets(names, max_size=3) for _ in range(3)]
)


@given(placement=placements)
def test_json_round_trip(placement: Placement) -> None:
    assert Placement.from_json(placement.to_json("abc")) == placement


@given(first=placements, second=placements)
def test_union(first: Placement, second: Placement) -> None:
    assert first | second == second | first
    assert (first | second) | first == first | second
    assert (first | second).tensors == first.tensors | second.tensors


def test_equal_placements_are_equal_files() -> None:
    forward = Placement.of([("b", "n", 1), ("a", "n", 0)], ["z", "y"])
    backward = Placement.of([("a", "n", 0), ("b", "n", 1)], ["y", "z"])
    assert forward.to_json() == backward.to_json()


PLAIN = Placement.of([("x", "conv", 0), ("w", "conv", 1), ("y", "", 0)], ["h", "x"])


def test_what_needs_no_more_is_of_the_first_schema() -> None:
    """Journals of earlier versions hold these digests, and their readers know these files."""
    assert PLAIN.digest() == "6d3c534d6201f8cab637413a962e4922"
    assert Placement().digest() == "4eaec12dc5d6b8c5da0782f419a459d9"
    written = json.loads(PLAIN.to_json("abc"))
    assert written == {
        "kind": "placement", "schema": 1, "model": "abc", "outputs": ["h", "x"],
        "edges": [["w", "conv", 1], ["x", "conv", 0], ["y", "", 0]],
    }  # fmt: skip
    assert Placement.from_json(json.dumps(written)) == PLAIN


@pytest.mark.parametrize("form", ["dynamic", "unfused"])
def test_other_forms_of_ops_are_of_the_second_schema(form: str) -> None:
    other = replace(PLAIN, **{form: frozenset({"n2", "n1"})})
    written = json.loads(other.to_json())
    assert (written["schema"], written[form]) == (2, ["n1", "n2"])
    assert other.digest() != PLAIN.digest()
    assert other != PLAIN
    assert PLAIN | other == other
    assert replace(Placement(), **{form: frozenset({"n"})})  # it quantizes something


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"kind": "placement", "schema": 2, "dynamic": [1]}', "list of node names"),
        ('{"kind": "placement", "schema": 2, "unfused": "n1"}', "list of node names"),
        ('{"kind": "placement", "schema": 0}', "schema is 0"),
        ('{"kind": "placement", "schema": true}', "schema is True"),
        ("nonsense", "not a placement file"),
        ("[]", "not a placement file"),
        ('{"kind": "ranges"}', "not a placement file"),
        ('{"kind": "placement", "schema": 99}', "schema is 99"),
        ('{"kind": "placement", "schema": 1, "edges": [["a", "b"]]}', "is not an edge"),
        ('{"kind": "placement", "schema": 1, "edges": [["a", "b", true]]}', "is not an edge"),
        ('{"kind": "placement", "schema": 1, "edges": 3}', "must be a list"),
        ('{"kind": "placement", "schema": 1, "outputs": [1]}', "list of tensor names"),
    ],
)
def test_broken_files_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        Placement.from_json(text, "here.json")
    assert "here.json" in caught.value.what


@given(
    pairs=st.dictionaries(names, st.tuples(st.floats(-1e30, 0), st.floats(0, 1e30))),
    source=st.sampled_from(CalibrationSource),
)
def test_ranges_round_trip(
    pairs: dict[str, tuple[float, float]], source: CalibrationSource
) -> None:
    ranges = Ranges(pairs, source, 3)
    again = Ranges.from_json(ranges.to_json())
    assert again == ranges
    assert again.digest() == ranges.digest()


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        '{"kind": "ranges", "schema": 1, "source": "data", "samples": 1, "ranges": {"a": [1]}}',
        '{"kind": "ranges", "schema": 1, "source": "data", "samples": 1, "ranges": {"a": [2, 1]}}',
        '{"kind": "ranges", "schema": 1, "source": "dog", "samples": 1, "ranges": {}}',
    ],
)
def test_broken_ranges(text: str) -> None:
    with pytest.raises(UsageError, match="not a ranges file"):
        Ranges.from_json(text)
