from __future__ import annotations

import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from benchmarks.rtx_builds import (
    BuildReport,
    build,
    build_in_child,
    not_low_precision,
    operand_types,
)
from benchmarks.tensorrt_rtx_accepts import QUANT_TYPES, decide
from onnx import numpy_helper, parser
from tests.tiers import tiered

from qdqtune import zoo
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import Worker
from qdqtune.engines.tensorrt._layer_info import Layer, LayerTensor, parse_layers
from qdqtune.graph._index import GraphIndex, name_nodes
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._quantization_planner import select_ops
from qdqtune.qdq.dialects import TENSORRT, TENSORRT_8
from qdqtune.records._errors import EngineError, UsageError

SAMPLES = Path(__file__).parents[1] / "data" / "tensorrt" / "rtx171"
BUILD_LIMIT_S = 120.0
# What is built in both types; the rest differs in nothing that a type would matter for.
IN_FLOAT8 = {"bert", "convnext", "resnet18", "yolo"}

needs_tensorrt_rtx = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64",
    reason="TensorRT-RTX can only be installed on Linux on x86-64",
)

SMALL: dict[str, dict[str, Any]] = {
    "resnet18": {"blocks": (1, 1, 1, 1), "width": 16, "image": 32},
    "resnet34": {"blocks": (2, 1, 1, 1), "width": 16, "image": 32},
    "resnet50": {"blocks": (1, 1, 1, 1), "width": 16, "image": 32},
    "mobilenet_v2": {"width": 0.5, "image": 32},
    "efficientnet": {"depth": 0.3, "image": 32},
    "shufflenet_v2": {"image": 32},
    "convnext": {"depths": (1, 1, 1, 1), "image": 32},
    "vit": {"layers": 1, "width": 128, "image": 64},
    "bert": {"layers": 1, "width": 128, "sequence": 32, "vocabulary": 100},
    "gpt": {"layers": 1, "width": 128, "sequence": 32, "vocabulary": 100},
    "unet": {"levels": 2, "image": 32},
    "yolo": {"width": 8, "image": 64},
    "chain": {"nodes": 40},
}


def layers_of(sample: str) -> tuple[Layer, ...]:
    return parse_layers((SAMPLES / f"{sample}.sm89.layers.txt").read_bytes().decode())


@pytest.fixture(scope="module")
def calibration_worker() -> Iterator[Worker]:
    with Worker(options=SessionOptions(threads=1), timeout_s=60) as worker:
        yield worker


class TestLayerList:
    def test_tells_kinds_tensors_and_nodes(self) -> None:
        quantize, conv, *_ = layers = layers_of("int8pc")
        assert [layer.kind for layer in layers] == [
            "kgen", "correlation", "kgen", "correlation", "kgen",
        ]  # fmt: skip
        assert quantize.inputs == (LayerTensor("x", "Float", (1, 8, 16, 16)),)
        assert quantize.nodes == ("xq_Q",)
        assert conv.name == "conv0_myl0_1"
        assert conv.nodes == ("conv0", "xq_DQ", "wq_DQ", "wq_Q")
        assert [(c.dtype, c.dims) for c in conv.constants] == [
            ("Int8", (16, 8, 3, 3)), ("Float", (1, 16, 1, 1)), ("Float", (1, 16, 1, 1)),
        ]  # fmt: skip
        assert [tensor.dtype for tensor in conv.outputs] == ["Float"]

    def test_has_layers_without_tensors(self) -> None:
        waiting = [layer for layer in layers_of("cat_int8") if layer.kind in ("signal", "wait")]
        assert len(waiting) == 4
        assert not any(layer.inputs or layer.outputs or layer.nodes for layer in waiting)

    def test_has_open_dims(self) -> None:
        assert layers_of("dyn")[1].inputs[0].dims == (-1, 8, 16, 16)

    def test_names_may_hold_what_separates_fields(self) -> None:
        line = (
            "Name: a, b + c, LayerType: gemm, Inputs: [ { Name: x], y, Dimensions: [], "
            "Strides: [], StrideOrder: [], Datatype: Half, Format: (Linear) }], "
            "Constants: [], Outputs: [], TacticName: , StreamId: 0, "
            "Metadata: [ONNX Layer: a, b]\x1e[ONNX Layer: c[0]"
            " | Local Function: f]\x1f[ONNX Layer: a, b]"
        )
        (layer,) = parse_layers(f"Layers:\n{line}\n\nI/O Tensors:\n Name: x\n")
        assert layer.name == "a, b + c"
        assert layer.inputs == (LayerTensor("x], y", "Half", ()),)
        assert layer.nodes == ("a, b", "c[0]")

    @pytest.mark.parametrize("text", ["", "Engine built", "Layers:\nsomething new"])
    def test_unknown_forms_are_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="layer list"):
            parse_layers(text)

    def test_reports_survive_json_form(self) -> None:
        report = BuildReport(parsed=True, ok=True, layers=layers_of("tfm_int8"), version="1.7")
        assert BuildReport.from_dict(asdict(report)) == report


class TestOperandTypes:
    @pytest.mark.parametrize(
        ("sample", "node", "types"),
        [
            ("int8pc", "conv0", {"Int8"}),
            ("int8pc", "conv1", {"Int8"}),
            ("cat_int8", "convA", {"Half"}),
            ("cat_int8", "convC", {"Int8"}),
            ("r_wonly", "conv0", {"Half"}),
            ("tfm_int8", "/q_proj/MatMul", {"Int8"}),  # one kernel with k and v
            ("tfm_int8", "/fc2/MatMul", {"Int8"}),
            ("tfm_int8", "/attn/MatMul", {"Half"}),  # inside fused attention
            ("tfm_int8", "/attn/Softmax_2", set()),
        ],
    )
    def test_are_those_of_the_kernel_that_multiplies(
        self, sample: str, node: str, types: set[str]
    ) -> None:
        found = operand_types(layers_of(sample), [node])
        assert found == {node: types}
        assert not_low_precision(found) == ([] if types == {"Int8"} else [node])

    def test_a_residual_and_a_mask_are_not_multiplied(self) -> None:
        def tensors(*types: str) -> tuple[LayerTensor, ...]:
            return tuple(LayerTensor("t", dtype, (1, 8, 4, 4)) for dtype in types)

        conv = Layer("c", "correlation", tensors("Int8", "Float"), (), tensors("Int8"), ("conv",))
        attention = Layer(
            "_gemm_mha_v2_myl0_6", "kgen", tensors("FP8", "FP8", "Float", "FP8"), nodes=("scores",)
        )
        assert operand_types([conv, attention], ["conv", "scores"]) == {
            "conv": {"Int8"},
            "scores": {"FP8"},
        }

    def test_a_weight_dequantized_by_another_kernel_counts(self) -> None:
        inputs = (LayerTensor("x", "Int8", (1, 4, 8)), LayerTensor("w", "Float", (1, 8, 8)))
        fused = Layer("__myl_CastMulFc_myl0_4", "runtime_fusion", inputs, nodes=("qkv",))
        assert not_low_precision(operand_types([fused], ["qkv"])) == ["qkv"]

    def test_a_product_inside_a_float_kernel_counts(self) -> None:
        inputs = (LayerTensor("x", "Float", (1, 4, 1, 1)),)
        layer = Layer("__myl_SiluMulCastCorrMul_myl0_18", "kgen", inputs, nodes=("expand",))
        assert operand_types([layer], ["expand"]) == {"expand": {"Float"}}


class TestDialect:
    """What the engine can't do, the selection must not promise."""

    def select(self, text: str, quant_type: str, *ops: str, **shapes: tuple[int, ...]) -> Any:
        model = parser.parse_model(f'<ir_version: 9, opset_import: ["": 19]>\n{text}')
        for name, shape in shapes.items():
            array = np.ones(shape, np.float32)
            model.graph.initializer.append(numpy_helper.from_array(array, name))
        loaded = ir.from_proto(model)
        name_nodes(loaded)
        infer_shapes(loaded)
        return select_ops(GraphIndex(loaded), TENSORRT, ops, quant_type)

    @pytest.mark.parametrize(
        ("quant_type", "window", "reason"),
        [
            ("int8", (7, 7), ""),
            ("fp8", (4, 8), ""),
            ("fp8", (1, 33), "tensorrt has no fp8 kernel for a window of 33 taps"),
        ],
    )
    def test_large_windows_stay_float_in_fp8(
        self, quant_type: str, window: tuple[int, int], reason: str
    ) -> None:
        text = "g (float[1,4,40,40] x) => (float[1,4,h,w] y) { y = Conv(x, w) }"
        selection = self.select(text, quant_type, "Conv", w=(4, 4, *window))
        assert list(selection.left_float.values()) == ([reason] if reason else [])

    @pytest.mark.parametrize(("channels", "quantized"), [(4, 0), (5, 1)])
    def test_a_handful_of_values_stays_float(self, channels: int, quantized: int) -> None:
        text = f"g (float[1,{channels},1,1] x) => (float[1,8,1,1] y) {{ y = Conv(x, w) }}"
        selection = self.select(text, "int8", "Conv", w=(8, channels, 1, 1))
        assert len(selection.quantized) == quantized

    def test_transposed_convs_stay_float_from_version_10_on(self) -> None:
        assert "ConvTranspose" not in TENSORRT.rules
        assert "ConvTranspose" in TENSORRT_8.rules

    @pytest.mark.parametrize(
        ("rest", "outputs"),
        [
            ("r = Reshape(s, shape) p, q = Split<axis=0,num_outputs=2>(r) y = Mul(p, q)", {"s"}),
            ("p, q = Split<axis=1,num_outputs=2>(s) u = Transpose(p) v = Transpose(q) "
             "y = Mul(u, v)", {"s"}),
            ("p, q = Split<axis=1,num_outputs=2>(s) y = Mul(p, q)", set()),
            ("r = Reshape(s, shape) y = Relu(r)", set()),
        ],
    )  # fmt: skip
    def test_a_result_is_quantized_before_it_is_moved_and_taken_apart(
        self, rest: str, outputs: set[str]
    ) -> None:
        text = (
            "g (float[4,8] x) => (float[a,b] y) <int64[2] shape = {2, 8}> "
            f"{{ m = MatMul(x, w) s = Add(m, bias) {rest} }}"
        )
        selection = self.select(text, "int8", "MatMul", w=(8, 8), bias=(8,))
        assert selection.placement.tensors - {"x", "w"} == outputs


@needs_tensorrt_rtx
@pytest.mark.parametrize(
    ("name", "quant_type"),
    tiered(
        [
            (name, quant_type)
            for name in zoo.ARCHITECTURES
            for quant_type in QUANT_TYPES
            if quant_type == "int8" or name in IN_FLOAT8
        ],
        fast=4,
        slow=100,
    ),
)
def test_accepts_every_architecture(name: str, quant_type: str, calibration_worker: Worker) -> None:
    verdict = decide(name, quant_type, SMALL[name], calibration_worker)
    assert verdict.report.error == ""
    assert verdict.report.parsed
    assert verdict.report.ok
    assert verdict.selection.quantized
    assert verdict.float_nodes == []


@needs_tensorrt_rtx
class TestBuild:
    def test_takes_open_dims_as_one(self) -> None:
        report = build_in_child(SAMPLES / "dyn.onnx", timeout_s=BUILD_LIMIT_S)
        assert report.ok
        assert report.engine_bytes > 0
        assert report.version

    def test_names_the_node_with_a_zero_point(self) -> None:
        report = build_in_child(SAMPLES / "int8zp.onnx", timeout_s=BUILD_LIMIT_S)
        assert not report.parsed
        assert not report.ok
        assert "node 'xq_Q' (QuantizeLinear): " in report.error
        assert "zero point" in report.error

    def test_names_the_node_that_it_does_not_know(self) -> None:
        report = build_in_child(SAMPLES / "bad.onnx", timeout_s=BUILD_LIMIT_S)
        assert not report.parsed
        assert "node 'foo0' (Foo): " in report.error

    def test_says_why_a_gpu_has_no_float8(self) -> None:
        report = build_in_child(
            SAMPLES / "fp8.onnx", compute_capability="sm80", timeout_s=BUILD_LIMIT_S
        )
        assert report.parsed
        assert not report.ok
        assert "fp8" in report.error
        assert report.compute_capability == "sm80"

    @pytest.mark.parametrize("content", [None, b"", b"not a model"])
    def test_a_file_that_is_no_model_is_a_failed_build(
        self, content: bytes | None, tmp_path: Path
    ) -> None:
        path = tmp_path / "model.onnx"
        if content is not None:
            path.write_bytes(content)
        report = build_in_child(path, timeout_s=BUILD_LIMIT_S)
        assert not report.ok
        assert report.error

    def test_a_gpu_that_is_not_supported_is_an_error(self) -> None:
        with pytest.raises(EngineError, match=r"sm90.*\n.*sm89"):
            build_in_child(SAMPLES / "dyn.onnx", compute_capability="sm90")
        with pytest.raises(UsageError, match="sm90"):
            build(SAMPLES / "dyn.onnx", compute_capability="sm90")

    def test_a_hang_is_a_failed_build(self) -> None:
        report = build_in_child(SAMPLES / "dyn.onnx", timeout_s=0.01)
        assert not report.ok
        assert "longer than 0.01 s" in report.error


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell script")
def test_a_crash_is_a_failed_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nkill -SEGV $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    report = build_in_child("model.onnx")
    assert not report.ok
    assert "exit code -11" in report.error


def test_a_missing_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt_rtx", None)
    with pytest.raises(EngineError, match=r"pip install 'qdqtune\[tensorrt-rtx\]'"):
        build("model.onnx")
