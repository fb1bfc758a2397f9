"""What a report says about patterns: of every scheme that was tried, why it was kept or not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._report import PatternRow, SchemeRow
from qdqtune.search._config import Config
from qdqtune.search._space import Space, group_ops
from qdqtune.workflows.tuning._pattern_rows import pattern_rows
from qdqtune.workflows.tuning._run_records import Candidate, Snapshots
from tests.conftest import model_from_text

TEXT = """g (int64[1,4] i) => (float[1,4] y) {
    e = Gather(table, i)
    t = Unsqueeze(e, axes)
    c = Conv<pads=[1,1,1,1]>(t, w)
    r = Relu(c)
    p = GlobalAveragePool(r)
    f = Flatten(p)
    y = Gemm<transB=1>(f, v)
}"""


@pytest.fixture(scope="module", params=["onnxruntime", "openvino"])
def planner(request: pytest.FixtureRequest) -> QuantizationPlanner:
    chance = np.random.default_rng(0)
    shapes = {"table": (10, 8), "w": (8, 1, 3, 3), "v": (4, 8)}
    weights = {name: chance.normal(0, 1, shape).astype("f") for name, shape in shapes.items()}
    proto = model_from_text(TEXT, **weights, axes=np.array([1]))
    index = GraphIndex(ir.from_proto(onnx.shape_inference.infer_shapes(proto)))
    return QuantizationPlanner(index, dialect_named(request.param))


def rows(
    planner: QuantizationPlanner, folder: Path, inaccurate: frozenset[str] = frozenset()
) -> tuple[PatternRow, ...]:
    """The rows of a run that chose the second of three candidates, and not the fastest."""
    grouping = group_ops(planner.index, planner)
    space = Space(planner, grouping.groups, {})
    placements = [space.placement(s) for s in (space.weighted(), space.everything, frozenset())]
    candidates = [
        Candidate(f"c000{n}", placement.digest(), placement, gain)
        for n, (placement, gain) in enumerate(zip(placements, (0.55, 0.5, 0.1), strict=True))
    ]
    snapshots = Snapshots(folder / "state.yaml", {}, Config())
    views = [view for view in grouping.views if view.edges]
    best = candidates[1]
    tried = snapshots.write(planner, views, candidates, best, 10.0)
    every = list(zip(views, tried, strict=True))
    return pattern_rows(every, planner, best.placement, (), inaccurate)


def not_chosen(found: tuple[PatternRow, ...], candidate: str) -> list[SchemeRow]:
    schemes = [scheme for row in found for scheme in row.schemes]
    return [each for each in schemes if each.candidate == candidate and not each.chosen]


def test_every_pattern_has_the_scheme_of_the_result(
    planner: QuantizationPlanner, tmp_path: Path
) -> None:
    found = rows(planner, tmp_path)
    assert found
    assert all(sum(scheme.chosen for scheme in row.schemes) == 1 for row in found)
    assert {s.reason for row in found for s in row.schemes}.isdisjoint({"", "dropped"})


def test_a_scheme_that_was_faster_is_not_said_to_be_slower(
    planner: QuantizationPlanner, tmp_path: Path
) -> None:
    for each in not_chosen(rows(planner, tmp_path), "c0000"):
        assert each.latency_ms == pytest.approx(10.0 / np.exp(0.55))
        assert each.reason == "dropped: its fastest model was measured 5.1 % faster, but not chosen"
    for each in not_chosen(rows(planner, tmp_path, frozenset({"c0000"})), "c0000"):
        assert each.reason.endswith("5.1 % faster, but is not accurate enough")
    for each in not_chosen(rows(planner, tmp_path), "c0002"):
        assert each.reason == "dropped: its fastest model is 49.2 % slower than the result"


def test_points_are_named_after_tensors(planner: QuantizationPlanner, tmp_path: Path) -> None:
    points = {p for row in rows(planner, tmp_path) for s in row.schemes for p in s.points}
    tensors = {point.partition(" into ")[0].partition(" after ")[0] for point in points}
    named = {name for each in tensors for name in each.split(", ")}
    assert named <= {*planner.index.value, "table", "w", "v"}
