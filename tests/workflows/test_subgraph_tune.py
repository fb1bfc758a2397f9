"""Subgraph mode, whole: what it writes, and what it does when something is missing."""

from __future__ import annotations

import json
import os
import re
import statistics
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune import zoo
from qdqtune.engines import _registry as registry
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._op_units import canonical
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import LayerTime
from qdqtune.records._tuning import (
    BY_LAYERS,
    BY_TOTAL,
    IN_PLACE,
    SchemeTimes,
    SubgraphTimes,
    TuneEvent,
    TuneResult,
)
from qdqtune.search.strategies._strategy import Effort
from qdqtune.search.subgraphs._fusion_groups import FusionGroup
from qdqtune.search.subgraphs._quantizable_groups import DYNAMIC, Content, QuantizableGroup
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows.tuning import _layer_groups, _modes, _subgraph_profiler
from qdqtune.workflows.tuning._folder import LOCK
from qdqtune.workflows.tuning._subgraph_cache import SubgraphCache, TimedGroup
from qdqtune.workflows.tuning._throughput import SIZE, least_ms, multiply_adds
from qdqtune.workflows.tuning._time_budget import PRESETS, TimeBudget
from qdqtune.workflows.tuning._times_in_place import TimesInPlace
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text
from tests.cutting import cut
from tests.workflows.mute_engine import MUTE, REFUSING

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data"
RAW = "optimized_raw.onnx"
TEXT = """g (float[N,128,12,12] x) => (float[N,128,12,12] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1)
    b = Relu(a)
    c = Conv<pads=[1,1,1,1]>(b, w2)
    d = Add(c, b)
    e = Erf(d)
    f = Conv<pads=[1,1,1,1]>(e, w3)
    y = Relu(f)
}"""


def conv_net(batch: str = "1") -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    shape = (128, 128, 3, 3)
    weights = {f"w{n}": rng.normal(size=shape).astype(np.float32) / 34 for n in (1, 2, 3)}
    return model_from_text(TEXT.replace("N,", f"{batch},"), **weights)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "model.onnx"
    onnx.save(conv_net(), path)
    return path


@pytest.fixture(scope="module")
def brief() -> Iterator[str]:
    """A preset that is over soon."""
    short = replace(
        PRESETS["quick"],
        rounds={Effort.SCREEN: 8, Effort.CONFIRM: 8},
        seconds={Effort.SCREEN: 0.2, Effort.CONFIRM: 0.2},
        final_s=0.2,
        assemblies=4,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PRESETS, "quick", short)
        yield "quick"


def simulated(model: Path, output: Path, **options: Any) -> TuneResult:
    settings = {
        "engine": "simulated", "engine_options": {"seed": "1"}, "preset": "quick",
        "workflow": "subgraph", "min_sqnr_db": None,
    }  # fmt: skip
    return tune(model, output_dir=output, **{**settings, **options})


def cached(output: Path) -> dict[str, Any]:
    return dict(json.loads((output / "autotune_cache.json").read_text()))


def chunks_of(output: Path) -> list[dict[str, Any]]:
    return list(cached(output)["phase_2"]["pieces"])


def candidates(output: Path) -> set[str]:
    lines = map(json.loads, (output / "measurements.jsonl").read_text().splitlines())
    return {line["candidate"] for line in lines if line["kind"] == "measurement"}


@pytest.fixture(scope="module", params=["onnxruntime", "openvino"])
def tuned(
    request: pytest.FixtureRequest,
    brief: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[TuneResult, list[TuneEvent]]:
    """A model with an open batch on a real engine."""
    if not registry.available(request.param).usable:
        pytest.skip(f"{request.param} is not installed")
    folder = tmp_path_factory.mktemp(request.param)
    onnx.save(conv_net("N"), folder / "model.onnx")
    events: list[TuneEvent] = []
    result = tune(
        folder / "model.onnx", engine=request.param, threads=1, preset=brief, workflow="subgraph",
        min_sqnr_db=None, output_dir=folder / "run", callbacks=[events.append],
        inputs=InputRequest(dims={"N": 2}),
    )  # fmt: skip
    return result, events


@pytest.mark.slow
def test_a_real_engine_is_asked_about_subgraphs_and_then_about_few_assemblies(
    tuned: tuple[TuneResult, list[TuneEvent]],
) -> None:
    result, events = tuned
    summary = json.loads((result.output_dir / "summary.json").read_text())
    assert summary["mode"] == "subgraph"
    assert 1 <= summary["benchmarks"] <= 4
    # Two Convs of another kind and a third one; each as float, and in one way or two.
    found = summary["subgraphs"]
    assert 2 <= found["pieces"] <= found["units"] <= found["groups"] <= 7
    assert summary["subgraph_benchmarks"] >= 2 * found["pieces"]
    assert summary["batches"]
    for batch in summary["batches"]:
        assert batch["predicted"] > 0.0
        assert batch["measured"] > 0.0
    stages = [event.stage for event in events]
    assert {"groups", "subgraphs", "assembly", "seeds", "done"} <= set(stages)
    told = [event for event in events if event.stage == "subgraphs"]
    assert [event.benchmarks for event in told] == list(range(1, found["pieces"] + 1))


def test_everything_is_in_the_folder(tuned: tuple[TuneResult, list[TuneEvent]]) -> None:
    output = tuned[0].output_dir
    body = cached(output)
    assert [len(body[f"phase_{n}"]) > 0 for n in (1, 2, 3)] == [True] * 3
    assert body["phase_2"]["complete"]
    assert body["phase_3"]["batches"] == [b.to_dict() for b in tuned[0].summary.batches]
    nodes = [name for group in body["phase_1"]["groups"] for name in group["nodes"]]
    assert sorted(nodes) == [f"n{n}" for n in range(7)]
    for subgraph in body["phase_2"]["pieces"]:
        assert subgraph["how"] == BY_LAYERS
        plain, *others = subgraph["forms"]
        assert (plain["scheme"], plain["error"]) == ("none", None)
        assert others
        for form in subgraph["forms"]:
            assert form["total_ms"] > 0.0
            assert form["inside_ms"] > 0.0
        path = output / "subgraphs" / subgraph["file"]
        onnx.checker.check_model(str(path), full_check=True)
    assert {"engine.log", "runs.log"} <= {file.name for file in (output / "logs").iterdir()}
    assert not list(output.rglob("*.npz"))


def test_the_raw_assembly_is_the_first_that_was_tried(
    tuned: tuple[TuneResult, list[TuneEvent]],
) -> None:
    output = tuned[0].output_dir
    raw = output / "optimized_raw.onnx"
    onnx.checker.check_model(str(raw), full_check=True)
    index = GraphIndex(load_model(output / "region_models/float.onnx"))
    placement = canonical(index, read(load_model(raw)).placement)
    assert placement.digest() in candidates(output)
    first = tuned[0].summary.batches[0]
    assert (first.stage, first.dropped) == ("raw", 0)
    assert tuned[0].summary.files["optimized_raw"] == "optimized_raw.onnx"


def test_subgraphs_of_an_open_model_stay_open(tuned: tuple[TuneResult, list[TuneEvent]]) -> None:
    output = tuned[0].output_dir
    for subgraph in chunks_of(output):
        graph = onnx.load(output / "subgraphs" / subgraph["file"], load_external_data=False).graph
        for value in (*graph.input, *graph.output):
            assert value.type.tensor_type.shape.dim[0].dim_param == "N"


def test_without_validation_only_the_raw_assembly_is_built(model: Path, tmp_path: Path) -> None:
    result = simulated(model, tmp_path / "run", incremental_validation=False)
    assert result.summary.benchmarks == 1
    assert [batch.stage for batch in result.summary.batches] == ["raw"]
    assert list(result.summary.seeds) == ["raw"]
    assert not result.summary.kept_float
    raw, final = (read(load_model(file)) for file in (tmp_path / "run" / RAW, result.model))
    assert raw.placement == final.placement
    assert raw.encodings.keys() == final.encodings.keys()


def test_a_budget_that_is_over_among_the_subgraphs_still_leads_to_a_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeBudget, "subgraphs_s", lambda budget, candidates: 0.0)
    result = simulated(model, tmp_path / "run", budget_s=3600.0)
    assert result.summary.stopped == "budget"
    assert not cached(tmp_path / "run")["phase_2"]["complete"]
    assert len(chunks_of(tmp_path / "run")) == 0
    assert result.model.exists()
    # What rules and the like say needs no subgraphs.
    assert 1 <= result.summary.benchmarks <= len(result.summary.seeds)


def test_groups_of_one_compiled_part_take_what_their_own_float_builds_take(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With builds that take long, too, where the times of layers serve otherwise."""
    monkeypatch.setattr(_modes, "_SLOW_BUILD_S", 0.0)
    told = simulated(model, tmp_path / "told", engine_options=QUIET)
    monkeypatch.setattr(
        _layer_groups, "shared_layers", lambda groups, layers: ["part"] * len(groups)
    )
    shared = simulated(model, tmp_path / "shared", engine_options=QUIET)
    more = shared.summary.subgraph_benchmarks - told.summary.subgraph_benchmarks
    assert more == len(chunks_of(tmp_path / "shared"))
    groups = cached(tmp_path / "shared")["phase_1"]["groups"]
    assert {group["part"] for group in groups} == {"part"}
    assert not any("part" in group for group in cached(tmp_path / "told")["phase_1"]["groups"])
    again = simulated(model, tmp_path / "shared", engine_options=QUIET)
    assert (again.summary.subgraph_benchmarks, again.summary.benchmarks) == (0, 0)


@pytest.mark.parametrize(("whole_ms", "expected"), [(2.0, 0.5), (12.0, 1.0)])
def test_what_a_shared_layer_takes_is_divided_by_what_its_groups_take_alone(
    tmp_path: Path, whole_ms: float, expected: float
) -> None:
    """As far as its time goes; more than they take together is the rest's."""
    cache = SubgraphCache(tmp_path / "cache.json", {})
    nodes = [("a",), ("b",), ("c",), ("norm",)]
    times = [0.0, whole_ms, 5.0, 0.0]
    cache.keep_groups(list(map(TimedGroup, nodes, times, ["part", "part", "", "part"])), 0)
    alone = [SubgraphTimes("k", BY_LAYERS, (SchemeTimes("none", ms, ms),)) for ms in (3.0, 1.0)]
    content = Content("k", ("a",), (), ())
    units = [
        QuantizableGroup(0, 0, content, alone[0]),
        QuantizableGroup(1, 1, content, alone[1]),
        QuantizableGroup(2, 1, content, alone[1]),
    ]
    found = _modes._float_times(units, SubgraphCache(tmp_path / "cache.json", {}))
    assert found.unit_ms == {0: 3.0 * expected, 1: 1.0 * expected, 2: 5.0}
    assert found.rest_ms == pytest.approx(whole_ms - 4.0 * expected)


@pytest.mark.parametrize("timed", [0.2, 0.9])
def test_the_placement_that_is_most_likely_to_win_is_tried_first(timed: float) -> None:
    seeds = {name: frozenset({n}) for n, name in enumerate(["raw", "everything", "rules"])}
    order = list(_modes._likeliest_first(seeds, timed))
    likely = ["raw", "rules"] if timed > 0.5 else ["rules", "raw"]
    assert order == [*likely, "everything"]
    assert list(_modes._likeliest_first({"raw": frozenset({0})}, timed)) == ["raw"]


def test_the_plan_is_told_before_the_first_subgraph(model: Path, tmp_path: Path) -> None:
    events: list[TuneEvent] = []
    settings = {"engine_options": QUIET, "budget_s": 3600.0, "callbacks": [events.append]}
    simulated(model, tmp_path / "run", **settings)
    stages = [event.stage for event in events]
    assert stages.index("plan") < stages.index("subgraphs")
    told = events[stages.index("plan")].message
    assert re.fullmatch(r"\d+ subgraphs about [\d.]+ s; \d+ whole models about .+", told), told


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in (MUTE, REFUSING):
        monkeypatch.setitem(registry.ENGINES, entry.name, entry)
    found = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))


def test_an_engine_that_tells_no_layers_is_timed_with_and_without_conversions(
    model: Path, tmp_path: Path, stand_ins: None
) -> None:
    result = simulated(model, tmp_path / "run", engine="mute")
    assert not result.summary.kept_float
    found = result.summary.subgraphs
    assert found["structural"] == found["groups"]
    subgraphs = chunks_of(tmp_path / "run")
    assert {subgraph["how"] for subgraph in subgraphs} == {BY_TOTAL}
    assert list((tmp_path / "run/subgraphs").glob("conversion_*.onnx"))
    full = [
        form for subgraph in subgraphs for form in subgraph["forms"] if form["scheme"] == "full"
    ]
    assert any(sum(form["conversion_ms"]) > 0.0 for form in full)
    for form in full:
        rest = form["total_ms"] - sum(form["conversion_ms"])
        assert form["inside_ms"] == pytest.approx(max(rest, 0.05 * form["total_ms"]))
    assert result.speedup > 1.0


def test_a_subgraph_that_is_refused_stays_float(
    model: Path, tmp_path: Path, stand_ins: None
) -> None:
    options = {"seed": "1", "refuses": "n2"}
    result = simulated(model, tmp_path / "run", engine="refusing", engine_options=options)
    errors = {
        form["error"]
        for subgraph in chunks_of(tmp_path / "run")
        for form in subgraph["forms"]
        if form["error"]
    }
    assert errors
    assert all("no kernel for n2" in error for error in errors)
    assert result.summary.subgraph_failed >= 1
    assert not result.summary.kept_float
    assert {"w1", "w3"} <= result.placement.tensors
    assert "w2" not in result.placement.tensors


def test_where_every_subgraph_is_refused_whole_models_are_tried_and_the_model_is_handed_back(
    model: Path, tmp_path: Path, stand_ins: None
) -> None:
    options = {"seed": "1", "refuses": "*"}
    result = simulated(model, tmp_path / "run", engine="refusing", engine_options=options)
    assert result.summary.kept_float
    assert result.summary.subgraphs["units"] == 0
    assert 1 <= result.summary.benchmarks == result.summary.failed <= 3
    assert result.model.read_bytes() == model.read_bytes()
    assert (tmp_path / "run/optimized_raw.onnx").read_bytes() == model.read_bytes()


def test_a_file_can_tell_the_groups_and_a_filter_what_may_be_quantized(
    model: Path, tmp_path: Path
) -> None:
    layers = [
        {"Name": "n0 + n1", "LayerType": "CaskConvolution"},
        {"Name": "n2 + n3", "LayerType": "CaskConvolution"},
        {"Name": "PWN(n4)", "LayerType": "PointWiseV2"},
        {"Name": "n5 + n6", "LayerType": "CaskConvolution"},
    ]
    ends = [("x", "b"), ("b", "d"), ("d", "e"), ("e", "y")]
    for layer, (read_, made) in zip(layers, ends, strict=True):
        layer["Inputs"] = [{"Name": read_}]  # type: ignore[assignment]
        layer["Outputs"] = [{"Name": made}]  # type: ignore[assignment]
    file = tmp_path / "graph.json"
    file.write_text(json.dumps({"Layers": layers, "Bindings": ["x", "y"]}))
    result = simulated(model, tmp_path / "run", graph_json=file, node_filter=["n2"])
    groups = [group["nodes"] for group in cached(tmp_path / "run")["phase_1"]["groups"]]
    assert groups == [["n0", "n1"], ["n2", "n3"], ["n4"], ["n5", "n6"]]
    assert result.summary.subgraphs["structural"] == 0
    assert result.placement.tensors & {"w1", "w2", "w3"} == {"w2"}
    for subgraph in chunks_of(tmp_path / "run"):
        assert "n2" in subgraph["details"]["nodes"]


def test_what_is_wrong_with_the_request_is_told_before_anything_is_written(
    model: Path, tmp_path: Path
) -> None:
    file = tmp_path / "graph.json"
    file.write_text("junk")
    for options, message in [
        ({"workflow": "graphs"}, "workflow must be one of"),
        ({"workflow": "region", "graph_json": file}, "requires"),
        ({"graph_json": tmp_path / "none.json"}, "none.json"),
        ({"graph_json": file}, "graph.json"),
    ]:
        with pytest.raises(UsageError, match=message):
            simulated(model, tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_quantized_model_is_taken_apart_and_its_placement_tried(
    model: Path, tmp_path: Path
) -> None:
    made = cut(conv_net(), tmp_path)
    given = tmp_path / "given.onnx"
    placement = made.planner.placement(made.planner.units)
    onnx.save(onnx.load(made.inserter.write(placement, "quantized")), given)
    result = simulated(given, tmp_path / "run")
    assert result.summary.mode == "subgraph"
    assert "as given" in result.summary.seeds
    assert result.summary.subgraphs["units"] == 3
    # What was given has to be beaten.
    assert result.speedup >= 1.0
    assert (tmp_path / "run" / RAW).exists()


PRODUCTS = """g (float[32,256] x) => (float[32,256] y) {
    a = MatMul(x, w)
    b = Erf(a)
    y = MatMul(b, v)
}"""


def product_net() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(256, 256)).astype(np.float32) for name in "vw"}
    return model_from_text(PRODUCTS, **weights)


def on_onnxruntime(model: onnx.ModelProto, folder: Path, **options: Any) -> TuneResult:
    onnx.save(model, folder / "model.onnx")
    return tune(
        folder / "model.onnx", engine="onnxruntime", threads=1, workflow="subgraph",
        min_sqnr_db=None, output_dir=folder / "run", **options,
    )  # fmt: skip


def test_products_are_timed_as_dynamic_ones(brief: str, tmp_path: Path) -> None:
    result = on_onnxruntime(product_net(), tmp_path, preset=brief, max_benchmarks=1)
    products = [
        chunk for chunk in chunks_of(result.output_dir) if len(chunk["details"]["nodes"]) == 1
    ]
    timed = [{form["scheme"]: form for form in chunk["forms"]} for chunk in products]
    dynamic = [forms[DYNAMIC] for forms in timed if DYNAMIC in forms]
    assert dynamic
    for form in dynamic:
        assert form["error"] is None
        assert form["inside_ms"] > 0.0
        assert not any(form["conversion_ms"])  # it reads and writes floats


@pytest.mark.slow
def test_a_transformer_ends_with_dynamic_products(brief: str, tmp_path: Path) -> None:
    sizes = {"layers": 1, "width": 256, "head_width": 32, "sequence": 32, "vocabulary": 50}
    result = on_onnxruntime(zoo.build("bert", **sizes), tmp_path, preset=brief)
    assert not result.summary.kept_float
    assert result.placement.dynamic
    found = canonical(GraphIndex(load_model(tmp_path / "model.onnx")), result.placement)
    final = read(load_model(result.output_dir / "optimized_final.onnx")).placement
    assert final.dynamic == found.dynamic
    raw = read(load_model(result.output_dir / RAW)).placement
    assert raw.dynamic
    again = tune(
        tmp_path / "model.onnx", engine="onnxruntime", threads=1, workflow="subgraph",
        min_sqnr_db=None, output_dir=result.output_dir, preset=brief,
    )  # fmt: skip
    assert again.summary.benchmarks == again.summary.subgraph_benchmarks == 0
    assert again.placement == result.placement


def test_times_of_a_version_without_other_forms_are_enough(tmp_path: Path) -> None:
    """They are used as they are: no subgraph is timed again."""
    onnx.save(product_net(), tmp_path / "model.onnx")
    first = simulated(tmp_path / "model.onnx", tmp_path / "first")
    body = cached(first.output_dir)
    removed = 0
    for chunk in body["phase_2"]["pieces"]:
        kept = [form for form in chunk["forms"] if DYNAMIC not in form["scheme"]]
        removed += len(chunk["forms"]) - len(kept)
        chunk["forms"] = kept
    assert removed
    (tmp_path / "again").mkdir()
    (tmp_path / "again" / LOCK).touch()
    (tmp_path / "again" / "autotune_cache.json").write_text(json.dumps(body))
    again = simulated(tmp_path / "model.onnx", tmp_path / "again")
    assert again.summary.subgraph_benchmarks == 0
    assert again.summary.subgraphs == first.summary.subgraphs
    assert not again.placement.dynamic


TWO_PRODUCTS = """g (float[256,512] x) => (float[256,512] y) {
    a = MatMul(x, w1)
    b = Erf(a)
    y = MatMul(b, w2)
}"""
# As fast as the profile says, less what starting a kernel takes.
GPU = {**QUIET, "profile": "gpu"}


@pytest.fixture
def products(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    weights = {f"w{n}": rng.normal(size=(512, 512)).astype(np.float32) / 22 for n in (1, 2)}
    onnx.save(model_from_text(TWO_PRODUCTS, **weights), tmp_path / "products.onnx")
    return tmp_path / "products.onnx"


@pytest.fixture
def keeps_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated engine is one that a large product is asked of; its builds take long."""
    entry = registry.ENGINES["simulated"]
    monkeypatch.setitem(registry.ENGINES, entry.name, replace(entry, keeps_builds=True))
    monkeypatch.setattr(_modes, "_SLOW_BUILD_S", 0.0)


@pytest.mark.usefixtures("keeps_builds")
def test_a_float_time_that_products_can_not_take_is_measured_anew(
    products: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulated(products, tmp_path / "usual", engine_options=GPU)
    assert {chunk["how"] for chunk in chunks_of(tmp_path / "usual")} == {IN_PLACE}
    divided = _layer_groups.spent_by_group
    monkeypatch.setattr(
        _layer_groups, "spent_by_group",
        lambda groups, layers: [1e-3 * ms for ms in divided(groups, layers)],
    )  # fmt: skip
    simulated(products, tmp_path / "wrong", engine_options=GPU)
    chunks = [chunk for chunk in chunks_of(tmp_path / "wrong") if len(chunk["forms"]) > 1]
    assert {chunk["how"] for chunk in chunks} == {BY_LAYERS}
    assert all(chunk["forms"][0]["inside_ms"] > 1e-4 for chunk in chunks)
    assert cached(tmp_path / "wrong")["phase_2"]["large_ms"] > 0.0


@pytest.mark.usefixtures("keeps_builds")
def test_a_quantized_time_that_products_can_not_take_is_refused(
    products: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimesInPlace, "find", lambda *args: None)
    split = _subgraph_profiler.split_at_borders
    monkeypatch.setattr(
        _subgraph_profiler, "split_at_borders",
        lambda *args: replace(split(*args), inside_ms=1e-6),
    )  # fmt: skip
    simulated(products, tmp_path / "run", engine_options=GPU)
    errors = [form.get("error") for chunk in chunks_of(tmp_path / "run") for form in chunk["forms"]]
    assert any("the engine's fastest product would take at least" in (e or "") for e in errors)


@pytest.fixture
def network(tmp_path: Path) -> Path:
    """A model whose subgraphs are not what they are alone: ops behind convolutions are fused."""
    onnx.save(zoo.build("resnet18", image=64), tmp_path / "network.onnx")
    return tmp_path / "network.onnx"


@pytest.mark.usefixtures("keeps_builds")
def test_whole_models_tell_what_subgraphs_take(network: Path, tmp_path: Path) -> None:
    result = simulated(network, tmp_path / "run", engine_options=GPU, max_benchmarks=7)
    chunks = chunks_of(tmp_path / "run")
    assert {chunk["how"] for chunk in chunks} == {IN_PLACE}
    assert result.summary.subgraph_benchmarks <= 3  # the large product, and conversions
    told = {batch.stage: batch for batch in result.summary.batches}
    assert told["rules"].predicted is told["everything"].predicted is None
    rows = [batch for batch in result.summary.batches if batch.predicted and batch.measured]
    assert len(rows) >= 5
    assert {"raw", "weighted ops", "weighted ops and what is between"} <= told.keys()
    errors = [abs(batch.predicted / batch.measured - 1.0) for batch in rows]  # type: ignore[operator]
    assert statistics.median(errors) <= 0.08
    assert max(errors) <= 0.25
    assert result.summary.benchmarks <= 7
    stored = cached(tmp_path / "run")["phase_3"]
    assert set(stored["predicted"].values()) >= {batch.predicted for batch in rows}
    left = {path.name for path in (tmp_path / "run" / "region_models").iterdir()}
    assert not any(name.startswith("in_place") for name in left)
    again = simulated(network, tmp_path / "run", engine_options=GPU, max_benchmarks=7)
    assert (again.summary.subgraph_benchmarks, again.summary.benchmarks) == (0, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("keeps_builds")
def test_layers_of_tensorrt_predict_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recorded on a GPU; the simulated engine stands in for the rest of the run."""
    told = json.loads((DATA / "tensorrt" / "tune_resnet18_h200.json").read_text())
    onnx.save(zoo.build("resnet18", image=224, batch=32), tmp_path / "model.onnx")
    image = np.random.default_rng(0).normal(size=(32, 3, 224, 224)).astype(np.float32)
    np.savez(tmp_path / "data.npz", image=image)  # a single sample: a batch of 32 takes long
    looked_at = iter((told["rules"], told["everything"]))

    def known_groups(run: Any, index: GraphIndex, plain: Path, cache: SubgraphCache) -> Any:
        cache.keep_groups([TimedGroup(tuple(g["nodes"]), g["ms"]) for g in told["groups"]], 0)
        return tuple(FusionGroup(n, tuple(g["nodes"]), ()) for n, g in enumerate(told["groups"]))

    def built(self: TimesInPlace, worker: Any, placement: Any, name: str) -> Any:
        return [LayerTime.from_dict(layer) for layer in next(looked_at)], ()

    monkeypatch.setattr(_modes, "find_engine_groups", known_groups)
    monkeypatch.setattr(TimesInPlace, "_build", built)
    result = simulated(
        tmp_path / "model.onnx", tmp_path / "run", engine_options=GPU, max_benchmarks=5,
        calibration_data=str(tmp_path / "data.npz"),
    )  # fmt: skip
    rows = {batch.stage: batch.predicted for batch in result.summary.batches}
    for stage in ("weighted ops", "weighted ops and what is between"):
        assert rows[stage] == pytest.approx(told["measured"][stage], rel=0.08)
    assert rows["raw"] is None or rows["raw"] >= max(told["measured"].values())


def refuse(monkeypatch: pytest.MonkeyPatch, *ops: str) -> list[str]:
    """Let whole models have no kernel for some ops, and tell of the first one; returns builds."""
    build, built = TimesInPlace._build, list[str]()

    def refusing(self: TimesInPlace, worker: Any, placement: Any, name: str) -> Any:
        built.append(name)
        nodes = {edge.node for edge in placement.edges}
        refused = [op for op in ops if op in nodes][:1]
        return ([], refused) if refused else build(self, worker, placement, name)

    monkeypatch.setattr(TimesInPlace, "_build", refusing)
    return built


@pytest.mark.usefixtures("keeps_builds")
def test_what_whole_models_can_not_tell_is_timed_alone(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An op that has no kernel in the whole model is left float there, and so tells nothing."""
    built = refuse(monkeypatch, "fc")
    simulated(network, tmp_path / "run", engine_options=GPU)
    assert built == ["in_place_0", "in_place_1", "in_place_1"]  # the rules leave it float
    chunks = chunks_of(tmp_path / "run")
    alone = [chunk["details"]["nodes"] for chunk in chunks if chunk["how"] != IN_PLACE]
    assert alone == [["fc"]]
    assert cached(tmp_path / "run")["phase_2"]["refused"] == ["fc"]
    stages = {batch["stage"] for batch in cached(tmp_path / "run")["phase_3"]["batches"]}
    assert "everything without what has no kernel" in stages  # it is not tried with it again
    assert "everything" not in stages


@pytest.mark.usefixtures("keeps_builds")
def test_a_resumed_run_builds_no_whole_model_again(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if something is left that they did not tell, and that is not worth timing alone."""
    built = refuse(monkeypatch, "fc")
    monkeypatch.setattr(_modes, "_LEAST_SHARE", 0.5)
    simulated(network, tmp_path / "run", engine_options=GPU)
    assert "fc" not in {node for c in chunks_of(tmp_path / "run") for node in c["details"]["nodes"]}
    built.clear()
    again = simulated(network, tmp_path / "run", engine_options=GPU)
    assert (built, again.summary.subgraph_benchmarks, again.summary.benchmarks) == ([], 0, 0)


@pytest.mark.usefixtures("keeps_builds")
def test_what_one_whole_model_could_not_be_built_with_is_not_in_the_next(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = refuse(monkeypatch, "layer1.0.conv1", "layer2.0.conv1")
    simulated(network, tmp_path / "run", engine_options=GPU)
    assert built == ["in_place_0", "in_place_0", "in_place_0", "in_place_1"]


@pytest.mark.usefixtures("keeps_builds")
def test_a_whole_model_is_not_built_anew_without_time_for_a_candidate(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = refuse(monkeypatch, "layer1.0.conv1")
    fitting = iter([2, 0])
    monkeypatch.setattr(TimeBudget, "fitting", lambda *args, **options: next(fitting, 0))
    simulated(network, tmp_path / "run", engine_options=GPU)
    assert built == ["in_place_0", "in_place_1"]


@pytest.mark.usefixtures("keeps_builds")
def test_without_time_for_whole_models_none_is_built_for_its_layers(
    network: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimeBudget, "fitting", lambda *args, **options: 0)
    result = simulated(network, tmp_path / "run", engine_options=GPU, budget_s=3600.0)
    assert IN_PLACE not in {chunk["how"] for chunk in chunks_of(tmp_path / "run")}
    assert result.model.exists()


def test_engines_without_kept_builds_are_asked_for_no_large_product(
    products: Path, tmp_path: Path
) -> None:
    simulated(products, tmp_path / "run", engine_options=GPU)
    assert not cached(tmp_path / "run")["phase_2"]["large_ms"]


@pytest.mark.parametrize(
    ("op", "shapes", "expected"),
    [
        ("MatMul(x, w)", ((2, 8, 4), (4, 16), (2, 8, 16)), 2 * 8 * 16 * 4),
        ("Gemm(x, w)", ((8, 4), (4, 16), (8, 16)), 8 * 16 * 4),
        ("Gemm<transA=1>(x, w)", ((4, 8), (4, 16), (8, 16)), 8 * 16 * 4),
        ("Conv(x, w)", ((1, 4, 8, 8), (16, 4, 1, 1), (1, 16, 8, 8)), 0),
        ("Add(x, w)", ((8, 4), (8, 4), (8, 4)), 0),
    ],
)
def test_multiply_adds_of_products(
    op: str, shapes: tuple[tuple[int, ...], ...], expected: int, tmp_path: Path
) -> None:
    read, made_of = (",".join(map(str, shapes[place])) for place in (0, 2))
    text = f"g (float[{read}] x) => (float[{made_of}] y) {{ y = {op} }}"
    made = cut(model_from_text(text, w=np.ones(shapes[1], np.float32)), tmp_path)
    assert multiply_adds(made.index, made.index.node) == expected
    large_ms = 0.2
    least = least_ms(expected, large_ms, quantized=False)
    assert least == pytest.approx(expected / SIZE**3 * large_ms / 1.5)
    assert least_ms(expected, large_ms, quantized=True) == least / 2
