"""Files of earlier versions are read: one folder of them per schema."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from qdqtune.records._placement import Placement
from qdqtune.records._ranges import RangeMethod, Ranges
from qdqtune.records._tuning import Summary
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._state_file import read_state
from qdqtune.workflows._export import list_candidates
from qdqtune.workflows.tuning import _baseline
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._journal_format import SCHEMA, read_journal
from qdqtune.workflows.tuning._tune import tune

RUNS = Path(__file__).parents[1] / "data/runs"
FOLDERS = sorted(RUNS.glob("schema-*"))


def test_every_schema_has_its_files() -> None:
    assert [folder.name for folder in FOLDERS] == [f"schema-{n}" for n in range(1, SCHEMA + 1)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_its_measurements_are_known(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "measurements.jsonl"
    copy.write_bytes((folder / copy.name).read_bytes())
    lines = [line.body for line in read_journal(copy)]
    header = next(line["header"] for line in lines if line and line["kind"] == "run")
    measured = [line for line in lines if line and line["kind"] == "measurement"]
    journal = Journal(copy, header)
    for line in measured:
        known = journal.known(line["reference"], line["candidate"], line["effort"])
        assert known is not None
        assert known.gain == line["gain"]
    assert journal.memo_hits == journal.earlier_benchmarks == len(measured) > 5
    assert journal.shares
    assert journal.session == (2 if folder.name > "schema-1" else 1)
    journal.close()


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_its_other_files_are_read(folder: Path) -> None:
    summary = Summary.from_dict(json.loads((folder / "summary.json").read_text()))
    assert summary.speedup > 1.1
    assert Summary.from_dict(summary.to_dict()) == summary
    placement = Placement.from_json((folder / "placement.json").read_text())
    assert len(placement.tensors) == summary.qdq_pairs
    ranges = Ranges.from_json((folder / "ranges.json").read_text())
    assert ranges.by_tensor
    assert len(list_candidates(folder)) > 5


@pytest.mark.parametrize("folder", FOLDERS[1:], ids=lambda folder: folder.name)
def test_its_state_and_cache_are_read(folder: Path) -> None:
    state = read_state(folder / "autotuner_state.yaml")
    assert state.baseline_latency_ms
    assert state.header["quant_type"] == "int8"
    assert any(each.best_scheme for each in state.patterns)
    cache = PatternCache.load(folder / "autotuner_state_pattern_cache.yaml")
    assert cache.num_patterns >= len(state.patterns)


@pytest.mark.parametrize("mode", ["region", "subgraph"])
def test_whole_folders_are_resumed_with_no_trial_measured_again(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = RUNS / "before-configs"
    folder = tmp_path / mode
    shutil.copytree(written / mode, folder)
    # The CPU that wrote the folder adds up in another order: ranges differ in their last bits.
    recorded = Ranges.from_json((folder / "ranges.json").read_text())
    monkeypatch.setattr(_baseline, "ranges_in_every_way", lambda *_: {RangeMethod.MAX: recorded})
    result = tune(
        written / "model.onnx",
        output_dir=folder,
        engine="simulated",
        engine_options={"offset": "0.002", "noise": "0.01", "seed": "3"},
        workflow=mode,
        preset="quick",
    )
    before = [line.body for line in read_journal(written / mode / "measurements.jsonl")]
    lines = [line.body for line in read_journal(folder / "measurements.jsonl")]
    assert lines[: len(before)] == before
    assert not [line for line in lines[len(before) :] if line and line["kind"] == "measurement"]
    assert result.summary.benchmarks == result.summary.subgraph_benchmarks == 0
    assert result.summary.memo_hits > 2
    assert result.summary.speedup > 1.3
