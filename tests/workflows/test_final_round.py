"""The last comparison: result, best blanket and baseline on one scale, and the better one ships."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune.engines._comparison import Allowance, combine
from qdqtune.engines._pool import WorkerPool
from qdqtune.engines._timing import FEWEST_ROUNDS
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model
from qdqtune.qdq._read_back import read
from qdqtune.records._measurement import Comparison
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._ranges import RangeMethod
from qdqtune.records._tuning import TuneResult
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows.tuning._final_check import Timed, time_final
from qdqtune.workflows.tuning._final_round import Finalist, FinalRound, Objective, Role
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text
from tests.workflows.endings import end_with

THRESHOLD = 1.02
RESULT, BLANKET = (
    Finalist(
        role.name,
        frozenset({n}),
        Placement.of([Edge(role.name, role.name, 0)]),
        Path(role.name),
        RangeMethod.MAX,
        role=role,
    )
    for n, role in enumerate((Role.RESULT, Role.BLANKET))
)


def timed(speedup: float) -> Timed:
    log_ratios = tuple(math.log(speedup) + 0.003 * (n - 2) * (-1) ** n for n in range(5))
    one = [Comparison(math.exp(each), 0.99, 1.01, 0.96, 40, margin=0.01) for each in log_ratios]
    return Timed(10.0, 10.0 / speedup, combine(one), log_ratios)


@pytest.mark.parametrize(
    ("result", "blanket", "is_accurate", "chosen"),
    [
        (1.5, 1.3, True, RESULT),
        (1.5, 1.501, True, RESULT),  # no significant difference: what the search chose
        (1.3, 1.5, True, BLANKET),
        (1.3, 1.5, False, RESULT),
        (1.3, "it crashed", True, RESULT),
        (0.9, 1.3, True, BLANKET),
        (0.9, 1.3, False, None),
        (1.01, 1.015, True, None),  # both below the threshold
        ("it crashed", 1.3, True, BLANKET),
        (None, 1.3, True, BLANKET),
        (None, 0.8, True, None),
    ],
)
def test_the_better_one_ships(
    result: float | str | None, blanket: float | str, is_accurate: bool, chosen: Finalist | None
) -> None:
    found = {
        finalist.file: timed(each) if isinstance(each, float) else each
        for finalist, each in ((RESULT, result), (BLANKET, blanket))
        if each is not None
    }
    final = FinalRound([BLANKET] if result is None else [RESULT, BLANKET], found)

    def shortfall(entry: Finalist) -> str:
        return "5 dB too low" if entry is BLANKET and not is_accurate else ""

    ships, reason = final.choose(Objective(THRESHOLD), shortfall)
    assert ships == chosen
    assert bool(reason) == (ships is None and result is not None)
    record = final.blanket_record(ships, "", None)
    if record is not None:
        assert record.identical == (ships is BLANKET)
        assert record.speedup == pytest.approx(blanket, rel=0.01)


def test_a_slow_metric_is_asked_for_only_if_the_blanket_would_ship() -> None:
    found = {RESULT.file: timed(1.5), BLANKET.file: timed(1.3)}
    final = FinalRound([RESULT, BLANKET], found)
    assert final.choose(Objective(THRESHOLD), lambda _: pytest.fail("asked"))[0] is RESULT


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    weights = {
        f"w{n}": rng.normal(size=(32, 32, 3, 3)).astype(np.float32) / 17 for n in range(1, 6)
    }
    text = """g (float[1,32,32,32] x) => (float[1,32,32,32] y) {
        a = Conv<pads=[1,1,1,1]>(x, w1)
        b = Relu(a)
        c = Conv<pads=[1,1,1,1]>(b, w2)
        d = Add(c, b)
        e = Sigmoid(d)
        f = Conv<pads=[1,1,1,1]>(e, w3)
        g = Relu(f)
        h = Conv<pads=[1,1,1,1]>(g, w4)
        i = Mul(h, e)
        y = Conv<pads=[1,1,1,1]>(i, w5)
    }"""
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(model_from_text(text, **weights), path)
    return path


def simulated(model: Path, output: Path, **options: Any) -> TuneResult:
    settings = {"engine": "simulated", "engine_options": QUIET, "preset": "quick"}
    return tune(model, output_dir=output, **{**settings, **options})


@pytest.mark.parametrize("workflow", ["region", "subgraph"])
def test_the_best_blanket_is_timed_beside_the_result(
    model: Path, tmp_path: Path, workflow: str
) -> None:
    summary = simulated(model, tmp_path / "run", workflow=workflow).summary
    blanket = summary.blanket
    assert blanket is not None
    assert blanket.name in ("everything", "weighted ops", "rules")
    assert blanket.sqnr_db is not None
    if blanket.identical:
        assert (blanket.speedup, blanket.latency_ms) == (summary.speedup, summary.final_ms)
        assert blanket.sqnr_db == summary.output_sqnr_db
    else:
        assert blanket.speedup < summary.speedup
        # Of the same run: one baseline, as far as rounding and noise of an engine without any go.
        assert blanket.latency_ms * blanket.speedup == pytest.approx(summary.baseline_ms, rel=0.02)
    written = json.loads((tmp_path / "run/summary.json").read_text())["blanket"]
    assert written == blanket.to_dict()


def test_a_result_that_is_a_blanket_is_timed_once(model: Path, tmp_path: Path) -> None:
    summary = simulated(model, tmp_path / "run", max_benchmarks=1).summary
    assert summary.blanket is not None
    assert summary.blanket.identical
    assert summary.blanket.speedup == summary.speedup
    assert not (tmp_path / "run/.scratch").exists()


def test_a_blanket_that_is_known_to_be_faster_ships_instead(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = simulated(model, tmp_path / "best", max_benchmarks=1)
    end_with(monkeypatch, frozenset({0}))  # one Conv alone
    result = simulated(model, tmp_path / "run", max_benchmarks=1)
    summary = result.summary
    assert summary.blanket is not None
    assert summary.blanket.identical
    assert result.placement == best.placement
    assert read(load_model(result.model)).placement.edges == result.placement.edges
    assert summary.qdq_pairs == len(result.placement.tensors)
    assert summary.output_sqnr_db == best.summary.output_sqnr_db
    assert summary.lost_to_accuracy == ""


def test_a_blanket_that_is_not_accurate_enough_does_not_ship(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = simulated(model, tmp_path / "free", max_benchmarks=1, min_sqnr_db=None).summary
    assert free.output_sqnr_db is not None
    limit = free.output_sqnr_db + 0.5
    end_with(monkeypatch, frozenset({0}))
    result = simulated(model, tmp_path / "run", max_benchmarks=1, min_sqnr_db=limit)
    summary = result.summary
    assert summary.blanket is not None
    assert not summary.blanket.identical
    assert summary.blanket.shortfall.endswith(f"0.5 dB below --min_sqnr {limit:g}")
    (rejected,) = [each for each in summary.rejected if each.name == summary.blanket.name]
    assert rejected.sqnr_db == summary.blanket.sqnr_db == pytest.approx(limit - 0.5)
    assert rejected.reason == summary.blanket.shortfall
    assert rejected.qdq_pairs > summary.qdq_pairs


def test_a_blanket_misses_the_users_metric_before_it_ships(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def few(path: str) -> float:
        nodes = onnx.load(path, load_external_data=False).graph.node
        return -float(sum(node.op_type == "QuantizeLinear" for node in nodes))

    end_with(monkeypatch, frozenset({0}))
    result = simulated(model, tmp_path / "run", max_benchmarks=1, evaluate=few, max_drop=3.0)
    blanket = result.summary.blanket
    assert blanket is not None
    assert not blanket.identical
    assert blanket.metric is not None
    assert blanket.metric < -3.0
    assert "more than --max_drop 3" in blanket.shortfall
    assert [each.metric for each in result.summary.rejected if each.name == blanket.name] == [
        blanket.metric
    ]


def test_the_metric_is_that_of_what_is_handed_over(model: Path, tmp_path: Path) -> None:
    def few(path: str) -> float:
        nodes = onnx.load(path, load_external_data=False).graph.node
        return -float(sum(node.op_type == "QuantizeLinear" for node in nodes))

    call: dict[str, Any] = {"evaluate": few, "max_drop": 100.0}
    shipped = simulated(model, tmp_path / "shipped", **call).summary
    assert shipped.metric is not None
    assert shipped.metric["final"] < shipped.metric["float"] == 0.0
    kept = simulated(model, tmp_path / "kept", **call, performance_threshold=100.0).summary
    assert kept.kept_float
    assert kept.metric == {"float": 0.0}


def test_a_blanket_is_shown_where_float_is_best(model: Path, tmp_path: Path) -> None:
    options = {**QUIET, "profile": "float-only"}
    summary = simulated(model, tmp_path / "run", engine_options=options).summary
    assert summary.kept_float
    assert summary.blanket is not None
    assert summary.blanket.speedup < 1.0
    assert not summary.blanket.identical
    assert summary.confidence < 1.0


def test_without_time_the_fewest_rounds_are_played(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model_from_text("g (float[1,8] x) => (float[1,8] y) { y = Relu(x) }"), path)
    feeds = {"x": np.ones((1, 8), np.float32)}

    with Worker("simulated") as worker:
        allowance = Allowance(0.0, reopening_s=0.0)
        (found,) = time_final(WorkerPool([worker]), path, [path], feeds, allowance)
    assert isinstance(found, Timed)
    assert found.comparison.openings == 1
    assert found.comparison.pairs == FEWEST_ROUNDS
