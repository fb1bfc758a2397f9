"""`--cache_dir`: what runs share, however damaged, large or busy it is."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from qdqtune.records._errors import NewerSchemaError, OutputError, UsageError
from qdqtune.records._tuning import SchemeTimes, SubgraphTimes, TuneResult
from qdqtune.search.patterns._pattern_outcomes import ChoiceOutcome, Conditions, PatternOutcome
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows.tuning import _cache_folder as cache_folder
from qdqtune.workflows.tuning._cache_folder import (
    FILE,
    CacheContent,
    StoredSubgraph,
    add_to_folder,
    change_folder,
    read_folder,
)
from qdqtune.workflows.tuning._journal_format import encode
from qdqtune.workflows.tuning._run_files import lock_folder
from tests.workflows.test_warm_start import RESNET, saved, simulated

ENCODER = {"width": 64, "sequence": 16, "vocabulary": 100}
ENGINE = {
    "name": "simulated", "version": "1", "device": "none", "isa": "gpu", "threads": None,
    "options": {},
}  # fmt: skip
GPU = {"engine_options": {**QUIET, "profile": "gpu"}, "workflow": "subgraph", "max_benchmarks": 2}


def outcome(name: str = "Conv(e0)", *, chosen: bool = True) -> PatternOutcome:
    where = Conditions("simulated", "1", "none", "onnxruntime", "int8")
    return PatternOutcome(name, 1, where, True, (ChoiceOutcome(0, "whole", chosen),))


def subgraph(key: str = "a", **engine: str) -> StoredSubgraph:
    times = SubgraphTimes(key, "layers", (SchemeTimes("none", 1.0, 1.0, (0.0,), (0.0,)),))
    return StoredSubgraph({"engine": {**ENGINE, **engine}, "dialect": "tensorrt"}, times)


def add(folder: Path, *found: PatternOutcome | StoredSubgraph) -> None:
    def change(content: CacheContent) -> None:
        for each in found:
            if isinstance(each, StoredSubgraph):
                content.add_subgraph(each)
            else:
                content.patterns.add_outcome(each)

    change_folder(folder, change)


def known(folder: Path) -> tuple[list[str], list[str]]:
    content = read_folder(folder)
    return (
        [each.signature for each in content.patterns.outcomes],
        [key for _, key in content.subgraphs],
    )


def test_what_is_added_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "of" / "project"
    assert not read_folder(folder).lines()
    add(folder, outcome(), subgraph("a"))
    add(folder, outcome("Relu(e0)"), subgraph("b"))
    add(folder, outcome(chosen=False), subgraph("a"))
    assert known(folder) == (["Relu(e0)", "Conv(e0)"], ["b", "a"])
    (_, newest) = read_folder(folder).patterns.outcomes
    assert not newest.choices[0].is_chosen
    assert sorted(path.name for path in folder.iterdir()) == [".lock", FILE]


def test_times_of_another_engine_are_not_used(tmp_path: Path) -> None:
    own = subgraph("a")
    for other in ({"version": "2"}, {"device": "another"}, {"threads": 2}, {"options": {"a": "b"}}):
        add(tmp_path, subgraph("a", **other))  # type: ignore[arg-type]
    assert not read_folder(tmp_path).times_under(own.conditions)
    add(tmp_path, own)
    assert read_folder(tmp_path).times_under(own.conditions) == {"a": own.times}


@pytest.mark.parametrize(
    "line",
    [
        "{", "", "\x00", json.dumps({"kind": "outcome"}),
        encode({"kind": "outcome", "signature": 3}).strip(),
        encode({"kind": "subgraph", "conditions": {}, "times": subgraph().times.to_dict()}).strip(),
        encode({"kind": "session", "number": 1}).strip(),
        encode({"kind": "outcome", **outcome("X").to_dict(), "more": 1}).strip(),
    ],
)  # fmt: skip
def test_damaged_lines_are_counted_and_dropped(
    line: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(tmp_path, outcome(), subgraph())
    file = tmp_path / FILE
    file.write_text(f"{line}\n" + file.read_text())
    with caplog.at_level(logging.WARNING):
        assert read_folder(tmp_path).damaged == 1
    assert "1 line is damaged and not used" in caplog.text
    add(tmp_path, outcome("Relu(e0)"))
    assert known(tmp_path) == (["Conv(e0)", "Relu(e0)"], ["a"])
    assert read_folder(tmp_path).damaged == 0


def test_a_changed_line_is_not_trusted(tmp_path: Path) -> None:
    add(tmp_path, outcome(), subgraph())
    file = tmp_path / FILE
    file.write_text(file.read_text().replace("true", "false"))
    assert known(tmp_path) == ([], ["a"])


def test_the_folder_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_folder, "_MOST_SUBGRAPHS", 3)
    add(tmp_path, *(subgraph(str(n)) for n in range(5)))
    assert known(tmp_path)[1] == ["2", "3", "4"]
    size = len((tmp_path / FILE).read_text())
    monkeypatch.setattr(cache_folder, "_MOST_BYTES", size)
    add(tmp_path, outcome())
    assert known(tmp_path) == (["Conv(e0)"], ["3", "4"])
    assert len((tmp_path / FILE).read_text()) <= size


def test_runs_add_at_the_same_time(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: add(tmp_path, outcome(f"Op{n}(e0)")), range(24)))
    assert len(known(tmp_path)[0]) == 24


def test_a_folder_in_use_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cache_folder, "_MOST_WAIT_S", 0.0)
    with lock_folder(tmp_path):
        with pytest.raises(UsageError, match="is in use by another run"):
            add(tmp_path, outcome())
        add_to_folder(tmp_path, lambda _: None)
        assert "What this run found out is not kept there" in caplog.text
    add(tmp_path, outcome())


def test_what_a_newer_version_wrote_stays(tmp_path: Path) -> None:
    body = {"schema": 99, "kind": "outcome"}
    text = encode(body)
    (tmp_path / FILE).write_text(text)
    with pytest.raises(NewerSchemaError):
        add(tmp_path, outcome())
    assert (tmp_path / FILE).read_text() == text


def test_places_that_can_t_be_a_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="can't be made"):
        add(tmp_path / "file", outcome())
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(OutputError, match="a link"):
        add(tmp_path / "link", outcome())
    model = saved(tmp_path / "m.onnx", **RESNET)
    with pytest.raises(UsageError, match="both --cache_dir and --output_dir"):
        simulated(model, tmp_path / "run", cache_dir=tmp_path / "run")


def run_in(folder: Path, cache: Path, layers: int, **options: Any) -> TuneResult:
    model = saved(folder / f"{layers}.onnx", "bert", **ENCODER, layers=layers)
    return simulated(model, folder / f"run{layers}", cache_dir=cache, **{**GPU, **options})


@pytest.mark.slow
def test_subgraphs_of_a_sibling_are_not_built_again(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    quick = {"build_s": "1", "build_kernel_s": "0"}  # else whole models tell of them
    alone = {**GPU["engine_options"], **quick}
    first = run_in(tmp_path, cache, 1, engine_options=alone).summary
    second = run_in(tmp_path, cache, 2, engine_options=alone).summary
    assert first.subgraph_benchmarks >= 10
    assert second.subgraph_benchmarks <= 4  # at most two new subgraphs
    # Another machine times them itself.
    noisy = {**QUIET, **quick, "profile": "gpu", "seed": "5"}
    other = run_in(tmp_path, cache, 3, engine_options=noisy).summary
    assert other.subgraph_benchmarks >= 10


def test_a_region_run_begins_with_what_is_in_the_folder(tmp_path: Path) -> None:
    cache, model = tmp_path / "cache", saved(tmp_path / "m.onnx", **RESNET)
    first = simulated(model, tmp_path / "a", cache_dir=cache, max_benchmarks=2)
    found = read_folder(cache).patterns.outcomes
    assert found
    assert "pattern cache" not in first.summary.seeds
    settled = [replace(each, is_settled=True) for each in found]
    add(cache, *settled)
    second = simulated(model, tmp_path / "b", cache_dir=cache, max_benchmarks=12)
    assert next(iter(second.summary.seeds)) == "pattern cache"
    assert not [c for c in read_folder(cache).patterns.outcomes if not c.is_settled]
