"""Candidates of a run: listed as they were measured, exported whole, and only if they are sound."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from qdqtune.autotune.search.trial import Score
from qdqtune.graph.files import load_model
from qdqtune.graph.folding import fold
from qdqtune.graph.prepared import PreparedModel
from qdqtune.qdq.completion import Completion
from qdqtune.qdq.dialects import dialect_named
from qdqtune.qdq.insert import Inserter
from qdqtune.qdq.read import read
from qdqtune.records.errors import ModelError, OutputError, UsageError
from qdqtune.records.placement import Placement
from qdqtune.records.ranges import Ranges
from qdqtune.workflows.tuning.export import export_candidate, list_candidates
from qdqtune.workflows.tuning.folder import BASELINE, CANDIDATES, JOURNAL
from qdqtune.workflows.tuning.journal import Journal

FLOAT = Placement()


def details(latency_ms: float | None, reference_ms: float | None) -> dict[str, object]:
    return {"latency_ms": latency_ms, "reference_ms": reference_ms}


@pytest.fixture
def placements(residual_path: Path) -> list[Placement]:
    """One Conv, then everything."""
    model = load_model(residual_path)
    fold(model)
    inserter_index = PreparedModel(model, residual_path.parent).index
    completion = Completion(inserter_index, dialect_named("onnxruntime"))
    return [completion.placement(["n0"]), completion.placement(list(completion.working))]


@pytest.fixture
def run_dir(residual_path: Path, placements: list[Placement], tmp_path: Path) -> Path:
    """What a run leaves: the float model is c0000, then the placements, then one that failed."""
    folder = tmp_path / "run"
    (folder / CANDIDATES).mkdir(parents=True)
    shutil.copy(residual_path, folder / BASELINE)
    model = load_model(residual_path)
    fold(model)
    base = PreparedModel(model, folder / CANDIDATES)
    ranges = Ranges(dict.fromkeys(base.index.value, (-9.0, 9.0)))
    inserter = Inserter(base, dialect_named("onnxruntime"), "int8", ranges)
    journal = Journal(folder / JOURNAL, {"model": "residual"})
    base.write(base.whole(), journal.name_of(FLOAT.digest()))
    one, every = placements
    for placement in placements:
        inserter.write(placement, journal.name_of(placement.digest()))
    journal.name_of("never written")
    gains = [
        (FLOAT, one.digest(), "confirm", Score(math.log(1.5), 0.01), details(2.0, 3.0)),
        (one, every.digest(), "confirm", Score(math.log(1.2), 0.01), details(1.6, 1.9)),
        (FLOAT, every.digest(), "screen", Score(math.log(9.0), 0.5), details(0.3, 3.0)),
        (one, "never written", "screen", Score.failed("no kernel"), details(None, None)),
    ]
    for reference, *rest in gains:
        journal.add(reference.digest(), *rest)
    journal.close()
    return folder


def test_the_list_tells_what_was_measured(run_dir: Path, placements: list[Placement]) -> None:
    plain, one, every, failed = list_candidates(run_dir)
    assert (plain.id, plain.tensors, plain.latency_ms, plain.speedup) == ("c0000", 0, 3.0, 1.0)
    assert one.id == "c0001"
    assert one.tensors == len(placements[0].tensors)
    assert one.latency_ms == 2.0
    assert one.speedup == pytest.approx(1.5)
    # Measured against the first one; a screening afterwards doesn't change what was confirmed.
    assert every.speedup == pytest.approx(1.5 * 1.2)
    assert every.latency_ms == 1.6
    assert (failed.failure, failed.tensors, failed.speedup) == ("no kernel", None, None)


def test_a_damaged_line_costs_only_itself(run_dir: Path) -> None:
    lines = (run_dir / JOURNAL).read_text().splitlines(keepends=True)
    lines[-4] = lines[-4].replace("2.0", "7.0")
    (run_dir / JOURNAL).write_text("".join(lines))
    _, one, every, _ = list_candidates(run_dir)
    assert one.latency_ms is None
    assert every.latency_ms == 1.6


def test_an_export_needs_nothing_of_the_run(
    run_dir: Path, placements: list[Placement], tmp_path: Path
) -> None:
    candidate = run_dir / CANDIDATES / "c0002.onnx"
    feeds = {"x": np.random.default_rng(0).normal(size=(1, 3, 8, 8)).astype(np.float32)}
    expected = onnxruntime.InferenceSession(candidate).run(None, feeds)[0]
    output = tmp_path / "alone" / "model.onnx"
    output.parent.mkdir()
    assert export_candidate(run_dir, "c0002", output) == output
    shutil.rmtree(run_dir)
    assert [file.name for file in output.parent.iterdir()] == ["model.onnx"]
    onnx.checker.check_model(str(output), full_check=True)
    assert read(load_model(output)).placement == placements[1]
    np.testing.assert_array_equal(
        onnxruntime.InferenceSession(output).run(None, feeds)[0], expected
    )


def test_weights_go_where_the_given_model_had_them(
    run_dir: Path, residual: onnx.ModelProto, tmp_path: Path
) -> None:
    onnx.save(
        residual, run_dir / BASELINE, save_as_external_data=True, location="w", size_threshold=0
    )
    output = tmp_path / "model.onnx"
    export_candidate(run_dir, "c0001", output)
    shutil.rmtree(run_dir)
    assert (tmp_path / "model.onnx.data").is_file()
    onnxruntime.InferenceSession(output)


def test_a_file_that_was_not_measured_is_refused(run_dir: Path, tmp_path: Path) -> None:
    shutil.copy(run_dir / CANDIDATES / "c0002.onnx", run_dir / CANDIDATES / "c0001.onnx")
    with pytest.raises(ModelError, match="not what was measured as c0001"):
        export_candidate(run_dir, "c0001", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def test_an_id_that_leads_out_of_the_folder_is_none(run_dir: Path, tmp_path: Path) -> None:
    journal = Journal(run_dir / JOURNAL, {"model": "residual"})
    journal._append({"kind": "candidate", "id": "../../residual", "key": FLOAT.digest()})
    journal.close()
    assert "../../residual" not in {one.id for one in list_candidates(run_dir)}
    with pytest.raises(UsageError, match="has no candidate"):
        export_candidate(run_dir, "../../residual", tmp_path / "out.onnx")


def test_mistakes(run_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    with pytest.raises(UsageError, match="has no candidate 'c9'"):
        export_candidate(run_dir, "c9", output)
    with pytest.raises(ModelError, match="c0003 is missing"):
        export_candidate(run_dir, "c0003", output)
    with pytest.raises(UsageError, match="not the folder of a tuning run"):
        list_candidates(tmp_path)
    output.write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        export_candidate(run_dir, "c0001", output)
    assert output.read_text() == "mine"
    weights = run_dir / CANDIDATES / "weights.bin"
    before = weights.read_bytes()
    with pytest.raises(OutputError, match="among the candidates"):
        export_candidate(run_dir, "c0001", weights, force=True)
    assert weights.read_bytes() == before
