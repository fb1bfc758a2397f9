"""Old opsets: raised without a change of what the model computes or says about itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._folding import fold
from qdqtune.graph._opset import raise_opset
from qdqtune.records._errors import ModelError
from tests.conftest import model_from_text

_RNG = np.random.default_rng(0)
_KERNEL = _RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)
_SQUARE = _RNG.normal(size=(4, 4)).astype(np.float32)
_VECTOR = _RNG.uniform(0.5, 1.5, 4).astype(np.float32)
_TWICE = np.array([1, 1, 2, 2], np.float32)
_LESS = np.array([1, 1, 0.7, 0.7], np.float32)

IMAGE = "g (float[1,3,6,6] x) =>"
TABLE = "g (float[2,8] x) =>"
CUBE = "g (float[2,3,4] x) => (float[2,3,4] y)"

# Opset, model, weights. Every op here is written differently in opset 13 or 19, or means
# something else there.
MODELS: dict[str, tuple[int, str, dict[str, np.ndarray]]] = {
    "conv": (7, f"{IMAGE} (float[1,4,4,4] y) {{ y = Conv<kernel_shape=[3,3]>(x, w) }}",
             {"w": _KERNEL}),
    "batchnorm": (7, f"{IMAGE} (float[1,4,4,4] y) {{ c = Conv(x, w) "
                  "y = BatchNormalization<epsilon=0.01,momentum=0.9,spatial=1>(c, s, s, s, s) }",
                  {"w": _KERNEL, "s": _VECTOR}),
    "upsample": (7, f"{IMAGE} (float[1,3,12,12] y) {{ "
                 'y = Upsample<mode="nearest",scales=[1.0,1.0,2.0,2.0]>(x) }', {}),
    "upsample-linear": (9, f"{IMAGE} (float[1,3,12,12] y) {{ "
                        'y = Upsample<mode="linear">(x, s) }', {"s": _TWICE}),
    "resize": (10, f'{IMAGE} (float[1,3,12,12] y) {{ y = Resize<mode="nearest">(x, s) }}',
               {"s": _TWICE}),
    "resize-linear": (10, f'{IMAGE} (float[1,3,12,12] y) {{ y = Resize<mode="linear">(x, s) }}',
                      {"s": _TWICE}),
    "resize-smaller": (10, f'{IMAGE} (float[1,3,4,4] y) {{ y = Resize<mode="nearest">(x, s) }}',
                       {"s": _LESS}),
    "slice": (9, f"{IMAGE} (float[1,3,4,2] y) {{ "
              "y = Slice<starts=[0,1],ends=[4,3],axes=[2,3]>(x) }", {}),
    "slice-all": (9, f"{TABLE} (float[1,3] y) {{ y = Slice<starts=[0,1],ends=[1,4]>(x) }}", {}),
    "dropout": (7, f"{TABLE} (float[2,8] y) {{ d = Dropout<ratio=0.3>(x) y = Relu(d) }}", {}),
    "dropout-mask": (10, f"{TABLE} (float[2,8] y) {{ d, m = Dropout<ratio=0.3>(x) "
                     "y = Relu(d) }", {}),
    "clip": (7, f"{TABLE} (float[2,8] y) {{ y = Clip<min=-0.5,max=0.5>(x) }}", {}),
    "clip-above": (10, f"{TABLE} (float[2,8] y) {{ y = Clip<max=0.5>(x) }}", {}),
    "squeeze": (11, "g (float[1,8,1] x) => (float[8,1] y) { y = Squeeze<axes=[0]>(x) }", {}),
    "unsqueeze": (11, "g (float[8] x) => (float[1,8,1] y) { y = Unsqueeze<axes=[0,2]>(x) }", {}),
    "softmax": (11, CUBE + " { y = Softmax(x) }", {}),
    "softmax-first": (12, CUBE + " { y = Softmax<axis=0>(x) }", {}),
    "softmax-last": (12, CUBE + " { y = Softmax<axis=2>(x) }", {}),
    "logsoftmax": (11, CUBE + " { y = LogSoftmax<axis=1>(x) }", {}),
    "hardmax-last": (11, CUBE + " { y = Hardmax<axis=2>(x) }", {}),
    "pad": (10, f"{IMAGE} (float[1,3,8,9] y) {{ "
            'y = Pad<mode="constant",pads=[0,0,1,1,0,0,1,2],value=1.5>(x) }', {}),
    "pad-reflect": (10, f"{IMAGE} (float[1,3,8,8] y) {{ "
                    'y = Pad<mode="reflect",pads=[0,0,1,1,0,0,1,1]>(x) }', {}),
    "topk": (9, f"{TABLE} (float[2,3] y, int64[2,3] i) {{ y, i = TopK<k=3,axis=1>(x) }}", {}),
    "reducesum": (11, f"{TABLE} (float[2] y) {{ y = ReduceSum<axes=[1],keepdims=0>(x) }}", {}),
    "reducemean": (12, f"{TABLE} (float[2] y) {{ y = ReduceMean<axes=[1],keepdims=0>(x) }}", {}),
    "cast": (8, f"{TABLE} (int64[2,8] y) {{ y = Cast<to=7>(x) }}", {}),
    "split": (11, f"{TABLE} (float[2,3] y, float[2,5] z) {{ "
              "y, z = Split<axis=1,split=[3,5]>(x) }", {}),
    "gemm": (9, "g (float[2,4] x) => (float[2,4] y) { y = Gemm<transB=1,alpha=0.5>(x, w, b) }",
             {"w": _SQUARE, "b": _VECTOR}),
    "branches": (11, "g (float[1,4] x, bool c) => (float[4] y) { y = If (c) < "
                 "then_branch = t () => (float[4] a) { a = Squeeze<axes=[0]>(x) }, "
                 "else_branch = e () => (float[4] b) { s = Softmax<axis=0>(x) "
                 "b = Squeeze<axes=[0]>(s) } > }", {}),
}  # fmt: skip


def save_old(name: str, folder: Path) -> Path:
    opset, text, weights = MODELS[name]
    model = model_from_text(text, opset, **weights)
    model.ir_version = 3
    for tensor in model.graph.initializer:  # as files of that time had to
        model.graph.input.append(
            onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        )
    path = folder / "old.onnx"
    onnx.save(model, path)
    return path


def run(path: Path) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(1)
    weights = {value.name for value in session.get_overridable_initializers()}
    feeds = {
        value.name: np.array(False)
        if value.type == "tensor(bool)"
        else rng.normal(size=value.shape).astype(np.float32)
        for value in session.get_inputs()
        if value.name not in weights
    }
    return session.run(None, feeds)


@pytest.mark.parametrize("target", [13, 19])
@pytest.mark.parametrize("name", MODELS)
def test_raised_models_compute_the_same(name: str, target: int, tmp_path: Path) -> None:
    path = save_old(name, tmp_path)
    model = load_model(path)
    fold(model)
    assert raise_opset(model, target)
    fold(model)
    assert model.opset_imports[""] == target
    raised = save_model(model, tmp_path / "raised.onnx")
    onnx.checker.check_model(str(raised), full_check=True)
    for before, after in zip(run(path), run(raised), strict=True):
        assert before.shape == after.shape
        np.testing.assert_allclose(after, before, atol=1e-5)


def test_what_a_model_says_about_itself_is_kept(tmp_path: Path) -> None:
    proto = model_from_text("g (float[1,8] x) => (float[1,8] y) { y = Clip<max=0.5>(x) }", 10)
    proto.producer_name, proto.producer_version, proto.domain = "exporter", "3", "org.example"
    proto.doc_string, proto.graph.doc_string, proto.model_version = "about", "graph", 7
    proto.graph.node[0].doc_string = "node"
    proto.metadata_props.add(key="author", value="me")
    proto.graph.metadata_props.add(key="scope", value="all")
    proto.graph.node[0].metadata_props.add(key="line", value="12")
    path = tmp_path / "m.onnx"
    onnx.save(proto, path)
    model = load_model(path)
    raise_opset(model, 13)
    raised = ir.to_proto(model)
    assert (raised.producer_name, raised.producer_version) == ("exporter", "3")
    assert (raised.domain, raised.doc_string, raised.model_version) == ("org.example", "about", 7)
    assert raised.graph.doc_string == "graph"
    (node,) = [node for node in raised.graph.node if node.op_type == "Clip"]
    assert (node.name, node.doc_string) == ("n0", "node")
    for entries, expected in (
        (raised.metadata_props, {"author": "me"}),
        (raised.graph.metadata_props, {"scope": "all"}),
        (node.metadata_props, {"line": "12"}),
    ):
        assert {entry.key: entry.value for entry in entries} == expected


def test_foreign_ops_are_kept() -> None:
    proto = onnx.parser.parse_model(
        """
        <ir_version: 7, opset_import: ["": 11, "com.example": 2]>
        g (float[1,4] x) => (float[1,4] y) {
            h = Relu(x)
            y = com.example.Strange<level = 3>(h)
        }"""
    )
    strange = proto.graph.node[1]
    strange.name = "strange"
    model = ir.from_proto(proto)
    raise_opset(model, 13)
    raised = ir.to_proto(model)
    assert {opset.domain: opset.version for opset in raised.opset_import} == {
        "": 13, "com.example": 2,
    }  # fmt: skip
    assert raised.graph.node[1].SerializeToString() == strange.SerializeToString()


def test_functions_are_inlined() -> None:
    proto = onnx.parser.parse_model(
        """
        <ir_version: 8, opset_import: ["": 11, "local": 1]>
        g (float[2,3,4] x) => (float[2,3,4] y) { y = local.f(x) }
        <domain: "local", opset_import: ["": 11]>
        f (a) => (b) { b = Relu(a) }"""
    )
    model = ir.from_proto(proto)
    raise_opset(model, 13)
    assert [node.op_type for node in model.graph] == ["Relu"]


@pytest.mark.parametrize("opset", [1, 6])
def test_too_old(opset: int) -> None:
    model = ir.from_proto(
        model_from_text("g (float[1,8] x) => (float[1,8] y) { y = Relu(x) }", opset)
    )
    with pytest.raises(ModelError, match=f"in opset {opset}; opsets before 7") as caught:
        raise_opset(model, 13)
    assert "opset 13 or later" in caught.value.hint


def test_what_has_no_equivalent_is_named() -> None:
    model = ir.from_proto(model_from_text(CUBE + " { y = Hardmax<axis=1>(x) }", 11))
    with pytest.raises(ModelError, match="'n0' is a Hardmax"):
        raise_opset(model, 13)
    old = model_from_text(
        "g (float[1,2,3,3] x) => (float[1,2,3,3] y)"
        "{ y = BatchNormalization<spatial=0>(x, s, s, s, s) }",
        8,
        s=np.ones((2, 3, 3), np.float32),
    )
    with pytest.raises(ModelError, match="can't be raised from opset 8 to 13"):
        raise_opset(ir.from_proto(old), 13)


def test_new_models_are_left_alone() -> None:
    model = ir.from_proto(model_from_text("g (float[8] x) => (float[8] y) { y = Relu(x) }", 17))
    assert not raise_opset(model, 13)
    assert model.opset_imports[""] == 17


def test_converters_never_see_the_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    sizes = []
    convert = onnx.version_converter.convert_version

    def watch(proto: onnx.ModelProto, target_version: int) -> onnx.ModelProto:
        sizes.append(proto.ByteSize())
        return convert(proto, target_version)

    monkeypatch.setattr(onnx.version_converter, "convert_version", watch)
    weight = _RNG.normal(size=(512, 512)).astype(np.float32)
    model = ir.from_proto(
        model_from_text(
            "g (float[1,512] x) => (float[1,512] y) { h = MatMul(x, w) y = Clip<max=1.0>(h) }",
            10,
            w=weight,
        )
    )
    raise_opset(model, 13)
    assert sizes
    assert max(sizes) < 1000
    kept = model.graph.initializers["w"].const_value
    assert kept is not None
    np.testing.assert_array_equal(kept.numpy(), weight)
