"""What somebody who comes from another autotuner does with the classes."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtune.autotune import (
    AutotunerError,
    Config,
    InsertionScheme,
    InvalidSchemeError,
    PatternCache,
    PatternSchemes,
    QDQAutotuner,
    QDQAutotunerBase,
    RegionPattern,
    region_of,
)
from qdqtune.qdq.dialects import ONNXRUNTIME
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Edge
from tests.autotune.graphs import leaf, weight
from tests.autotune.tuning import candidates, node_types, small, started, tune
from tests.conftest import model_from_text

CHAIN = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
    a = Conv(x, v)
    b = Relu(a)
    c = Conv(b, w)
    y = Softplus(c)
}"""
HALF = """<ir_version: 8, opset_import: ["": 17]>
    g (float16[2,8] x) => (float16[2,8] y) <float16[8,8] w = {%s}> { y = MatMul(x, w) }"""


def two_convs() -> onnx.ModelProto:
    return model_from_text(CHAIN, v=weight(4, 4, 1, 1), w=2 * weight(4, 4, 1, 1))


def count(edges: frozenset[Edge]) -> float:
    return 10.0 - 0.1 * len(edges)


# What is reported is what is written.


@pytest.mark.parametrize("dialect", ["onnxruntime", "tensorrt"])
@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_resolved_points_are_places_that_the_export_quantizes(name: str, dialect: str) -> None:
    tuner = started(QDQAutotuner(small(name), dialect=dialect))
    for region in tuner.regions:
        tuner.set_profile_region(region, commit=False)
        schemes = tuner.current_profile_pattern_schemes
        assert schemes is not None
        pattern = RegionPattern.from_region(region, tuner.graph)
        schemes.schemes.append(pattern.get_full_insertion_scheme(region, tuner.graph))
        tuner.current_insertion_scheme_index = schemes.num_schemes - 1
        edges = tuner.placement(best=False).edges
        found = tuner.get_resolved_insertion_points(best=False)
        for point in found:
            if point.node_index is not None:
                node = tuner.graph.nodes[point.node_index].name or ""
                assert Edge(point.tensor_name, node, point.input_index or 0) in edges
            else:
                assert edges & set(tuner.graph.readers(point.tensor_name))


def test_points_that_come_to_nothing_are_not_reported() -> None:
    model = onnx.parser.parse_model(HALF % ",".join("1" * 64))
    tuner = started(QDQAutotuner(model, dialect="onnxruntime"))
    (region,) = tuner.regions
    pattern = RegionPattern.from_region(region, tuner.graph, shapes=True)
    full = pattern.get_full_insertion_scheme(region, tuner.graph)
    full.latency_ms = 1.0
    assert pattern.matches(region, tuner.graph, full)
    tuner.profiled_patterns.append(PatternSchemes(pattern, [full]))
    assert not tuner.get_resolved_insertion_points()
    assert "QuantizeLinear" not in node_types(tuner.export_onnx())


def test_why_nothing_can_be_quantized_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = onnx.parser.parse_model(HALF % ",".join("1" * 64))
    tuner = started(QDQAutotuner(model, dialect="onnxruntime"))
    for region in tuner.regions:
        tuner.set_profile_region(region)
        assert tuner.generate() == -1
    (record,) = [each for each in caplog.records if each.name.startswith("qdqtune")]
    assert "int8 for onnxruntime" in record.getMessage()
    assert "float16" in record.getMessage()
    caplog.clear()
    started(QDQAutotuner(two_convs()))
    assert not caplog.records


def test_q_dq_that_are_taken_out_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    first = started(QDQAutotuner(two_convs()))
    tune(first, count)
    assert not caplog.records
    QDQAutotuner(onnx.load_from_string(first.export_onnx()))
    assert "Q/DQ were taken out" in caplog.text


# Regions of their own.


def test_regions_by_name() -> None:
    tuner = QDQAutotunerBase(small("resnet18"), dialect="tensorrt")
    names = [node.name or "" for node in tuner.graph.nodes[3:6]]
    region = region_of(tuner.graph, names, region_id=7)
    assert (region.id, region.nodes) == (7, {3, 4, 5})
    assert region.inputs
    tuner.regions = [region]
    tune(started(tuner), count)
    assert {edge.node for edge in tuner.placement().edges} & set(names)


def test_regions_of_names_that_are_not_there() -> None:
    graph = QDQAutotunerBase(two_convs()).graph
    assert region_of(graph, "n2").nodes == {2}
    with pytest.raises(AutotunerError, match="Did you mean 'n2'") as caught:
        region_of(graph, ["n0", "n2_"])
    assert "folded" in caught.value.hint
    with pytest.raises(AutotunerError, match="without nodes"):
        region_of(graph, [])


def test_a_subclass_may_search_itself() -> None:
    class Own(QDQAutotuner):
        def _search_regions(self) -> None:
            self.regions = [leaf(2)]

    tuner = started(Own(two_convs(), dialect="tensorrt"))
    assert [region.nodes for region in tuner.regions] == [{2}]
    tune(tuner, count)
    assert {edge.node for edge in tuner.placement().edges if edge.node} <= {"n2", "n3"}


def test_a_graph_is_a_model() -> None:
    first = started(QDQAutotuner(two_convs()))
    again = started(QDQAutotuner(first.graph))
    for tuner in (first, again):
        tune(tuner, count)
    assert again.export_onnx() == first.export_onnx()
    assert again.graph is not first.graph


def test_a_graph_outlives_its_autotuner() -> None:
    tuner: QDQAutotunerBase | None = started(QDQAutotuner(two_convs()))
    assert tuner is not None
    expected = tuner.export_onnx(insert_qdq=False)  # the weights are in a file now
    graph = tuner.graph
    tuner = None
    gc.collect()
    copied = QDQAutotuner(QDQAutotuner(graph).graph)
    del graph
    gc.collect()
    assert started(copied).export_onnx(insert_qdq=False) == expected


# Schemes that they bring along.


def test_a_profiled_pattern_without_shapes_counts() -> None:
    tuner = started(QDQAutotuner(small("resnet18"), dialect="tensorrt"))
    region = tuner.regions[1]
    pattern = RegionPattern.from_region(region, tuner.graph)
    full = pattern.get_full_insertion_scheme(region, tuner.graph)
    full.latency_ms = 5.0
    tuner.profiled_patterns.append(PatternSchemes(pattern, [full]))
    assert tuner.placement().edges
    tuner.set_profile_region(region)
    assert tuner.current_profile_pattern_schemes is None


def test_a_pattern_without_shapes_goes_on_if_it_is_not_done(tmp_path: Path) -> None:
    tuner = started(QDQAutotuner(two_convs(), dialect="tensorrt"))
    (region,) = tuner.regions
    pattern = RegionPattern.from_region(region, tuner.graph)
    full = pattern.get_full_insertion_scheme(region, tuner.graph)
    given = PatternSchemes(pattern, [full])
    tuner.profiled_patterns.append(given)
    tuner.set_profile_region(region)
    schemes = tuner.current_profile_pattern_schemes
    assert schemes is not None
    assert schemes.schemes[tuner.generate()].hash == full.hash
    tuner.submit(1.0)
    assert not full.is_profiled
    assert tuner.profiled_patterns == [given]
    tuner.set_profile_region(None, commit=False)
    tuner.save_state(tmp_path / "state.yaml")
    tuner.load_state(tmp_path / "state.yaml")
    assert tuner.profiled_patterns == [given]


def imported(**kwargs: Any) -> QDQAutotunerBase:
    tuner = started(QDQAutotuner(two_convs(), dialect="tensorrt"), **kwargs)
    tuner.import_insertion_points({"b"})
    return tuner


def test_what_is_imported_is_exported_until_something_was_tried() -> None:
    tuner = imported()
    assert {edge.node for edge in tuner.placement().edges} == {"n2"}
    assert "QuantizeLinear" in node_types(tuner.export_onnx())
    tune(tuner, lambda edges: 10.0 + len(edges))
    assert not tuner.placement().edges


def test_what_is_imported_is_no_part_of_other_candidates() -> None:
    tuner = started(QDQAutotuner(small("resnet18"), dialect="tensorrt"))
    expected = list(candidates(tuner, count, 2))
    again = started(QDQAutotuner(small("resnet18"), dialect="tensorrt"))
    last = again.regions[-1].inputs
    again.import_insertion_points(last)
    assert again.placement().edges
    found = candidates(again, count, 2)
    assert next(found) == expected[0]
    assert again.placement(best=True).edges > again.placement(best=False).edges - expected[0]


def test_what_is_imported_is_saved(tmp_path: Path) -> None:
    tuner = imported()
    assert tuner.pattern_cache is not None
    assert (tuner.pattern_cache.num_patterns, tuner.pattern_cache.total_schemes) == (1, 1)
    tuner.save_state(tmp_path / "state.yaml")
    again = QDQAutotuner(two_convs(), dialect="tensorrt")
    again.initialize()
    again.load_state(tmp_path / "state.yaml")
    assert again.placement() == tuner.placement()
    again.set_profile_region(again.regions[0])
    again.generate()
    assert {edge.node for edge in again.placement(best=False).edges} == {"n2"}


def test_imports_don_t_hide_what_a_cache_knows_of_the_structure() -> None:
    first = started(QDQAutotuner(two_convs(), dialect="tensorrt"))
    tune(first, count)
    (region,) = first.regions
    plain = RegionPattern.from_region(region, first.graph).signature
    assert first.pattern_cache is not None
    known = first.pattern_cache.get_pattern_schemes(plain)
    assert known is not None
    tuner = imported(pattern_cache=PatternCache([known], minimum_distance=0))
    tuner.set_profile_region(tuner.regions[0])
    schemes = tuner.current_profile_pattern_schemes
    assert schemes is not None
    waiting = {each.hash for each in schemes.schemes if not each.is_profiled}
    assert {each.hash for each in known.schemes if not each.is_empty} <= waiting


# What goes on, and what was asked for.


@pytest.mark.parametrize("committed", [False, True])
def test_only_what_was_committed_is_done_after_loading(tmp_path: Path, committed: bool) -> None:
    path = tmp_path / "state.yaml"
    tuner = started(QDQAutotuner(small("resnet18")))
    tuner.set_profile_region(tuner.regions[1])
    tuner.generate()
    tuner.submit(4.0)
    if committed:
        tuner.set_profile_region(None)
    tuner.save_state(path)
    for _ in range(2):  # it still goes on after another save
        again = QDQAutotuner(small("resnet18"))
        again.initialize()
        again.load_state(path)
        assert again.placement() == tuner.placement()
        again.save_state(path)
    again.set_profile_region(again.regions[1])
    schemes = again.current_profile_pattern_schemes
    assert (schemes is None) == committed
    if schemes is not None:
        assert any(each.latency_ms == 4.0 for each in schemes.schemes)
        assert again.generate() >= 0
        again.submit(3.0)
        again.set_profile_region(None)
        again.set_profile_region(again.regions[1])
        assert again.current_profile_pattern_schemes is None


def test_the_current_scheme_may_be_chosen() -> None:
    tuner = started(QDQAutotuner(two_convs(), dialect="tensorrt"))
    tuner.set_profile_region(tuner.regions[0])
    schemes = tuner.current_profile_pattern_schemes
    assert schemes is not None
    tuner.generate()
    tuner.submit(20.0)
    chosen = schemes.schemes[0]
    assert chosen.is_empty
    tuner.current_insertion_scheme_index = 0
    assert tuner.current_insertion_scheme_index == 0
    assert not tuner.placement(best=False).edges
    tuner.current_insertion_scheme_index = -1
    with pytest.raises(InvalidSchemeError, match="no scheme 2"):
        tuner.current_insertion_scheme_index = 2


@pytest.mark.parametrize(
    "config",
    [
        Config(top_percent_to_mutate=0, minimum_schemes_to_mutate=0),
        Config(maximum_mutations=0),
        Config(performance_threshold=0),
    ],
)
def test_settings_of_zero_work(config: Config) -> None:
    tuner = started(QDQAutotuner(small("resnet18"), dialect="tensorrt"), config=config)
    assert tune(tuner, count, 4)
    assert tuner.placement()


def test_without_mutations_only_what_is_given_is_tried() -> None:
    tuner = started(QDQAutotuner(two_convs()), config=Config(maximum_mutations=0))
    assert tune(tuner, count) == 1


def test_a_quant_type_that_a_dialect_lacks_is_somewhere_else() -> None:
    with pytest.raises(UsageError) as caught:
        ONNXRUNTIME.format_of("fp8")
    assert "fp8 is in: tensorrt." in caught.value.hint
    with pytest.raises(UsageError) as caught:
        ONNXRUNTIME.format_of("int3")
    assert "int3" not in caught.value.hint


def test_an_imported_scheme_that_does_not_fit_is_not_exported() -> None:
    tuner = started(QDQAutotuner(two_convs()))
    (region,) = tuner.regions
    pattern = RegionPattern.from_region(region, tuner.graph)
    assert tuner.pattern_cache is not None
    foreign = InsertionScheme.from_dict(
        {"nodes_insertion_points": [{"node_index": 77, "input_index": 0}]}
    )
    tuner.pattern_cache.pattern_schemes.append(PatternSchemes(pattern, [foreign]))
    assert not tuner.placement().edges
