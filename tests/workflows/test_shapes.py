"""A model at other sizes is written only if it works, and says the same of every sample."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from qdqtune import zoo
from qdqtune.graph import _files as files
from qdqtune.records._errors import ModelError, OutputError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._results import Proof, ShapesReport
from qdqtune.workflows._insert import insert
from qdqtune.workflows._shapes import fix_shapes, show_shapes
from tests.conftest import model_from_text

NOTHING = InputRequest()


def saved(proto: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    path = folder / name
    onnx.save(proto, path)
    return path


def dims_of(path: Path) -> dict[str, list[int | str | None]]:
    graph = onnx.load(path).graph
    return {
        value.name: [
            getattr(dim, kind) if (kind := dim.WhichOneof("value")) else None
            for dim in value.type.tensor_type.shape.dim
        ]
        for value in (*graph.input, *graph.output)
    }


def fixed(
    proto: onnx.ModelProto,
    folder: Path,
    request: InputRequest = NOTHING,
    batch: int | None = None,
) -> tuple[Path, ShapesReport]:
    out = folder / "out.onnx"
    report = fix_shapes(saved(proto, folder), out, request, batch)
    onnx.checker.check_model(str(out), full_check=True)
    assert [file.name for file in folder.iterdir() if file.name.startswith(".")] == []
    return out, report


def test_shown_as_the_file_has_them(tmp_path: Path) -> None:
    proto = model_from_text(
        "g (float[N,3,H] x, int64[N] ids, float[3] w) => (float[N,3,H] y) { y = Add(x, w) }",
        w=np.ones(3, np.float32),
    )
    report = show_shapes(saved(proto, tmp_path))
    assert [(t.name, t.dtype, t.dims) for t in report.inputs] == [
        ("x", "float", ("N", 3, "H")),
        ("ids", "int64", ("N",)),
    ]
    assert [t.dims for t in report.outputs] == [("N", 3, "H")]
    assert report.symbols == ("N", "H")
    assert report.output is None


def test_open_dims_get_sizes_and_the_rest_stays_open(tmp_path: Path) -> None:
    proto = model_from_text(
        "g (float[N,3,H] x, float[N,1] y) => (float[N,A,H] z) { z = Mul(x, o) w = Add(y, y) }",
        o=np.ones((3, 1), np.float32),
    )
    out, report = fixed(proto, tmp_path, InputRequest(dims={"N": 8}))
    assert dims_of(out) == {"x": [8, 3, "H"], "y": [8, 1], "z": [8, 3, "H"]}
    assert report.symbols == ("H",)
    assert report.proof is Proof.INFERENCE


@pytest.mark.parametrize("batch", [1, 3])
def test_an_open_batch_is_fixed_and_run(batch: int, tmp_path: Path) -> None:
    proto = zoo.build("resnet18", width=8, image=32, blocks=(1, 1, 1, 1), dynamic=True)
    out, report = fixed(proto, tmp_path, batch=batch)
    assert dims_of(out) == {"image": [batch, 3, 32, 32], "logits": [batch, 1000]}
    assert report.proof is Proof.RUN
    assert not report.rewritten


@pytest.mark.parametrize(
    ("name", "settings", "rewritten"),
    [
        ("resnet18", {"width": 8, "image": 32, "blocks": (1, 1, 1, 1)}, False),
        ("bert", {"layers": 1, "width": 64, "sequence": 8, "vocabulary": 20}, True),
    ],
)
def test_a_fixed_batch_is_changed_up_and_down(
    name: str, settings: dict[str, object], rewritten: bool, tmp_path: Path
) -> None:
    source = saved(zoo.build(name, **settings), tmp_path)
    up, down = tmp_path / "up.onnx", tmp_path / "down.onnx"
    report = fix_shapes(source, up, NOTHING, batch_size=3)
    assert report.proof is Proof.COMPARED
    assert bool(report.rewritten) is rewritten
    assert all(dims[0] == 3 for dims in dims_of(up).values())
    assert fix_shapes(up, down, NOTHING, batch_size=1).proof is Proof.COMPARED
    assert dims_of(down) == dims_of(source)


def baked(shape: list[int], text: str = "f = Reshape(r, s) y = Relu(f)") -> onnx.ModelProto:
    return model_from_text(
        f"g (float[1,4,2] x) => (float[A,B] y) {{ r = Relu(x) {text} }}", s=np.array(shape)
    )


@pytest.mark.parametrize("shape", [[1, 8], [1, -1]])
def test_a_reshape_to_the_old_batch_gets_the_new_one(shape: list[int], tmp_path: Path) -> None:
    out, report = fixed(baked(shape), tmp_path, batch=5)
    assert report.rewritten == ("n1",)
    assert report.proof is Proof.COMPARED
    assert dims_of(out)["y"] == [5, 8]
    assert [numpy_helper.to_array(t).tolist() for t in onnx.load(out).graph.initializer] == [
        [5, shape[1]]
    ]


def test_reshapes_that_are_no_batch_and_share_the_constant_keep_it(tmp_path: Path) -> None:
    proto = model_from_text(
        """
        g (float[1,2] x) => (float[1,2] y, float[1,2] z) {
            a = Reshape(x, s)
            b = Relu(a)
            y = Reshape(b, s)
            c = Neg(w)
            z = Reshape(c, s)
        }""",
        s=np.array([1, 2]),
        w=np.ones((2, 1), np.float32),
    )
    out, report = fixed(proto, tmp_path, batch=4)
    assert report.rewritten == ("n0", "n2")
    assert dims_of(out) == {"x": [4, 2], "y": [4, 2], "z": [1, 2]}
    names = {tensor.name for tensor in onnx.load(out).graph.initializer}
    assert names == {"s", "s_batch", "s_batch_2", "w"}


def test_a_constant_node_is_replaced(tmp_path: Path) -> None:
    proto = baked([1, 8], "k = Constant<value_ints=[1,8]>() f = Reshape(r, k) y = Relu(f)")
    out, report = fixed(proto, tmp_path, batch=5)
    assert report.rewritten == ("n2",)
    assert "Constant" not in {node.op_type for node in onnx.load(out).graph.node}


@pytest.mark.parametrize(
    ("proto", "message"),
    [
        (baked([4, 2]), "n1"),
        (
            baked([1, 8], "e = Expand(o, s) f = Reshape(r, s) y = Concat<axis=1>(e, f)"),
            r"Concat(.|\n)*Export the model again",
        ),
    ],
    ids=["not the leading entry", "an expand"],
)
def test_what_else_holds_the_batch_is_an_error_that_names_the_node(
    proto: onnx.ModelProto, message: str, tmp_path: Path
) -> None:
    proto.graph.initializer.append(numpy_helper.from_array(np.ones((1, 1), np.float32), "o"))
    with pytest.raises(ModelError, match=message):
        fixed(proto, tmp_path, batch=5)
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]


def test_samples_that_would_be_mixed_up_are_noticed(tmp_path: Path) -> None:
    proto = model_from_text(
        """
        g (float[1,40] x, int64[1,40] mask) => (float[1,40] y) {
            m = Gather(mask, zero)
            f = Cast<to=1>(m)
            y = Mul(x, f)
        }""",
        zero=np.array([0]),
    )
    with pytest.raises(ModelError, match="mix up its samples: the output 'y'"):
        fixed(proto, tmp_path, batch=6)


def test_whole_shapes_change_fixed_dims(tmp_path: Path) -> None:
    proto = zoo.build("resnet18", width=8, image=32, blocks=(1, 1, 1, 1))
    proto.graph.value_info.append(
        helper.make_tensor_value_info("conv1_output", TensorProto.FLOAT, [1, 8, 16, 16])
    )
    out, report = fixed(proto, tmp_path, InputRequest({"image": (None, 3, 64, 64)}))
    assert dims_of(out)["image"] == [1, 3, 64, 64]
    assert report.proof is Proof.RUN
    (info,) = (v for v in onnx.load(out).graph.value_info if v.name == "conv1_output")
    assert [d.dim_value for d in info.type.tensor_type.shape.dim] == [1, 8, 32, 32]
    feeds = {"image": np.zeros((1, 3, 64, 64), np.float32)}
    assert ort.InferenceSession(out).run(None, feeds)[0].shape == (1, 1000)


def test_sizes_that_can_not_be_are_an_error(tmp_path: Path) -> None:
    proto = model_from_text(
        "g (float[N,3,H,W] x) => (float[N,A,B,C] y) { y = Conv(x, w) }",
        w=np.ones((1, 3, 5, 5), np.float32),
    )
    with pytest.raises(ModelError, match=r"does not work at these shapes(.|\n)*other sizes"):
        fixed(proto, tmp_path, InputRequest({"x": (1, 3, 3, 3)}))


def test_a_model_that_never_ran_is_not_to_blame(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proto = model_from_text("g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }")
    proto.opset_import.add(domain="far", version=1)
    proto.graph.node[0].domain, proto.graph.node[0].op_type = "far", "Away"
    with caplog.at_level(logging.WARNING, "qdqtune"):
        out, report = fixed(proto, tmp_path, batch=2)
    assert "untried" in caplog.text
    assert report.proof is Proof.INFERENCE
    assert dims_of(out) == {"x": [2, 3], "y": [2, 3]}


@pytest.mark.parametrize(
    ("signature", "message"),
    [
        ("float[N,3] x, float[2,N] h", r"x:\[N,3\], h:\[2,N\](.|\n)*--dim N=8"),
        ("float[N,3] x, float[M,3] h", "is ambiguous"),
        ("float[1,3] x, float[2,3] h", "--set"),
        ("float[1,3] x, float[N,3] h", "--dim N=8"),
        ("float x", "is ambiguous"),
    ],
)
def test_a_batch_that_can_not_be_told(signature: str, message: str, tmp_path: Path) -> None:
    proto = model_from_text(f"g ({signature}) => (float[A,B] y) {{ y = Relu(x) }}")
    with pytest.raises(UsageError, match=message):
        fixed(proto, tmp_path, batch=8)


@pytest.mark.parametrize("leading", [("N", "N"), ("unk__1", "unk__2"), ("?", "N"), ("1", "1")])
def test_leading_dims_that_are_one_batch(leading: tuple[str, str], tmp_path: Path) -> None:
    a, b = (dim if dim != "?" else "M" for dim in leading)
    proto = model_from_text(
        f"g (float[{a},3] x, float[{b},3] h, float sr) => (float[A,B] y) {{ y = Add(x, h) }}"
    )
    if "?" in leading:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -1
    out, _ = fixed(proto, tmp_path, batch=4)
    assert dims_of(out) == {"x": [4, 3], "h": [4, 3], "sr": [], "y": [4, 3]}


def test_mistakes(tmp_path: Path) -> None:
    proto = model_from_text("g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }")
    source, out = saved(proto, tmp_path), tmp_path / "out.onnx"
    with pytest.raises(UsageError, match="No sizes are given"):
        fix_shapes(source, out, NOTHING)
    with pytest.raises(UsageError, match="starts with 3"):
        fix_shapes(source, out, InputRequest({"x": (3, 3)}), batch_size=2)
    with pytest.raises(UsageError, match="from 1 up"):
        fix_shapes(source, out, NOTHING, batch_size=0)
    with pytest.raises(OutputError, match="exists already"):
        fix_shapes(source, source, NOTHING, batch_size=2)
    assert dims_of(source)["x"] == ["N", 3]
    assert fix_shapes(source, source, NOTHING, batch_size=2, force=True).proof is Proof.RUN
    assert dims_of(source)["x"] == [2, 3]


def test_quantized_models_and_metadata_survive(tmp_path: Path) -> None:
    source, quantized = tmp_path / "float.onnx", tmp_path / "q.onnx"
    onnx.save(zoo.build("resnet18", width=8, image=32, blocks=(1, 1, 1, 1)), source)
    insert(source, quantized, ops=["Conv"])
    out = tmp_path / "out.onnx"
    assert fix_shapes(quantized, out, NOTHING, batch_size=2).proof is Proof.COMPARED
    before, after = onnx.load(quantized), onnx.load(out)
    assert [node.op_type for node in after.graph.node] == [n.op_type for n in before.graph.node]
    assert {p.key: p.value for p in after.metadata_props} == {
        p.key: p.value for p in before.metadata_props
    }


def test_a_model_too_large_for_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_EMBED_LIMIT_BYTES", 1000)
    source = saved(zoo.build("resnet18", width=8, image=32, blocks=(1, 1, 1, 1)), tmp_path)
    out = tmp_path / "out.onnx"
    assert fix_shapes(source, out, NOTHING, batch_size=2).proof is Proof.COMPARED
    assert (tmp_path / "out.onnx.data").stat().st_size > 1000
    assert ort.InferenceSession(out).get_inputs()[0].shape == [2, 3, 32, 32]


def test_random_values_are_not_held_against_the_shapes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    proto = model_from_text(
        "g (float[N,3] x, int64[1] n) => (float[A] y) { t = Sub(n, k) y = Reshape(x, t) }",
        k=np.array([2]),
    )
    with caplog.at_level(logging.WARNING, "qdqtune"):
        _, report = fixed(proto, tmp_path, InputRequest({"x": (2, 3)}))
    assert report.proof is Proof.RUN  # n is 1, and -1 is fine
    proto.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.array([5]), "k"))
    (tmp_path / "out.onnx").unlink()
    with caplog.at_level(logging.WARNING, "qdqtune"):
        _, report = fixed(proto, tmp_path, InputRequest({"x": (2, 3)}))
    assert report.proof is Proof.INFERENCE
    assert "untried" in caplog.text
