"""The autotuner, driven as the seeds drive it."""

from __future__ import annotations

import gc
import logging
import math
import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.autotune import (
    AutotunerError,
    AutotunerNotInitializedError,
    Config,
    InsertionScheme,
    InvalidSchemeError,
    NodeInputInsertionPoint,
    QDQAutotuner,
    QDQAutotunerBase,
    Region,
    RegionOutputInsertionPoint,
    RegionPattern,
    RegionType,
)
from qdqtune.records._errors import ModelError
from qdqtune.records._placement import Edge
from qdqtune.records._ranges import CalibrationSource, Ranges
from qdqtune.search.patterns._insertion_points import merge_resolved_insertion_points, to_placement
from tests.autotune.graphs import composite, leaf, weight
from tests.autotune.tuning import (
    Latency,
    candidates,
    checked,
    node_types,
    run,
    small,
    started,
    tune,
)
from tests.conftest import model_from_text

CHAIN = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
    a = Conv(x, v)
    b = Relu(a)
    c = Conv(b, w)
    y = Softplus(c)
}"""


def two_convs() -> onnx.ModelProto:
    return model_from_text(CHAIN, v=weight(4, 4, 1, 1), w=2 * weight(4, 4, 1, 1))


def no_points() -> onnx.ModelProto:
    return model_from_text("g (float[64] x) => (float[64] y) { a = Exp(x) y = Log(a) }")


class WithRegions(QDQAutotunerBase):
    """What the seeds' FAQ shows."""

    def __init__(self, model: onnx.ModelProto, custom_regions: list[Region], **kwargs: Any) -> None:
        super().__init__(model, **kwargs)
        self.regions = custom_regions


def count(edges: frozenset[Edge]) -> float:
    return 10.0 - 0.1 * len(edges)


# What the loop finds.


@pytest.mark.parametrize("name", ["resnet18", "vit"])
def test_the_loop_finds_the_best_placement(name: str) -> None:
    tuner = started(QDQAutotuner(small(name), dialect="tensorrt"))
    chance = random.Random(1)
    target: set[Edge] = set()
    for tuned in tuner._book.by_signature.values():
        some = [point for point in tuned.points if chance.random() < 0.5]
        target |= tuned.edges(InsertionScheme.of(some))

    def latency(edges: frozenset[Edge]) -> float:
        return 5.0 + 0.01 * len(target - edges) + 0.1 * len(edges - target)

    assert tune(tuner, latency) < 30 * len(tuner.profiled_patterns)
    assert tuner.placement().edges == target
    assert tuner.baseline_latency_ms == 10.0


def test_nothing_is_quantized_where_nothing_pays() -> None:
    tuner = started(QDQAutotuner(two_convs()))
    tune(tuner, lambda edges: 10.0 + len(edges))
    assert not tuner.placement()
    assert tuner.export_onnx() == tuner.export_onnx(insert_qdq=False)


def test_no_model_is_asked_about_twice_and_the_float_one_never() -> None:
    tuner = started(QDQAutotuner(small("resnet18")))
    background: frozenset[Edge] = frozenset()
    seen: set[frozenset[Edge]] = {frozenset()}
    for edges in candidates(tuner, count):
        best = tuner.placement(best=True).edges
        assert edges not in seen
        seen.add(edges)
        background = best
    assert background


def test_all_points_come_first_then_small_steps() -> None:
    tuner = started(QDQAutotuner(two_convs()), config=Config(maximum_mutations=1))
    (region,) = tuner.regions
    tuner.set_profile_region(region)
    full = RegionPattern.from_region(region, tuner.graph).get_full_insertion_scheme(
        region, tuner.graph
    )
    schemes = tuner.current_profile_pattern_schemes
    assert schemes is not None
    assert schemes.schemes[tuner.generate()].hash == full.hash
    tuner.submit(9.0)
    second = schemes.schemes[tuner.generate()]
    assert min(second.distance(full), second.distance(InsertionScheme())) == 1


def test_few_points_are_tried_to_the_end() -> None:
    tuner = started(QDQAutotuner(two_convs(), dialect="tensorrt"))
    found = list(candidates(tuner, count, 1000))
    assert {frozenset(edge.node for edge in edges) for edges in found} == {
        frozenset({"n0"}), frozenset({"n2"}), frozenset({"n0", "n2"}),
    }  # fmt: skip
    assert len(found) == 3


@pytest.mark.parametrize("seed", [0, 7])
def test_the_same_seed_asks_the_same(seed: int) -> None:
    first, again = (
        list(candidates(started(QDQAutotuner(small("resnet18"), seed=seed)), count, 6))
        for _ in range(2)
    )
    assert first == again


def test_regions_without_points_cost_nothing() -> None:
    tuner = started(QDQAutotuner(no_points()))
    for region in tuner.regions:
        tuner.set_profile_region(region)
        assert tuner.generate() == -1
    assert tune(tuner, count) == 0


def test_failures_are_kept_and_never_win() -> None:
    tuner = started(QDQAutotuner(two_convs(), dialect="tensorrt"))
    tuner.set_profile_region(tuner.regions[0])
    schemes = tuner.current_profile_pattern_schemes
    assert schemes is not None
    for latency_ms, success in [(math.nan, True), (-1.0, True), (0.5, False)]:
        assert tuner.generate() >= 0
        tuner.submit(latency_ms, success)
    assert tuner.generate() == -1
    assert [each.error for each in schemes.schemes] == [False, True, True, True]
    assert schemes.best_scheme is not None
    assert schemes.best_scheme.is_empty
    assert schemes.best_scheme.latency_ms == 10.0


def test_the_best_scheme_has_the_latency_of_the_best_model_so_far() -> None:
    tuner = started(QDQAutotuner(small("resnet18"), dialect="tensorrt"))
    lowest = 10.0
    for edges in candidates(tuner, count, 14):
        schemes = tuner.current_profile_pattern_schemes
        assert schemes is not None
        assert schemes.best_scheme is not None
        assert schemes.best_scheme.latency_ms == lowest
        assert count(tuner.placement(best=True).edges) == lowest
        lowest = min(lowest, count(edges))
    assert count(tuner.placement().edges) == lowest < 5.0


def only_whole(every: frozenset[Edge]) -> Latency:
    """A machine where patterns cost conversions, and pay only if all convolutions are integer."""
    convs = {edge for edge in every if "conv" in edge.node}

    def latency(edges: frozenset[Edge]) -> float:
        return 6.0 if edges >= convs else 10.0 + 0.1 * len(edges)

    return latency


def test_whole_models_are_tried_first_and_their_parts_are_tuned_on() -> None:
    tuner = started(QDQAutotuner(small("resnet18")))
    every = frozenset[Edge]().union(
        *(each.edges(InsertionScheme.of(each.points)) for each in tuner._book.by_signature.values())
    )
    latency = only_whole(every)
    found = candidates(tuner, latency)
    assert any(latency(edges) == 6.0 for edges, _ in zip(found, range(3), strict=False))
    tune(tuner, latency)
    assert latency(tuner.placement().edges) == 6.0


def test_what_a_whole_model_brought_to_other_patterns_is_resumed(tmp_path: Path) -> None:
    first = started(QDQAutotuner(small("resnet18")))
    for _, _ in zip(candidates(first, count), range(3), strict=False):
        pass
    best = first.placement(best=True).edges
    first.save_state(tmp_path / "state.yaml")
    again = QDQAutotuner(small("resnet18"))
    again.initialize()
    again.load_state(tmp_path / "state.yaml")
    assert again.placement().edges == best
    again.set_profile_region(again.regions[-1])
    assert again.current_profile_pattern_schemes is not None  # its own turn is still to come


def test_a_baseline_after_the_region_was_set() -> None:
    tuner = QDQAutotuner(two_convs())
    tuner.initialize()
    tuner.set_profile_region(tuner.regions[0])
    tuner.submit(3.0)
    schemes = tuner.current_profile_pattern_schemes
    assert schemes is not None
    assert [each.latency_ms for each in schemes.schemes] == [3.0]


def test_timestamps_are_utc() -> None:
    tuner = started(QDQAutotuner(two_convs()))
    tune(tuner, count, 1)
    (schemes,) = tuner.profiled_patterns
    for each in schemes.schemes:
        assert each.profile_timestamp is not None
        assert datetime.fromisoformat(each.profile_timestamp).utcoffset() == timedelta(0)


# What it exports.


@pytest.mark.parametrize("name", ["resnet18", "shufflenet_v2", "vit"])
@pytest.mark.parametrize(
    ("dialect", "quant_type"),
    [
        ("onnxruntime", "int8"),
        ("onnxruntime", "uint8"),
        ("tensorrt", "int8"),
        ("tensorrt-8", "int8"),
    ],
)
def test_exports_are_valid_and_run(name: str, dialect: str, quant_type: str) -> None:
    tuner = QDQAutotuner(small(name), dialect=dialect)
    started(tuner, config=Config(default_quant_type=quant_type))
    plain = run(tuner.export_onnx(insert_qdq=False))
    for _ in candidates(tuner, count, 1):
        pass
    content = tuner.export_onnx()
    checked(content)
    assert {"QuantizeLinear", "DequantizeLinear"} <= set(node_types(content))
    assert [each.shape for each in run(content)] == [each.shape for each in plain]


@pytest.mark.parametrize("opset", [13, 17])
def test_fp8_raises_the_opset(opset: int) -> None:
    model = model_from_text(CHAIN, opset, v=weight(4, 4, 1, 1), w=weight(4, 4, 1, 1))
    tuner = started(QDQAutotuner(model), config=Config(default_quant_type="fp8"))
    assert tuner.dialect.name == "tensorrt"  # onnxruntime has no fp8
    tune(tuner, count)
    exported = checked(tuner.export_onnx())
    types = {each.data_type for each in exported.graph.initializer}
    assert onnx.TensorProto.FLOAT8E4M3FN in types
    assert exported.opset_import[0].version >= 19


def test_scales_come_from_the_settings_and_weights_have_their_own() -> None:
    config = Config(default_q_scale=0.25, default_q_zero_point=3)
    tuner = started(QDQAutotuner(two_convs(), dialect="onnxruntime"), config=config)
    tune(tuner, count)
    constants = {
        each.name: onnx.numpy_helper.to_array(each)
        for each in checked(tuner.export_onnx()).graph.initializer
    }
    assert constants["x_scale"] == np.float32(0.25)
    assert constants["x_zero_point"] == 128 + 3  # the same steps, as uint8
    np.testing.assert_allclose(constants["w_scale"], 2 / 127, rtol=1e-6)
    assert constants["w_quantized"].dtype == np.int8


@pytest.mark.parametrize(
    ("dialect", "config", "zero_points"),
    [
        ("onnxruntime", Config(), {"x": 128, "b": 0, "c": 128}),
        ("onnxruntime", Config(default_q_scale=0.25), {"x": 128, "b": 0, "c": 128}),
        ("onnxruntime", Config(default_q_zero_point=-1), {"x": 127, "b": 127, "c": 127}),
        ("openvino", Config(), {"x": 128, "b": 0}),
        ("tensorrt", Config(), {"x": 0, "b": 0}),
    ],
)
def test_ranges_of_what_can_not_be_negative_begin_at_zero(
    dialect: str, config: Config, zero_points: dict[str, int]
) -> None:
    tuner = started(QDQAutotuner(two_convs(), dialect=dialect), config=config)
    tune(tuner, count)
    constants = {
        each.name: onnx.numpy_helper.to_array(each)
        for each in checked(tuner.export_onnx()).graph.initializer
    }
    for tensor, zero_point in zero_points.items():
        assert constants[f"{tensor}_zero_point"] == zero_point
        assert constants[f"{tensor}_scale"] == np.float32(config.default_q_scale)


def test_better_ranges_go_before_the_settings() -> None:
    tuner = started(QDQAutotuner(two_convs(), dialect="tensorrt"))
    tune(tuner, count)
    tuner.use_ranges(Ranges({"x": (-1.27, 1.27)}, CalibrationSource.DATA, 4))
    constants = {
        each.name: onnx.numpy_helper.to_array(each)
        for each in checked(tuner.export_onnx()).graph.initializer
    }
    np.testing.assert_allclose(constants["x_scale"], 0.01, rtol=1e-6)
    np.testing.assert_allclose(constants["b_scale"], 0.1, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_floats_have_scales_of_their_own_type(dtype: str) -> None:
    kind = getattr(onnx.TensorProto, dtype.upper())
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["": 17]>
        g ({dtype}[2,8] x) => ({dtype}[2,8] y)
        <{dtype}[8,8] w = {{{",".join("1" * 64)}}}> {{ y = MatMul(x, w) }}"""
    )
    tuner = started(QDQAutotuner(model, dialect="tensorrt"), config=Config(default_q_scale=1e-30))
    tune(tuner, count)
    exported = checked(tuner.export_onnx())
    scales = [each for each in exported.graph.initializer if each.name.endswith("_scale")]
    assert len(scales) == 2
    assert {each.data_type for each in scales} == {kind}
    assert all(onnx.numpy_helper.to_array(each).astype(np.float64).min() > 0 for each in scales)


def test_b9_b11_weights_come_along_and_readers_share_a_pair() -> None:
    model = model_from_text(
        """g (float[4,8] x) => (float[4,8] y) {
            a = MatMul(x, w) b = MatMul(x, w) c = MatMul(x, w) d = Sum(a, b, c) y = Exp(d)
        }""",
        w=weight(8, 8),
    )
    region = leaf(0, 1, 2, 3, 4)
    tuner = started(WithRegions(model, [region], dialect="tensorrt"))
    tuner.set_profile_region(region)
    tuned = tuner._book.of_region[region]
    pair = [point for point in tuned.points if isinstance(point, NodeInputInsertionPoint)][:2]
    schemes = tuner.current_profile_pattern_schemes
    assert schemes is not None
    schemes.schemes.append(InsertionScheme.of(pair))
    tuner.generate()
    types = node_types(tuner.export_onnx())
    assert types.count("QuantizeLinear") == 1
    assert types.count("DequantizeLinear") == 2
    assert len(tuner.placement(best=False).edges) == 4
    points = tuner.get_resolved_insertion_points(best=False)
    assert merge_resolved_insertion_points(tuner.graph, points) == points
    assert to_placement(tuner.graph, points).edges == tuner.placement(best=False).edges


def test_b9_an_output_brings_the_weights_of_its_readers() -> None:
    region = leaf(0, 1)
    tuner = started(WithRegions(two_convs(), [region], dialect="tensorrt"))
    tuned = tuner._book.of_region[region]
    output = [point for point in tuned.points if isinstance(point, RegionOutputInsertionPoint)]
    edges = tuned.edges(InsertionScheme.of(output))
    assert edges == {Edge("b", "n2", 0), Edge("w", "n2", 1)}


def test_the_given_model_is_not_changed() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(small("resnet18"))
    before = model.SerializeToString(deterministic=True)
    tuner = started(QDQAutotuner(model))
    tune(tuner, count, 2)
    tuner.export_onnx()
    assert model.SerializeToString(deterministic=True) == before
    assert tuner.onnx_model is model


def test_paths_and_ir_models(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(two_convs(), path)
    given = ir.load(path)
    names = [value.name for value in given.graph.all_nodes()]
    contents = []
    for model in (two_convs(), path, str(path), given):
        tuner = started(QDQAutotuner(model))
        tune(tuner, count)
        contents.append(tuner.export_onnx())
        assert tuner.onnx_model.graph.node
    assert len(set(contents)) == 1
    assert [value.name for value in given.graph.all_nodes()] == names


def test_weights_in_files(tmp_path: Path) -> None:
    path, output = tmp_path / "model.onnx", tmp_path / "out.onnx"
    copy = onnx.ModelProto()
    copy.CopyFrom(small("resnet18"))
    onnx.save(copy, path, save_as_external_data=True, location="model.bin")
    tuner = started(QDQAutotuner(path))
    tune(tuner, count, 1)
    content = tuner.export_onnx(output)
    assert (tmp_path / "out.onnx.data").stat().st_size > output.stat().st_size
    onnx.checker.check_model(str(output), full_check=True)
    again = onnx.load(output)
    np.testing.assert_array_equal(run(again.SerializeToString())[0], run(content)[0])
    bare = onnx.load(path, load_external_data=False)
    with pytest.raises(ModelError, match="files beside it"):
        QDQAutotuner(bare)


def test_a_model_over_two_gigabytes_needs_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuner = started(QDQAutotuner(small("resnet18")))
    tune(tuner, count, 1)
    whole = tuner.export_onnx()
    monkeypatch.setattr("qdqtune.autotune._tuned_model._MOST_BYTES", 1000)
    monkeypatch.setattr("qdqtune.graph._files._EMBED_LIMIT_BYTES", 1000)
    with pytest.raises(AutotunerError, match="2 GB"):
        tuner.export_onnx()
    output = tmp_path / "large.onnx"
    content = tuner.export_onnx(output)
    assert content == output.read_bytes()
    assert len(content) < len(whole) // 4
    loaded = onnx.load(output).SerializeToString()
    np.testing.assert_array_equal(run(loaded)[0], run(whole)[0])


def test_a_quantized_model_is_taken_apart_and_keeps_its_scales() -> None:
    first = started(
        QDQAutotuner(two_convs(), dialect="onnxruntime"), config=Config(default_q_scale=0.5)
    )
    tune(first, count)
    quantized = onnx.load_from_string(first.export_onnx())
    tuner = started(QDQAutotuner(quantized, dialect="onnxruntime"))
    assert "QuantizeLinear" not in node_types(tuner.export_onnx(insert_qdq=False))
    tune(tuner, count)
    scales = {each.name: each for each in checked(tuner.export_onnx()).graph.initializer}
    assert onnx.numpy_helper.to_array(scales["x_scale"]) == np.float32(0.5)


def test_a_transform_has_the_last_word(tmp_path: Path) -> None:
    tuner = started(QDQAutotuner(two_convs()))

    def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
        model.graph.name = "other"
        return model

    path = tmp_path / "out.onnx"
    assert (
        onnx.load_from_string(tuner.export_onnx(path, model_transform=renamed)).graph.name
        == "other"
    )
    assert onnx.load(path).graph.name == "other"
    with pytest.raises(AutotunerError, match="NoneType"):
        tuner.export_onnx(model_transform=lambda model: None)  # type: ignore[arg-type, return-value]


def test_files_are_replaced(tmp_path: Path) -> None:
    path = tmp_path / "out.onnx"
    path.write_text("old")
    tuner = started(QDQAutotuner(two_convs()))
    content = tuner.export_onnx(path, insert_qdq=False)
    assert path.read_bytes() == content


def test_open_dims_stay_open() -> None:
    model = two_convs()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    tuner = started(QDQAutotuner(model, input_shapes={"x": (6, 4, 8, 8)}))
    signature = RegionPattern.from_region(tuner.regions[0], tuner.graph, shapes=True).signature
    assert "6x4x8x8" in signature
    tune(tuner, count)
    exported = checked(tuner.export_onnx())
    assert exported.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_nothing_stays_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    tuner: QDQAutotuner | None = QDQAutotuner(two_convs())
    started(tuner).export_onnx()
    assert list(tmp_path.iterdir())
    tuner = None
    gc.collect()
    assert not list(tmp_path.iterdir())


# Which scheme is the current one.


def test_b15_the_current_scheme_stays_the_current_one() -> None:
    tuner = started(QDQAutotuner(small("resnet18")))
    tuner.set_profile_region(tuner.regions[1])
    schemes = tuner.current_profile_pattern_schemes
    assert schemes is not None
    for latency_ms in (9.0, 8.0, 12.0, 7.0):
        scheme = schemes.schemes[tuner.generate()]
        before = tuner.export_onnx()
        tuner.submit(latency_ms)
        assert schemes.schemes[tuner.current_insertion_scheme_index] is scheme
        assert tuner.export_onnx() == before
        latencies = [each.latency_ms for each in schemes.schemes]
        assert latencies == sorted(latencies)
    assert schemes.best_scheme is schemes.schemes[0]
    assert tuner.export_onnx(best=True) == before


def test_what_is_not_committed_is_not_kept() -> None:
    tuner = started(QDQAutotuner(two_convs()))
    tuner.set_profile_region(tuner.regions[0])
    tuner.generate()
    tuner.submit(1.0)
    tuner.set_profile_region(None, commit=False)
    assert not tuner.profiled_patterns
    assert not tuner.placement()


# Regions.


def test_leaves_come_before_what_they_make_up() -> None:
    tuner = QDQAutotuner(small("vit"))
    tuner.initialize(Config(maximum_sequence_region_size=4))
    types = [region.type for region in tuner.regions]
    assert set(types) == {RegionType.LEAF, RegionType.COMPOSITE}
    assert types == sorted(types, key=[RegionType.LEAF, RegionType.COMPOSITE].index)
    covered = [n for r in tuner.regions if r.type is RegionType.LEAF for n in r.nodes]
    assert sorted(covered) == list(range(len(tuner.graph.nodes)))


def test_b16_custom_regions_stay_and_are_completed() -> None:
    child, other = leaf(0, 1, region_id=1), leaf(2, 3, region_id=2)
    whole = composite(child, other, region_id=3)
    tuner = started(WithRegions(two_convs(), [child, other, whole], dialect="tensorrt"))
    assert tuner.regions == [child, other, whole]
    assert (child.inputs, child.outputs) == (["x"], ["b"])
    tune(tuner, count)
    assert {edge.node for edge in tuner.placement().edges} == {"n0", "n2"}
    checked(tuner.export_onnx())


def test_regions_may_be_set_after_initialize() -> None:
    tuner = started(QDQAutotuner(two_convs(), dialect="tensorrt"))
    again = leaf(2)
    tuner.regions = [again, again]
    tune(tuner, count)
    assert tuner.regions == [again]
    assert {edge.tensor for edge in tuner.placement().edges} == {"b", "w", "c"}


@pytest.mark.parametrize(
    ("regions", "words"),
    [
        ([leaf(0), leaf(1)], "number 0"),
        ([leaf(99)], "99"),
        ([leaf(0), composite(leaf(1))], "number"),
    ],
)
def test_regions_that_don_t_fit(regions: list[Region], words: str) -> None:
    with pytest.raises(AutotunerError, match=words):
        WithRegions(two_convs(), regions).initialize()


def test_what_is_no_region() -> None:
    with pytest.raises(TypeError, match="str"):
        WithRegions(two_convs(), ["all"]).initialize()  # type: ignore[list-item]
    tuner = started(QDQAutotuner(two_convs()))
    with pytest.raises(ValueError, match="not one of"):
        tuner.set_profile_region(leaf(0))


# What was quantized elsewhere, and what other runs found.


@pytest.mark.parametrize(
    "form", ["{}", "{}_quantized", "{}_dequantized", "{}_QuantizeLinear_Output"]
)
def test_b2_imported_tensors_are_tried_first(form: str) -> None:
    tuner = started(QDQAutotuner(two_convs(), dialect="tensorrt"))
    tuner.import_insertion_points({form.format("b"), "unknown"})
    tuner.set_profile_region(tuner.regions[0])
    assert tuner.generate() >= 0
    assert {edge.node for edge in tuner.placement(best=False).edges} == {"n2"}


def test_importing_a_whole_model() -> None:
    first = started(QDQAutotuner(small("resnet18"), dialect="tensorrt"), 100.0)
    tune(first, lambda edges: 100.0 - len([e for e in edges if "conv2" in e.node]), 10)
    target = first.placement().edges
    proto = onnx.load_from_string(first.export_onnx())
    names = {node.input[0] for node in proto.graph.node if node.op_type == "DequantizeLinear"}
    tuner = started(QDQAutotuner(small("resnet18"), dialect="tensorrt"), 100.0)
    tuner.import_insertion_points(sorted(names))
    assert tune(tuner, lambda edges: 100.0 - len(edges & target) + 9 * len(edges - target), 1)
    assert tuner.placement().edges == target


def test_importing_nothing_that_is_there(caplog: pytest.LogCaptureFixture) -> None:
    tuner = started(QDQAutotuner(two_convs()))
    with caplog.at_level(logging.WARNING):
        tuner.import_insertion_points(["p", "q"])
    assert "none of the 2 tensors" in caplog.text
    with pytest.raises(AutotunerError):
        tuner.import_insertion_points("x")


@pytest.mark.parametrize("image", [64, 96])
def test_a_cache_says_what_to_try_first(image: int) -> None:
    def latency(edges: frozenset[Edge]) -> float:
        return 10.0 - sum(0.1 if "conv2" in edge.node else -0.5 for edge in edges)

    first = started(QDQAutotuner(small("resnet18"), dialect="tensorrt"))
    tune(first, latency)
    model = zoo.build("resnet18", width=16, image=image)
    second = started(QDQAutotuner(model, dialect="tensorrt"), pattern_cache=first.pattern_cache)
    tune(second, latency, 1)
    assert second.placement().edges == first.placement().edges


def test_a_cache_does_not_eat_the_whole_budget() -> None:
    config = Config(minimum_schemes_to_mutate=2, pattern_cache_minimum_distance=0)
    first = started(QDQAutotuner(small("resnet18")), config=config)
    tune(first, count, 20)
    assert first.pattern_cache is not None
    second = started(
        QDQAutotuner(small("resnet18")), config=config, pattern_cache=first.pattern_cache
    )
    second.set_profile_region(second.regions[1])
    schemes = second.current_profile_pattern_schemes
    assert schemes is not None
    assert sum(not each.is_profiled for each in schemes.schemes) <= 2


def test_foreign_schemes_in_a_cache_are_left_out(caplog: pytest.LogCaptureFixture) -> None:
    first = started(QDQAutotuner(two_convs()))
    tune(first, count)
    assert first.pattern_cache is not None
    for each in first.pattern_cache.pattern_schemes:
        each.schemes[0].node_inputs.append(NodeInputInsertionPoint(77, 0))
    second = started(QDQAutotuner(two_convs()), pattern_cache=first.pattern_cache)
    with caplog.at_level(logging.WARNING):
        tune(second, count)
    assert "left out" in caplog.text
    assert second.placement() == first.placement()


# State.


def test_b14_nothing_that_was_submitted_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "state.yaml"
    tuner = QDQAutotuner(small("resnet18"))
    tuner.initialize()
    tuner.save_state(path)  # before a baseline
    tuner.load_state(path)
    assert tuner.baseline_latency_ms is None
    tuner.submit(np.float64(10.0))
    tuner.set_profile_region(tuner.regions[1])
    tuner.generate()
    tuner.submit(np.float64(4.0))
    tuner.save_state(path)
    again = QDQAutotuner(small("resnet18"))
    again.initialize()
    again.load_state(path)
    assert again.baseline_latency_ms == 10.0
    assert again.placement() == tuner.placement()
    assert again.placement()
    assert (tmp_path / "state_pattern_cache.yaml").is_file()


def test_b14_the_settings_stay_those_that_were_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "state.yaml"
    started(QDQAutotuner(two_convs())).save_state(path)
    config = Config(maximum_mutations=9)
    tuner = started(QDQAutotuner(two_convs()), config=config)
    tuner.load_state(path)
    assert tuner.config == config


@pytest.mark.parametrize(
    ("field", "model", "dialect", "quant_type"),
    [
        ("quant_type", "two_convs", "tensorrt", "fp8"),
        ("dialect", "two_convs", "tensorrt-8", "int8"),
        ("model", "no_points", "tensorrt", "int8"),
    ],
)
def test_b14_a_state_of_something_else_is_refused(
    tmp_path: Path, field: str, model: str, dialect: str, quant_type: str
) -> None:
    path = tmp_path / "state.yaml"
    started(QDQAutotuner(two_convs(), dialect="tensorrt")).save_state(path)
    proto = {"two_convs": two_convs, "no_points": no_points}[model]()
    tuner = QDQAutotuner(proto, dialect=dialect)
    tuner.initialize(Config(default_quant_type=quant_type))
    with pytest.raises(AutotunerError, match=f"another {field}") as caught:
        tuner.load_state(path)
    assert caught.value.hint
    assert tuner.baseline_latency_ms is None


def test_b14_profiled_patterns_are_skipped_and_others_go_on_without_repeating(
    tmp_path: Path,
) -> None:
    path = tmp_path / "state.yaml"
    straight = list(candidates(started(QDQAutotuner(small("resnet18"))), count, 5))
    tuner = started(QDQAutotuner(small("resnet18")))
    seen = []
    for edges in candidates(tuner, count, 5):
        seen.append(edges)
        if len(seen) == 8:  # generated, and then the power fails
            tuner.save_state(path)
            break
    again = QDQAutotuner(small("resnet18"))
    again.initialize()
    again.load_state(path)
    rest = []
    for number, region in enumerate(again.regions):
        again.set_profile_region(region, commit=number > 0)
        schemes = again.current_profile_pattern_schemes
        if schemes is None:
            assert number == 0 or again.profiled_patterns
            continue
        measured = sum(each.is_profiled and not each.is_empty for each in schemes.schemes)
        for _ in range(5 - measured):
            if again.generate() == -1:
                break
            edges = again.placement(best=False).edges
            rest.append(edges)
            again.submit(count(edges))
    assert seen[:-1] + rest == straight
    assert len(set(straight)) == len(straight)


def test_a_finished_run_is_not_repeated(tmp_path: Path) -> None:
    path = tmp_path / "state.yaml"
    tuner = started(QDQAutotuner(small("resnet18")))
    tune(tuner, count, 3)
    tuner.save_state(path)
    again = QDQAutotuner(small("resnet18"))
    again.initialize()
    again.load_state(path)
    assert tune(again, count) == 0
    assert again.export_onnx() == tuner.export_onnx()


def test_a_state_of_another_tool_is_taken_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "peer.yaml"
    path.write_text(
        "baseline_latency_ms: 12.5\nconfig: {default_quant_type: int8}\npatterns:\n"
        "- {pattern_signature: Conv->Relu, pattern_size: 2, schemes: []}\n"
    )
    (tmp_path / "peer_pattern_cache.yaml").write_text("{")
    tuner = QDQAutotuner(two_convs())
    tuner.initialize()
    with caplog.at_level(logging.WARNING):
        tuner.load_state(path)
    assert tuner.baseline_latency_ms == 12.5
    messages = caplog.text
    assert "which model" in messages
    assert "1 patterns" in messages
    assert "pattern cache is left out" in messages
    fp8 = QDQAutotuner(two_convs())
    fp8.initialize(Config(default_quant_type="fp8"))
    with pytest.raises(AutotunerError, match="quant_type"):
        fp8.load_state(path)


# What is refused.


@pytest.mark.parametrize(
    ("latency_ms", "success"),
    [(math.inf, True), (math.nan, True), (0.0, True), (-1.0, True), (1.0, False)],
)
def test_b20_a_failed_baseline_is_an_error(latency_ms: float, success: bool) -> None:
    tuner = QDQAutotuner(two_convs())
    tuner.initialize()
    with pytest.raises(AutotunerError):
        tuner.submit(latency_ms, success)
    assert tuner.baseline_latency_ms is None
    tuner.submit(2.0)
    assert tuner.baseline_latency_ms == 2.0


@pytest.mark.parametrize(
    "call",
    [
        lambda tuner: tuner.set_profile_region(None),
        lambda tuner: tuner.generate(),
        lambda tuner: tuner.submit(1.0),
        lambda tuner: tuner.export_onnx(),
        lambda tuner: tuner.get_resolved_insertion_points(),
        lambda tuner: tuner.get_ort_quantization_config(),
        lambda tuner: tuner.save_state("x"),
        lambda tuner: tuner.load_state("x"),
        lambda tuner: tuner.import_insertion_points(set()),
        lambda tuner: tuner.placement(),
    ],
)
def test_everything_waits_for_initialize(call: Any) -> None:
    tuner = QDQAutotuner(two_convs())
    assert not tuner.initialized
    with pytest.raises(AutotunerNotInitializedError, match="initialize"):
        call(tuner)


def test_a_scheme_needs_a_region_and_a_latency_needs_a_scheme() -> None:
    tuner = started(QDQAutotuner(two_convs()))
    with pytest.raises(InvalidSchemeError, match="no region"):
        tuner.generate()
    with pytest.raises(InvalidSchemeError, match="no region"):
        tuner.submit(1.0)
    tuner.set_profile_region(tuner.regions[0])
    with pytest.raises(InvalidSchemeError, match="generate"):
        tuner.submit(1.0)
    tuner.set_profile_region(None)


@pytest.mark.parametrize("model", [None, 3, b"onnx", ["model.onnx"]])
def test_what_is_no_model(model: Any) -> None:
    with pytest.raises(TypeError):
        QDQAutotuner(model)


def test_models_that_can_t_be_tuned(tmp_path: Path) -> None:
    with pytest.raises(ModelError):
        QDQAutotuner(onnx.ModelProto())
    with pytest.raises(ModelError):
        QDQAutotuner(tmp_path / "none.onnx")


@pytest.mark.parametrize(
    ("dialect", "quant_type"), [("onnxruntime", "fp8"), ("tensorrt-8", "fp8"), ("klingon", "int8")]
)
def test_dialects_that_can_t_say_it(dialect: str, quant_type: str) -> None:
    tuner = QDQAutotuner(two_convs(), dialect=dialect)
    with pytest.raises(AutotunerError):
        tuner.initialize(Config(default_quant_type=quant_type))


def test_a_start_that_fails_is_no_start() -> None:
    tuner = started(QDQAutotuner(two_convs(), dialect="onnxruntime"))
    with pytest.raises(AutotunerError):
        tuner.initialize(Config(default_quant_type="fp8"))
    with pytest.raises(AutotunerNotInitializedError):
        tuner.export_onnx()
    started(tuner)
    assert tune(tuner, count)


def test_the_terms_of_other_quantizers() -> None:
    tuner = started(QDQAutotuner(small("resnet18"), dialect="tensorrt"))
    tune(tuner, lambda edges: 10.0 - len([e for e in edges if e.position == 0]), 10)
    nodes, op_types, left_float, outputs = tuner.get_ort_quantization_config()
    quantized = {edge.node for edge in tuner.placement().edges if edge.node}
    assert set(nodes) == quantized
    assert "Conv" in op_types
    for maker, reader, tensor in left_float:
        assert tensor in [value.name for value in maker.outputs]
        assert tensor in [value.name for value in reader.inputs if value is not None]
        assert all(edge[:2] != (tensor, reader.name) for edge in tuner.placement().edges)
    makers = (tuner.graph.value[tensor].producer() for tensor in tuner.placement().tensors)
    others = {node.op_type for node in makers if node is not None and node.name not in quantized}
    assert set(outputs) == others
