"""Tuning, whole: the model that comes out is measured, correct and never slower."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qdqtune
from qdqtune import zoo
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._op_units import canonical
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import EngineError, OutputError, UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._tuning import Summary, TuneEvent, TuneResult
from qdqtune.report._tuning import plan_text
from qdqtune.search.strategies._strategy import Score
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows._export import list_candidates
from qdqtune.workflows._insert import insert
from qdqtune.workflows.tuning import _final_check as final_check
from qdqtune.workflows.tuning._journal import Journal
from qdqtune.workflows.tuning._tune import plan_tune, tune
from tests.conftest import model_from_text

SMALL = {"width": 16, "image": 64}


@pytest.fixture
def resnet(tmp_path: Path) -> Path:
    path = tmp_path / "resnet.onnx"
    onnx.save(zoo.build("resnet18", **SMALL), path)
    return path


def simulated(model: Path, **options: object) -> TuneResult:
    settings = {"engine": "simulated", "engine_options": QUIET, "preset": "quick"}
    return tune(model, **{**settings, **options})  # type: ignore[arg-type]


def test_a_model_gets_faster_on_the_real_engine(resnet: Path, tmp_path: Path) -> None:
    events: list[TuneEvent] = []
    result = tune(
        resnet,
        engine="onnxruntime",
        threads=1,
        preset="quick",
        max_benchmarks=8,
        output_dir=tmp_path / "run",
        callbacks=[events.append],
    )
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["engine"]["name"] == "onnxruntime"
    assert summary["engine"]["threads"] == 1
    assert summary["calibration"] == "random"
    assert 1 <= summary["benchmarks"] <= 12
    assert summary["seconds"]["own"] < summary["seconds"]["total"]
    assert {event.stage for event in events} >= {"noise", "calibration", "seeds", "done"}
    if summary["kept_float"]:
        assert result.model.read_bytes() == resnet.read_bytes()
    else:
        assert summary["speedup"] >= 1.02
        assert summary["output_sqnr_db"] >= 15.0
        assert summary["speedup_interval"][0] > 1.0


def test_the_summary_tells_what_was_measured(resnet: Path, tmp_path: Path) -> None:
    result = simulated(resnet, max_benchmarks=1, output_dir=tmp_path / "run")
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert summary["shapes"] == {"image": [1, 3, 64, 64]}
    assert summary["version"] == qdqtune.__version__
    assert summary["command"] == "qdqtune.tune (Python)"
    age = datetime.now(timezone.utc) - datetime.fromisoformat(summary["date"])
    assert timedelta(0) <= age < timedelta(minutes=10)
    assert summary["bytes_before"] == resnet.stat().st_size
    assert summary["bytes_after"] == result.model.stat().st_size
    assert summary["calibration_samples"] == 8
    assert Summary.from_dict(summary).to_dict() == result.summary.to_dict() == summary


def test_what_is_handed_over_is_what_was_measured(resnet: Path, tmp_path: Path) -> None:
    result = simulated(resnet, output_dir=tmp_path / "run")
    assert not result.summary.kept_float
    placement = Placement.from_json((tmp_path / "run/placement.json").read_text())
    assert placement == result.placement
    reading = read(load_model(result.model))
    index = GraphIndex(load_model(tmp_path / "run/region_models/float.onnx"))
    assert canonical(index, reading.placement).edges == placement.edges
    assert result.summary.qdq_pairs == len(placement.tensors)


def test_where_float_is_best_the_input_comes_back_byte_for_byte(
    resnet: Path, tmp_path: Path
) -> None:
    options = {**QUIET, "profile": "float-only"}
    result = simulated(resnet, engine_options=options, output_dir=tmp_path / "run")
    assert result.summary.kept_float
    assert result.summary.reason
    assert result.speedup == 1.0
    assert result.model.read_bytes() == resnet.read_bytes()
    assert not result.placement


def test_kept_float_keeps_external_data_too(tmp_path: Path) -> None:
    source = tmp_path / "model" / "big.onnx"
    source.parent.mkdir()
    onnx.save(
        zoo.build("resnet18", **SMALL), source, save_as_external_data=True, location="big.weights"
    )
    options = {**QUIET, "profile": "float-only"}
    result = simulated(source, engine_options=options, output_dir=tmp_path / "run")
    assert result.model.read_bytes() == source.read_bytes()
    weights = (tmp_path / "run/big.weights").read_bytes()
    assert weights == (tmp_path / "model/big.weights").read_bytes()
    assert result.summary.bytes_before == source.stat().st_size + len(weights)
    assert result.summary.bytes_after == result.summary.bytes_before
    with Worker() as worker:
        worker.open(result.model)


@pytest.mark.slow
def test_the_same_command_goes_on_at_no_cost(resnet: Path, tmp_path: Path) -> None:
    noisy = {"engine_options": {"seed": "3"}, "output_dir": tmp_path / "run"}
    first = simulated(resnet, **noisy)
    again = simulated(resnet, **noisy)
    assert first.summary.benchmarks > 0
    assert again.summary.benchmarks == 0
    assert again.summary.memo_hits == first.summary.benchmarks
    assert again.placement == first.placement


@pytest.mark.slow
def test_a_run_that_was_cut_short_ends_like_one_that_was_not(resnet: Path, tmp_path: Path) -> None:
    noisy = {"engine_options": {"seed": "5"}}
    whole = simulated(resnet, output_dir=tmp_path / "whole", **noisy)
    lines = (tmp_path / "whole/measurements.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    kept = "".join(lines[: len(lines) // 2]) + lines[len(lines) // 2][:40]
    (tmp_path / "cut/measurements.jsonl").write_text(kept)
    resumed = simulated(resnet, output_dir=tmp_path / "cut", **noisy)
    assert 0 < resumed.summary.benchmarks < whole.summary.benchmarks
    assert resumed.summary.memo_hits > 0


@pytest.mark.slow
def test_seeds_and_journals_decide_and_hashes_do_not(resnet: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    simulated(resnet, output_dir=run, engine_options={"seed": "1"})
    journal = (run / "measurements.jsonl").read_text()
    found = set()
    for hash_seed in ("1", "2"):
        folder = tmp_path / f"hash{hash_seed}"
        folder.mkdir()
        (folder / "measurements.jsonl").write_text(journal)
        code = (
            "import sys; from qdqtune.workflows.tuning._tune import tune; "
            "r = tune(sys.argv[1], engine='simulated', engine_options={'seed': '1'}, "
            "preset='quick', output_dir=sys.argv[2]); print(r.summary.benchmarks)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code, str(resnet), str(folder)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.strip() == "0"
        found.add((folder / "placement.json").read_text())
    assert found == {(run / "placement.json").read_text()}


def test_another_model_is_refused_and_the_field_named(resnet: Path, tmp_path: Path) -> None:
    simulated(resnet, output_dir=tmp_path / "run", max_benchmarks=2)
    other = tmp_path / "other.onnx"
    onnx.save(zoo.build("resnet18", width=16, image=64, classes=10), other)
    before = {file: file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()}
    with pytest.raises(UsageError, match=rf"another model, {re.escape(str(resnet))}\."):
        simulated(other, output_dir=tmp_path / "run", max_benchmarks=2)
    logs = tmp_path / "run/logs"
    assert all(
        file.read_bytes() == content for file, content in before.items() if file.parent != logs
    )
    simulated(other, output_dir=tmp_path / "run", max_benchmarks=2, force=True)


def test_a_file_that_was_changed_is_told_from_another_one(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "j", {"model": "0"}, model="m.onnx")
    journal.add("", "a", "screen", Score.failed("no"), {"latency_ms": None, "reference_ms": None})
    journal.close()
    for name, said in (("m.onnx", "m.onnx before it was changed."), ("n.onnx", "m.onnx.")):
        with pytest.raises(UsageError, match=f"a run with another model, {said}"):
            Journal(tmp_path / "j", {"model": "1"}, model=name)


def test_ctrl_c_leaves_the_best_so_far(resnet: Path, tmp_path: Path) -> None:
    def interrupt(event: TuneEvent) -> None:
        if event.benchmarks >= 3 and event.stage not in ("done", "final", "accuracy"):
            raise KeyboardInterrupt

    result = simulated(resnet, output_dir=tmp_path / "run", callbacks=[interrupt])
    assert result.summary.stopped == "interrupted"
    assert not result.summary.kept_float
    assert result.speedup > 1.02


def test_accuracy_bounds_what_ships(resnet: Path, tmp_path: Path) -> None:
    free = simulated(resnet, output_dir=tmp_path / "free", min_sqnr_db=None)
    assert free.summary.output_sqnr_db is not None
    wanted = free.summary.output_sqnr_db + 3.0
    bound = simulated(resnet, output_dir=tmp_path / "bound", min_sqnr_db=wanted)
    if not bound.summary.kept_float:
        assert bound.summary.output_sqnr_db is not None
        assert bound.summary.output_sqnr_db >= wanted
    assert len(bound.placement.tensors) < len(free.placement.tensors)


def test_a_metric_bounds_what_ships(resnet: Path, tmp_path: Path) -> None:
    seen: list[str] = []

    def metric(path: str) -> float:
        seen.append(path)
        model = onnx.load(path, load_external_data=False)
        return -float(sum(node.op_type == "QuantizeLinear" for node in model.graph.node))

    result = simulated(resnet, output_dir=tmp_path / "run", evaluate=metric, max_drop=6.0)
    assert seen[0] == str(resnet)
    assert result.summary.metric is not None
    assert result.summary.metric["float"] == 0.0
    if not result.summary.kept_float:
        quantizers = [
            n for n in onnx.load(result.model).graph.node if n.op_type == "QuantizeLinear"
        ]
        assert len(quantizers) <= 6
        assert result.summary.metric["final"] == -len(quantizers)


def _raise(path: str) -> float:
    raise KeyError("labels")


@pytest.mark.parametrize(
    ("evaluate", "words"),
    [
        (lambda path: None, "not a number"),
        (lambda path: "good", "not a number"),
        (lambda path: np.nan, "not a number"),
        (_raise, "_raise failed: KeyError: 'labels'"),
    ],
)
def test_a_metric_that_fails_ends_the_run_before_anything_is_done(
    evaluate: Callable[[str], float], words: str, resnet: Path, tmp_path: Path
) -> None:
    events: list[TuneEvent] = []
    with pytest.raises(UsageError, match=words):
        simulated(resnet, output_dir=tmp_path / "run", evaluate=evaluate, callbacks=[events.append])
    assert [event.stage for event in events] == ["model", "evaluate"]
    assert not (tmp_path / "run/measurements.jsonl").exists()


def test_the_metric_of_the_float_model_is_known_where_it_is_kept(
    resnet: Path, tmp_path: Path
) -> None:
    options = {**QUIET, "profile": "float-only"}
    result = simulated(
        resnet, engine_options=options, output_dir=tmp_path / "run", evaluate=lambda path: 0.75
    )
    assert result.summary.kept_float
    assert result.summary.metric == {"float": 0.75}


def test_a_model_without_anything_to_quantize_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "tiny.onnx"
    onnx.save(model_from_text("g (float[2] x) => (float[2] y) { y = Neg(x) }"), path)
    result = tune(path, engine="onnxruntime", preset="quick", output_dir=tmp_path / "run")
    assert result.summary.kept_float
    assert "nothing of it can be quantized" in result.summary.reason
    assert result.model.read_bytes() == path.read_bytes()


def test_an_already_quantized_model_is_where_the_search_begins(
    resnet: Path, tmp_path: Path
) -> None:
    quantized = tmp_path / "int8.onnx"
    insert(resnet, quantized, ops=["Conv"], engine="onnxruntime")
    plan = plan_tune(quantized, engine="onnxruntime")
    assert "as given" in plan.seeds
    result = simulated(quantized, output_dir=tmp_path / "run")
    if result.summary.kept_float:
        assert result.model.read_bytes() == quantized.read_bytes()
    assert "as given" in result.summary.seeds


def test_a_plan_tells_without_running(resnet: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    plan = plan_tune(resnet, engine="onnxruntime", preset="quick")
    assert plan.groups > 5
    assert plan.benchmarks > plan.groups
    assert plan.seeds["everything"] > plan.seeds["weighted ops"] > 0
    assert sorted(tmp_path.iterdir()) == before


def test_a_plan_of_subgraphs_depends_on_how_long_a_build_takes(resnet: Path) -> None:
    slow, fast, alone = (
        plan_tune(
            resnet, engine="simulated", workflow="subgraph", preset="quick",
            engine_options={"profile": "gpu", "build_s": build_s, "build_kernel_s": "0"}, **options,
        )
        for build_s, options in (
            ("20", {}), ("0", {}), ("20", {"incremental_validation": False}),
        )
    )  # fmt: skip
    assert slow.benchmarks < fast.benchmarks
    assert set(slow.seeds) > set(fast.seeds)
    assert [plan.is_told_in_place for plan in (slow, fast, alone)] == [True, False, False]
    assert "whole models tell" in plan_text(slow)
    assert "timed alone, as float and quantized" in plan_text(fast)


def test_a_plan_estimates_the_time_from_one_timing(resnet: Path) -> None:
    few, many, limited, failed = (
        plan_tune(resnet, engine="onnxruntime", threads=1, **options)
        for options in (
            {"max_benchmarks": 2},
            {"max_benchmarks": 2000},
            {"max_benchmarks": 2000, "budget_s": 20.0},
            {"engine_options": {"no_such": "option"}},
        )
    )
    assert few.estimate is not None
    assert many.estimate is not None
    assert limited.estimate is not None
    assert few.estimate.least_s == few.estimate.most_s
    assert 0.0 < many.estimate.least_s < many.estimate.most_s
    assert many.estimate.most_s > few.estimate.most_s
    assert limited.estimate.most_s == 20.0
    assert few.to_dict()["estimate"]["latency_ms"] > 0.0
    assert "s to build" in plan_text(few)
    assert failed.estimate is None
    assert "no_such" in plan_text(failed)


def test_candidates_become_a_dataframe(
    resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = simulated(resnet, output_dir=tmp_path / "run", max_benchmarks=4)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "pandas", None)  # as if it were not installed
        with pytest.raises(UsageError, match="requires pandas"):
            result.to_dataframe()
    pytest.importorskip("pandas")
    frame = result.to_dataframe()
    candidates = list_candidates(tmp_path / "run")
    assert list(frame.index) == [each.id for each in candidates]
    assert frame.speedup.max() == max(each.speedup or 0.0 for each in candidates)
    measured = {"latency_ms", "speedup", "sqnr_db", "metric"}
    assert {"tensors", *measured, "failure", "role", "shortfall"} == set(frame.columns)


def test_only_what_matches_the_filter_is_quantized(resnet: Path, tmp_path: Path) -> None:
    result = simulated(resnet, output_dir=tmp_path / "run", node_filter=["layer2.*"])
    nodes = {edge.node for edge in result.placement.edges}
    assert "conv1" not in nodes
    with pytest.raises(UsageError, match="node filter"):
        simulated(resnet, output_dir=tmp_path / "none", node_filter=["nothing*"])


def test_the_models_own_folder_is_safe(resnet: Path) -> None:
    precious = resnet.with_name("baseline.onnx")
    resnet.rename(precious)
    before = precious.read_bytes()
    with pytest.raises(OutputError, match="output folder"):
        simulated(precious, output_dir=precious.parent)
    assert precious.read_bytes() == before


# Defects of the peer that live in its workflow, by their names in our notes.


def test_b2_a_quantized_baseline_is_really_begun_with(resnet: Path, tmp_path: Path) -> None:
    quantized = tmp_path / "int8.onnx"
    insert(resnet, quantized, ops=["Conv"], engine="onnxruntime")
    result = simulated(resnet, output_dir=tmp_path / "run", qdq_baseline=quantized)
    assert "Q/DQ baseline" in result.summary.seeds


def test_b12_an_old_opset_and_fp8_give_valid_files(tmp_path: Path) -> None:
    path = tmp_path / "old.onnx"
    proto = zoo.build("resnet18", **SMALL)
    assert proto.opset_import[0].version < 19
    onnx.save(proto, path)
    options = {**QUIET, "profile": "gpu"}
    result = simulated(
        path, engine_options=options, quant_type="fp8", output_dir=tmp_path / "run"
    )  # B17: fp8 is no afterthought either
    onnx.checker.check_model(str(result.model), full_check=True)
    if not result.summary.kept_float:
        assert onnx.load(result.model).opset_import[0].version >= 19


def test_b14_every_measurement_is_on_disk_before_it_is_used(resnet: Path, tmp_path: Path) -> None:
    journal = tmp_path / "run/measurements.jsonl"
    written: list[tuple[int, int]] = []

    def count(event: TuneEvent) -> None:
        if journal.exists():
            lines = journal.read_text().splitlines()
            measured = sum(json.loads(line)["kind"] == "measurement" for line in lines)
            written.append((event.benchmarks, measured))

    simulated(resnet, output_dir=tmp_path / "run", callbacks=[count])
    assert any(benchmarks for benchmarks, _ in written)
    assert all(measured >= benchmarks for benchmarks, measured in written)


def test_b15_a_candidates_id_is_its_placement(resnet: Path, tmp_path: Path) -> None:
    simulated(resnet, output_dir=tmp_path / "run")
    folder = tmp_path / "run"
    lines = [json.loads(line) for line in (folder / "measurements.jsonl").read_text().splitlines()]
    keys = {line["id"]: line["key"] for line in lines if line["kind"] == "candidate"}
    measured = {line["id"]: line["candidate"] for line in lines if line["kind"] == "measurement"}
    assert len(set(keys.values())) == len(keys) > 3
    assert all(keys[name] == key for name, key in measured.items())
    contents = {name: (folder / f"region_models/{name}.onnx").read_bytes() for name in keys}
    assert len(set(contents.values())) == len(contents)


def test_b18_a_file_that_lost_places_is_not_handed_over(
    resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forgetful(index: GraphIndex, placement: Placement) -> Placement:
        edges = sorted(placement.edges)
        calls.append(1)
        return Placement.of(edges[1:] if len(calls) == 1 else edges, placement.outputs)

    calls: list[int] = []
    monkeypatch.setattr(final_check, "canonical", forgetful)
    with pytest.raises(EngineError, match="1 places are lost"):
        simulated(resnet, output_dir=tmp_path / "run")
    assert not (tmp_path / "run/optimized_final.onnx").exists()


@pytest.mark.slow
def test_b19_integer_inputs_are_in_their_range(tmp_path: Path) -> None:
    path = tmp_path / "bert.onnx"
    onnx.save(zoo.build("bert", layers=1, width=64, sequence=8, vocabulary=50), path)
    result = tune(
        path, engine="onnxruntime", threads=1, preset="quick", max_benchmarks=2,
        output_dir=tmp_path / "run",
    )  # fmt: skip
    assert result.summary.baseline_ms > 0.0


def test_b20_a_model_that_does_not_run_is_no_baseline(tmp_path: Path) -> None:
    path = tmp_path / "broken.onnx"
    weights = np.ones((4, 3, 1, 1), np.float32)
    proto = model_from_text(
        "g (float[1,3,4,4] x) => (float[1,4,4,4] y) { a = Conv(x, w) y = nowhere.Strange(a) }",
        w=weights,
    )
    proto.opset_import.add(domain="nowhere", version=1)
    onnx.save(proto, path)
    with pytest.raises(EngineError):
        tune(path, engine="onnxruntime", preset="quick", output_dir=tmp_path / "run")


def test_ops_on_tensors_without_a_range_are_no_choices(tmp_path: Path) -> None:
    path = tmp_path / "infinite.onnx"
    weights = np.random.default_rng(0).normal(size=(8, 8, 3, 3)).astype(np.float32)
    proto = model_from_text(
        """g (float[1,8,16,16] x) => (float[1,8,16,16] y) {
            a = Conv<pads=[1,1,1,1]>(x, w)
            b = Sub(a, a)
            c = Log(b)
            d = Add(c, a)
            e = Exp(d)
            f = Add(e, a)
            y = Conv<pads=[1,1,1,1]>(f, w)
        }""",
        w=weights,
    )
    onnx.save(proto, path)
    result = simulated(path, output_dir=tmp_path / "run")
    assert result.summary.benchmarks > 0
    assert result.summary.failed == 0
    assert not {"c", "d"} & result.placement.tensors


def test_what_is_in_the_folder_already_is_not_replaced(resnet: Path, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "summary.json").write_text("precious")
    with pytest.raises(OutputError, match=r"summary\.json exists already"):
        simulated(resnet, output_dir=folder)
    assert (folder / "summary.json").read_text() == "precious"


def test_a_candidate_of_the_folder_is_not_tuned_into_it(resnet: Path, tmp_path: Path) -> None:
    simulated(resnet, output_dir=tmp_path / "run", max_benchmarks=2)
    candidate = tmp_path / "run/region_models/c0000.onnx"
    before = candidate.read_bytes()
    with pytest.raises(OutputError, match="output folder"):
        simulated(candidate, output_dir=tmp_path / "run", force=True)
    assert candidate.read_bytes() == before


def test_weights_called_like_our_files_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "model" / "m.onnx"
    source.parent.mkdir()
    name = "optimized_final.onnx.data"
    onnx.save(zoo.build("resnet18", **SMALL), source, save_as_external_data=True, location=name)
    with pytest.raises(OutputError, match="name of a file that the run"):
        simulated(source, output_dir=tmp_path / "run")


def test_a_quantized_model_that_is_slower_than_float_becomes_float(
    resnet: Path, tmp_path: Path
) -> None:
    quantized = tmp_path / "int8.onnx"
    insert(resnet, quantized, ops=["Conv"], engine="onnxruntime")
    options = {**QUIET, "profile": "float-only"}
    result = simulated(quantized, engine_options=options, output_dir=tmp_path / "run")
    assert not result.summary.kept_float
    assert result.summary.qdq_pairs == 0
    assert result.speedup > 1.02
    ops = {node.op_type for node in onnx.load(result.model).graph.node}
    assert "QuantizeLinear" not in ops


def test_an_engine_that_fails_midway_leaves_the_best_so_far(
    resnet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from qdqtune.workflows.tuning._search import CandidateEvaluator

    answer = CandidateEvaluator.answer

    def failing(self: CandidateEvaluator, *given: Any) -> list[list[Score]]:
        if self.benchmarks >= 3:
            raise EngineError("The engine is gone.", "Look for it.")
        return answer(self, *given)

    monkeypatch.setattr(CandidateEvaluator, "answer", failing)
    result = simulated(resnet, output_dir=tmp_path / "run")
    assert result.summary.stopped == "engine failed"
    assert result.model.exists()
