"""Which kernels the simulated engine makes of a graph, written as ONNX text."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text

from qdqtune.testing.simulated import kernels_of

C, S = 16, 12


def shown(model: onnx.ModelProto, profile: str) -> list[str]:
    """The kernels as ``nodes: op precision``."""
    return [f"{k.name}: {k.op_type} {k.precision}" for k in kernels_of(model, profile)]


def conv_model(body: str, dtype: type = np.uint8, opset: int = 17) -> onnx.ModelProto:
    """A model from x to y, with float and quantized 3x3 weights, scales, and BatchNorm's rest."""
    return model_from_text(
        f"g (float[1,{C},{S},{S}] x) => (float[1,{C},{S},{S}] y) {{ {body} }}",
        opset=opset,
        w=np.ones((C, C, 3, 3), np.float32),
        wq=np.ones((C, C, 3, 3), np.uint8).astype(np.int8 if dtype is np.uint8 else dtype),
        zw=np.zeros((), np.int8 if dtype is np.uint8 else dtype),
        s=np.float32(0.1).reshape(()),
        z=np.zeros((), dtype),
        one=np.ones(C, np.float32),
        half=np.float32(0.5).reshape(()),
    )


CONV = "Conv<pads=[1,1,1,1]>"
BATCHNORM = f"a = {CONV}(x, w) b = BatchNormalization(a, one, one, one, one) y = Relu(b)"
RESIDUAL = f"a = {CONV}(x, w) b = Add(a, x) y = Relu(b)"
WHOLE_UNIT = f"""
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    wd = DequantizeLinear(wq, s, zw)
    a = {CONV}(xd, wd) b = Relu(a)
    bq = QuantizeLinear(b, s, z) y = DequantizeLinear(bq, s, z)
"""
HALF_UNIT = f"""
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    wd = DequantizeLinear(wq, s, zw)
    y = {CONV}(xd, wd)
"""
SHARED = f"""
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    wd = DequantizeLinear(wq, s, zw)
    a = {CONV}(xd, wd) b = {CONV}(xd, wd)
    y = Mul(a, b)
"""
POOL_BETWEEN = f"""
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    wd = DequantizeLinear(wq, s, zw)
    a = {CONV}(xd, wd)
    m = MaxPool<kernel_shape=[3,3], pads=[1,1,1,1]>(a)
    mq = QuantizeLinear(m, s, z) md = DequantizeLinear(mq, s, z)
    y = {CONV}(md, w)
"""
LONE_PAIR = """
    a = Sigmoid(x) aq = QuantizeLinear(a, s, z) ad = DequantizeLinear(aq, s, z) y = Sigmoid(ad)
"""
QUANTIZED_RESIDUAL = f"""
    xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
    wd = DequantizeLinear(wq, s, zw)
    a = {CONV}(xd, wd) b = Add(a, xd) c = Relu(b)
    cq = QuantizeLinear(c, s, z) cd = DequantizeLinear(cq, s, z)
    y = {CONV}(cd, wd)
"""
QUANTIZED_LATE = f"""
    wd = DequantizeLinear(wq, s, zw)
    a = Sigmoid(x) b = Mul(a, x)
    bq = QuantizeLinear(b, s, z) bd = DequantizeLinear(bq, s, z)
    y = {CONV}(bd, wd)
"""
SILU = f"a = {CONV}(x, w) b = Sigmoid(a) y = Mul(a, b)"
VIEWS = f"""
    shape = Shape(x) flat = Flatten(x) back = Reshape(flat, shape) a = {CONV}(back, w)
    y = Identity(a)
"""
TWO_READERS = f"a = {CONV}(x, w) b = Relu(a) c = Sigmoid(a) y = Add(b, c)"


@pytest.mark.parametrize(
    ("profile", "body", "expected"),
    [
        ("cpu", BATCHNORM, ["n0 + n1 + n2: Conv float"]),
        ("gpu", BATCHNORM, ["n0 + n1 + n2: Conv float"]),
        ("cpu", RESIDUAL, ["n0 + n1 + n2: Conv float"]),
        ("cpu", SILU, ["n0: Conv float", "n1 + n2: Mul float"]),
        ("gpu", SILU, ["n0 + n1 + n2: Conv float"]),
        ("cpu", VIEWS, ["n3: Conv float"]),
        (
            "cpu",
            TWO_READERS,
            ["n0: Conv float", "n1 + n2 + n3: Add float"],
        ),
        ("gpu", TWO_READERS, ["n0 + n1 + n2 + n3: Conv float"]),
        (
            "cpu",
            LONE_PAIR,
            [
                "n0: Sigmoid float",
                "n1: QuantizeLinear uint8",
                "n2: DequantizeLinear uint8",
                "n3: Sigmoid float",
            ],
        ),
        (
            "cpu",
            WHOLE_UNIT,
            [
                "n0: QuantizeLinear uint8",
                "n0: Reformat uint8",
                "n3 + n4: Conv uint8",
                "n6: Reformat uint8",
                "n6: DequantizeLinear uint8",
            ],
        ),
        (
            "cpu",
            HALF_UNIT,
            ["n0: QuantizeLinear uint8", "n1: DequantizeLinear uint8", "n3: Conv float"],
        ),
        (
            "float-only",
            WHOLE_UNIT,
            [
                "n0: QuantizeLinear uint8",
                "n1: DequantizeLinear uint8",
                "n3 + n4: Conv float",
                "n5: QuantizeLinear uint8",
                "n6: DequantizeLinear uint8",
            ],
        ),
    ],
)
def test_kernels(profile, body, expected):
    assert shown(conv_model(body), profile) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            HALF_UNIT,
            ["n0: QuantizeLinear int8", "n0: Reformat int8", "n3: Conv int8"],
        ),
        (
            SHARED,
            [
                "n0: QuantizeLinear int8",
                "n0: Reformat int8",
                "n3 + n5: Conv int8",
                "n4: Conv int8",
            ],
        ),
        (
            POOL_BETWEEN,
            [
                "n0: QuantizeLinear int8",
                "n0: Reformat int8",
                "n3: Conv int8",
                "n4: MaxPool int8",
                "n6: Reformat int8",
                "n6: DequantizeLinear int8",
                "n7: Conv float",
            ],
        ),
        (
            QUANTIZED_RESIDUAL,
            [
                "n0: QuantizeLinear int8",
                "n0: Reformat int8",
                "n3 + n4 + n5: Conv int8",
                "n8: Conv int8",
            ],
        ),
        (QUANTIZED_LATE, ["n1 + n2: Mul float", "n5: Conv int8"]),
    ],
)
def test_kernels_that_need_no_quantized_result(body, expected):
    assert sorted(shown(conv_model(body, np.int8), "gpu")) == sorted(expected)


def test_float_weights_behind_q_and_dq_are_quantized_beforehand():
    body = HALF_UNIT.replace("wd = Deq", "wf = QuantizeLinear(w, s, zw) wd = Deq")
    body = body.replace("DequantizeLinear(wq", "DequantizeLinear(wf")
    kernels = kernels_of(conv_model(body, np.int8), "gpu")
    stored = kernels_of(conv_model(HALF_UNIT, np.int8), "gpu")
    assert [(k.op_type, k.precision, k.ms) for k in kernels] == [
        (k.op_type, k.precision, k.ms) for k in stored
    ]


def test_a_float8_unit_is_one_where_the_machine_has_float8():
    model = conv_model(HALF_UNIT, ml_dtypes.float8_e4m3fn, opset=19)
    assert shown(model, "gpu")[-1] == "n3: Conv float8e4m3fn"
    assert shown(model, "cpu")[-1] == "n3: Conv float"


@pytest.mark.parametrize("reader", ["Transpose<perm=[0,2,3,1]>", "Flatten", "MaxPool"])
def test_q_and_dq_move_through_copies(reader):
    pool = reader.replace("MaxPool", "MaxPool<kernel_shape=[1,1]>")
    body = f"""
        xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
        m = {pool}(xd)
        mq = QuantizeLinear(m, s, z) md = DequantizeLinear(mq, s, z) y = Sigmoid(md)
    """
    kernels = [k for k in kernels_of(conv_model(body), "cpu") if "Sigmoid" not in k.op_type]
    assert {kernel.precision for kernel in kernels} == {"uint8"}
    assert "QuantizeLinear" not in [kernel.op_type for kernel in kernels[1:]]


def test_results_with_two_scales_are_quantized_twice():
    body = WHOLE_UNIT + "bq2 = QuantizeLinear(b, half, z) y2 = DequantizeLinear(bq2, half, z)"
    kernels = [kernel.op_type for kernel in kernels_of(conv_model(body), "cpu")]
    assert kernels.count("QuantizeLinear") == 3
    same = body.replace("half", "s")
    kernels = [kernel.op_type for kernel in kernels_of(conv_model(same), "cpu")]
    assert kernels.count("QuantizeLinear") == 1


TOKENS = """
g (float[1,64,96] x) => (float[1,64,96] y) {
    m = MatMul(x, w) a = Add(m, b)
    d = Div(a, c) e = Erf(d) p = Add(e, c) h = Mul(a, p) g = Mul(h, c)
    mean = ReduceMean<axes=[-1]>(g) t = Sub(g, mean) q = Pow(t, c)
    v = ReduceMean<axes=[-1]>(q) k = Add(v, c) r = Sqrt(k) n = Div(t, r)
    o = Mul(n, b) y = Add(o, b)
}
"""
NORMALIZATION = " + ".join(f"n{i}" for i in range(7, 16))


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("cpu", ["n0 + n1: MatMul float", "n2 + n3 + n4 + n5 + n6: Mul float"]),
        ("gpu", ["n0 + n1 + n2 + n3 + n4 + n5 + n6: MatMul float"]),
    ],
)
def test_gelu_and_layer_norm_spelled_out(profile, expected):
    model = model_from_text(
        TOKENS,
        w=np.ones((96, 96), np.float32),
        b=np.ones(96, np.float32),
        c=np.float32(2).reshape(()),
    )
    assert shown(model, profile) == [*expected, f"{NORMALIZATION}: Add float"]


def test_half_floats_are_faster_on_a_gpu():
    ms = {}
    for kind, dtype in (("float", np.float32), ("float16", np.float16)):
        text = f"g ({kind}[1,64,64,64] x) => ({kind}[1,64,64,64] y) {{ y = {CONV}(x, w) }}"
        model = model_from_text(text, w=np.ones((64, 64, 3, 3), dtype))
        (kernel,) = kernels_of(model, "gpu")
        ms[kernel.precision] = kernel.ms
    assert ms["float16"] < ms["float"]


def gain_of_the_kernel(channels: int, groups: int) -> float:
    """A float Conv over its integer kernel, without the conversions around it."""
    ms = {}
    for body in (WHOLE_UNIT, f"y = {CONV}(x, w)"):
        body = body.replace(CONV, f"Conv<pads=[1,1,1,1], group={groups}>")
        model = model_from_text(
            f"g (float[1,{channels},56,56] x) => (float[1,{channels},56,56] y) {{ {body} }}",
            w=np.ones((channels, channels // groups, 3, 3), np.float32),
            wq=np.ones((channels, channels // groups, 3, 3), np.int8),
            s=np.float32(0.1).reshape(()),
            z=np.uint8(0).reshape(()),
            zw=np.int8(0).reshape(()),
        )
        (kernel,) = [k for k in kernels_of(model, "cpu-vnni") if k.op_type == "Conv"]
        ms[kernel.precision] = kernel.ms
    return ms["float"] / ms["uint8"]


def test_depthwise_and_narrow_convs_gain_little():
    assert gain_of_the_kernel(64, 1) > 1.8
    assert gain_of_the_kernel(3, 1) < 1.2
    assert gain_of_the_kernel(64, 64) < 1.0


def test_bodies_of_control_flow_keep_what_they_read():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17]>
        g (float[1,8] x, bool c) => (float[1,8] y) {
            a = Sigmoid(x)
            b = Sigmoid(a)
            y = If(c) <
                then_branch = t () => (float[1,8] yt) { yt = Add(b, b) },
                else_branch = e () => (float[1,8] ye) { ye = Identity(a) }
            >
        }""")
    assert len(kernels_of(model, "gpu")) == 3


def test_sizes_may_be_computed_from_shapes():
    body = f"""
        size = Shape(x) half = Slice(size, two, four) twice = Add(half, half)
        rest = Slice(size, zero, two) sizes = Concat<axis=0>(rest, twice)
        big = Resize<mode="nearest">(x, , , sizes)
        again = Shape(big) back = Div(again, two) scalars = Slice(back, two, four)
        y = {CONV}(big, w)
    """
    numbers = {name: np.array([n]) for name, n in (("zero", 0), ("two", 2), ("four", 4))}
    weights = np.ones((C, C, 3, 3), np.float32)
    text = f"g (float[1,{C},{S},{S}] x) => (float[n,c,h,v] y) {{ {body} }}"
    kernels = kernels_of(model_from_text(text, w=weights, **numbers), "cpu")
    assert [kernel.op_type for kernel in kernels] == ["Resize", "Conv"]
    plain = conv_model(f"y = {CONV}(x, w)")
    assert kernels[1].compute_us == pytest.approx(4 * kernels_of(plain, "cpu")[0].compute_us)


def test_sizes_may_be_computed_from_those_of_what_has_computed_sizes():
    """As of the windows of a Swin, which PyTorch's older exporter pads with a computed Pad."""
    body = f"""
        none = ConstantOfShape<value=int64[1]{{0}}>(eight) padded = Pad(x, none)
        size = Shape(padded) same = Div(size, one) again = Reshape(padded, same)
        y = {CONV}(again, w)
    """
    numbers = {"eight": np.array([8]), "one": np.array([1])}
    weights = np.ones((C, C, 3, 3), np.float32)
    text = f"g (float[1,{C},{S},{S}] x) => (float[n,c,h,v] y) {{ {body} }}"
    kernels = kernels_of(model_from_text(text, w=weights, **numbers), "cpu")
    plain = conv_model(f"y = {CONV}(x, w)")
    assert kernels[-1].compute_us == pytest.approx(kernels_of(plain, "cpu")[0].compute_us)


def test_constants_are_computed_beforehand():
    body = f"like = CastLike(one, x) more = Sqrt(like) a = {CONV}(x, w, more) y = Relu(a)"
    assert shown(conv_model(body), "cpu") == ["n2 + n3: Conv float"]


def test_model_functions_are_inlined():
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "local": 1]>
        g (float[1,8] x) => (float[1,8] y) { y = local.twice(x) }
        <domain: "local", opset_import: ["": 17]> twice (a) => (c) { b = Sigmoid(a) c = Tanh(b) }
        """)
    assert [kernel.op_type for kernel in kernels_of(model, "cpu")] == ["Tanh"]


def test_a_broken_graph_is_refused():
    model = conv_model("a = Relu(x) y = Relu(a)")
    model.graph.node[1].input[0] = "nobody"
    with pytest.raises(ValueError, match="reads 'nobody', which nobody made"):
        kernels_of(model)
