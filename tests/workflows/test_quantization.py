"""One-shot quantization: what goes in, what comes out, what stays float, and what is told."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

import qdqtune
from qdqtune.config import NameFilters
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._read_back import read
from qdqtune.records._errors import QdqtuneError, UsageError
from qdqtune.records._placement import Placement
from qdqtune.records._quantization import Decision, QuantizeResult
from qdqtune.records._ranges import RangeMethod
from qdqtune.workflows import _quantize_steps as quantize_steps
from qdqtune.workflows._arguments import constraints_of
from qdqtune.workflows.tuning._folder import FINAL
from tests.conftest import model_from_text


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


def residual_block() -> onnx.ModelProto:
    model = model_from_text(
        """g (float[2,16,8,8] x) => (float[2,16,8,8] y) {
            c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) d = Conv<pads=[1,1,1,1]>(r, v)
            a = Add(d, x) y = Neg(a) }""",
        w=normal(16, 16, 3, 3),
        v=normal(16, 16, 3, 3) * 2,
    )
    for node, name in zip(
        model.graph.node, ("stem/conv", "stem/act", "body/conv", "body/add", "neg"), strict=True
    ):
        node.name = name
    return model


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latencies are not looked at here."""
    monkeypatch.setattr(quantize_steps, "TIMING_S", 0.1)


def by_node(result: QuantizeResult) -> dict[str, Decision]:
    return {each.node: each for each in result.report.decisions}


def quantized(result: QuantizeResult) -> set[str]:
    return {each.node for each in result.report.decisions if each.quantized}


def ops(model: onnx.ModelProto) -> Counter[str]:
    return Counter(node.op_type for node in model.graph.node)


# What goes in and what comes out.


@pytest.fixture(scope="module")
def file_result(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes, QuantizeResult]:
    path = tmp_path_factory.mktemp("quantize") / "block.onnx"
    onnx.save(residual_block(), path)
    content = path.read_bytes()
    saved = path.with_name("placement.json")
    return path, content, qdqtune.quantize(path, engine="tensorrt", save_placement=saved)


def test_a_path_gives_a_path(file_result: tuple[Path, bytes, QuantizeResult]) -> None:
    path, content, result = file_result
    assert result.model == path.with_name("block.quant.onnx")
    assert path.read_bytes() == content
    assert {file.name for file in path.parent.iterdir()} == {
        "block.onnx", "block.quant.onnx", "placement.json",
    }  # fmt: skip
    onnx.checker.check_model(str(result.model), full_check=True)
    assert result.report.bytes_before == len(content)
    assert result.report.bytes_after == result.model.stat().st_size < len(content)


def test_an_engine_that_is_not_there(file_result: tuple[Path, bytes, QuantizeResult]) -> None:
    _, _, result = file_result
    assert not result.kept_float
    assert result.speedup is None
    assert result.report.engine == "tensorrt"
    assert result.report.dialect == "tensorrt"
    assert result.report.not_timed == "TensorRT does not run models here"
    assert quantized(result) == {"stem/conv", "body/conv", "body/add"}
    assert by_node(result)["neg"].rule == "no kernel"
    assert (result.report.worst_db or 0) > 15


def test_what_is_told_is_what_is_in_the_file(
    file_result: tuple[Path, bytes, QuantizeResult],
) -> None:
    path, _, result = file_result
    saved = Placement.from_json(path.with_name("placement.json").read_text())
    assert saved == result.placement
    assert read(ir.load(result.model)).placement.edges == result.placement.edges
    table = result.table.splitlines()
    assert re.search(r"^Conv +2 *$", result.table, re.MULTILINE)
    assert re.search(r"^Neg +1  no kernel", result.table, re.MULTILINE)
    assert f"Written: {result.model}" in table
    assert "random" in table[-1]


@pytest.mark.parametrize("form", [lambda proto: proto, ir.from_proto], ids=["proto", "ir"])
def test_a_model_gives_a_model(form: Callable[[onnx.ModelProto], Any]) -> None:
    proto = residual_block()
    model = form(proto)
    before = _content(model)
    result = qdqtune.quantize(
        model, engine="tensorrt8", nodes_to_exclude=["stem/.*"], min_sqnr_db=None
    )
    assert type(result.model) is type(model)
    assert _content(model) == before
    written = result.model if form is not ir.from_proto else ir.to_proto(result.model)
    onnx.checker.check_model(written, full_check=True)
    assert result.report.output is None
    assert result.report.dialect == "tensorrt-8"
    assert quantized(result) == {"body/conv", "body/add"}
    assert by_node(result)["stem/conv"].rule == "asked"
    assert ops(written)["QuantizeLinear"] == 3  # two inputs, and a weight that is kept in floats


def _content(model: onnx.ModelProto | ir.Model) -> bytes:
    proto = model if isinstance(model, onnx.ModelProto) else ir.to_proto(model)
    return proto.SerializeToString(deterministic=True)


# Which nodes.


@pytest.fixture(scope="module")
def index() -> GraphIndex:
    return GraphIndex(ir.from_proto(residual_block()))


BODY = {"body/conv", "body/add"}


@pytest.mark.parametrize(
    ("expressions", "names"),
    [
        (["body/.*"], BODY),
        (["body"], BODY),  # no name is that: those that begin so
        (["neg"], {"neg"}),
        (["st|n"], {"stem/conv", "stem/act", "neg"}),
        ([r"\w+/conv", "neg"], {"stem/conv", "body/conv", "neg"}),
    ],
)
def test_expressions_of_names(expressions: list[str], names: set[str], index: GraphIndex) -> None:
    assert constraints_of(NameFilters(nodes_to_exclude=expressions), index).never == names
    constraints = constraints_of(NameFilters(nodes_to_quantize=expressions), index)
    assert constraints.only == names
    assert constraints.never == frozenset()


@pytest.mark.parametrize(
    ("expressions", "names"),
    [(["Conv"], {"stem/conv", "body/conv"}), (["A.*", "Neg"], {"body/add", "neg"})],
)
def test_expressions_of_op_types(
    expressions: list[str], names: set[str], index: GraphIndex
) -> None:
    assert constraints_of(NameFilters(op_types_to_exclude=expressions), index).never == names
    assert constraints_of(NameFilters(op_types_to_quantize=expressions), index).only == names


def test_a_whole_name_is_that_name_only() -> None:
    model = model_from_text("g (float[4] x) => (float[4] y) { h = Relu(x) y = Relu(h) }")
    model.graph.node[1].name = "n01"
    constraints = constraints_of(
        NameFilters(nodes_to_exclude=["n0"]), GraphIndex(ir.from_proto(model))
    )
    assert constraints.never == {"n0"}


@pytest.mark.parametrize(
    ("filters", "what", "hint"),
    [
        ({"nodes_to_exclude": ["body("]}, "'body(' is not a regular expression", "backslash"),
        ({"nodes_to_exclude": ["body/cnv"]}, "no node", "body/conv"),
        ({"nodes_to_quantize": ["conv"]}, "no node", ""),
        ({"op_types_to_exclude": ["Cnv"]}, "no op type", "Conv"),
        ({"op_types_to_quantize": ["MatMul"]}, "no op type", ""),
    ],
)
def test_expressions_that_match_nothing(
    filters: dict[str, list[str]], what: str, hint: str, index: GraphIndex
) -> None:
    with pytest.raises(UsageError, match=re.escape(what)) as caught:
        constraints_of(NameFilters(**filters), index)
    assert hint in caught.value.hint


def test_only_these_op_types() -> None:
    result = qdqtune.quantize(
        residual_block(), engine="onnxruntime", op_types_to_quantize=["Conv"],
        nodes_to_exclude=["stem"], min_sqnr_db=None, performance_threshold=None,
    )  # fmt: skip
    assert quantized(result) == {"body/conv"}
    assert by_node(result)["body/add"].rule == "asked"
    assert result.report.not_timed == "it was not asked for"


# How near to float.


def two_heads() -> onnx.ModelProto:
    """Two products; one column of the second is a thousand times the others, then divided again."""
    factors = np.ones(32, np.float32)
    factors[0] = 1000.0
    return model_from_text(
        "g (float[8,32] x) => (float[8,32] y, float[8,32] z)"
        " { h = MatMul(x, w) y = Sin(h) k = MatMul(x, v) z = Div(k, factors) }",
        w=normal(32, 32) / 8,
        v=normal(32, 32) * factors,
        factors=factors,
    )


@pytest.mark.parametrize("per_channel", [True, False])
def test_what_harms_an_output_stays_float(per_channel: bool) -> None:
    result = qdqtune.quantize(two_heads(), engine="tensorrt", per_channel=per_channel)
    harmed = not per_channel
    assert quantized(result) == ({"n0"} if harmed else {"n0", "n2"})
    scales = [one for one in result.model.graph.initializer if one.name == "w_scale"]
    assert [list(scale.dims) for scale in scales] == [[32] if per_channel else []]
    if harmed:
        assert by_node(result)["n2"].rule == "accuracy"
        assert "quantized alone" in by_node(result)["n2"].reason
        assert "1 ops stay float for accuracy" in result.table
        assert "accuracy: quantized alone" in result.table
    else:
        assert by_node(result)["n2"].rule == "weighted op"
        assert "for accuracy" not in result.table
    assert (result.report.worst_db or 0) > 15


def outlier_model() -> onnx.ModelProto:
    """What one product reads has an outlier that does not count in it."""
    weight = normal(32, 32)
    weight[0] = 0
    spread = np.ones(32, np.float32)
    spread[0] = 1e5
    return model_from_text(
        "g (float[8,32] x) => (float[8,32] y, float[8,32] z)"
        " { s = Mul(x, spread) y = MatMul(s, w) z = MatMul(x, v) }",
        w=weight,
        v=normal(32, 32),
        spread=spread,
    )


def test_an_op_that_is_lost_stays_float() -> None:
    data = np.random.default_rng(1).normal(size=(16, 32)).astype(np.float32)
    result = qdqtune.quantize(
        outlier_model(), engine="tensorrt", calibration_data=data, calibration_method="max"
    )
    assert quantized(result) == {"n2"}
    lost = by_node(result)["n1"]
    assert lost.rule == "accuracy"
    assert "its own error is" in lost.reason
    assert lost.sqnr_db is not None
    assert lost.sqnr_db < 15
    assert result.report.method == "max"
    assert list(result.report.tried_db) == ["max"]
    assert result.report.calibration == "data"
    assert "random" not in result.table


# When the model is handed back.


def test_a_model_that_is_not_faster_comes_back_byte_for_byte(tmp_path: Path) -> None:
    source, target = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(residual_block(), source)
    result = qdqtune.quantize(
        source, target, engine="onnxruntime", threads=1, performance_threshold=1e6
    )
    assert result.kept_float
    assert result.speedup == 1.0
    assert result.report.final_ms
    assert target.read_bytes() == source.read_bytes()
    assert "handed back as it was" in result.table
    assert result.table.splitlines()[-1] == f"Written: {target}"


def test_a_model_without_anything_to_quantize(tmp_path: Path) -> None:
    source = tmp_path / "a.onnx"
    onnx.save(model_from_text("g (float[4] x) => (float[4] y) { y = Sin(x) }"), source)
    result = qdqtune.quantize(source, engine="tensorrt")
    assert result.kept_float
    assert result.report.reason == "nothing of it can be quantized"
    assert result.model.read_bytes() == source.read_bytes()


def test_a_search_ships_what_it_measured(tmp_path: Path) -> None:
    model = model_from_text(
        "g (float[1,64,14,14] x) => (float[1,64,14,14] y)"
        " { c = Conv<pads=[1,1,1,1]>(x, w) d = Conv<pads=[1,1,1,1]>(c, v) y = Neg(d) }",
        w=normal(64, 64, 3, 3),
        v=normal(64, 64, 3, 3) * 2,
    )
    onnx.save(model, tmp_path / "a.onnx")
    result = qdqtune.quantize(
        tmp_path / "a.onnx", tmp_path / "b.onnx", engine="simulated", autotune="quick"
    )
    assert not result.kept_float
    assert (result.speedup or 0) > 1.02
    assert quantized(result) == {"n0", "n1"}
    assert by_node(result)["n0"].rule == "measured"
    run = tmp_path / "b_autotune"
    assert Placement.from_json((run / "placement.json").read_text()) == result.placement
    assert read(ir.load(result.model)).placement == read(ir.load(run / FINAL)).placement


# Which models and types.


def test_float8_and_half_floats() -> None:
    result = qdqtune.quantize(
        residual_block(), engine="tensorrt", quantize_mode="fp8", high_precision_dtype="fp16",
        op_types_to_quantize=["Conv"], min_sqnr_db=None,
    )  # fmt: skip
    kinds = {one.data_type for one in result.model.graph.initializer}
    assert kinds == {onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT16}
    assert quantized(result) == {"stem/conv", "body/conv"}
    onnx.checker.check_model(result.model, full_check=True)


def test_scales_of_a_quantized_model_are_kept() -> None:
    model = model_from_text(
        "g (float[8,32] x) => (float[8,32] y)"
        " { q = QuantizeLinear(x, s, o) d = DequantizeLinear(q, s, o)"
        " h = MatMul(d, w) y = Sin(h) }",
        s=np.array(0.125, np.float32),
        o=np.array(0, np.int8),
        w=normal(32, 32),
    )
    result = qdqtune.quantize(model, engine="tensorrt", min_sqnr_db=None)
    arrays = {one.name: numpy_helper.to_array(one) for one in result.model.graph.initializer}
    assert arrays["x_scale"] == np.float32(0.125)
    assert ops(result.model)["QuantizeLinear"] == 1
    assert ops(result.model)["DequantizeLinear"] == 2


def test_operands_of_a_concat_share_one_scale() -> None:
    model = model_from_text(
        "g (float[1,16,6,6] x) => (float[1,16,6,6] y) { c = Conv(x, w) d = Conv(x, v)"
        " j = Concat<axis=1>(c, d) y = Conv(j, u) }",
        w=normal(16, 16, 1, 1),
        v=normal(16, 16, 1, 1) * 9,
        u=normal(16, 32, 1, 1),
    )
    written = qdqtune.quantize(model, engine="tensorrt", min_sqnr_db=None).model
    arrays = {one.name: numpy_helper.to_array(one) for one in written.graph.initializer}
    quantizers = [node for node in written.graph.node if node.op_type == "QuantizeLinear"]
    scales = {node.input[0]: float(arrays[node.input[1]]) for node in quantizers}
    assert scales.keys() >= {"x", "c", "d"}
    assert scales["c"] == scales["d"] == scales.get("j", scales["c"]) != scales["x"]


def test_token_ids_and_open_batches_calibrated_in_every_way() -> None:
    model = model_from_text(
        "g (int64[N,S] ids) => (float[N,S,32] y)"
        " { e = Gather(table, ids) h = MatMul(e, w) y = Sin(h) }",
        table=normal(50, 32),
        w=normal(32, 32),
    )
    data = np.random.default_rng(0).integers(0, 50, (6, 12))
    result = qdqtune.quantize(model, engine="tensorrt", calibration_data=data)
    assert quantized(result) == {"n1"}
    shape = result.model.graph.input[0].type.tensor_type.shape
    assert [dim.dim_param for dim in shape.dim] == ["N", "S"]
    assert result.report.calibrated_on.startswith("6 samples")
    tried = result.report.tried_db
    assert set(tried) == {method.value for method in RangeMethod}
    assert tried[result.report.method] == max(tried.values())
    assert f"{result.report.method} ranges" in result.table


def test_a_model_with_a_branch_in_it() -> None:
    model = model_from_text(
        """g (bool k, float[8,32] x) => (float[8,32] y) {
            h = MatMul(x, w)
            y = If(k) <
                then_branch = a () => (float[8,32] t) { t = Sin(h) },
                else_branch = b () => (float[8,32] e) { e = Cos(h) }
            > }""",
        w=normal(32, 32),
    )
    result = qdqtune.quantize(model, engine="tensorrt")
    assert quantized(result) == {"n0"}
    assert ops(result.model)["If"] == 1
    onnx.checker.check_model(result.model, full_check=True)


# What goes wrong.


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"engine": "tensorrrt"}, "tensorrrt"),
        ({"dialect": "klingon"}, "klingon"),
        ({"quantize_mode": "int3"}, "quant_type must be one of int8, uint8, fp8"),
        ({"calibration_method": "guess"}, "calibration_method must be one of max, entropy"),
        ({"calibration_method": "entropy"}, "looks at data, but none was given"),
        ({"high_precision_dtype": "fp12"}, "precision must be one of fp32, fp16, bf16, not 'fp12'"),
        ({"nodes_to_exclude": ["nothing"]}, "no node"),
    ],
)
def test_requests_that_make_no_sense(wrong: dict[str, Any], what: str, tmp_path: Path) -> None:
    source = tmp_path / "a.onnx"
    onnx.save(residual_block(), source)
    with pytest.raises(UsageError, match=re.escape(what)) as caught:
        qdqtune.quantize(source, **{"engine": "tensorrt", **wrong})
    assert caught.value.hint
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    source, target = tmp_path / "a.onnx", tmp_path / "a.quant.onnx"
    onnx.save(residual_block(), source)
    target.write_text("mine")
    for output in (None, target, source):
        with pytest.raises(QdqtuneError, match="exists already"):
            qdqtune.quantize(source, output, engine="tensorrt")
    assert target.read_text() == "mine"


def test_what_fails_halfway_leaves_nothing_behind(tmp_path: Path) -> None:
    source = tmp_path / "a.onnx"
    onnx.save(residual_block(), source)

    def samples() -> Iterator[np.ndarray]:
        yield normal(2, 16, 8, 8)
        raise RuntimeError("the disk is gone")

    with pytest.raises(QdqtuneError, match="the disk is gone"):
        qdqtune.quantize(
            source, tmp_path / "b.onnx", engine="tensorrt", calibration_data=samples,
            save_placement=tmp_path / "p.json",
        )  # fmt: skip
    assert [file.name for file in tmp_path.iterdir()] == ["a.onnx"]
