"""The row of a model: everything took turns, and the README's tables can be made of it."""

from __future__ import annotations

import math

import pytest
from benchmarks.readme import results_table
from benchmarks.rivals import DYNAMIC, FLOAT, RULES, STATIC, TUNED, Rivals, interval
from benchmarks.tuning import Options, measure

from qdqtune.engines._comparison import Reopened

TINY = "resnet18:image=32,width=8,blocks=1"


def timed(*ratios: float) -> Reopened:
    return Reopened(1.0, log_ratios=tuple(map(math.log, ratios)))


def test_a_ratio_is_that_of_the_same_processes() -> None:
    found = interval(timed(2.0, 4.0, 3.0, 2.0, 2.0), timed(1.0, 2.0, 1.5, 1.0, 1.0))

    assert found == pytest.approx((2.0, 2.0, 2.0))


def test_the_interval_spans_what_processes_differ_by() -> None:
    assert interval(timed(2.0, 2.4, 2.1, 2.2, 1.9), timed()) == pytest.approx((2.1, 1.9, 2.4))


def test_a_file_that_fails_has_no_ratio() -> None:
    assert interval(Reopened(math.inf, "it crashed"), timed()) is None
    assert interval(timed(2.0), Reopened(math.inf, "it crashed")) is None


def test_the_best_blanket_is_one_that_was_timed_with_the_others() -> None:
    rivals = Rivals({}, {STATIC: "u8/u8", DYNAMIC: "dynamic s8", "nncf": "3.0"},
                    {"u8/u8": 1.2, "dynamic s8": 1.4})  # fmt: skip

    assert rivals.best_blanket == DYNAMIC
    assert Rivals({}, {"nncf": "3.0"}, {}).best_blanket is None


@pytest.mark.slow
@pytest.mark.usefixtures("brief_timing")
def test_a_row_has_everything_that_the_tables_show() -> None:
    record = measure(TINY, Options("quick", "onnxruntime", 0.1, 5.0))

    assert list(record["turns"])[-2:] == [RULES, TUNED]
    assert {STATIC, DYNAMIC} <= set(record["turns"])
    assert FLOAT not in record["turns"]
    assert record["float_ms"] > 0.0
    for turn in record["turns"].values():
        assert turn["low"] <= turn["ratio"] <= turn["high"]
        assert turn["kept_float"] or turn["sqnr_db"] > 0.0
    assert isinstance(record["elsewhere"]["openvino"], float)
    row = results_table([{**record, "time": "2026-01-02T03:04:05Z"}]).splitlines()[2]
    assert row.startswith(f"| `{TINY}` | ONNX Runtime | ")
    assert row.count("×") + row.count("float kept") == len(record["turns"])
