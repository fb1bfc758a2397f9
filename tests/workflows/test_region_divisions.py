"""What divides a model into regions, over a run and those that resume it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune.records._tuning import TuneEvent, TuneResult
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows.tuning._journal_format import checksum, read_journal
from qdqtune.workflows.tuning._tune import tune
from tests.autotune.scoped import with_scopes
from tests.conftest import model_from_text


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks of two Convs with residual Adds: by scope, other regions than by structure."""
    rng = np.random.default_rng(0)
    text = "".join(
        f"a{n} = Conv(x{n}, w{n}) b{n} = Relu(a{n}) c{n} = Conv(b{n}, v{n}) "
        f"x{n + 1} = Add(c{n}, x{n}) "
        for n in range(2)
    )
    weights = {
        f"{kind}{n}": rng.normal(size=(32, 32, 1, 1)).astype(np.float32) / 6
        for kind in "wv"
        for n in range(2)
    }
    proto = model_from_text(
        f"g (float[1,32,16,16] x0) => (float[1,32,16,16] x2) {{ {text} }}", **weights
    )
    scopes = [f"block.{n}{part}" for n in range(2) for part in (".conv1", ".act", ".conv2", "")]
    path = tmp_path_factory.mktemp("blocks") / "model.onnx"
    onnx.save(with_scopes(proto, scopes), path)
    return path


def run(model: Path, folder: Path, **options: Any) -> TuneResult:
    return tune(
        model, output_dir=folder, engine="simulated", engine_options=QUIET, preset="quick",
        report=False, **options,
    )  # fmt: skip


def divisions(folder: Path) -> list[str]:
    lines = [line.body for line in read_journal(folder / "measurements.jsonl")]
    return [line["by"] for line in lines if line and line["kind"] == "regions"]


def test_a_run_by_scope_is_resumed_by_scope(model: Path, tmp_path: Path) -> None:
    told: list[TuneEvent] = []
    first = run(model, tmp_path, callbacks=[told.append])
    assert first.summary.regions == 4
    assert any("4 regions by scope" in event.message for event in told)
    assert any("block.*.conv" in event.message for event in told)
    again = run(model, tmp_path)
    assert again.summary.benchmarks == 0
    assert again.summary.regions == 4
    assert divisions(tmp_path) == ["scope"]


def test_a_run_that_began_before_there_was_a_choice_keeps_structure(
    model: Path, tmp_path: Path
) -> None:
    first = run(model, tmp_path, regions="structure")
    assert first.summary.regions != 4
    assert divisions(tmp_path) == []
    again = run(model, tmp_path)  # auto would take scopes
    assert again.summary.benchmarks == 0
    assert again.summary.regions == first.summary.regions
    assert divisions(tmp_path) == []


def test_another_division_uses_what_was_measured(model: Path, tmp_path: Path) -> None:
    run(model, tmp_path, regions="structure")
    other = run(model, tmp_path, regions="scope")
    assert other.summary.regions == 4
    assert other.summary.memo_hits > 2
    assert run(model, tmp_path).summary.regions == 4
    run(model, tmp_path, regions="structure")
    assert divisions(tmp_path) == ["scope", "structure"]


def test_a_damaged_division_is_left_out(model: Path, tmp_path: Path) -> None:
    run(model, tmp_path)
    journal = tmp_path / "measurements.jsonl"
    lines = journal.read_text().splitlines()
    forged = []
    for line in lines:
        body = json.loads(line)
        if body["kind"] == "regions":
            body["by"] = "colour"
            del body["checksum"]
            body["checksum"] = checksum(body)
        forged.append(json.dumps(body))
    journal.write_text("\n".join(forged) + "\n")
    again = run(model, tmp_path)
    assert again.summary.regions != 4
