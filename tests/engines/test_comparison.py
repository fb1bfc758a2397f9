"""Comparisons of files in a real worker, with models that fail on the way."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtune.engines import _comparison as comparison
from qdqtune.engines._comparison import compare_files
from qdqtune.records._measurement import Verdict

FEEDS = {"x": np.zeros(1, dtype=np.float32)}


def test_real_models_are_compared(worker, conv_path, conv_feeds):
    rounds = []
    measurements, (comparison,) = compare_files(
        worker,
        [conv_path, conv_path],
        conv_feeds,
        budget_s=0.5,
        progress=lambda done, planned: rounds.append((done, planned)),
    )
    assert all(measured.ok and measured.build_s > 0 for measured in measurements)
    assert len(measurements[0].blocks_ms) == len(measurements[1].blocks_ms) + 1
    assert comparison.pairs == len(measurements[1].blocks_ms)
    assert comparison.low <= comparison.ratio <= comparison.high
    assert len(rounds) == len(measurements[1].blocks_ms)
    left = {path.name for path in worker.scratch.iterdir()}
    assert left <= {".ses"}  # ONNX Runtime's own, in every folder for temporary files


def test_the_ratio_is_the_speedup(faulty, model_that):
    paths = [model_that(latency_ms=ms) for ms in (8.0, 4.0, 16.0, 8.0)]
    measurements, comparisons = compare_files(faulty, paths, FEEDS, budget_s=1.0)
    assert [measured.latency_ms for measured in measurements] == [8.0, 4.0, 16.0, 8.0]
    assert [comparison.ratio for comparison in comparisons] == pytest.approx([2.0, 0.5, 1.0])
    verdicts = [comparison.verdict for comparison in comparisons]
    assert verdicts[:2] == [Verdict.FASTER, Verdict.SLOWER]
    assert not verdicts[2].differs  # of two equal models


@pytest.mark.parametrize("fault", ["segfault", "exit", "raise"])
@pytest.mark.parametrize("moment", ["open", "time"])
def test_a_failing_candidate_leaves_the_others_measured(faulty, model_that, fault, moment):
    paths = [model_that(latency_ms=8), model_that(fault, at=moment), model_that(latency_ms=4)]
    measurements, comparisons = compare_files(faulty, paths, FEEDS, budget_s=0.5)
    assert [measured.ok for measured in measurements] == [True, False, True]
    assert comparisons[0] is None
    assert comparisons[1].verdict is Verdict.FASTER


def test_a_lying_candidate_fails(faulty, model_that):
    paths = [model_that(latency_ms=8), model_that(latency_ms="nan")]
    measurements, comparisons = compare_files(faulty, paths, FEEDS, budget_s=0.5)
    assert "impossible latency" in measurements[1].error
    assert comparisons == [None]


def test_without_a_baseline_there_is_no_comparison(faulty, model_that):
    paths = [model_that("segfault"), model_that(latency_ms=4), model_that(latency_ms=4)]
    measurements, comparisons = compare_files(faulty, paths, FEEDS, budget_s=0.5)
    assert [measured.ok for measured in measurements] == [False, True, True]
    assert "SIGSEGV" in measurements[0].error
    assert comparisons == [None, None]


def test_all_may_fail(faulty, model_that):
    paths = [model_that("raise", at="open"), model_that("raise", at="feed")]
    measurements, comparisons = compare_files(faulty, paths, FEEDS)
    assert not any(measured.ok for measured in measurements)
    assert comparisons == [None]


def test_a_hanging_open_is_stopped_by_its_limit(faulty_with, model_that):
    paths = [model_that(latency_ms=8), model_that("hang", at="open")]
    faulty = faulty_with(timeout_s=1.5)
    faulty.info(timeout_s=60)
    measurements, _ = compare_files(faulty, paths, FEEDS, budget_s=0.5)
    assert [measured.ok for measured in measurements] == [True, False]
    assert "within 1.5 s" in measurements[1].error


def test_a_candidate_hang_is_measured_by_the_baseline(faulty, model_that, monkeypatch):
    monkeypatch.setattr("qdqtune.engines._comparison._SHORTEST_LIMIT_S", 1.0)
    paths = [model_that(latency_ms=8), model_that("hang")]
    measurements, _ = compare_files(faulty, paths, FEEDS, budget_s=0.5)
    assert "no answer to 'time' within 1 s" in measurements[1].error
    assert measurements[0].ok


def test_one_model_alone_is_measured(faulty, model_that):
    measurements, comparisons = compare_files(faulty, [model_that(latency_ms=8)], FEEDS)
    assert measurements[0].latency_ms == 8.0
    assert comparisons == []


@pytest.mark.parametrize("others", [[], ["hang"]])
def test_a_slow_model_alone_is_measured(faulty_with, model_that, others, monkeypatch):
    monkeypatch.setattr(comparison, "_SHORTEST_LIMIT_S", 2.0)
    paths = [model_that(latency_ms=40), *(model_that(fault) for fault in others)]
    faulty = faulty_with(timeout_s=1.5)
    faulty.info(timeout_s=60)
    measurements, _ = compare_files(faulty, paths, FEEDS, budget_s=1.0)
    assert measurements[0].latency_ms == 40.0


def test_a_number_of_runs_is_kept_to(faulty, model_that):
    paths = [model_that(latency_ms=8), model_that(latency_ms=4)]
    measurements, (comparison,) = compare_files(faulty, paths, FEEDS, runs=50)
    assert [sum(map(len, measured.blocks_ms)) for measured in measurements] == [52, 50]
    assert comparison.pairs == 25
    _, (comparison,) = compare_files(faulty, paths, FEEDS, runs=1)
    assert (comparison.pairs, comparison.verdict) == (8, Verdict.FASTER)
