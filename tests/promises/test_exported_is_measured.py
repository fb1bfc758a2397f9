"""A file that is handed over or exported holds the placement that was measured, edge by edge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._op_units import canonical
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import ModelError
from qdqtune.records._placement import Placement
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows._export import export, list_candidates
from qdqtune.workflows.tuning._tune import tune
from tests.promises.models import four_convs


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    onnx.save(four_convs(), folder / "model.onnx")
    tune(
        folder / "model.onnx",
        engine="simulated",
        engine_options=QUIET,
        preset="quick",
        output_dir=folder / "run",
    )
    return folder / "run"


@pytest.fixture
def run(kept: Path, tmp_path: Path) -> Path:
    """A run's folder, to be tampered with."""
    shutil.copytree(kept, tmp_path / "run")
    return tmp_path / "run"


def measured_keys(run: Path) -> dict[str, str]:
    """The digest of each placement that was timed, by candidate."""
    lines = [json.loads(line) for line in (run / "measurements.jsonl").read_text().splitlines()]
    timed = {line["candidate"] for line in lines if line["kind"] == "measurement"}
    named = {line["id"]: line["key"] for line in lines if line["kind"] == "candidate"}
    return {name: key for name, key in named.items() if key in timed}


def edges_of(path: Path, run: Path) -> Placement:
    index = GraphIndex(load_model(run / "baseline.onnx"))
    return canonical(index, read(load_model(path)).placement)


def test_the_final_file_holds_edges_that_were_measured(run: Path) -> None:
    said = Placement.from_json((run / "placement.json").read_text())
    assert said
    assert edges_of(run / "optimized_final.onnx", run).edges == said.edges
    assert said.digest() in measured_keys(run).values()


def test_every_export_holds_the_edges_that_were_measured(run: Path, tmp_path: Path) -> None:
    keys = measured_keys(run)
    assert len(keys) >= 4
    sizes = set()
    for name, key in keys.items():
        exported = export(run, name, tmp_path / f"{name}.onnx").output
        found = edges_of(exported, run)
        assert found.digest() == key
        sizes.add(len(found.edges))
        # It stands alone.
        onnx.checker.check_model(str(exported), full_check=True)
    assert len(sizes) >= 3


def rewire(model: onnx.ModelProto) -> None:
    """Let a Conv read the float tensor again."""
    nodes = {node.output[0]: node for node in model.graph.node}
    conv = next(
        node
        for node in model.graph.node
        if node.op_type == "Conv" and nodes[node.input[0]].op_type == "DequantizeLinear"
    )
    quantize = nodes[nodes[conv.input[0]].input[0]]
    conv.input[0] = quantize.input[0]


def swap(run: Path, candidate: str) -> None:
    files = sorted((run / "region_models").glob("c*.onnx"))
    file = run / "region_models" / f"{candidate}.onnx"
    other = next(each for each in reversed(files) if each.read_bytes() != file.read_bytes())
    shutil.copy(other, file)


def tamper(run: Path, candidate: str) -> None:
    file = run / "region_models" / f"{candidate}.onnx"
    model = onnx.load(file, load_external_data=False)
    rewire(model)
    file.write_bytes(model.SerializeToString())


@pytest.mark.parametrize("change", [swap, tamper])
def test_a_candidate_that_is_not_what_was_measured_is_refused(
    change: Callable[[Path, str], None], run: Path, tmp_path: Path
) -> None:
    widest = max(list_candidates(run), key=lambda each: each.tensors or 0).id
    export(run, widest, tmp_path / "before.onnx")
    change(run, widest)
    with pytest.raises(ModelError, match="is not what was measured"):
        export(run, widest, tmp_path / "after.onnx")
    assert not (tmp_path / "after.onnx").exists()
