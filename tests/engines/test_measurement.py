from __future__ import annotations

import json
import math

import pytest

from qdqtune.records._measurement import Comparison, EngineInfo, LayerTime, Measurement, Verdict


def through_json(value):
    return type(value).from_dict(json.loads(json.dumps(value.to_dict(), allow_nan=False)))


def test_latency_is_the_median_of_block_medians():
    measured = Measurement(((1.0, 2.0, 90.0), (4.0, 4.0, 4.0), (3.0, 3.0, 3.0)))
    assert measured.ok
    assert measured.block_medians_ms == (2.0, 4.0, 3.0)
    assert measured.latency_ms == 3.0


@pytest.mark.parametrize("sample", [math.nan, math.inf, -1.0, 0.0, True, "5"])
def test_an_impossible_sample_fails_the_whole(sample):
    measured = Measurement(((1.0, 2.0), (1.0, sample)))
    assert not measured.ok
    assert measured.blocks_ms == ()
    assert measured.latency_ms == math.inf


@pytest.mark.parametrize("blocks", [(), ((),), ((1.0,), ())])
def test_no_samples_is_a_failure(blocks):
    assert Measurement(blocks).error == "the engine returned no samples"


def test_an_error_goes_before_samples():
    assert Measurement(((1.0,),), error="crashed").blocks_ms == ()


@pytest.mark.parametrize(
    "value",
    [
        Measurement(((1.0, 2.0), (3.0,)), build_s=0.5, timing_s=1.5),
        Measurement(error="crashed"),
        Comparison(1.1, 1.05, 1.2, 0.98, 12, 0.01),
        Comparison(1.1, 0.0, math.inf, 0.98, 3),
        Comparison(1.1, 1.0, 1.2, 0.96, 90, 0.01, 0.47),
        LayerTime("n", "Conv", 0.25, "CPUExecutionProvider"),
        EngineInfo("onnxruntime", "1.2", "cpu", "avx2", 1, {"b": "1", "a": "2"}),
        EngineInfo("openvino", "1.2", "cpu", "avx2", float_type="bfloat16"),
    ],
)
def test_json_round_trip(value):
    assert through_json(value) == value


def test_of_an_engine_that_did_not_say_its_float_type_it_is_unknown():
    said = EngineInfo("openvino", "1.2", "cpu", "avx2").to_dict()
    assert said.pop("float_type") == "float32"
    before = EngineInfo.from_dict(said)
    assert before.float_type == ""
    assert before.to_dict() == said


@pytest.mark.parametrize(
    ("ratio", "low", "high", "margin", "verdict"),
    [
        (1.10, 1.05, 1.15, 0.0, Verdict.FASTER),
        (0.90, 0.85, 0.95, 0.0, Verdict.SLOWER),
        (1.02, 0.99, 1.05, 0.0, Verdict.SAME),
        (1.005, 1.002, 1.008, 0.01, Verdict.SAME),
        (0.995, 0.992, 0.998, 0.01, Verdict.SAME),
        (1.02, 1.001, 1.04, 0.01, Verdict.FASTER),
        (1.02, 0.0, math.inf, 0.0, Verdict.UNDECIDED),
        (0.97, 0.71, 1.32, 0.01, Verdict.UNDECIDED),
        (1.05, 0.98, 1.13, 0.0, Verdict.UNDECIDED),
        (1.05, 1.01, 1.13, 0.2, Verdict.SAME),
    ],
)
def test_verdict(ratio, low, high, margin, verdict):
    assert Comparison(ratio, low, high, 0.98, 10, margin).verdict is verdict


def test_a_comparison_of_an_earlier_version_has_no_contention_and_one_opening():
    value = Comparison(1.1, 1.05, 1.2, 0.98, 12, contention=0.2, openings=5).to_dict()
    assert Comparison.from_dict(value).openings == 5
    del value["contention"], value["openings"]
    assert Comparison.from_dict(value) == Comparison(1.1, 1.05, 1.2, 0.98, 12)
