"""Candidates of a run: listed as they were measured, exported whole, and only if they are sound."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from qdqtune.graph._atomic_files import sha256_of
from qdqtune.graph._files import load_model
from qdqtune.graph._fingerprint import model_digest
from qdqtune.graph._folding import fold
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq._read_back import read
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._errors import ModelError, OutputError, UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import Ranges
from qdqtune.search.strategies._strategy import Score
from qdqtune.workflows._export import export, list_candidates
from qdqtune.workflows.tuning._folder import BASELINE, CANDIDATES, JOURNAL
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._journal_format import encode, whole_lines
from tests.conftest import model_from_text

FLOAT = Placement()


def details(latency_ms: float | None, reference_ms: float | None) -> dict[str, object]:
    return {"latency_ms": latency_ms, "reference_ms": reference_ms}


@pytest.fixture
def residual() -> onnx.ModelProto:
    """Two Convs, whose weights are large enough to lie in the shared file, also as int8."""
    rng = np.random.default_rng(0)
    text = """g (float[1,3,8,8] x) => (float[1,16,8,8] y) {
        c1 = Conv<pads=[1,1,1,1]>(x, w1)
        r1 = Relu(c1)
        c2 = Conv(r1, w2)
        y = Add(c2, r1)
    }"""
    w1, w2 = rng.normal(size=(16, 3, 3, 3)), rng.normal(size=(16, 16, 1, 1))
    return model_from_text(text, w1=w1.astype(np.float32), w2=w2.astype(np.float32))


@pytest.fixture
def placements(residual_path: Path) -> list[Placement]:
    """One Conv, then everything."""
    model = load_model(residual_path)
    fold(model)
    inserter_index = PreparedModel(model, residual_path.parent).index
    planner = QuantizationPlanner(inserter_index, dialect_named("onnxruntime"))
    return [planner.placement(["n0"]), planner.placement(list(planner.compute))]


@pytest.fixture
def run_dir(residual_path: Path, placements: list[Placement], tmp_path: Path) -> Path:
    """What a run leaves: the float model is c0000, then the placements, then one that failed."""
    folder = tmp_path / "run"
    (folder / CANDIDATES).mkdir(parents=True)
    shutil.copy(residual_path, folder / BASELINE)
    model = load_model(residual_path)
    fold(model)
    base = PreparedModel(model, folder / CANDIDATES, is_kept=True)
    ranges = Ranges(dict.fromkeys(base.index.value, (-9.0, 9.0)))
    inserter = Inserter(base, dialect_named("onnxruntime"), "int8", ranges)
    journal = Journal(folder / JOURNAL, {"model": "residual"})
    files = {FLOAT: base.write(base.whole(), journal.name_of(FLOAT.digest()))}
    one, every = placements
    for placement in placements:
        files[placement] = inserter.write(placement, journal.name_of(placement.digest()))
    for placement, file in files.items():
        journal.keep_file(placement.digest(), model_digest(file, base.store.digest_of))
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
    assert export(run_dir, "c0002", output).output == output
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
    export(run_dir, "c0001", output)
    shutil.rmtree(run_dir)
    assert (tmp_path / "model.onnx.data").is_file()
    onnxruntime.InferenceSession(output)


def test_a_file_that_was_not_measured_is_refused(run_dir: Path, tmp_path: Path) -> None:
    shutil.copy(run_dir / CANDIDATES / "c0002.onnx", run_dir / CANDIDATES / "c0001.onnx")
    with pytest.raises(ModelError, match="not what was measured as c0001"):
        export(run_dir, "c0001", tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()


def weights_of(candidate: Path) -> dict[str, tuple[int, int]]:
    """Where the weights of a candidate lie: offset and length."""
    found = {}
    for tensor in onnx.load(str(candidate), load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            found[tensor.name] = (int(entries["offset"]), int(entries["length"]))
    return found


@pytest.mark.parametrize("candidate", ["c0000", "c0001", "c0002"])
@pytest.mark.parametrize("place", [0.0, 0.5, 0.999])
def test_one_flipped_bit_of_the_weights_is_refused(
    run_dir: Path, tmp_path: Path, candidate: str, place: float
) -> None:
    weights = run_dir / CANDIDATES / "weights.bin"
    sound = weights.read_bytes()
    places = weights_of(run_dir / CANDIDATES / f"{candidate}.onnx")
    assert len(places) == 2
    for name, (offset, length) in places.items():
        content = bytearray(sound)
        content[offset + int(place * length)] ^= 1
        weights.write_bytes(content)
        with pytest.raises(ModelError, match=f"not what was measured as {candidate}"):
            export(run_dir, candidate, tmp_path / "out.onnx")
        assert not (tmp_path / "out.onnx").exists(), name
    weights.write_bytes(sound)
    export(run_dir, candidate, tmp_path / "out.onnx")


def test_damage_to_the_weights_of_others_does_not_matter(run_dir: Path, tmp_path: Path) -> None:
    one, every = (weights_of(run_dir / CANDIDATES / f"c000{n}.onnx") for n in (1, 2))
    offset, _ = next(iter(set(every.values()) - set(one.values())))
    weights = run_dir / CANDIDATES / "weights.bin"
    content = bytearray(weights.read_bytes())
    content[offset] ^= 1
    weights.write_bytes(content)
    export(run_dir, "c0001", tmp_path / "out.onnx")


def test_where_the_weights_lie_does_not_matter(run_dir: Path, tmp_path: Path) -> None:
    """After a repair they lie elsewhere, and are the same."""
    weights = run_dir / CANDIDATES / "weights.bin"
    weights.write_bytes(bytes(4096) + weights.read_bytes())
    candidate = run_dir / CANDIDATES / "c0002.onnx"
    proto = onnx.load(str(candidate), load_external_data=False)
    for tensor in proto.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == "offset":
                entry.value = str(int(entry.value) + 4096)
    candidate.write_bytes(proto.SerializeToString())
    export(run_dir, "c0002", tmp_path / "out.onnx")


def test_a_candidate_whose_digest_is_lost_is_refused(run_dir: Path, tmp_path: Path) -> None:
    lines = (run_dir / JOURNAL).read_text().splitlines(keepends=True)
    kept = [line for line in lines if '"file"' not in line or "c0002" not in line]
    assert len(kept) == len(lines) - 1
    (run_dir / JOURNAL).write_text("".join(kept))
    with pytest.raises(ModelError, match="be checked against what was measured"):
        export(run_dir, "c0002", tmp_path / "out.onnx")
    export(run_dir, "c0001", tmp_path / "out.onnx")


def as_written_before_digests(run_dir: Path, *, sha256: bool) -> None:
    """Makes the journal one of an older version, which kept at most the hash of the small file."""
    journal = run_dir / JOURNAL
    bodies = [body for body in whole_lines(journal) if body["kind"] != "file"]
    ids = {body["key"]: body["id"] for body in bodies if body["kind"] == "candidate"}
    for body in bodies:
        file = run_dir / CANDIDATES / f"{ids.get(body.get('candidate', ''), '')}.onnx"
        if body["kind"] == "measurement" and sha256 and file.is_file():
            body["sha256"] = sha256_of(file)
    journal.write_text("".join(map(encode, bodies)))


def test_a_run_without_digests_is_checked_by_the_index(
    run_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    as_written_before_digests(run_dir, sha256=True)
    output, weights = tmp_path / "out.onnx", run_dir / CANDIDATES / "weights.bin"
    export(run_dir, "c0002", output)
    assert not caplog.records
    index = weights.with_suffix(".index")
    sound = index.read_text()
    index.write_text("".join(sound.splitlines(keepends=True)[1:]))
    export(run_dir, "c0000", output, force=True)
    assert "kept no digests: c0000.onnx, the weight 'w" in caplog.text
    index.write_text(sound)
    content = bytearray(weights.read_bytes())
    offset, _ = next(iter(weights_of(run_dir / CANDIDATES / "c0002.onnx").values()))
    content[offset] ^= 64
    weights.write_bytes(content)
    with pytest.raises(ModelError, match="not what was measured as c0002"):
        export(run_dir, "c0002", output, force=True)


def test_an_id_that_leads_out_of_the_folder_is_none(run_dir: Path, tmp_path: Path) -> None:
    journal = Journal(run_dir / JOURNAL, {"model": "residual"})
    journal._append({"kind": "candidate", "id": "../../residual", "key": FLOAT.digest()})
    journal.close()
    assert "../../residual" not in {one.id for one in list_candidates(run_dir)}
    with pytest.raises(UsageError, match="has no candidate"):
        export(run_dir, "../../residual", tmp_path / "out.onnx")


def test_mistakes(run_dir: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.onnx"
    with pytest.raises(UsageError, match="has no candidate 'c9'"):
        export(run_dir, "c9", output)
    with pytest.raises(ModelError, match="c0003 is missing"):
        export(run_dir, "c0003", output)
    with pytest.raises(UsageError, match="not the folder of a tuning run"):
        list_candidates(tmp_path)
    output.write_text("mine")
    with pytest.raises(OutputError, match="exists already"):
        export(run_dir, "c0001", output)
    assert output.read_text() == "mine"
    weights = run_dir / CANDIDATES / "weights.bin"
    before = weights.read_bytes()
    with pytest.raises(OutputError, match="among the candidates"):
        export(run_dir, "c0001", weights, force=True)
    assert weights.read_bytes() == before
