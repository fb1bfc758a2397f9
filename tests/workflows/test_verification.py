"""A model measured anew: what agrees is said to, what doesn't is found."""

from __future__ import annotations

import html
import json
import math
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from qdqtune import zoo
from qdqtune._image_config import ImageConfig
from qdqtune.cli.main import main
from qdqtune.config import TuneConfig
from qdqtune.engines import _registry as registry
from qdqtune.engines._interface import SessionOptions
from qdqtune.graph._atomic_files import sha256_of
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import (
    BenchmarkEntry,
    BenchRecord,
    Comparison,
    EngineInfo,
    Measurement,
)
from qdqtune.records._placement import Placement
from qdqtune.records._verification import Outcome, VerifyReport
from qdqtune.report._bench import verify_text
from qdqtune.workflows._bench import bench
from qdqtune.workflows._claims import FloatModel, check_placement, measure_error
from qdqtune.workflows._insert import insert
from qdqtune.workflows._sample_provider import data_flags
from qdqtune.workflows._verify import verify
from qdqtune.workflows.tuning._folder import BASELINE, FINAL, JOURNAL, PLACEMENT, SUMMARY
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._run_files import sha256_of_model, sha256_with_weights

Claim = Callable[..., Path]


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder with a baseline, a quantized model and its placement; a summary that is true."""
    folder = tmp_path_factory.mktemp("verified")
    onnx.save(zoo.build("resnet18", width=8, image=32), folder / BASELINE)
    insert(
        folder / BASELINE, folder / FINAL, ops=["Conv"],
        engine="simulated", save_placement=folder / PLACEMENT,
    )  # fmt: skip
    record = bench([folder / BASELINE, folder / FINAL], engine="simulated")
    comparison = record.entries[1].against_first
    assert comparison is not None
    error = measure_error(
        folder / FINAL, FloatModel.open(folder / BASELINE, InputRequest(seed=7)),
        engine=None, options=SessionOptions(),
    )  # fmt: skip
    return folder, {
        "kind": "summary",
        "schema": 1,
        "engine": record.engine.to_dict(),
        "speedup": comparison.ratio,
        "speedup_interval": [0.99 * comparison.ratio, 1.01 * comparison.ratio],
        "kept_float": False,
        "output_sqnr_db": error.sqnr_db,
        "error_inputs": {"source": "random", "digest": error.digest, "ranges": {}},
        "calibration": "random",
        "seed": 7,
        "final_sha256": sha256_of_model(folder / FINAL),
        "baseline_sha256": sha256_of_model(folder / BASELINE),
    }


@pytest.fixture
def claim(quantized: tuple[Path, dict[str, Any]], tmp_path: Path) -> Claim:
    """Writes a summary with a speedup so many times the true one; returns the model's path."""
    folder, true = quantized
    for file in folder.iterdir():
        shutil.copy(file, tmp_path)

    def write(times: float = 1.0, **changes: Any) -> Path:
        said = true["speedup"] * times
        times_changed = {"speedup": said, "speedup_interval": [0.99 * said, 1.01 * said]}
        (tmp_path / SUMMARY).write_text(json.dumps({**true, **times_changed, **changes}))
        return tmp_path / FINAL

    return write


def outcomes(report: VerifyReport) -> dict[str, str]:
    """What came of each check."""
    return {check.name: check.outcome.value for check in report.all_checks}


def with_random_weights(file: Path) -> None:
    """Replaces every int8 weight of a model; nothing else of it changes."""
    model = onnx.load(file)
    rng = np.random.default_rng(0)
    weights = [each for each in model.graph.initializer if each.data_type == onnx.TensorProto.INT8]
    assert len(weights) > 5
    for weight in weights:
        random = rng.integers(-127, 128, list(weight.dims), np.int8)
        weight.CopyFrom(onnx.numpy_helper.from_array(random, weight.name))
    onnx.save(model, file)


def measuring(
    monkeypatch: pytest.MonkeyPatch, engine: EngineInfo, *intervals: tuple[float, float]
) -> list[BenchRecord]:
    """Lets `bench` find these intervals, one after the other; returns what it has handed out."""
    found: list[BenchRecord] = []

    def fake(models: list[Path], *_: Any, **__: Any) -> BenchRecord:
        low, high = intervals[len(found)]
        timed = Measurement(((1.0,),))
        comparison = Comparison((low + high) / 2.0, low, high, 0.96, 90)
        entries = (
            BenchmarkEntry(str(models[0]), timed),
            BenchmarkEntry(str(models[1]), timed, comparison),
        )
        found.append(BenchRecord(engine, entries, {}, 0))
        return found[-1]

    monkeypatch.setattr("qdqtune.workflows._verify.bench", fake)
    return found


@pytest.fixture
def quick(quantized: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets `bench` find what is claimed, at once."""
    low, high = quantized[1]["speedup_interval"]
    measuring(monkeypatch, EngineInfo.from_dict(quantized[1]["engine"]), *[(low, high)] * 9)


def flip_a_bit(file: Path) -> None:
    """Changes one bit in the middle of a file."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 64
    file.write_bytes(content)


ALL_CONFIRMED = dict.fromkeys(["file", "baseline", "placement", "error", "speed"], "confirmed")


def test_what_is_true_agrees(claim: Claim, capsys: pytest.CaptureFixture[str]) -> None:
    report = verify(claim())
    assert report.bench is not None
    assert report.bench.engine.name == "simulated"  # the run's, unasked
    assert report.agrees is True
    assert report.edges is not None
    assert report.edges.ok
    assert report.edges.expected > 40
    assert outcomes(report) == ALL_CONFIRMED
    assert report.ok
    assert main(["verify", str(claim()), "-q"]) == 0
    assert capsys.readouterr().out.endswith("\nIt is what it was said to be.\n")


def test_other_weights_are_found_by_the_hash_and_by_the_error(
    claim: Claim, capsys: pytest.CaptureFixture[str]
) -> None:
    file = claim()
    with_random_weights(file)
    assert main(["verify", str(file), "--format", "json", "-q"]) == 1
    record = json.loads(capsys.readouterr().out)
    found = {name: each["outcome"] for name, each in record["checks"].items()}
    assert found == {**ALL_CONFIRMED, "file": "differs", "error": "differs"}
    assert record["outcome"] == "differs"
    # Whoever changes the model can change the hash as well, and the conditions: not the error.
    rewritten = claim(final_sha256=sha256_of_model(file))
    assert outcomes(verify(rewritten)) == {**ALL_CONFIRMED, "error": "differs"}
    assert main(["verify", str(rewritten), "--threads", "2"]) == 1
    assert capsys.readouterr().out.endswith("\nIt is NOT what it was said to be.\n")


@pytest.mark.usefixtures("quick")
def test_other_weights_beside_the_file_are_found(claim: Claim, tmp_path: Path) -> None:
    file = claim()
    onnx.save(onnx.load(file), file, save_as_external_data=True, location=f"{FINAL}.data")
    file = claim(final_sha256=sha256_of_model(file))
    assert verify(file).ok
    flip_a_bit(tmp_path / f"{FINAL}.data")
    assert outcomes(verify(file))["file"] == "differs"


@pytest.mark.usefixtures("quick")
def test_another_baseline_is_not_that_of_the_claim(claim: Claim, tmp_path: Path) -> None:
    shutil.copy(tmp_path / BASELINE, tmp_path / "sound.onnx")
    other = onnx.load(tmp_path / BASELINE)
    other.producer_name = "another"
    onnx.save(other, tmp_path / BASELINE)
    report = verify(claim())
    assert outcomes(report) == {**ALL_CONFIRMED, "baseline": "unverified"}
    assert not report.ok
    assert verify(claim(), against=tmp_path / "sound.onnx").ok
    # Old summaries have the hash of the file that was given.
    given = {"model_sha256": sha256_of(tmp_path / BASELINE)}
    assert verify(claim(baseline_sha256="", conditions=given)).ok


NO_CLAIM = {
    "missing": None,
    "damaged": "{",
    "empty": "",
    "binary": "\x00\ud800",
    "another file": '{"kind": "ranges", "schema": 1}',
    "newer": '{"kind": "KIND", "schema": 99}',
    "deep": "[" * 100_000,
}


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("text", NO_CLAIM.values(), ids=NO_CLAIM.keys())
@pytest.mark.parametrize("name", [SUMMARY, PLACEMENT])
def test_files_that_say_nothing_verify_nothing(
    claim: Claim, name: str, text: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = claim().with_name(name)
    path.unlink()
    if text is not None:
        text = text.replace("KIND", path.stem)
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
    assert main(["verify", str(path.with_name(FINAL)), "-q", "--format", "json"]) == 1
    record = json.loads(capsys.readouterr().out)
    missing = "claim" if name == SUMMARY else "placement"
    assert record["checks"][missing]["outcome"] == "unverified"
    assert record["outcome"] == "unverified"
    assert (record["bench"] is None) is (name == SUMMARY)  # nothing is timed for nothing


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "changes",
    [
        {"speedup": None},
        {"speedup": "2.0"},
        {"speedup": True},
        {"speedup": math.nan},
        {"speedup": math.inf},
        {"speedup": -1.0},
        {"speedup": 10**400},
        {"speedup_interval": [None, 3]},
        {"speedup_interval": [0.1, 0.2]},
        {"output_sqnr_db": "40"},
        {"output_sqnr_db": math.nan},
        {"output_sqnr_db": None},
        {"final_sha256": None},
        {"final_sha256": "0"},
        {"baseline_sha256": None},
        {"kept_float": 0},
        {"seed": -1},
        {"shapes": {"image": ["a"]}},
        {"shapes": {"image": [7, 7]}},
        {"shapes": {"image": [1 << 20, 3, 1 << 10, 1 << 10]}},
        {"error_inputs": {"source": "data"}},
        {"error_inputs": {"source": "random", "digest": "0"}},
        {"engine": {}},
    ],
    ids=str,
)
def test_a_claim_that_can_not_be_is_not_verified(claim: Claim, changes: dict[str, Any]) -> None:
    report = verify(claim(**changes))
    assert report.outcome is Outcome.UNVERIFIED
    assert not report.ok


@pytest.mark.usefixtures("quick")
def test_an_error_that_is_smaller_than_claimed_is_no_failure(claim: Claim) -> None:
    assert verify(claim(output_sqnr_db=12.0)).ok


@pytest.mark.usefixtures("quick")
def test_the_error_is_measured_on_data_that_the_user_gives(
    claim: Claim, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data.npy"
    np.save(data, np.random.default_rng(1).normal(size=(3, 3, 32, 32)).astype(np.float32))
    file = claim()
    original = FloatModel.open(tmp_path / BASELINE, InputRequest(), str(data))
    found = measure_error(file, original, engine=None, options=SessionOptions())
    on_data = {"source": "data", "digest": found.digest, "ranges": {}}
    file = claim(error_inputs=on_data, output_sqnr_db=found.sqnr_db)
    assert main(["verify", str(file)]) == 1
    out = capsys.readouterr().out
    assert f"qdqtune verify {file} --calibration_data SOURCE" in out
    assert main(["verify", str(file), "--calibration_data", str(data)]) == 0
    np.save(data, np.load(data)[1:])
    assert outcomes(verify(file, calibration_data=str(data)))["error"] == "unverified"


def test_a_claim_that_is_too_good_fails(claim: Claim, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(claim(1.5))]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("Speed: DIFFERS: ")
    assert lines[-2].endswith("; it is slower than claimed.")
    assert lines[-1] == "It is NOT what it was said to be."


def test_faster_than_claimed_is_no_failure(claim: Claim) -> None:
    report = verify(claim(0.6))
    assert report.agrees is False
    assert report.ok


@pytest.mark.parametrize(
    ("measured", "agrees", "times"),
    [
        ([(3.56, 3.60)], True, 1),
        ([(3.272, 3.570)] * 3, False, 3),
        ([(3.272, 3.526), (3.40, 3.58), (3.45, 3.60)], True, 3),
        ([(3.820, 3.95)] * 3, False, 3),
        # The machine moves by more than the difference.
        ([(3.85, 3.95), (3.272, 3.526), (3.6, 3.7)], True, 3),
    ],
)
def test_disjoint_intervals_differ_as_often_as_they_are_measured(
    claim: Claim,
    quantized: tuple[Path, dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    measured: list[tuple[float, float]],
    agrees: bool,
    times: int,
) -> None:
    engine = EngineInfo.from_dict(quantized[1]["engine"])
    made = measuring(monkeypatch, engine, *measured)
    report = verify(claim(speedup=3.7, speedup_interval=[3.571, 3.819]))
    assert len(made) == times
    assert report.agrees is agrees
    assert report.ok is (agrees or measured[0][0] > 3.7)
    assert report.measured is not None
    assert report.measured.openings == times
    assert ("; they agree." if agrees else " than claimed.") in verify_text(report)


def test_a_measurement_that_allows_almost_any_claim_confirms_none(
    claim: Claim, quantized: tuple[Path, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = EngineInfo.from_dict(quantized[1]["engine"])
    made = measuring(monkeypatch, engine, *[(0.2, 4.0)] * 3)
    report = verify(claim(speedup=3.7, speedup_interval=[3.6, 3.8]))
    assert len(made) == 3
    assert outcomes(report)["speed"] != "confirmed"
    made = measuring(monkeypatch, engine, (0.2, 4.0), (0.1, 9.0), (0.1, 6.0))
    report = verify(claim(speedup=9.0, speedup_interval=[8.8, 9.2]))
    assert outcomes(report)["speed"] == "unverified"
    assert "too uncertain to confirm it" in verify_text(report)


def test_other_conditions_are_named_and_not_evaluated(
    claim: Claim, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(claim(1.5)), "--threads", "2"]) == 1
    out = capsys.readouterr().out
    assert "can't be compared: the claim was made with threads the default, now 2." in out
    assert out.endswith("\nIt can't be verified.\n")


def test_a_placement_with_other_ops_differs_from_its_file(tmp_path: Path) -> None:
    model = zoo.build("bert", layers=1, width=32, head_width=16, vocabulary=100, sequence=16)
    onnx.save(model, tmp_path / "float.onnx")
    index = {node.name: node.op_type for node in model.graph.node}
    wanted = {"dynamic": ["encoder.0.ffn.fc1.matmul"], "unfused": ["encoder.0.ffn.add"]}
    assert set(map(index.get, (*wanted["dynamic"], *wanted["unfused"]))) == {"MatMul", "Add"}
    placement = Placement.of(**wanted)
    path = tmp_path / PLACEMENT
    path.write_text(placement.to_json())
    insert(tmp_path / "float.onnx", tmp_path / FINAL, placement=path, dialect="onnxruntime")
    check, edges = check_placement(tmp_path / FINAL, None)
    assert (check.outcome, edges and (edges.dynamic, edges.unfused)) == (Outcome.CONFIRMED, (1, 1))
    assert "its 1 dynamic op and 1 unfused op are exactly as in" in check.text
    for field, other in (("dynamic", "encoder.0.ffn.fc2.matmul"), ("unfused", "embeddings.add")):
        path.write_text(json.dumps({**json.loads(placement.to_json()), field: [other]}))
        check, edges = check_placement(tmp_path / FINAL, None)
        assert check.outcome is Outcome.DIFFERS
        assert edges is not None
        assert edges.missing == (f"the {field} op {other}",)
        assert edges.surplus == (f"the {field} op {wanted[field][0]}",)


@pytest.mark.usefixtures("quick")
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


@pytest.mark.usefixtures("quick")
def test_a_model_that_was_handed_back_is_the_given_one(claim: Claim) -> None:
    sha256 = sha256_of_model(claim().with_name(BASELINE))
    file = claim(
        kept_float=True, speedup=1.0, speedup_interval=[1.0, 1.0], final_sha256=sha256,
        output_sqnr_db=None,
    )  # fmt: skip
    report = verify(file)
    assert report.is_as_given is False
    for name in ("file", "placement", "error"):
        assert outcomes(report)[name] == "differs"
    shutil.copy(file.with_name(BASELINE), file)
    file.with_name(PLACEMENT).write_text(Placement().to_json())
    report = verify(file)
    assert report.is_as_given is True
    assert outcomes(report) == ALL_CONFIRMED
    # Threads make no difference to a file that is compared with itself; a speedup would.
    summary = json.loads(file.with_name(SUMMARY).read_text())
    summary["engine"]["threads"] = 2
    file.with_name(SUMMARY).write_text(json.dumps(summary))
    report = verify(file)
    assert outcomes(report) == ALL_CONFIRMED
    assert report.ignored == ("--threads 2",)
    assert report.repeat_with == ""
    summary.update(speedup=3.0, speedup_interval=[2.9, 3.1])
    file.with_name(SUMMARY).write_text(json.dumps(summary))
    assert outcomes(verify(file))["speed"] == "differs"


@pytest.mark.usefixtures("quick")
def test_the_command_that_is_complete_verifies(
    claim: Claim, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "my images"
    data.mkdir()
    for number in range(3):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(data / f"{number}.png")
    images = ImageConfig(image_mean=(0.5, 0.4, 0.5), image_std=0.25)
    file = claim()
    original = FloatModel.open(tmp_path / BASELINE, InputRequest(), str(data), 2, images)
    found = measure_error(file, original, engine=None, options=SessionOptions())
    flags = {
        "--calibration_data": str(data), "--calibration_samples": "2",
        "--image_mean": "0.5,0.4,0.5", "--image_std": "0.25",
    }  # fmt: skip
    recorded = {"--evaluate": "evil:code", **flags, "--image_size; rm": "1", "--image_pad": 3}
    on_data = {"source": "data", "digest": found.digest, "ranges": {}, "flags": recorded}
    file = claim(error_inputs=on_data, output_sqnr_db=found.sqnr_db)
    assert main(["verify", str(file)]) == 1  # what the folder says is shown, and not followed
    out = capsys.readouterr().out
    assert f"which you have to give: --calibration_data {data}." in out
    assert "evil" not in out
    assert "rm" not in out
    command = next(line for line in out.splitlines() if "qdqtune verify " in line)
    words = shlex.split(command.partition("qdqtune ")[2])
    pairs = [word for pair in flags.items() for word in pair]
    assert words == ["verify", str(file), *pairs]
    assert main(words) == 0


def test_a_preprocessor_file_beside_the_model_is_named(tmp_path: Path) -> None:
    config = TuneConfig(calibration_data="images", image_mean=0.5, calibration_samples=3)
    flags = {"--calibration_data": "images", "--calibration_samples": "3", "--image_mean": "0.5"}
    assert dict(data_flags(config, tmp_path / "model.onnx")) == flags
    beside = tmp_path / "preprocessor_config.json"
    beside.write_text("{}")
    found = dict(data_flags(config, tmp_path / "model.onnx"))
    assert found == {**flags, "--image_preprocessor": str(beside)}
    assert list(data_flags(TuneConfig(calibration_data=[1]))) == []
    assert list(data_flags(TuneConfig(), tmp_path / "model.onnx")) == []


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_the_command_on_the_page_of_a_run_on_images_verifies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("images").mkdir()
    for number in range(2):
        pixels = np.random.default_rng(number).integers(0, 256, (40, 40, 3), np.uint8)
        Image.fromarray(pixels).save(f"images/{number}.png")
    onnx.save(zoo.build("resnet18", width=32, image=32), "model.onnx")
    Path("preprocessor_config.json").write_text('{"image_mean": [0.5, 0.5, 0.5]}')
    flags = "--engine simulated --preset quick --max_benchmarks 1 --calibration_data images"
    assert main(["tune", "model.onnx", *flags.split()]) == 0
    page = html.unescape(Path("autotuner_output/report.html").read_text())
    (command,) = re.findall(r"qdqtune (verify autotuner_output[^<]*)<", page)
    prepared = "--image_preprocessor preprocessor_config.json"
    assert command.endswith(f" --calibration_data images {prepared}")
    capsys.readouterr()
    main(shlex.split(command))  # the simulated speed is another matter
    assert re.search(r"\nError: [\d.]+ dB against float, claimed", capsys.readouterr().out)


def test_data_is_checked_before_anything_is_timed(
    claim: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Image.new("RGB", (40, 40)).save(tmp_path / "one.png")
    monkeypatch.setattr("qdqtune.workflows._verify.bench", lambda *_, **__: pytest.fail("timed"))
    file = claim(error_inputs={"source": "data", "digest": "0", "ranges": {}})
    with pytest.raises(UsageError, match="How images are normalized"):
        verify(file, calibration_data=str(tmp_path / "one.png"))
    with pytest.raises(UsageError, match="no calibration data"):
        verify(claim(), calibration_samples=2)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    "changes",
    [
        {"shapes": {"image": [7, 3, 32, 32]}},
        {"shapes": {"image": [3, 32, 32]}},
        {"shapes": {"nope": [1]}},
        {"error_inputs": {"source": "random", "digest": "", "ranges": {"nope": [0, 1]}}},
    ],
)
def test_inputs_that_the_baseline_lacks_are_the_claims_fault(
    claim: Claim, capsys: pytest.CaptureFixture[str], changes: dict[str, Any]
) -> None:
    file = claim(**changes)
    assert main(["verify", str(file), "--threads", "1"]) == 1
    assert "can't be verified: summary.json is about other inputs: " in capsys.readouterr().out


@pytest.mark.usefixtures("quick")
def test_weights_of_a_model_that_was_handed_back_are_checked(claim: Claim, tmp_path: Path) -> None:
    baseline, file = tmp_path / BASELINE, claim()
    onnx.save(onnx.load(baseline), baseline, save_as_external_data=True, location="w.bin")
    shutil.copy(baseline, file)
    file.with_name(PLACEMENT).write_text(Placement().to_json())
    unchanged = {"kept_float": True, "speedup": 1.0, "speedup_interval": [1.0, 1.0]}
    hashes = {
        "final_sha256": sha256_of_model(file),
        "baseline_sha256": sha256_with_weights(baseline),
    }
    assert verify(claim(**unchanged, **hashes, output_sqnr_db=None)).ok
    flip_a_bit(tmp_path / "w.bin")
    assert outcomes(verify(file))["file"] == "differs"


@pytest.mark.usefixtures("quick")
def test_what_is_said_of_another_file_is_not_said_of_this_one(
    claim: Claim, capsys: pytest.CaptureFixture[str]
) -> None:
    other = claim().with_name("another.onnx")
    shutil.copy(claim(), other)
    assert verify(other).ok  # it is the file, by its hash
    with_random_weights(other)
    assert main(["verify", str(other), "--engine", "simulated"]) == 1
    assert capsys.readouterr().out.endswith("\nIt can't be verified.\n")


def test_the_sizes_are_those_of_the_run(claim: Claim, tmp_path: Path) -> None:
    file = claim(speedup_interval=[0.5, 5.0])
    onnx.save(zoo.build("resnet18", width=8, image=32, dynamic=True), tmp_path / BASELINE)
    shutil.copy(tmp_path / BASELINE, file)
    (tmp_path / PLACEMENT).unlink()
    Journal(tmp_path / JOURNAL, {"shapes": {"image": [3, 3, 32, 32]}}).close()
    assert fed(verify(file, runs=2)) == {"image": "float32[3, 3, 32, 32]"}
    asked = InputRequest(dims={"N": 2})
    assert fed(verify(file, inputs=asked, runs=2)) == {"image": "float32[2, 3, 32, 32]"}
    file = claim(shapes={"image": [4, 3, 32, 32]})
    report = verify(file, inputs=asked, runs=2)
    assert report.other_conditions == {"input image": ([4, 3, 32, 32], "float32[2, 3, 32, 32]")}


def fed(report: VerifyReport) -> Mapping[str, str]:
    """What models were timed on."""
    assert report.bench is not None
    return report.bench.inputs


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
    assert report.bench is not None
    assert "not a verification" in verify_text(report)
    assert 15 < report.bench.entries[1].sqnr_db["logits"] < 60
    assert report.ok


def engine_like(name: str, **options: str) -> dict[str, Any]:
    """An engine as a summary has it."""
    return EngineInfo(name, "1", "machine", "isa", None, options).to_dict()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A program that leaves a file behind when it is run."""
    file = tmp_path / "program"
    file.write_text(f"#!/bin/sh\ntouch {tmp_path / 'was_run'}\nexit 1\n")
    file.chmod(0o755)
    return file


def test_no_program_or_path_of_a_summary_is_obeyed_unless_it_is_repeated(
    claim: Claim, program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "path": str(program),
        "args": "--saveEngine=x",
        "plan_cache": str(tmp_path / "plans"),
        "timing_cache": str(tmp_path / "cache"),
        "plugins": str(program),
        "precision": "fp16",
    }
    file = claim(engine=engine_like("trtexec", **options))
    before = set(tmp_path.iterdir())
    assert main(["verify", str(file)]) == 1
    assert set(tmp_path.iterdir()) == before
    out = capsys.readouterr().out
    for name, value in options.items():
        assert (f"--engine_option {name}={value}" in out) is (name != "precision")
    command = next(line for line in out.splitlines() if "qdqtune verify " in line)
    words = shlex.split(command.partition("qdqtune ")[2])
    assert words[:2] == ["verify", str(file)]
    assert "\nError: " in out
    assert "Error: can't" not in out  # it is measured all the same
    assert out.endswith("\nIt can't be verified.\n")
    main([*words, "--engine", "trtexec"])
    assert (tmp_path / "was_run").exists()


def test_no_code_of_a_summary_is_loaded(
    claim: Claim, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "strange_engine.py").write_text("open('was_loaded', 'w')\nclass Engine: pass\n")
    report = verify(claim(engine=engine_like("strange_engine:Engine")))
    assert not (tmp_path / "was_loaded").exists()
    assert report.ignored == ("--engine strange_engine:Engine",)
    assert report.bench is None
    assert outcomes(report) == {**ALL_CONFIRMED, "speed": "unverified"}


def test_threads_of_a_summary_are_not_started(
    claim: Claim, quantized: tuple[Path, dict[str, Any]]
) -> None:
    engine = {**quantized[1]["engine"], "threads": 100_000}
    report = verify(claim(engine=engine), runs=2)
    assert report.bench is not None
    assert report.bench.engine.threads is None
    assert report.ignored == ("--threads 100000",)
    assert report.outcome is Outcome.UNVERIFIED
    repeated = verify(claim(engine={**engine, "threads": 1}), threads=1)
    assert repeated.ok
    assert not repeated.ignored


def test_options_that_may_be_obeyed_name_nothing() -> None:
    """What engines declare as plain matches no path, no arguments and no large number."""
    for entry in registry.ENGINES.values():
        for name, pattern in entry.recorded_options.items():
            assert name not in ("path", "args", "plugins", "plan_cache", "timing_cache", "threads")
            for value in ("/tmp/x", "a b", "--x", "1e9", "9" * 12, "", "x;y", "../x", "x\n"):
                assert not re.fullmatch(pattern, value), (entry.name, name, value)
