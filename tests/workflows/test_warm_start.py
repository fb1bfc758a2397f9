"""A run that begins with what another run found out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
import yaml

from qdqtune import zoo
from qdqtune.autotune import PatternCache
from qdqtune.records._tuning import TuneEvent, TuneResult
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows.tuning._tune import tune

RESNET = {"width": 32, "image": 64, "blocks": (2, 2), "classes": 10}
CACHE = "autotuner_state_pattern_cache.yaml"


def saved(path: Path, name: str = "resnet18", **settings: object) -> Path:
    onnx.save(zoo.build(name, **settings), path)
    return path


def simulated(model: Path, folder: Path, **options: Any) -> TuneResult:
    settings = {"engine": "simulated", "engine_options": QUIET, "preset": "quick", "report": False}
    return tune(model, output_dir=folder, min_sqnr_db=None, **{**settings, **options})


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    folder = tmp_path_factory.mktemp("known")
    return simulated(saved(folder / "m.onnx", **RESNET), folder / "run")


@pytest.mark.slow
def test_a_deeper_sibling_takes_few_benchmarks(known: TuneResult, tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", **{**RESNET, "blocks": (3, 4)})
    cold = simulated(model, tmp_path / "cold").summary
    warm = simulated(model, tmp_path / "warm", pattern_cache=known.output_dir / CACHE).summary
    assert warm.benchmarks <= cold.benchmarks / 3
    assert warm.speedup >= 0.98 * cold.speedup
    assert next(iter(warm.seeds)) == "pattern cache"


def test_an_outcome_says_what_was_found_and_where(known: TuneResult) -> None:
    outcomes = PatternCache.load(known.output_dir / CACHE).outcomes
    assert {(o.conditions.engine, o.conditions.dialect, o.is_settled) for o in outcomes} == {
        ("simulated", "onnxruntime", True)
    }
    choices = [choice for outcome in outcomes for choice in outcome.choices]
    assert any(choice.is_chosen for choice in choices)
    assert any(choice.gain is not None for choice in choices)


def test_a_search_that_was_cut_short_settles_nothing(known: TuneResult, tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", **RESNET)
    run = simulated(model, tmp_path / "run", max_benchmarks=2)
    outcomes = PatternCache.load(run.output_dir / CACHE).outcomes
    assert outcomes
    assert not any(outcome.is_settled for outcome in outcomes)
    for other, is_told in ((run, True), (known, False)):
        events: list[TuneEvent] = []
        cache, folder = other.output_dir / CACHE, tmp_path / f"again-{is_told}"
        listen = {"pattern_cache": cache, "callbacks": [events.append]}
        simulated(model, folder, max_benchmarks=1, **listen)
        told = [event.message for event in events if event.stage == "cache"]
        assert any("ended before theirs was over" in message for message in told) == is_told


@pytest.mark.slow
def test_what_stays_float_is_known(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", **RESNET)
    options = {"engine_options": {**QUIET, "profile": "float-only"}}
    run = simulated(model, tmp_path / "run", **options)
    assert run.summary.kept_float
    outcomes = PatternCache.load(run.output_dir / CACHE).outcomes
    assert outcomes
    assert not any(choice.is_chosen for outcome in outcomes for choice in outcome.choices)
    again = simulated(model, tmp_path / "again", pattern_cache=run.output_dir / CACHE, **options)
    assert again.summary.kept_float
    assert again.summary.benchmarks < run.summary.benchmarks / 2


def test_dynamic_and_unfused_forms_are_known(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", "bert", layers=1, width=64, sequence=16, vocabulary=100)
    options = {"engine_options": {**QUIET, "profile": "cpu-dynamic"}, "max_benchmarks": 12}
    run = simulated(model, tmp_path / "run", **options)
    cache = PatternCache.load(run.output_dir / CACHE)
    forms = {choice.form for outcome in cache.outcomes for choice in outcome.choices}
    assert {"whole", "dynamic"} <= forms


def test_caches_without_outcomes_are_only_a_seed(known: TuneResult, tmp_path: Path) -> None:
    """Those of earlier versions have schemes, and nothing else."""
    body = yaml.safe_load((known.output_dir / CACHE).read_text())
    del body["outcomes"]
    (tmp_path / "old.yaml").write_text(yaml.safe_dump(body))
    model = saved(tmp_path / "m.onnx", **RESNET)
    run = simulated(model, tmp_path / "run", pattern_cache=tmp_path / "old.yaml", max_benchmarks=5)
    assert list(run.summary.seeds)[-1] == "pattern cache"
