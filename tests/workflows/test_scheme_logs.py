"""The logs of a run: numbered like its regions and schemes, with what the engine said."""

from __future__ import annotations

import os
import re
from pathlib import Path

import onnx
import pytest

from qdqtune import zoo
from qdqtune.autotune.region_inspect import inspect_region_search
from qdqtune.cli.main import main
from qdqtune.engines import _registry as registry
from qdqtune.engines._worker_environment import BuildLog
from qdqtune.records._tuning import TuneResult
from qdqtune.search.patterns._state_file import read_state
from qdqtune.search.regions._region import leaves
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows.tuning._tune import tune
from tests.promises.conftest import ROOT
from tests.workflows.mute_engine import REFUSING

REFUSED = "layer2.0.conv2"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(zoo.build("resnet18", width=32, image=64, blocks=(2, 1, 1, 1)), path)
    return path


@pytest.fixture(scope="module")
def result(model: Path, tmp_path_factory: pytest.TempPathFactory) -> TuneResult:
    """A run from Python on an engine that refuses some of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.ENGINES, REFUSING.name, REFUSING)
        found = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        patch.setenv("PYTHONPATH", os.pathsep.join(found))
        return tune(
            model,
            engine=REFUSING.name,
            engine_options={**QUIET, "refuses": REFUSED},
            preset="quick",
            regions="structure",  # whose leaves are numbered in the order of the patterns
            output_dir=tmp_path_factory.mktemp("runs") / "run",
        )


@pytest.fixture
def logs(result: TuneResult) -> dict[tuple[int, int], str]:
    """By region and scheme."""
    found = {}
    for file in (result.output_dir / "logs").glob("region_*.log"):
        numbers = re.fullmatch(r"region_(\d+)_scheme_(\d+)\.log", file.name)
        assert numbers is not None
        found[int(numbers[1]), int(numbers[2])] = file.read_text()
    return found


def test_regions_have_the_numbers_of_the_inspection_and_of_the_models(
    model: Path,
    result: TuneResult,
    logs: dict[tuple[int, int], str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    regions = {region.id for region in leaves(inspect_region_search(model, regions="structure"))}
    capsys.readouterr()
    patterns = read_state(result.output_dir / "autotuner_state.yaml").patterns
    logged = sorted({region for region, _ in logs})
    # One region for each pattern: two of the seven are alike.
    assert len(logged) == len(patterns) == len(regions) - 1
    assert set(logged) < regions
    for region, pattern in zip(logged, patterns, strict=True):
        assert {scheme for number, scheme in logs if number == region} == set(
            range(pattern.num_schemes)
        )
        for number, scheme in enumerate(pattern.schemes):
            assert f"pattern: {pattern.pattern_signature}\n" in logs[region, number]
            assert f"scheme: {scheme.hash}\n" in logs[region, number]
    grown = (result.output_dir / "region_models").glob("region_*_level_*.onnx")
    assert {int(file.name.split("_")[1]) for file in grown} <= set(logged)


@pytest.mark.parametrize("given_type", ["float32", "float16"])
@pytest.mark.slow
def test_regions_of_a_converted_model_are_those_of_the_float_model(
    given_type: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its casts move the numbers: inspecting the model as given would show other regions."""
    model, profile = tmp_path / "model.onnx", "gpu"
    sizes = {"layers": 1, "width": 32, "head_width": 16, "sequence": 8, "vocabulary": 50}
    onnx.save(zoo.build("bert", **sizes), model)
    if given_type == "float16":
        single, model, profile = model, tmp_path / "half.onnx", "cpu"
        line = ["convert", str(single), "--to", "fp16", "--no_keep_io", "-o", str(model)]
        assert main(line) == 0
    folder = tune(
        model,
        engine="simulated",
        engine_options={**QUIET, "profile": profile},
        precision="float16" if given_type == "float32" else "auto",
        max_benchmarks=4,
        output_dir=tmp_path / "run",
    ).output_dir
    given, tuned = (
        {region.id: region for region in leaves(inspect_region_search(path))}
        for path in (model, folder / "region_models" / "float.onnx")
    )
    capsys.readouterr()
    assert [len(region.nodes) for region in given.values()] != [
        len(region.nodes) for region in tuned.values()
    ]
    files = list((folder / "logs").glob("region_*_scheme_0.log"))
    assert files
    for file in files:
        region = tuned[int(file.name.split("_")[1])]
        text = file.read_text()
        assert f"{region.id} (level {region.level}) of region_models/float.onnx, " in text
        found = re.search(r"pattern: (.+)=>", text)
        assert found is not None
        assert len(found[1].split("->")) == len(region.nodes)


def test_a_scheme_that_failed_has_a_log_and_an_error_in_the_state(
    result: TuneResult, logs: dict[tuple[int, int], str]
) -> None:
    patterns = read_state(result.output_dir / "autotuner_state.yaml").patterns
    regions = sorted({region for region, _ in logs})
    failed = [
        (region, number)
        for region, pattern in zip(regions, patterns, strict=True)
        for number, scheme in enumerate(pattern.schemes)
        if scheme.error
    ]
    assert failed
    for place in failed:
        assert "latency of the whole model: failed\n" in logs[place]
        assert f"no kernel for {REFUSED}" in logs[place].partition("build log of")[2]
    whole = [text for place, text in logs.items() if place not in failed]
    assert all(re.search(r"latency of the whole model: [\d.]+ ms\n", text) for text in whole)
    named = [re.search(r"measured in: (.+)\n", text) for text in logs.values()]
    assert all(name and (result.output_dir / name[1]).is_file() for name in named)


def test_the_first_and_the_last_model_have_a_log(result: TuneResult) -> None:
    for name, words in (("baseline.log", "baseline: "), ("final.log", "final: ")):
        text = (result.output_dir / "logs" / name).read_text()
        assert text.startswith(words)
        assert re.search(r"build log of \w+\.onnx:\n  built in [\d.]+ s\n", text)


def test_what_is_printed_while_a_model_is_built_is_found_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    log = BuildLog(path)
    assert log.about("a.onnx") == []
    path.write_text(
        "hello\n=== qdqtune: building a.onnx\nslow\n=== qdqtune: built in 1.000 s\nrun\n"
    )
    assert log.about("a.onnx") == ["slow", "built in 1.000 s"]
    with path.open("a") as file:
        file.write("=== qdqtune: building b.onnx\nbroken\n=== qdqtune: building a.onnx\nfast\nha")
    assert log.about("b.onnx") == ["broken"]
    assert log.about("a.onnx") == ["fast"]
