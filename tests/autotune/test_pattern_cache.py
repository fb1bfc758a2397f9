"""The best schemes, kept across runs."""

from __future__ import annotations

import logging
import random
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qdqtune.records._errors import AutotunerError
from qdqtune.search.patterns._insertion_points import NodeInputInsertionPoint
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._region_pattern import InsertionScheme, PatternSchemes, RegionPattern
from tests.autotune.graphs import from_text, leaf, weight
from tests.autotune.strategies import patterns, schemes

FEW = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
PATTERN = RegionPattern("Conv(e0,c)=>%0", 1)


def scheme(*nodes: int, latency_ms: float = float("inf"), error: bool = False) -> InsertionScheme:
    points = [NodeInputInsertionPoint(node, 0) for node in nodes]
    return InsertionScheme(points, latency_ms=latency_ms, error=error)


def cached(cache: PatternCache) -> list[float]:
    found = cache.get_pattern_schemes(PATTERN.signature)
    return [each.latency_ms for each in found.schemes] if found is not None else []


def test_the_fastest_that_differ_enough_are_kept() -> None:
    cache = PatternCache(minimum_distance=2, max_entries_per_pattern=2)
    near, far, slow = scheme(1, 2, latency_ms=2.0), scheme(3, latency_ms=3.0), scheme(9, 8)
    cache.add_pattern_schemes(PatternSchemes(PATTERN, [slow, far, near, scheme(1, latency_ms=1.0)]))
    assert cached(cache) == [1.0, 3.0]
    cache.add_pattern_schemes(PatternSchemes(PATTERN, [scheme(1, latency_ms=0.5)]))
    cache.add_pattern_schemes(PatternSchemes(PATTERN, [scheme(3, latency_ms=9.0)]))
    assert cached(cache) == [0.5, 3.0]
    assert (cache.num_patterns, cache.total_schemes) == (1, 2)


def test_errors_are_not_kept_and_don_t_hide_what_worked() -> None:
    cache = PatternCache(minimum_distance=0)
    failed = scheme(1, latency_ms=0.1, error=True)
    cache.add_pattern_schemes(PatternSchemes(PATTERN, [failed]))
    assert not cache.has_pattern(PATTERN.signature)
    cache.add_pattern_schemes(PatternSchemes(PATTERN, [failed, scheme(1, latency_ms=2.0)]))
    assert cached(cache) == [2.0]


def test_what_is_kept_is_a_copy() -> None:
    cache, own = PatternCache(), scheme(1, latency_ms=1.0)
    cache.add_pattern_schemes(PatternSchemes(PATTERN, [own]))
    own.latency_ms = 7.0
    own.node_inputs.clear()
    assert cached(cache) == [1.0]


@FEW
@given(st.lists(schemes, max_size=12), st.integers(0, 6), st.integers(1, 5))
def test_what_a_cache_keeps(given_schemes: list[InsertionScheme], distance: int, most: int) -> None:
    cache = PatternCache((), distance, most)
    for each in given_schemes:
        cache.add_pattern_schemes(PatternSchemes(PATTERN, [each]))
    found = cache.get_pattern_schemes(PATTERN.signature)
    kept = found.schemes if found is not None else []
    sound = [each for each in given_schemes if not each.error]
    assert bool(kept) == bool(sound)
    assert len(kept) <= most
    assert not any(each.error for each in kept)
    assert [each.latency_ms for each in kept] == sorted(each.latency_ms for each in kept)
    assert min((e.latency_ms for e in kept), default=0) == min(
        (e.latency_ms for e in sound), default=0
    )
    pairs = [(a, b) for place, a in enumerate(kept) for b in kept[:place]]
    assert all(a.distance(b) >= distance for a, b in pairs)


@FEW
@given(schemes, st.randoms(use_true_random=False), schemes)
def test_a_hash_stands_for_points_in_any_order(
    one: InsertionScheme, chance: random.Random, other: InsertionScheme
) -> None:
    points = one.points()
    chance.shuffle(points)
    assert InsertionScheme.of(points).hash == one.hash
    assert InsertionScheme.of(points).distance(one) == 0
    same = set(points) == set(other.points())
    assert (one.hash == other.hash) == same == (one.distance(other) == 0)
    assert InsertionScheme.from_dict(one.to_dict()) == one


@FEW
@given(st.lists(patterns, max_size=4))
def test_there_and_back(tmp_path: Path, listed: list[PatternSchemes]) -> None:
    cache = PatternCache(listed, minimum_distance=1)
    path = tmp_path / "cache.yaml"
    cache.save(path)
    again = PatternCache.load(path)
    assert again.to_dict() == cache.to_dict()
    assert PatternCache.from_dict(cache.to_dict()).to_dict() == cache.to_dict()


def test_merging() -> None:
    mine, theirs = (
        PatternCache([PatternSchemes(PATTERN, [scheme(1, latency_ms=ms)])]) for ms in (2.0, 1.0)
    )
    mine.merge(theirs)
    assert cached(mine) == [2.0]
    mine.merge(theirs, prefer_existing=False)
    assert cached(mine) == [1.0]
    empty = PatternCache()
    empty.merge(mine)
    assert cached(empty) == [1.0]


def test_a_scheme_from_quantized_tensors() -> None:
    index = from_text(
        "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { c = Conv(x, w) y = MaxPool"
        "<kernel_shape = [1,1]>(c) }",
        w=weight(4, 4, 1, 1),
    )
    cache = PatternCache()
    cache.add_pattern_from_region(leaf(0, 1), index, {"x"})
    assert len(cache.pattern_schemes) == 2  # with shapes, and without
    assert (cache.num_patterns, cache.total_schemes) == (1, 1)
    (entry,) = cache.pattern_schemes[0].schemes
    assert entry.node_inputs == [NodeInputInsertionPoint(0, 0)]
    assert not entry.is_profiled
    cache = PatternCache()
    cache.add_pattern_from_region(leaf(0, 1), index, {"elsewhere"})
    assert not cache.num_patterns


def test_the_file_has_the_seeds_keys_and_ours(tmp_path: Path) -> None:
    path = tmp_path / "cache.yaml"
    PatternCache([PatternSchemes(PATTERN, [scheme(1)])]).save(path)
    body = yaml.safe_load(path.read_text())
    assert body["kind"] == "pattern_cache"
    assert body["schema"] == 1
    assert (body["minimum_distance"], body["max_entries_per_pattern"]) == (4, 32)
    (entry,) = body["pattern_schemes"]
    assert list(entry) == ["pattern_signature", "pattern_size", "schemes"]
    assert set(entry["schemes"][0]) == {
        "latency_ms", "error", "profile_timestamp", "nodes_insertion_points",
        "child_region_inputs", "region_outputs", "hash",
    }  # fmt: skip
    assert "latency_ms: .inf" in path.read_text()


def test_a_file_without_kind_and_schema_loads(tmp_path: Path) -> None:
    path = tmp_path / "peer.yaml"
    path.write_text(
        """
minimum_distance: 4
max_entries_per_pattern: 32
pattern_schemes:
- pattern_signature: Conv->Relu
  pattern_size: 2
  schemes:
  - latency_ms: 1.25
    error: false
    profile_timestamp: '2026-01-01T00:00:00+00:00'
    nodes_insertion_points: [{node_index: 0, input_index: 0}]
    child_region_inputs: []
    region_outputs: []
    hash: 0123
"""
    )
    cache = PatternCache.load(path)
    found = cache.get_pattern_schemes("Conv->Relu")
    assert found is not None
    assert found.pattern_size == 2
    assert found.schemes[0].latency_ms == 1.25


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        PatternCache.load(tmp_path / "none.yaml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1, 2\nb: }", "line 2"),
        ("", "no mapping"),
        ("- 1\n- 2", "no mapping"),
        ("minimum_distance: 4", "pattern_schemes"),
        ("pattern_schemes: 3", "pattern_schemes"),
        ("minimum_distance: far\npattern_schemes: []", "minimum_distance"),
        ("kind: autotuner_state\npattern_schemes: []", "line 1: the file's kind"),
        ("schema: 2\npattern_schemes: []", "line 1 was written by a newer version"),
        ("schema: one\npattern_schemes: []", "line 1: 'one'"),
        ("pattern_schemes: !!python/object/apply:os.system ['true']", "line 1"),
        ("a: &a [1]\npattern_schemes: [*a, *a]", "aliases"),
        ("a: &a 1\npattern_schemes: [*a]", "line 2: not a pattern cache: it has aliases"),
        ("a: &a {b: 1}\nc: {<<: *a}", "line 2: not a pattern cache: it has aliases"),
        ("[" * 50_000, "it is nested more than 50 levels deep"),
        ("{a: " * 50_000, "it is nested more than 50 levels deep"),
        ("- " * 50_000, "it is nested more than 50 levels deep"),
        ("a: [" + "1," * 600_000, "it has more than 500,000 values"),
        ("a: 1" + ":1" * 500_000, "it has a number of more than 4000 digits"),
        ("a: 2026-99-99\npattern_schemes: []", "not a pattern cache"),
        ("a: \x01", "not a pattern cache"),
    ],
    ids=range(20),
)  # fmt: skip
def test_what_is_no_cache_is_named_by_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.yaml"
    path.write_text(text)
    with pytest.raises(AutotunerError) as caught:
        PatternCache.load(path)
    assert str(path) in caught.value.what
    assert words in caught.value.what
    assert caught.value.hint


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "broken.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(AutotunerError, match="UTF-8"):
        PatternCache.load(path)


def test_single_damaged_entries_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "cache.yaml"
    PatternCache([PatternSchemes(PATTERN, [scheme(1, latency_ms=1.0)])]).save(path)
    whole = path.read_text()
    damaged = (
        "- {pattern_signature: 3, pattern_size: 1, schemes: []}\n"
        "- nonsense\n"
        "- pattern_signature: half\n"
        "  pattern_size: 1\n"
        "  schemes:\n"
        "  - {latency_ms: fast}\n"
        "  - {latency_ms: .nan}\n"
        "  - {latency_ms: -1.0}\n"
        "  - {latency_ms: 2.0, nodes_insertion_points: [{node_index: 0, input_index: 0}]}\n"
    )
    path.write_text(whole + damaged)
    first = whole.count("\n") + 1
    with caplog.at_level(logging.WARNING):
        cache = PatternCache.load(path)
    assert cached(cache) == [1.0]
    half = cache.get_pattern_schemes("half")
    assert half is not None
    assert [each.latency_ms for each in half.schemes] == [2.0]
    messages = [record.getMessage() for record in caplog.records]
    lines = (first, first + 1, first + 5, first + 6, first + 7)
    for message, line in zip(messages, lines, strict=True):
        assert f"{path}, line {line}:" in message


@pytest.mark.parametrize(("distance", "most"), [(-1, 1), (0, 0), ("4", 1), (True, 1)])
def test_limits_that_make_no_sense(distance: int, most: int) -> None:
    with pytest.raises(AutotunerError):
        PatternCache((), distance, most)


def test_patterns_may_be_put_into_the_list() -> None:
    cache, own = PatternCache(), PatternSchemes(PATTERN, [scheme(1), scheme(2)])
    cache.pattern_schemes.append(own)
    assert cache.has_pattern(PATTERN.signature)
    assert cache.get_pattern_schemes(PATTERN.signature) is own
    assert (cache.num_patterns, cache.total_schemes) == (1, 2)
    cache.pattern_schemes.append(PatternSchemes(PATTERN, [scheme(3, latency_ms=1.0)]))
    assert cached(cache) == [1.0]  # the others don't differ enough
    cache.pattern_schemes[0] = PatternSchemes(RegionPattern("Relu(e0)=>%0", 1), [scheme(1)])
    assert not cache.has_pattern(PATTERN.signature)
    cache.pattern_schemes = [own]
    assert cache.pattern_schemes == [own]
    cache.pattern_schemes.clear()
    assert not cache.num_patterns


def test_a_pattern_counts_once_whatever_its_shapes() -> None:
    shapes = ["e0:float[1x4],c:float[4x4]", "e0:float[?x8],c:float[*]", "e0,c"]
    cache = PatternCache(
        PatternSchemes(RegionPattern(f"MatMul({each})=>%0", 1), [scheme(0), scheme(4, 5, 6, 7)])
        for each in shapes
    )
    assert len(cache.pattern_schemes) == 3
    assert (cache.num_patterns, cache.total_schemes) == (1, 2)


def test_nothing_makes_an_empty_cache() -> None:
    assert PatternCache.from_dict({}).to_dict() == PatternCache().to_dict()
