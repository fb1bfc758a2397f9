"""A search whose best is not accurate enough goes on among what is, and asks for few metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtune.records._accuracy import METRIC, SQNR
from qdqtune.records._tuning import TuneResult
from qdqtune.workflows.tuning._finalists import Finalists
from qdqtune.workflows.tuning._folder import JOURNAL
from qdqtune.workflows.tuning._journal_format import whole_lines
from qdqtune.workflows.tuning._time_budget import TimeBudget
from tests.workflows.test_final_round import model as model
from tests.workflows.test_final_round import simulated


@pytest.fixture(scope="module")
def free(model: Path, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    return simulated(model, tmp_path_factory.mktemp("free") / "run", min_sqnr_db=None)


@pytest.mark.parametrize("more_db", [2.0, 4.0])
def test_a_search_goes_on_among_what_is_accurate(
    model: Path, free: TuneResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more_db: float
) -> None:
    limit = (free.summary.output_sqnr_db or 0.0) + more_db
    bound = simulated(model, tmp_path / "bound", min_sqnr_db=limit).summary
    assert "below --min_sqnr" in bound.lost_to_accuracy
    assert bound.kept_float or (bound.output_sqnr_db or 0.0) >= limit
    lines = list(whole_lines(tmp_path / "bound" / JOURNAL))
    found = {each["placement"]: each["value"] for each in lines if each.get("measure") == SQNR}
    # What was timed after the first comparison was evaluated before.
    timed = [each for each in lines if each["kind"] == "measurement" and each["stage"] != "seeds"]
    assert timed
    assert all(found[each["candidate"]] >= limit for each in timed)
    monkeypatch.setattr(Finalists, "falls_short", lambda *_: False)
    monkeypatch.setattr(Finalists, "accurate_part", lambda *_, **__: None)
    once = simulated(model, tmp_path / "once", min_sqnr_db=limit).summary
    assert bound.speedup >= once.speedup - 1e-6


def test_it_takes_the_same_way_again(model: Path, free: TuneResult, tmp_path: Path) -> None:
    limit = (free.summary.output_sqnr_db or 0.0) + 4.0
    first = simulated(model, tmp_path / "run", min_sqnr_db=limit)
    again = simulated(model, tmp_path / "run", min_sqnr_db=limit)
    assert first.summary.benchmarks > again.summary.benchmarks == 0
    assert again.placement == first.placement


def test_a_slow_metric_is_asked_for_seldom(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if each call took ten seconds."""
    asked: list[str] = []

    def quantizers(path: str) -> float:
        asked.append(path)
        nodes = onnx.load(path, load_external_data=False).graph.node
        return 0.0 - float(sum(node.op_type == "QuantizeLinear" for node in nodes))

    saw = TimeBudget.saw_accuracy

    def slowly(budget: TimeBudget, measure: str, seconds: float) -> None:
        saw(budget, measure, 10.0 if measure == METRIC else seconds)

    monkeypatch.setattr(TimeBudget, "saw_accuracy", slowly)
    options: dict[str, Any] = {"evaluate": quantizers, "max_drop": 6.0}
    summary = simulated(model, tmp_path / "run", **options).summary
    assert summary.lost_to_accuracy
    assert len(asked) <= 12
    assert summary.metric is not None
    assert summary.metric.get("final", 0.0) >= -6.0
