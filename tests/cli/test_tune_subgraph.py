"""Subgraph mode as a user calls it: the command, the autotuner's command, and what they show."""

from __future__ import annotations

import io
import json
import shutil
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtune import zoo
from qdqtune.autotune.__main__ import main as autotune
from qdqtune.cli.main import main
from qdqtune.graph._files import load_model
from qdqtune.qdq._read_back import read
from qdqtune.records._placement import Placement
from qdqtune.records._tuning import Batch, TuneEvent, TuneResult
from qdqtune.report._formatting import text_table
from qdqtune.report._progress import event_line, show_progress
from qdqtune.report._tuning import batches_table, tune_text
from qdqtune.workflows.tuning._time_budget import PRESETS
from tests.cli.test_tune import summary

Capture = pytest.CaptureFixture[str]

SUBGRAPH = ["--workflow", "subgraph", "--preset", "quick"]
SIMULATED = ["--engine", "simulated", *SUBGRAPH]
OUTPUTS = {"optimized_raw.onnx", "optimized_final.onnx", "autotune_cache.json", "logs", "subgraphs"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("subgraph") / "model.onnx"
    onnx.save(zoo.build("resnet18", width=16, image=32, blocks=(1,)), path)
    return path


@pytest.fixture(scope="module", autouse=True)
def hasty() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, preset in PRESETS.items():
            patch.setitem(PRESETS, name, replace(preset.with_runs(1), final_s=0.3))
        yield


@dataclass
class Finished:
    """A run that is over, and what it printed."""

    folder: Path
    out: str
    err: str
    record: dict[str, Any]


@pytest.fixture(scope="module")
def finished(model: Path) -> Finished:
    folder = model.with_name("run")
    with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        assert main(["tune", str(model), *SIMULATED, "-o", str(folder)]) == 0
    record = json.loads((folder / "summary.json").read_text())
    return Finished(folder, out.getvalue(), err.getvalue(), record)


def test_what_is_written_and_shown(finished: Finished) -> None:
    folder, record = finished.folder, finished.record
    assert {path.name for path in folder.iterdir()} >= OUTPUTS
    assert record["mode"] == "subgraph"
    found = record["subgraphs"]
    assert 0 < found["pieces"] <= found["units"] <= found["groups"]
    assert record["subgraph_benchmarks"] >= 2 * found["pieces"]
    assert len(record["batches"]) == record["benchmarks"] > 0
    assert (
        f"{found['groups']} fusion groups ({found['structural']} by structure alone), "
        f"{found['units']} could be quantized: {found['pieces']} distinct subgraphs, "
        f"{record['subgraph_benchmarks']} benchmarks of them."
    ) in finished.out
    rows = [" ".join(line.split()) for line in finished.out.splitlines()]
    for batch in record["batches"]:
        row = f"{batch['stage']} {batch['quantized']} {batch['dropped']} {batch['predicted']:.3f}x "
        assert any(each.startswith(row) for each in rows)
    placement = Placement.from_json((folder / "placement.json").read_text())
    assert read(load_model(folder / "optimized_final.onnx")).placement.edges == placement.edges
    onnx.checker.check_model(str(folder / "optimized_raw.onnx"))


def test_subgraphs_are_not_called_benchmarks(finished: Finished) -> None:
    subgraphs = finished.record["subgraphs"]["pieces"]
    steps = [line for line in finished.err.splitlines() if "] subgraphs: " in line]
    assert len(steps) == subgraphs
    assert f"(subgraph 1 of {subgraphs}, " in steps[0]
    assert "left for subgraphs)" in steps[0]
    assert not any("benchmarks" in line or "so far" in line for line in steps)


def test_the_same_command_goes_on(
    model: Path, finished: Finished, tmp_path: Path, capsys: Capture
) -> None:
    shutil.copytree(finished.folder, tmp_path / "run")
    again = ["tune", str(model), *SIMULATED, "-o", str(tmp_path / "run"), "-q"]
    assert main(again) == 0
    assert "distinct subgraphs, known from before." in capsys.readouterr().out
    record = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (record["subgraph_benchmarks"], record["benchmarks"]) == (0, 0)
    assert record["batches"] == finished.record["batches"]
    assert record["subgraphs"] == finished.record["subgraphs"]


def test_on_a_real_engine_with_layers_from_a_file(
    model: Path, tmp_path: Path, capsys: Capture
) -> None:
    layers = tmp_path / "graph.json"
    layers.write_text(json.dumps({"Layers": ["conv1 + relu1", "maxpool"]}))
    arguments = [*SUBGRAPH, "--engine=onnxruntime", "--threads=1", "--graph-json", str(layers)]
    assert main(
        ["tune", str(model), *arguments, "--no-incremental-validation",
         "-o", str(tmp_path / "run"), "--format", "json", "-q"]
    ) == 0  # fmt: skip
    record = json.loads(capsys.readouterr().out)
    assert record["mode"] == "subgraph"
    assert record["engine"]["name"] == "onnxruntime"
    # Two layers are told; the rest of the model goes by structure.
    assert record["subgraphs"]["structural"] == record["subgraphs"]["groups"] - 2 > 0
    # Nothing is tried but what the subgraphs advise.
    assert [batch["stage"] for batch in record["batches"]] in ([], ["raw"])


def test_the_autotuners_command(model: Path, tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "results"
    line = (
        f"--model {model} --output {folder} --mode subgraph --quant-type fp8 --warmup-runs 5 "
        "--timing-runs 1 --incremental-validation --schemes-per-region 30 "
        "--engine simulated --engine_option profile=gpu"
    )
    assert autotune([*line.split(), "--trtexec-args", "--stronglyTyped"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("Baseline: ")
    assert "fusion groups" in captured.out
    assert "belongs to subgraph mode" not in captured.err
    assert {path.name for path in folder.iterdir()} >= OUTPUTS
    record = json.loads((folder / "summary.json").read_text())
    assert (record["mode"], record["quant_type"]) == ("subgraph", "fp8")
    assert {"raw", "weighted ops"} <= {batch["stage"] for batch in record["batches"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--graph_json", "{model}"], "--graph_json requires --workflow subgraph"),
        (["--no-incremental-validation"], "--no_incremental_validation requires --workflow"),
        (["--incremental_validation", "--dry_run"], "leave --incremental_validation out"),
        (["--workflow", "parts"], "unknown value parts"),
        (["--max_shapes", "1x3x32x32"], "max_shapes requires --workflow subgraph"),
        (["--mode", "subgraph", "--min_shapes", "2x3x32x32"], "2x3x32x32"),
        (["--mode", "subgraph", "--min_shapes", "2x3x32x32", "--dry_run"], "2x3x32x32"),
        (["--mode", "subgraph", "--graph_json", "missing.json"], "missing.json"),
        (["--mode", "subgraph", "--graph_json", "{others}"], "is it of this model?"),
        (["--mode", "subgraph", "--graph_json", "{others}", "--dry_run"], "is it of this model?"),
        (["--workflow", "subgraph", "--mode", "region"], "subgraph and region contradict"),
        (["--mode", "subgraph", "--graph_json", "{model}"], "model.onnx"),
    ],
)
def test_mistakes(
    arguments: list[str], words: str, model: Path, tmp_path: Path, capsys: Capture
) -> None:
    others = tmp_path / "others.json"
    others.write_text(json.dumps({"Layers": ["of_another + model", "too"]}))
    filled = [argument.format(model=model, others=others) for argument in arguments]
    line = ["tune", str(model), "--engine", "simulated", "-o", str(tmp_path / "run"), "-q"]
    assert main([*line, *filled]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert "Traceback" not in captured.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "most"),
    [([], PRESETS["default"].assemblies), (["--preset", "extensive"], 30),
     (["--max_benchmarks", "3"], 3), (["--mode", "subgraph", "--max_shapes", "1x3x32x32"], 16)],
)  # fmt: skip
def test_a_dry_run(
    arguments: list[str], most: int, model: Path, tmp_path: Path, capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    line = ["tune", str(model), "--workflow", "subgraph", "--dry_run", *arguments]
    assert main(line) == 0
    text = capsys.readouterr().out
    assert f"at most {most} assemblies of the whole model on onnxruntime" in text
    assert "regions" not in text
    assert main([*line, "--format", "json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["mode"], plan["benchmarks"]) == ("subgraph", most)
    assert list(tmp_path.iterdir()) == []


# What is shown, without a run.

BATCHES = (
    Batch("raw", 19, 0, 3.21, 1.7, 0.012, False),
    Batch("everything", 24, 0, 2.9, 2.8, 0.004, True),
    Batch("batches", 0, 12, 1.04, None, 0.0, False),
)


def shown(**changes: object) -> str:
    found = {"groups": 24, "structural": 2, "pieces": 19, "units": 22}
    values = {"mode": "subgraph", "subgraphs": found, "subgraph_benchmarks": 38, "batches": BATCHES}
    run = Path("run")
    return tune_text(
        TuneResult(run / "m.onnx", run, Placement(), summary(**{**values, **changes}))
    )  # fmt: skip


def test_the_table_shows_where_the_subgraphs_were_wrong() -> None:
    table = text_table(*batches_table(BATCHES))
    rows = [line.split() for line in table.splitlines()[2:]]
    assert rows == [
        ["raw", "19", "0", "3.210x", "1.700x", "1.2", "%"],
        ["everything", "24", "0", "2.900x", "2.800x", "0.4", "%", "taken"],
        ["batches", "0", "12", "1.040x", "failed"],
    ]
    text = shown()
    assert table in text
    assert "raw: what the subgraph timings predict to be fastest; " in text
    assert "over float; those of schemes, batches and doubts are over the best before them." in text
    assert "30 benchmarks (1 failed, 4 known from before) of whole models, " in text
    assert "best blanket" not in text
    assert "regions" not in text


FOUND = {"groups": 24, "structural": 2, "units": 22}
ADVICE = "By the subgraph timings, all of it should stay float."


@pytest.mark.parametrize(
    ("batches", "timed", "is_advice"),
    [(BATCHES[1:2], 19, True), (BATCHES[1:2], 18, False), (BATCHES[1:2], 0, False),
     (BATCHES[:2], 19, False)],
)  # fmt: skip
def test_what_was_not_timed_advises_nothing(
    batches: tuple[Batch, ...], timed: int, is_advice: bool
) -> None:
    found = {**FOUND, "pieces": timed, "all_pieces": 19}
    text = shown(batches=batches, subgraphs=found, stopped="budget")
    assert (ADVICE in text) is is_advice
    early = (
        f"). {timed} of 19 distinct subgraphs were timed: the time was up. 38 benchmarks of them.\n"
    )
    assert (early in text) is (timed < 19)
    assert ("count fusion groups that were timed;" in text) is (timed < 19)
    assert ("22 could be quantized: 19 distinct subgraphs, 38 bench" in text) is (timed == 19)


def test_without_subgraphs_nothing_was_predicted() -> None:
    found = {**FOUND, "pieces": 0, "all_pieces": 19}
    guesses = (replace(BATCHES[1], predicted=1.0),)
    text = shown(batches=guesses, subgraphs=found, subgraph_benchmarks=0)
    assert ["everything", "-", "-", "-", "2.800x"] in [
        line.split()[:5] for line in text.splitlines()
    ]
    assert "0 of 19 distinct subgraphs were timed.\n" in text
    assert "predicted the whole model poorly" not in text


@pytest.mark.parametrize(
    ("outcomes", "is_said"),
    [
        ([(3.2, 1.7), (2.9, 2.2)], True),
        ([(1.7, 3.2), (2.2, 2.9), (1.1, 1.1)], True),
        ([(3.2, 1.7), (2.9, 2.8), (1.01, 1.0)], False),
        ([(2.9, 2.8), (9.0, None)], False),
        ([(9.0, None)], False),
    ],
)
def test_subgraphs_that_were_mostly_wrong_are_said_to_be(
    outcomes: list[tuple[float, float | None]], is_said: bool
) -> None:
    batches = tuple(Batch("raw", 3, 0, told, seen, 0.01, False) for told, seen in outcomes)
    assert ("region mode may find more." in shown(batches=batches)) is is_said


def test_seeds_that_are_alike_have_one_row() -> None:
    seeds = {"raw": 1.7, "everything": 2.8, "rules": 2.8, "weighted ops": 1.7}
    lines = shown(batches=BATCHES[:2], seeds=seeds).splitlines()
    assert "rules: the same as everything." in lines
    assert "weighted ops: the same as raw." in lines
    assert sum("the same as" in line for line in lines) == 2


def test_a_quantized_model_is_no_float_model() -> None:
    text = shown(batches=BATCHES[:2], seeds={"as given": 1.1, "raw": 1.7})
    assert "in this table are over the float model inside" in text
    assert "over float." not in text


def test_a_run_that_ended_early_has_less_to_show() -> None:
    assert "speedups are over float." in shown(batches=BATCHES[:2])
    text = shown(batches=(), subgraphs={}, seeds={}, kept_float=True)
    assert "38 benchmarks of subgraphs." in text
    assert "fusion groups" not in text
    assert "tried on" not in text


SUBGRAPH_EVENT = TuneEvent("subgraphs", "2 forms of Conv", 3, 19, 1.0, 4.0, 12.0)


def test_a_subgraph_is_a_line() -> None:
    assert event_line(SUBGRAPH_EVENT) == (
        "[4.0 s] subgraphs: 2 forms of Conv (subgraph 3 of 19, 12 s left for subgraphs)"
    )


def test_a_subgraph_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with show_progress(eager=True) as watch:
        watch(SUBGRAPH_EVENT)
    for words in ("subgraphs", "subgraph 3 of 19", "12 s left for subgraphs"):
        assert words in screen.getvalue()
