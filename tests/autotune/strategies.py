"""Random schemes and patterns, for property tests."""

from __future__ import annotations

import math

from hypothesis import strategies as st

from qdqtune.search.patterns._insertion_points import (
    ChildRegionInputInsertionPoint,
    NodeInputInsertionPoint,
    RegionOutputInsertionPoint,
)
from qdqtune.search.patterns._region_pattern import InsertionScheme, PatternSchemes, RegionPattern

_PLACES = st.integers(0, 4)
_NODE_INPUTS = st.builds(NodeInputInsertionPoint, _PLACES, _PLACES)
_CHILD_INPUTS = st.builds(ChildRegionInputInsertionPoint, _PLACES, _PLACES)
_OUTPUTS = st.one_of(
    st.builds(RegionOutputInsertionPoint, st.none(), _PLACES, _PLACES),
    st.builds(RegionOutputInsertionPoint, _PLACES, st.none(), _PLACES),
)
_LATENCIES = st.one_of(st.just(math.inf), st.floats(1e-6, 1e6), st.sampled_from([1.0, 2.0, 3.0]))

schemes = st.builds(
    InsertionScheme,
    st.lists(_NODE_INPUTS, max_size=5, unique=True),
    st.lists(_CHILD_INPUTS, max_size=3, unique=True),
    st.lists(_OUTPUTS, max_size=3, unique=True),
    _LATENCIES,
    st.booleans(),
    st.one_of(st.none(), st.just("2026-01-02T03:04:05+00:00")),
)
signatures = st.one_of(
    st.text(min_size=1, max_size=20),
    st.sampled_from(["Conv(e0,c)=>%0", "null", "1.5", "- a: [b", "2026-01-02", "# x", "é\u2028"]),
)
patterns = st.builds(
    PatternSchemes,
    st.builds(RegionPattern, signatures, st.integers(0, 50)),
    st.lists(schemes, max_size=6),
)
