"""A file of a newer version is refused by name, and nothing is written over it."""

from __future__ import annotations

import ast
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

import qdqtune
from qdqtune.calibration._ranges import Calibrated, RangeCache
from qdqtune.cli.main import main
from qdqtune.records._errors import NewerSchemaError
from qdqtune.records._front import Front
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import Ranges
from qdqtune.records._report import ReportDetails
from qdqtune.records._tuning import Summary
from qdqtune.records._untrusted_files import SCHEMAS
from qdqtune.search.patterns._pattern_cache import PatternCache
from qdqtune.search.patterns._state_file import read_state
from qdqtune.workflows._export import front_of
from qdqtune.workflows.tuning._folder import READ_AGAIN, SUBGRAPH_CACHE
from qdqtune.workflows.tuning._journal_format import encode, read_journal
from qdqtune.workflows.tuning._subgraph_cache import SubgraphCache
from tests.promises.models import two_convs

RUN = Path(__file__).parents[1] / "data/runs/schema-2"
FILES = {kind: name for name, kind in READ_AGAIN.items()}
HEADER = {"model": "m"}
NOT_READ_AGAIN = {
    "bench",
    "cache",
    "candidates",
    "conversion",
    "errors",
    "groups",
    "insertion",
    "inspection",
    "layers",
    "optimization",
    "page",
    "plan",
    "quantize",
    "shapes",
    "stripping",
    "verification",
}
"""Reports: nobody but people and their scripts reads them."""


READERS: dict[str, Callable[[Path], object]] = {
    "autotune_cache": lambda path: SubgraphCache(path, HEADER),
    "autotuner_state": read_state,
    "journal": read_journal,
    "pareto": lambda path: front_of(path.parent),
    "pattern_cache": PatternCache.load,
    "placement": lambda path: Placement.from_json(path.read_text(), str(path)),
    "ranges": lambda path: Ranges.from_json(path.read_text(), str(path)),
    "report": lambda path: ReportDetails.from_dict(json.loads(path.read_text()), str(path)),
    "summary": lambda path: Summary.from_dict(json.loads(path.read_text()), str(path)),
}


def write_newer(kind: str, folder: Path) -> Path:
    """A sound file of this version, but that it says that it is of the next one."""
    folder.mkdir(exist_ok=True)
    path = folder / FILES.get(kind, "0123-4567.json")
    if kind == "autotune_cache":
        SubgraphCache(path, HEADER).keep_batches([])
        if not path.exists():
            SubgraphCache(path, HEADER).keep_profiled()
    elif kind == "calibration":
        RangeCache(folder).store(*path.stem.split("-"), Calibrated({}, 1, {}))
    elif kind == "pareto":
        path.write_text(json.dumps(Front().to_dict()))
    elif kind == "report":
        path.write_text(json.dumps(ReportDetails().to_dict()))
    elif not path.exists():
        shutil.copy(RUN / path.name, path)
    text, newest = path.read_text(), SCHEMAS[kind]
    if kind == "journal":  # a line has a checksum, and a damaged one stands before the newer one
        body = {"kind": "measurement", "something": "new", "schema": newest + 1}
        changed = "{torn\n" + text + encode(body)
    else:
        changed, count = re.subn(r'("?schema"?: ?)\d+\b', rf"\g<1>{newest + 1}", text, count=1)
        assert count == 1
    path.write_text(changed)
    return path


@pytest.mark.parametrize("kind", READERS)
def test_a_newer_file_is_refused_by_name_and_left_alone(kind: str, tmp_path: Path) -> None:
    path = write_newer(kind, tmp_path)
    before = path.read_bytes()
    with pytest.raises(NewerSchemaError) as caught:
        READERS[kind](path)
    assert str(path) in caught.value.what
    assert f"schema {SCHEMAS[kind] + 1}" in caught.value.what.replace("schema is", "schema")
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_newer_ranges_in_the_cache_are_left_alone(tmp_path: Path) -> None:
    """They are a help that nobody asked for: the run goes on without them."""
    path = write_newer("calibration", tmp_path)
    before = path.read_text()
    cache = RangeCache(tmp_path)
    assert cache.load(*path.stem.split("-"), ()) is None
    cache.store(*path.stem.split("-"), Calibrated({}, 1, {}))
    assert path.read_text() == before


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("finished")
    onnx.save(two_convs(), folder / "model.onnx")
    qdqtune.tune(
        folder / "model.onnx", engine="simulated", max_benchmarks=2, output_dir=folder / "run"
    )
    return folder


def tune(folder: Path) -> list[str]:
    model, run = str(folder / "model.onnx"), str(folder / "run")
    return ["tune", model, "--engine", "simulated", "--max_benchmarks", "2", "-o", run, "-q"]


@pytest.mark.parametrize("kind", READ_AGAIN.values())
def test_a_run_refuses_a_folder_with_a_newer_file_and_changes_nothing(
    kind: str, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(finished, folder)
    newer = write_newer(kind, folder / "run")

    def content() -> dict[str, bytes]:
        files = (each for each in folder.rglob("*") if each.is_file() and each.name != ".lock")
        return {str(each): each.read_bytes() for each in files}

    before = content()
    assert main(tune(folder)) == 2
    said = capsys.readouterr().err
    assert f"{newer}" in said
    assert f"its {kind} schema is {SCHEMAS[kind] + 1}" in said
    assert "Upgrade qdqtune" in said
    assert "damaged" not in said
    assert content() == before


def test_every_kind_that_is_written_is_known() -> None:
    """A new kind is either read again, and then tested above, or a report."""
    source = Path(qdqtune.__file__).parent
    found = {}
    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Dict):
                said = {key.value: value for key, value in zip(node.keys, node.values, strict=True)
                        if isinstance(key, ast.Constant)}  # fmt: skip
                if "schema" in said and isinstance(said.get("kind"), ast.Constant):
                    found[said["kind"].value] = file.name
            elif isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "KIND":
                found[ast.literal_eval(node.value or node.target)] = file.name
    del found[""]  # parts of other records
    unknown = {kind: found[kind] for kind in set(found) - set(SCHEMAS) - NOT_READ_AGAIN}
    assert unknown == {}
    assert set(found) >= NOT_READ_AGAIN
    assert set(READERS) == set(SCHEMAS) - {"calibration"}
    assert set(READ_AGAIN.values()) == set(SCHEMAS) - {"calibration"}
    assert SUBGRAPH_CACHE in READ_AGAIN
