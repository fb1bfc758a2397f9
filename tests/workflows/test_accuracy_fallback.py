from __future__ import annotations

import math
import re

import numpy as np
import pytest
from onnx import ModelProto

import qdqtune
from qdqtune.records._accuracy import allowed_sqnr_db
from qdqtune.records._quantization import QuantizeReport
from qdqtune.records._tuning import TuneEvent
from qdqtune.workflows._accuracy_evaluator import Quality, fewest_dropped
from qdqtune.workflows._accuracy_fallback import joined
from tests.conftest import model_from_text

RNG = np.random.default_rng(5)


def quantized(model: ModelProto, **options: object) -> QuantizeReport:
    return qdqtune.quantize(model, performance_threshold=None, **options).report  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outputs", "scores", "enough"),
    [
        ({"y": 15.0}, {}, True),
        ({"y": 14.9}, {}, False),
        ({"y": 5.0}, {"y": 12.0}, True),
        ({"y": 30.0}, {"y": 11.9}, False),
        ({"y": 4.9}, {"y": 30.0}, False),
        ({}, {"y": 12.0}, True),
        ({}, {}, True),
        ({"y": 40.0, "z": -math.inf}, {}, False),
        ({"y": math.nan}, {}, False),
    ],
)
def test_what_is_near_enough(
    outputs: dict[str, float], scores: dict[str, float], enough: bool
) -> None:
    assert (not Quality(outputs, scores=scores).shortfall(15.0)) is enough


@pytest.mark.parametrize(
    ("found", "of_float", "enough"),
    [(15.1, None, True), (14.9, None, False), (14.9, 18.0, True), (13.3, 18.0, True),
     (13.1, 18.0, False), (12.1, 3.0, True), (11.9, 3.0, False), (11.9, -math.inf, False)],
)  # fmt: skip
def test_the_engines_own_float_type_is_no_fault_of_quantization(
    found: float, of_float: float | None, enough: bool
) -> None:
    """Its noise is allowed beside that of the limit, but no more than the limit's once again."""
    own = None if of_float is None else Quality({"y": of_float}, scores={"y": of_float})
    assert (not Quality({"y": found}, of_float=own).shortfall(15.0)) is enough
    assert (found >= allowed_sqnr_db(15.0, of_float)) is enough


@pytest.mark.parametrize("needed", range(1, 9))
def test_as_few_parts_as_possible_stay_float(needed: int) -> None:
    tried: list[int] = []

    def is_enough(count: int) -> bool:
        tried.append(count)
        return count >= needed

    assert fewest_dropped(8, is_enough, lambda _what, _done, _total: None) == needed
    assert len(tried) <= 3
    assert 0 not in tried
    assert 8 not in tried


@pytest.mark.parametrize("count", [0, 1, 5, 32, 33, 100])
def test_parts_are_joined_with_their_neighbours(count: int) -> None:
    parts = [frozenset({f"op{number}"}) for number in range(count)]
    found = joined(parts, 32)
    assert len(found) <= 32
    assert [sorted(part) for part in found] == [
        sorted(f"op{number}" for number in range(at, min(at + size, count)))
        for size in [math.ceil(count / 32) or 1]
        for at in range(0, count, size)
    ]


def test_what_spoils_others_goes_first() -> None:
    """A row of the table that nobody looks up has huge values: one scale for all leaves nothing."""
    table = RNG.normal(size=(100, 64)).astype(np.float32)
    table[99] *= 1e4
    model = model_from_text(
        """g (int64[8] ids) => (float[8,64] y) { e = Gather(table, ids) h = MatMul(e, w)
        r = Relu(h) y = MatMul(r, v) }""",
        17,
        table=table,
        w=RNG.normal(size=(64, 64)).astype(np.float32),
        v=RNG.normal(size=(64, 64)).astype(np.float32),
    )
    data = {"ids": RNG.integers(0, 90, size=(8, 8))}
    report = quantized(model, engine="onnxruntime", calibration_data=list(_rows(data)))
    by_type = {each.op_type: each for each in report.decisions}
    assert by_type["Gather"].rule == "accuracy"
    assert not by_type["Gather"].quantized
    assert by_type["MatMul"].quantized
    assert report.sqnr_db["y"] > 25


def test_scores_are_guarded_though_a_softmax_hides_them() -> None:
    """Exp makes outliers: the scores stay near, and what is decided by them does not."""
    model = model_from_text(
        """g (float[16,64] x) => (float[16,32] y) { a = MatMul(x, w) b = Exp(a)
        c = MatMul(b, v) y = Softmax<axis = -1>(c) }""",
        17,
        w=RNG.normal(size=(64, 64)).astype(np.float32) * 0.5,
        v=RNG.normal(size=(64, 32)).astype(np.float32),
    )
    report = quantized(model, engine="onnxruntime")
    assert report.kept_float or report.sqnr_db["y"] >= 5.0


def _rows(data: dict[str, np.ndarray]) -> list[dict[str, np.ndarray]]:
    return [{name: values[row] for name, values in data.items()} for row in range(8)]


def test_a_long_repair_tells_how_far_it_is() -> None:
    weights = {f"w{n}": RNG.normal(size=(8, 8, 3, 3)).astype(np.float32) for n in (1, 2, 3)}
    text = """g (float[1,8,16,16] x) => (float[1,8,16,16] y) {
        a = Conv<pads=[1,1,1,1]>(x, w1)
        b = Sigmoid(a)
        c = Conv<pads=[1,1,1,1]>(b, w2)
        d = Sigmoid(c)
        y = Conv<pads=[1,1,1,1]>(d, w3)
    }"""
    events: list[TuneEvent] = []
    quantized(model_from_text(text, **weights), min_sqnr_db=70.0, callbacks=[events.append])
    told = [(event.stage, event.message) for event in events if event.done is not None]
    assert ("calibration", "1 of 8 samples, then ranges from them") in told
    measured = r"\d+ of \d+ parts of the model measured alone"
    assert any(stage == "accuracy" and re.fullmatch(measured, what) for stage, what in told)
