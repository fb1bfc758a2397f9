"""The front: what is on it, how it is exported, and what is chosen from it."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.graph._files import load_model
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq._read_back import read
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._accuracy import Rejected
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.records._front import Front, not_beaten
from qdqtune.records._placement import Edge, Placement
from qdqtune.records._ranges import CalibrationSource, RangeMethod
from qdqtune.records._tuning import TuneResult
from qdqtune.report._tuning import candidates_text, tune_text
from qdqtune.search._error_model import ErrorModel, noise_of
from qdqtune.search._space import Space, State, group_ops
from qdqtune.workflows._export import export, front_of, list_candidates
from qdqtune.workflows._report import read_details
from qdqtune.workflows.tuning._final_round import Finalist, FinalRound, Objective, Role
from qdqtune.workflows.tuning._finalists import Finalists
from qdqtune.workflows.tuning._folder import DETAILS, JOURNAL, PARETO, SUMMARY
from qdqtune.workflows.tuning._front import Trade, best_trades
from qdqtune.workflows.tuning._journal_format import whole_lines
from tests.workflows.test_accuracy_repair import space as space
from tests.workflows.test_final_round import RESULT, THRESHOLD, simulated, timed
from tests.workflows.test_final_round import model as model

FASTEST = replace(RESULT, sqnr_db=16.0)
BETTER, BEST = (
    replace(
        RESULT, name=name, file=Path(name), sqnr_db=sqnr_db, role=Role.FRONT,
        placement=Placement.of([Edge(name, name, 0)]),
    )
    for name, sqnr_db in (("better", 22.0), ("best", 30.0))
)  # fmt: skip
FINAL = FinalRound(
    [FASTEST, BETTER, BEST],
    {FASTEST.file: timed(2.0), BETTER.file: timed(1.6), BEST.file: timed(1.2)},
)


def is_fine(_: Finalist) -> str:
    return ""


@pytest.mark.parametrize(
    ("objective", "chosen"),
    [
        (Objective(THRESHOLD), FASTEST),
        (Objective(THRESHOLD, True), BEST),
        (Objective(1.5, True), BETTER),
        (Objective(THRESHOLD, True, 9.0), BEST),  # it takes 8.3 ms, the float model 10 ms
        (Objective(THRESHOLD, True, 7.0), BETTER),
        (Objective(THRESHOLD, True, 5.5), FASTEST),
        (Objective(THRESHOLD, True, 2.0), FASTEST),  # nothing is within it
        (Objective(THRESHOLD, True, 11.0), None),  # the float model is
    ],
)
def test_the_objective_chooses(objective: Objective, chosen: Finalist | None) -> None:
    found, reason = FINAL.choose(objective, is_fine)
    assert found == chosen
    assert bool(reason) == (chosen is None)


def test_a_metric_is_the_accuracy_if_there_is_one() -> None:
    metrics = {FASTEST.file: 0.9, BETTER.file: 0.95, BEST.file: 0.94}
    found, _ = FINAL.choose(Objective(THRESHOLD, True), is_fine, lambda each: metrics[each.file])
    assert found == BETTER
    points = FINAL.front(Objective(THRESHOLD), FASTEST, is_fine, lambda each: metrics[each.file])
    assert points == [FASTEST, BETTER]


def test_what_misses_a_limit_is_not_on_the_front() -> None:
    def shortfall(each: Finalist) -> str:
        return "too far" if each == BEST else ""

    assert FINAL.choose(Objective(THRESHOLD, True), shortfall)[0] == BETTER
    points = FINAL.front(Objective(THRESHOLD), FASTEST, shortfall, lambda _: None)
    assert points == [FASTEST, BETTER]


def test_none_of_a_front_is_beaten() -> None:
    models = [(3.0, 1.0), (2.0, 5.0), (2.0, 4.0), (1.0, 5.0), (0.5, 7.0)]
    found = not_beaten(models, lambda each: each[0], lambda each: each[1])
    assert found == [(3.0, 1.0), (2.0, 5.0), (0.5, 7.0)]


SEEN = [Trade(math.log(speedup), db - 16.6) for speedup, db in
        [(2.02, 18.7), (1.72, 19.4), (1.62, 20.8), (1.28, 21.5), (1.05, 26.2)]]  # fmt: skip


@pytest.mark.parametrize(
    ("most", "chosen"), [(1, (2,)), (2, (0, 2)), (3, (0, 2, 4)), (9, range(5))]
)
def test_the_points_of_a_front_that_are_offered_are_good_trades(
    most: int, chosen: Sequence[int]
) -> None:
    """Two dB for nearly nothing are not left out for their neighbours."""
    assert best_trades(SEEN, most) == tuple(chosen)
    assert best_trades([], most) == ()


def zoo_space(name: str, **settings: int) -> Space:
    model = ir.from_proto(zoo.build(name, **settings))
    fold(model)
    infer_shapes(model)
    index = GraphIndex(model)
    planner = QuantizationPlanner(index, dialect_named("onnxruntime"), "int8")
    return Space(planner, group_ops(index, planner).groups, {})


def parts(space: Space) -> dict[State, float]:
    singles = (frozenset({number}) for number in sorted(space.everything))
    return {
        state: 20.0 + 3.0 * n for n, state in enumerate(singles) if space.closed(state) == state
    }


def test_noise_adds_up(space: Space) -> None:
    model, known = ErrorModel(space), parts(space)
    model.observe(known)
    for count in (2, 5, len(known)):
        states = list(known)[:count]
        whole = frozenset().union(*states)
        noise = sum(noise_of(known[state]) for state in states)
        # Of the noise of what is quantized on the way nothing is known.
        assert noise_of(model.estimated_db(whole)) == pytest.approx(noise, rel=0.1)


def test_what_was_measured_corrects_what_was_not(space: Space) -> None:
    model, known = ErrorModel(space), parts(space)
    everything = space.everything
    model.observe(known)
    before = model.sqnr_db(everything)
    model.observe({everything: before - 6.0})
    assert model.sqnr_db(everything) == pytest.approx(before - 6.0)
    assert model.estimated_db(everything) == pytest.approx(before - 6.0, abs=0.1)
    largest = max(known, key=lambda state: noise_of(known[state]))
    assert model.estimated_db(everything - largest) > model.estimated_db(everything)


def test_a_part_of_an_accurate_whole_is_accurate() -> None:
    """Errors that amplify each other: the whole has a thousand times the noise of its parts."""
    space = zoo_space("resnet18", image=32, width=8)
    model, everything = ErrorModel(space), space.closed(space.everything)
    numbers = sorted(everything)
    pairs = {space.closed(frozenset(pair)): 60.0 for pair in itertools.pairwise(numbers)}
    model.observe(pairs | {everything: 20.0})
    assert 19.0 < model.sqnr_db(everything - {numbers[-1]}) < 25.0
    assert model.sqnr_db(frozenset(numbers[:3])) > 45.0


def test_what_comes_to_nothing_has_no_noise() -> None:
    model = zoo_space("resnet18", image=32, width=8)
    moving = [frozenset({n}) for n in sorted(model.everything) if not model.closed(frozenset({n}))]
    assert moving
    errors = ErrorModel(model)
    errors.observe(dict.fromkeys(moving, 300.0))
    assert all(errors.sqnr_db(state) == math.inf for state in moving)
    assert math.isfinite(errors.sqnr_db(model.everything))


@pytest.fixture(scope="module")
def run(model: Path, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    return simulated(model, tmp_path_factory.mktemp("front") / "run")


@pytest.mark.parametrize("source", [CalibrationSource.DATA, CalibrationSource.NONE])
def test_a_model_that_seems_better_than_the_result_has_a_reason(
    run: TuneResult, source: CalibrationSource
) -> None:
    chosen = next(point for point in run.summary.front if point.chosen)
    better = replace(chosen, name="rules", speedup=chosen.speedup + 0.01, chosen=False)
    front = (better, chosen)
    summary = replace(run.summary, front=front, calibration=source.value)
    text = tune_text(replace(run, summary=summary))
    assert "Point 1 " in text
    assert ("needs calibration" in text) == (source is CalibrationSource.NONE)
    assert "Point 1 " not in tune_text(run)


def test_candidates_are_exported_as_accurate_as_the_result(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its ranges, which may be others than those of the search."""
    found = Finalists._best_ranges

    def others(finalists: Finalists, state: State) -> RangeMethod:
        found(finalists, state)
        return list(finalists.accuracy)[-1]

    monkeypatch.setattr(Finalists, "_best_ranges", others)
    data = list(random_inputs(GraphIndex(load_model(model)), 4))
    result = simulated(model, tmp_path / "run", calibration_data=data)
    assert result.summary.calibration_method != "max"
    points = {point.candidate: point for point in result.summary.front}
    chosen = next(name for name, point in points.items() if point.chosen)
    export(tmp_path / "run", chosen, tmp_path / "candidate.onnx")
    encodings = [read(load_model(file)).encodings for file in
                 (tmp_path / "candidate.onnx", result.model)]  # fmt: skip
    assert repr(encodings[0]) == repr(encodings[1])


def test_a_run_ends_with_a_front(run: TuneResult) -> None:
    points = run.summary.front
    assert len(points) > 1
    assert sum(point.chosen for point in points) == 1
    for faster, slower in itertools.pairwise(points):
        assert faster.speedup > slower.speedup
        assert (faster.sqnr_db or 0.0) < (slower.sqnr_db or 0.0)
    written = json.loads((run.output_dir / PARETO).read_text())
    assert Front.from_dict(written).points == points == front_of(run.output_dir)
    assert "--pareto N" in tune_text(run)


def test_the_list_has_the_accuracy_and_marks_the_front(run: TuneResult) -> None:
    listed = {one.id: one for one in list_candidates(run.output_dir)}
    for point in run.summary.front:
        one = listed[point.candidate]
        assert (one.role, one.sqnr_db) == ("result" if point.chosen else "front", point.sqnr_db)
    details = read_details(run.output_dir / DETAILS)
    assert details is not None
    others = [one for one in listed.values() if not one.role]
    assert any(one.sqnr_db is not None for one in others)
    assert all(one.sqnr_db == details.sqnr_db.get(one.id) for one in others)
    header, _, *rows = candidates_text([*listed.values()]).splitlines()
    assert header.endswith("output SQNR  note")
    assert sum(row.endswith("result") for row in rows) == 1
    (run.output_dir / DETAILS).rename(run.output_dir / "aside")
    try:
        assert len(list_candidates(run.output_dir)) == len(listed)
    finally:
        (run.output_dir / "aside").rename(run.output_dir / DETAILS)


def test_the_list_marks_what_is_not_accurate_enough(run: TuneResult, tmp_path: Path) -> None:
    folder = shutil.copytree(run.output_dir, tmp_path / "run")
    measured = {one.id: one.sqnr_db for one in list_candidates(folder) if not one.role}
    known = sorted(db for db in measured.values() if db is not None)
    limit_db = (known[0] + known[-1]) / 2
    record = json.loads((folder / SUMMARY).read_text())
    record["conditions"]["min_sqnr_db"] = limit_db
    details = json.loads((folder / DETAILS).read_text())
    label, refused = next(each for each in details["candidates"].items() if each[1] in measured)
    reason = "accuracy 0.5 is below 0.9"
    rejected = Rejected(label, qdq_pairs=1, sqnr_db=None, metric=0.5, reason=reason)
    record["rejected"] = [rejected.to_dict()]
    (folder / SUMMARY).write_text(json.dumps(record))
    listed = list_candidates(folder)
    below = {name for name, db in measured.items() if db is not None and db < limit_db}
    assert {one.id for one in listed if one.shortfall} == below | {refused}
    text = candidates_text(listed)
    assert text.count(f"not accurate enough: below {round(limit_db, 1):g} dB") == len(
        below - {refused}
    )
    assert reason in text


def test_every_point_is_exported(run: TuneResult, tmp_path: Path) -> None:
    for number, point in enumerate(run.summary.front, 1):
        report = export(run.output_dir, number, tmp_path / f"{number}.onnx")
        placement = read(load_model(report.output)).placement
        assert len(placement.tensors) == point.qdq_pairs
        assert report.candidate.speedup == point.speedup
        assert report.candidate.accuracy == f"{point.sqnr_db:.1f} dB output SQNR"
    with pytest.raises(UsageError, match="has no point 99"):
        export(run.output_dir, 99, tmp_path / "none.onnx")


def test_a_point_that_was_changed_is_not_exported(
    model: Path, run: TuneResult, tmp_path: Path
) -> None:
    changed = next(n for n, point in enumerate(run.summary.front, 1) if not point.chosen)
    body = json.loads((run.output_dir / PARETO).read_text())
    folder = tmp_path / "run"
    folder.mkdir()
    for file in ("/etc/model.onnx", "../model.onnx", str(model)):
        body["points"][changed - 1]["file"] = file
        (folder / PARETO).write_text(json.dumps(body))
        with pytest.raises(ModelError, match="not what was measured"):
            export(folder, changed, tmp_path / "out.onnx")
    (folder / PARETO).write_text("[]")
    with pytest.raises(ModelError, match="is damaged"):
        export(folder, changed, tmp_path / "out.onnx")


@pytest.mark.parametrize("wanted", ["objective", "max_latency_ms"])
def test_the_most_accurate_is_chosen_and_looked_for(
    model: Path, run: TuneResult, tmp_path: Path, wanted: str
) -> None:
    last = run.summary.front[-1]
    options: dict[str, Any] = {"objective": "accuracy"}
    if wanted == "max_latency_ms":
        options = {"max_latency_ms": (last.latency_ms + run.summary.baseline_ms) / 2.0}
    summary = simulated(model, tmp_path / "run", **options).summary
    assert summary.output_sqnr_db is not None
    assert summary.output_sqnr_db >= (last.sqnr_db or 0.0) - 1e-6
    assert summary.final_ms > run.summary.final_ms
    lines = whole_lines(tmp_path / "run" / JOURNAL)
    assert "front" in {line["stage"] for line in lines if line["kind"] == "measurement"}
    assert next(point for point in summary.front if point.chosen).sqnr_db == summary.output_sqnr_db
