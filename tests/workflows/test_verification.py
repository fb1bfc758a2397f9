"""A model measured anew: what agrees is said to, what doesn't is found."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtune import zoo
from qdqtune.cli.main import main
from qdqtune.records.comparison import BenchRecord, Contestant
from qdqtune.records.errors import UsageError
from qdqtune.records.inputs import InputRequest
from qdqtune.records.measurement import Comparison, EngineInfo, Measurement
from qdqtune.records.placement import Placement
from qdqtune.report.verification import verify_text
from qdqtune.workflows.comparison import bench
from qdqtune.workflows.insertion import Choice, insert_qdq
from qdqtune.workflows.tuning.folder import BASELINE, FINAL, JOURNAL, PLACEMENT, SUMMARY
from qdqtune.workflows.tuning.journal import Journal
from qdqtune.workflows.verification import verify

Claim = Callable[..., Path]


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float, dict[str, Any]]:
    """A folder with a baseline, a quantized model and its placement; its true speedup; engine."""
    folder = tmp_path_factory.mktemp("verified")
    onnx.save(zoo.build("resnet18", width=8, image=32), folder / BASELINE)
    insert_qdq(
        folder / BASELINE, Choice(ops=["Conv"]), folder / FINAL,
        engine="simulated", save_placement=folder / PLACEMENT,
    )  # fmt: skip
    record = bench([folder / BASELINE, folder / FINAL], engine="simulated", threads=1)
    comparison = record.contestants[1].against_first
    assert comparison is not None
    return folder, comparison.ratio, record.engine.to_dict()


@pytest.fixture
def claim(quantized: tuple[Path, float, dict[str, Any]], tmp_path: Path) -> Claim:
    """Writes a summary with a speedup so many times the true one; returns the model's path."""
    folder, ratio, engine = quantized
    for file in folder.iterdir():
        shutil.copy(file, tmp_path)

    def write(times: float = 1.0, **changes: Any) -> Path:
        said = ratio * times
        summary = {
            "kind": "summary",
            "schema": 1,
            "engine": engine,
            "speedup": said,
            "speedup_interval": [0.99 * said, 1.01 * said],
            "kept_float": False,
            "files": {"model": FINAL, "baseline": BASELINE},
        }
        (tmp_path / SUMMARY).write_text(json.dumps({**summary, **changes}))
        return tmp_path / FINAL

    return write


def test_what_is_true_agrees(claim: Claim) -> None:
    report = verify(claim())
    assert report.bench.engine.name == "simulated"  # the run's, unasked
    assert report.bench.engine.threads == 1
    assert report.agrees is True
    assert report.edges is not None
    assert report.edges.ok
    assert report.edges.expected > 40
    assert report.ok


def test_a_claim_that_is_too_good_fails(claim: Claim, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(claim(1.5))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "They differ: it is slower than claimed." in lines
    assert lines[-1] == "It is NOT what it was said to be."


def test_faster_than_claimed_is_no_failure(claim: Claim) -> None:
    report = verify(claim(0.6))
    assert report.agrees is False
    assert report.ok


def measuring(
    monkeypatch: pytest.MonkeyPatch, engine: EngineInfo, *intervals: tuple[float, float]
) -> list[BenchRecord]:
    """Lets `bench` find these intervals, one after the other; returns what it has handed out."""
    found: list[BenchRecord] = []

    def fake(models: list[Path], **_: Any) -> BenchRecord:
        low, high = intervals[len(found)]
        timed = Measurement(((1.0,),))
        comparison = Comparison((low + high) / 2.0, low, high, 0.96, 90)
        contestants = (
            Contestant(str(models[0]), timed), Contestant(str(models[1]), timed, comparison),
        )  # fmt: skip
        found.append(BenchRecord(engine, contestants, {}, 0))
        return found[-1]

    monkeypatch.setattr("qdqtune.workflows.verification.bench", fake)
    return found


@pytest.mark.parametrize(
    ("measured", "agrees", "times"),
    [
        ([(3.56, 3.60)], True, 1),
        ([(3.272, 3.570)] * 3, False, 3),
        ([(3.272, 3.526), (3.40, 3.58)], True, 2),
        ([(3.820, 3.95)] * 3, False, 3),
        ([(3.85, 3.95), (3.272, 3.526)], True, 2),  # the machine moves by more than the difference
    ],
)
def test_disjoint_intervals_differ_as_often_as_they_are_measured(
    claim: Claim,
    quantized: tuple[Path, float, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    measured: list[tuple[float, float]],
    agrees: bool,
    times: int,
) -> None:
    engine = EngineInfo.from_dict(quantized[2])
    made = measuring(monkeypatch, engine, *measured)
    report = verify(claim(speedup=3.7, speedup_interval=[3.571, 3.819]))
    assert len(made) == times
    assert report.agrees is agrees
    assert report.ok is (agrees or measured[0][0] > 3.7)
    assert report.measured is not None
    assert report.measured.low == min(low for low, _ in measured)
    assert report.measured.high == max(high for _, high in measured)
    last = "They agree." if agrees else "They differ: it is"
    assert last in verify_text(report)


def test_other_conditions_are_named_and_not_judged(
    claim: Claim, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(claim(1.5)), "--threads", "2"]) == 0
    out = capsys.readouterr().out
    assert "can't be compared: the claim was made with threads 1, now 2" in out


def test_other_edges_are_named(claim: Claim, capsys: pytest.CaptureFixture[str]) -> None:
    file = claim()
    path = file.with_name(PLACEMENT)
    placement = Placement.from_json(path.read_text())
    gone = max(edge for edge in placement.edges if edge.position == 1)
    fewer = Placement(placement.edges - {gone}, placement.outputs)
    path.write_text(fewer.to_json())
    report = verify(file)
    assert report.edges is not None
    assert report.edges.missing == ()
    assert report.edges.surplus == (f"{gone.tensor} into {gone.node}:1",)
    assert not report.ok
    path.write_text(placement.to_json())
    shutil.copy(file.with_name(BASELINE), file)
    assert main(["verify", str(file), "--format", "json"]) == 1
    record = json.loads(capsys.readouterr().out)
    assert record["ok"] is False
    assert len(record["edges"]["missing"]) == record["edges"]["expected"]


def test_a_model_that_was_handed_back_is_the_given_one(claim: Claim) -> None:
    unchanged = {"kept_float": True, "speedup": 1.0, "speedup_interval": [1.0, 1.0]}
    file = claim(**unchanged)
    assert verify(file).is_as_given is False
    assert not verify(file).ok
    shutil.copy(file.with_name(BASELINE), file)
    report = verify(file)
    assert report.is_as_given is True
    assert report.ok


def test_what_is_said_of_another_file_is_not_said_of_this_one(
    claim: Claim, capsys: pytest.CaptureFixture[str]
) -> None:
    file = claim(files={"model": "another.onnx"})
    assert main(["verify", str(file), "--engine", "simulated"]) == 0
    assert capsys.readouterr().out.endswith("Nothing was said of it before.\n")


def test_the_sizes_are_those_of_the_run(claim: Claim, tmp_path: Path) -> None:
    file = claim(speedup_interval=[0.5, 5.0])
    onnx.save(zoo.build("resnet18", width=8, image=32, dynamic=True), tmp_path / BASELINE)
    shutil.copy(tmp_path / BASELINE, file)
    (tmp_path / PLACEMENT).unlink()
    Journal(tmp_path / JOURNAL, {"shapes": {"image": [3, 3, 32, 32]}}).close()
    assert verify(file).bench.inputs == {"image": "float32[3, 3, 32, 32]"}
    asked = InputRequest(dims={"N": 2})
    assert verify(file, inputs=asked).bench.inputs == {"image": "float32[2, 3, 32, 32]"}


def test_any_two_files(claim: Claim, tmp_path: Path) -> None:
    file = claim()
    alone = tmp_path / "alone"
    alone.mkdir()
    shutil.copy(file, alone / "m.onnx")
    with pytest.raises(UsageError, match="nothing to compare"):
        verify(alone / "m.onnx")
    report = verify(
        alone / "m.onnx",
        against=tmp_path / BASELINE,
        engine="onnxruntime",
        runs=20,
        inputs=InputRequest(seed=3),
    )
    assert report.claim is None
    assert report.edges is None
    assert report.agrees is None
    assert report.measured is not None
    assert 15 < report.bench.contestants[1].sqnr_db["logits"] < 60
    assert report.ok
