"""The report of a run: written by every tune, from records, and again by `report`."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.cli.main import main
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import dialects
from qdqtune.records._errors import OutputError, UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._report import (
    COMPUTES,
    CONVERTS,
    FLOAT,
    QUANTIZED,
    REARRANGES,
    LayerChange,
    ReportDetails,
)
from qdqtune.records._tuning import TuneResult
from qdqtune.report._html import page_html
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows._graph_view import NodeFacts, graph_view
from qdqtune.workflows._quantize import quantize
from qdqtune.workflows._report import _MOST_TRIALS, read_run, report
from qdqtune.workflows.tuning._journal_format import encode
from qdqtune.workflows.tuning._layer_changes import layer_numbers
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text
from tests.report.runs import HOSTILE, SUMMARY, run_of


@pytest.fixture
def resnet(tmp_path: Path) -> Path:
    path = tmp_path / "resnet.onnx"
    onnx.save(zoo.build("resnet18", width=32, image=96, blocks=(1, 1, 1, 1)), path)
    return path


def simulated(model: Path, folder: Path, **options: object) -> TuneResult:
    settings = {"engine": "simulated", "engine_options": QUIET, "preset": "quick"}
    return tune(model, **{**settings, "max_benchmarks": 6, "output_dir": folder, **options})  # type: ignore[arg-type]


def details_in(folder: Path) -> ReportDetails:
    return ReportDetails.from_dict(json.loads((folder / "report.json").read_text()))


@pytest.mark.parametrize("workflow", ["region", "subgraph"])
def test_every_tune_writes_a_report_that_is_made_of_records_alone(
    resnet: Path, tmp_path: Path, workflow: str
) -> None:
    result = simulated(resnet, tmp_path / "run", workflow=workflow)
    assert result.report == tmp_path / "run/report.html"
    written = result.report.read_bytes()
    result.report.unlink()
    assert report([tmp_path / "run"]).bytes == len(written)
    assert result.report.read_bytes() == written
    details = details_in(tmp_path / "run")
    assert details.graph is not None
    assert details.to_dict() == json.loads((tmp_path / "run/report.json").read_text())
    forms = {node.form for node in details.graph.nodes}
    assert (QUANTIZED in forms) == (not result.summary.kept_float)
    what = "fusion group" if workflow == "subgraph" else "region"
    assert {area.rpartition(" ")[0] for area in details.graph.areas} == {what}


def test_the_graph_has_every_node_once_with_its_reason(resnet: Path, tmp_path: Path) -> None:
    simulated(resnet, tmp_path / "run")
    graph = details_in(tmp_path / "run").graph
    assert graph is not None
    names = [node.name for node in graph.nodes if node.form]
    model = onnx.load(tmp_path / "run/region_models/float.onnx", load_external_data=False)
    assert sorted(names) == sorted(node.name for node in model.graph.node)
    assert all(node.reason >= 0 and node.area >= 0 for node in graph.nodes if node.form)
    assert all(edge.source < edge.target for edge in graph.edges)


def test_layers_before_and_after_are_of_the_same_nodes(resnet: Path, tmp_path: Path) -> None:
    result = simulated(resnet, tmp_path / "run")
    assert not result.summary.kept_float
    details = details_in(tmp_path / "run")
    computing = [row for row in details.layers if row.kind == "compute"]
    nodes = [name for row in computing for name in row.nodes]
    assert len(nodes) == len(set(nodes))
    gains = [row.gain_ms for row in details.layers]
    assert gains == sorted(gains, reverse=True)
    before, after = (
        sum(getattr(row, name) for row in details.layers) for name in ("before_ms", "after_ms")
    )
    assert before / after == pytest.approx(result.summary.speedup, rel=0.1)


def test_a_node_has_the_time_of_its_work_and_not_of_conversions() -> None:
    rows = (
        LayerChange(("a", "b"), ("Conv", "Relu"), COMPUTES, 3.0, 1.0),
        LayerChange(("a",), ("Conv",), CONVERTS, 0.0, 0.2),
        LayerChange(("c",), ("Conv",), COMPUTES, 1.0, 1.0),
        LayerChange(("b",), ("Relu",), REARRANGES, 0.1, 0.4),
    )
    assert layer_numbers(rows) == {"a": 0, "b": 0, "c": 2}


def test_patterns_say_why_schemes_were_kept_or_dropped(resnet: Path, tmp_path: Path) -> None:
    simulated(resnet, tmp_path / "run")
    patterns = details_in(tmp_path / "run").patterns
    schemes = [scheme for row in patterns for scheme in row.schemes]
    assert all(sum(scheme.chosen for scheme in row.schemes) == 1 for row in patterns)
    assert {scheme.reason.partition(":")[0] for scheme in schemes} == {"kept", "dropped"}
    model = onnx.load(tmp_path / "run/region_models/float.onnx", load_external_data=False)
    tensors = {name for node in model.graph.node for name in (*node.input, *node.output)}
    points = {point for scheme in schemes for point in scheme.points}
    assert points
    assert {point.partition(" into ")[0].partition(" after ")[0] for point in points} <= tensors


def test_errors_of_layers_are_measured_on_data_only(resnet: Path, tmp_path: Path) -> None:
    data = tmp_path / "data.npz"
    images = np.random.default_rng(0).normal(size=(4, 1, 3, 96, 96)).astype(np.float32)
    np.savez(data, image=images)
    options = {"engine": "onnxruntime", "threads": 1, "preset": "quick", "max_benchmarks": 2,
               "performance_threshold": 1.0, "min_sqnr_db": None}  # fmt: skip
    result = tune(resnet, output_dir=tmp_path / "run", calibration_data=data, **options)  # type: ignore[arg-type]
    tensors = details_in(tmp_path / "run").tensors
    if result.summary.qdq_pairs:
        errors = [row.sqnr_db for row in tensors if row.sqnr_db is not None]
        assert errors == sorted(errors)
        assert all(row.max_value >= (row.typical_value or 0.0) for row in tensors)
    tune(resnet, output_dir=tmp_path / "random", **options)  # type: ignore[arg-type]
    assert details_in(tmp_path / "random").tensors == ()


def test_a_float_op_behind_a_quantized_one_is_told_from_it(tmp_path: Path) -> None:
    text = """g (float[1,64,28,28] x) => (float[1,64,28,28] y) {
        a = Conv<pads=[1,1,1,1]>(x, w) b = HardSwish(a) y = Conv<pads=[1,1,1,1]>(b, w)
    }"""
    weight = np.random.default_rng(0).normal(size=(64, 64, 3, 3)).astype(np.float32)
    onnx.save(model_from_text(text, 17, w=weight), tmp_path / "m.onnx")
    data = [{"x": np.random.default_rng(1).normal(size=(1, 64, 28, 28)).astype(np.float32)}]
    simulated(
        tmp_path / "m.onnx", tmp_path / "run", calibration_data=data, node_filter=["n0"],
        min_sqnr_db=None,
    )  # fmt: skip
    rows = details_in(tmp_path / "run").tensors
    assert {row.node: row.form for row in rows} == {"n0": QUANTIZED, "n1": FLOAT}


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ({"min_sqnr_db": 200.0}, "it was faster quantized, but not accurate enough"),
        ({"performance_threshold": 100.0}, "the model is kept as given: the best that was found"),
    ],
)
def test_a_run_that_keeps_float_has_a_report_with_the_reason(
    resnet: Path, tmp_path: Path, limit: dict[str, float], reason: str
) -> None:
    result = simulated(resnet, tmp_path / "run", **limit)
    assert result.summary.kept_float
    html = (tmp_path / "run/report.html").read_text()
    assert "Kept as given" in html
    graph = details_in(tmp_path / "run").graph
    assert graph is not None
    assert {node.form for node in graph.nodes if node.form} == {FLOAT}
    assert any(each.startswith(reason) for each in graph.reasons)
    assert not any("than the result, but was not chosen" in each for each in graph.reasons)


def test_no_report_leaves_it_out_and_report_makes_up_for_it(resnet: Path, tmp_path: Path) -> None:
    result = simulated(resnet, tmp_path / "run", report=False)
    assert result.report is None
    assert not (tmp_path / "run/report.html").exists()
    assert not (tmp_path / "run/report.json").exists()
    report([tmp_path / "run"])
    html = (tmp_path / "run/report.html").read_text()
    assert "made with --no_report" in html
    assert "How it compares" in html


def test_hostile_names_go_through_a_whole_run_as_text(resnet: Path, tmp_path: Path) -> None:
    model = onnx.load(resnet)
    for node, name in zip(model.graph.node, HOSTILE, strict=False):
        node.name = name
    onnx.save(model, resnet)
    simulated(resnet, tmp_path / "run")
    html = (tmp_path / "run/report.html").read_text()
    assert "window.hurt = 1</script>" not in html
    assert "<img" not in html
    assert "\x1b" not in html
    assert "\u202e" not in html


def test_a_resumed_run_continues_the_trace(resnet: Path, tmp_path: Path) -> None:
    simulated(resnet, tmp_path / "run", max_benchmarks=3)
    first = read_run(tmp_path / "run").trials
    simulated(resnet, tmp_path / "run", max_benchmarks=8)
    later = read_run(tmp_path / "run").trials
    assert later[: len(first)] == first
    assert len(later) > len(first)
    times = [trial.at_s for trial in later]
    assert times == sorted(times)
    assert all(trial.stage for trial in later)


def test_several_runs_stand_side_by_side(
    resnet: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("one", "two"):
        simulated(resnet, tmp_path / name, max_benchmarks=2)
    folders = [str(tmp_path / name) for name in ("one", "two")]
    output = tmp_path / "both.html"
    assert main(["report", *folders, "-o", str(output)]) == 0
    assert "both.html" in capsys.readouterr().out
    assert "2 runs side by side" in output.read_text()
    assert main(["report", *folders]) == 2
    assert "-o report.html" in capsys.readouterr().err
    with pytest.raises(OutputError, match="exists"):
        report(folders, output)
    report(folders, output, force=True)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"has no summary\.json"):
        report([tmp_path])
    with pytest.raises(UsageError, match="No run was given"):
        report([])
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UsageError, match="can't be read"):
        report([tmp_path])


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"kind": "report", "schema": 1, "graph": 3}'])
def test_damaged_details_are_left_out(
    resnet: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    simulated(resnet, tmp_path / "run", max_benchmarks=1)
    (tmp_path / "run/report.json").write_text(damage)
    report([tmp_path / "run"])
    assert "report.json is damaged" in caplog.text


@pytest.mark.parametrize(
    "broken",
    [
        "qdqtune.workflows.tuning._report_details.graph_view",
        "qdqtune.workflows.tuning._tune.report",
        "qdqtune.workflows.tuning._tune.write_details",
    ],
)
def test_a_failing_report_never_fails_the_run(
    resnet: Path,
    tmp_path: Path,
    broken: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(broken, fail)
    result = simulated(resnet, tmp_path / "run", max_benchmarks=2)
    assert result.model.exists()
    assert "KeyError: 'a bug'" in caplog.text
    assert (tmp_path / "run/summary.json").exists()


@pytest.mark.parametrize("has_areas", [True, False])
def test_of_a_large_graph_boxes_stand_for_all_nodes(
    has_areas: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qdqtune.workflows._graph_view._MOST_NODES", 20)
    model = ir.from_proto(zoo.build("chain", nodes=100))
    planner = QuantizationPlanner(GraphIndex(model), dialects()["onnxruntime"], "int8")
    names = [node.name or "" for node in planner.index.nodes]
    areas = [(f"region {n}", names[n : n + 5]) for n in range(0, 100, 5)] if has_areas else []
    graph = graph_view(planner, Placement(), NodeFacts(areas=areas))
    assert len(graph.nodes) <= 20
    assert sum(node.nodes for node in graph.nodes) == 100 + 2
    assert all(edge.source < edge.target for edge in graph.edges)
    html = page_html([replace(run_of(), details=ReportDetails(graph=graph))])
    assert "The graph has 102 nodes, too many to draw each" in html


@pytest.mark.parametrize("name", ["summary.json", "measurements.jsonl", "report.json"])
def test_a_damaged_run_has_a_page_or_an_error(
    resnet: Path, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated(resnet, tmp_path / "run", max_benchmarks=2)
    whole = (tmp_path / "run" / name).read_bytes()
    random = np.random.default_rng(0)
    for _ in range(25):
        damaged = bytearray(whole[: random.integers(1, len(whole) + 1)])
        for place in random.integers(0, len(damaged), 3):
            damaged[place] = random.integers(0, 256)
        (tmp_path / "run" / name).write_bytes(damaged)
        assert main(["report", str(tmp_path / "run")]) in (0, 2)
        assert "Traceback" not in capsys.readouterr().err
    (tmp_path / "run" / name).unlink()
    assert main(["report", str(tmp_path / "run")]) == (2 if name == "summary.json" else 0)


@pytest.mark.parametrize(
    "figures", [{"speedup_interval": [0.0, 0.0]}, {"seeds": {"rules": 0.0}}, {"speedup": -1e300}]
)
def test_impossible_figures_have_a_page_or_an_error(
    tmp_path: Path, figures: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps({**SUMMARY.to_dict(), **figures}))
    code = main(["report", str(tmp_path)])
    assert "Traceback" not in (shown := capsys.readouterr().err)
    assert (code, "no run produces" in shown) in ((0, False), (2, True))


def test_gains_that_grow_without_end_and_long_journals_are_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY.to_dict()))
    body = {"kind": "measurement", "effort": "screen", "gain": 9.0, "error": 0.1, "failure": None,
            "latency_ms": 1.0, "reference_ms": 1.0}  # fmt: skip
    names = [Placement().digest(), *map(str, range(_MOST_TRIALS + 1))]
    (tmp_path / "measurements.jsonl").write_text(
        "".join(
            encode({**body, "reference": one, "candidate": other, "id": f"c{n:04d}"})
            for n, (one, other) in enumerate(itertools.pairwise(names))
        )
    )
    trials = read_run(tmp_path).trials
    assert len(trials) == _MOST_TRIALS
    assert "the report shows the first" in caplog.text
    assert trials[0].gain == 9.0
    assert trials[-1].gain is None
    report([tmp_path])


def test_many_damaged_lines_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "summary.json").write_text(json.dumps(SUMMARY.to_dict()))
    (tmp_path / "measurements.jsonl").write_text("{}\n" * 1000)
    assert read_run(tmp_path).trials == ()
    assert caplog.text.count("is damaged") == 10
    assert "990 more lines" in caplog.text


def test_a_graph_with_more_to_draw_than_any_run_has_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = run_of()
    assert '<svg class="graph"' in page_html([run])
    monkeypatch.setattr("qdqtune.report._html._MOST_DRAWN", 3)
    assert "is left out" in page_html([run])


def test_quantize_writes_a_report_where_it_is_asked(resnet: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    done = quantize(resnet, tmp_path / "q.onnx", engine="onnxruntime", threads=1, report=page,
                    performance_threshold=None, save_placement=tmp_path / "p.json",
                    command="qdqtune quantize it")  # fmt: skip
    html = page.read_text()
    assert "Quantized" in html
    assert html.count('class="n q"') > 0
    assert done.report.decisions[0].reason in html.replace("&#39;", "'")
    assert "qdqtune quantize it" in html
    assert json.loads((tmp_path / "p.json").read_text())["model"] in html
    with pytest.raises(OutputError, match="exists"):
        quantize(resnet, tmp_path / "r.onnx", engine="onnxruntime", report=page)


def test_quantize_by_search_shows_the_search(resnet: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    quantize(resnet, tmp_path / "q.onnx", engine="simulated", autotune="quick", report=page)
    assert page.read_text() == page_html([read_run(tmp_path / "q_autotune")])
