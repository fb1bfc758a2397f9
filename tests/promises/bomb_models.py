"""Small models that stand for terabytes, endless work or deep nesting.

Each function makes one model; `MODELS` has them by name. Those that end in ``_of_constants`` can be
computed ahead of time, the others only when the model runs.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.conftest import model_from_text

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
TERA = 1 << 40
VALUE = helper.make_tensor_value_info

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {}


def _bomb(make: Callable[[], onnx.ModelProto]) -> Callable[[], onnx.ModelProto]:
    MODELS[make.__name__] = make
    return make


def _ints(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.int64)


def _floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def _text(body: str, inputs: str = "float[4,16] x", opset: int = 17, **weights: np.ndarray):  # type: ignore[no-untyped-def]
    """A model with one output, whose shape nobody states, and a MatMul that could be quantized."""
    text = f"g ({inputs}) => (float[M,N] y) {{ m = MatMul(x, w) {body} }}"
    model = model_from_text(text, opset, w=_floats(16, 16), **weights)
    model.graph.output[0].type.tensor_type.ClearField("shape")
    return model


def _model(
    nodes: list[onnx.NodeProto],
    inputs: list[onnx.ValueInfoProto] | None = None,
    weights: list[TensorProto] | None = None,
    functions: list[onnx.FunctionProto] | None = None,
) -> onnx.ModelProto:
    output = onnx.ValueInfoProto(name="y")
    output.type.tensor_type.elem_type = FLOAT
    graph = helper.make_graph(
        nodes, "g", [VALUE("x", FLOAT, [4, 16])] if inputs is None else inputs, [output], weights
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=opsets, ir_version=8, functions=functions or []
    )
    return model


_node = helper.make_node


# What grows by an op that repeats its input.


@_bomb
def concat_60_times_of_constants() -> onnx.ModelProto:
    steps = " ".join(f"c{n + 1} = Concat<axis=0>(c{n}, c{n})" for n in range(60))
    return _text(f"{steps} s = ReduceSum(c60) y = Add(m, s)", c0=_floats(16))


@_bomb
def concat_60_times() -> onnx.ModelProto:
    steps = " ".join(f"c{n + 1} = Concat<axis=0>(c{n}, c{n})" for n in range(60))
    return _text(f"c0 = Relu(m) {steps} y = ReduceSum(c60)")


@_bomb
def add_60_times_of_constants() -> onnx.ModelProto:
    """Concat and Add in turn, so that every other op keeps the size."""
    steps = " ".join(
        f"a{n} = Add(c{n}, c{n}) c{n + 1} = Concat<axis=0>(a{n}, c{n})" for n in range(60)
    )
    return _text(f"{steps} s = ReduceMax(c60) y = Add(m, s)", c0=_floats(16))


@_bomb
def expand_of_constants() -> onnx.ModelProto:
    return _text("e = Expand(c, d) s = ReduceSum(e) y = Add(m, s)", c=_floats(1), d=_ints(TERA))


@_bomb
def expand() -> onnx.ModelProto:
    return _text("e = Expand(m, d) y = Relu(e)", d=_ints(1 << 20, 1 << 10, 4, 16))


@_bomb
def expand_to_a_computed_shape() -> onnx.ModelProto:
    body = "s = Shape(m) d = Mul(s, k) i = Concat<axis=0>(d, s) e = Expand(m, i) y = Relu(e)"
    return _text(body, k=_ints(1 << 18))


@_bomb
def expand_to_a_shape_that_overflows() -> onnx.ModelProto:
    return _text("e = Expand(m, d) y = Relu(e)", d=_ints(1 << 40, 1 << 40, 4, 16))


@_bomb
def tile_of_constants() -> onnx.ModelProto:
    return _text("t = Tile(c, k) s = ReduceSum(t) y = Add(m, s)", c=_floats(16), k=_ints(TERA))


@_bomb
def tile() -> onnx.ModelProto:
    return _text("t = Tile(m, k) y = Relu(t)", k=_ints(1 << 20, 1 << 16))


@_bomb
def range_of_constants() -> onnx.ModelProto:
    body = "r = Range(a, b, c) f = Cast<to=1>(r) s = ReduceSum(f) y = Add(m, s)"
    return _text(body, a=np.int64(0), b=np.int64(TERA), c=np.int64(1))


@_bomb
def range_of_a_computed_length() -> onnx.ModelProto:
    body = """a = Abs(m) t = ReduceSum<keepdims=0>(a) z = Mul(t, k) o = Mul(t, n)
        r = Range(o, z, i) y = Relu(r)"""
    weights = {"k": 1e11, "n": 0.0, "i": 1.0}
    return _text(body, **{name: np.array(value, np.float32) for name, value in weights.items()})


@_bomb
def constant_of_shape_of_constants() -> onnx.ModelProto:
    body = "c = ConstantOfShape(d) s = ReduceSum(c) y = Add(m, s)"
    return _text(body, d=_ints(1 << 20, 1 << 20))


@_bomb
def constant_of_a_computed_shape() -> onnx.ModelProto:
    return _text("s = Shape(m) d = Mul(s, k) c = ConstantOfShape(d) y = Relu(c)", k=_ints(1 << 20))


@_bomb
def pad_of_constants() -> onnx.ModelProto:
    return _text("p = Pad(c, d) s = ReduceSum(p) y = Add(m, s)", c=_floats(4), d=_ints(0, TERA))


@_bomb
def pad() -> onnx.ModelProto:
    return _text("p = Pad(m, d) y = Relu(p)", d=_ints(0, 1 << 20, 0, 1 << 22))


@_bomb
def one_hot() -> onnx.ModelProto:
    body = "i = Cast<to=7>(m) o = OneHot(i, d, v) y = Relu(o)"
    return _text(body, d=_ints(TERA), v=np.array([0, 1], np.float32))


@_bomb
def one_hot_of_constants() -> onnx.ModelProto:
    body = "o = OneHot(i, d, v) s = ReduceSum(o) y = Add(m, s)"
    return _text(body, i=_ints(1, 2), d=_ints(TERA), v=np.array([0, 1], np.float32))


@_bomb
def resize() -> onnx.ModelProto:
    body = 'z = Unsqueeze(m, a) r = Resize<mode="nearest">(z, , k) y = Relu(r)'
    return _text(body, a=_ints(0, 1), k=np.array([1, 1, 1e6, 1e6], np.float32))


@_bomb
def resize_20_times_of_constants() -> onnx.ModelProto:
    steps = " ".join(f'c{n + 1} = Resize<mode="nearest">(c{n}, , k)' for n in range(20))
    weights = {"c0": _floats(1, 1, 4, 4), "k": np.array([1, 1, 2, 2], np.float32)}
    return _text(f"{steps} s = ReduceSum(c20) y = Add(m, s)", **weights)


@_bomb
def gather_of_constants() -> onnx.ModelProto:
    steps = " ".join(f"c{n + 1} = Gather(c{n}, i)" for n in range(5))
    weights = {"c0": _floats(1), "i": np.zeros(1000, np.int64)}
    return _text(f"{steps} s = ReduceSum(c5) y = Add(m, s)", **weights)


@_bomb
def gather() -> onnx.ModelProto:
    steps = " ".join(f"c{n + 1} = Gather(c{n}, i)" for n in range(5))
    return _text(f"c0 = Relu(m) {steps} y = Relu(c5)", i=np.zeros(1000, np.int64))


@_bomb
def scatter_nd_into_terabytes() -> onnx.ModelProto:
    body = "c = ConstantOfShape(d) i = Cast<to=7>(m) u = ReduceMax<axes=[1], keepdims=0>(m) "
    body += "j = Slice(i, a, b, e) t = ScatterND(c, j, u) y = Relu(t)"
    return _text(body, d=_ints(TERA), a=_ints(0), b=_ints(1), e=_ints(1))


@_bomb
def broadcast_of_constants() -> onnx.ModelProto:
    body = "a = Add(c, d) s = ReduceSum(a) y = Add(m, s)"
    return _text(body, c=_floats(1 << 20, 1), d=_floats(1, 1 << 20))


@_bomb
def broadcast() -> onnx.ModelProto:
    body = "r = Reshape(z, c) t = Reshape(z, d) y = Add(r, t)"
    weights = {"c": _ints(-1, 1), "d": _ints(1, -1)}
    return _text(body, "float[4,16] x, float[1048576] z", **weights)


@_bomb
def outer_product() -> onnx.ModelProto:
    body = "r = Reshape(z, c) t = Reshape(z, d) y = MatMul(r, t)"
    return _text(body, "float[4,16] x, float[1000000] z", c=_ints(-1, 1), d=_ints(1, -1))


@_bomb
def einsum_of_four_dims() -> onnx.ModelProto:
    return _text('y = Einsum<equation="a,b,c,d->abcd">(z, z, z, z)', "float[4,16] x, float[4096] z")


@_bomb
def trilu_of_an_eye() -> onnx.ModelProto:
    body = "c = ConstantOfShape(d) e = EyeLike<dtype=1>(c) y = Trilu(e)"
    return _text(body, d=_ints(1 << 20, 1 << 20))


@_bomb
def random_normal() -> onnx.ModelProto:
    return _text(f"r = RandomNormal<shape=[{1 << 20}, {1 << 20}]>() s = ReduceSum(r) y = Add(m, s)")


@_bomb
def quantized_weight_of_terabytes() -> onnx.ModelProto:
    body = "e = Expand(q, d) f = DequantizeLinear(e, s) y = MatMul(m, f)"
    weights = {"q": np.ones((16, 1), np.int8), "d": _ints(16, TERA)}
    return _text(body, **weights, s=np.float32(0.1))


# Ops whose attributes say how much.


def _convs(op: str, **attributes: object) -> onnx.ModelProto:
    node = _node(op, ["x", "w"], ["y"], **attributes)
    weight = numpy_helper.from_array(_floats(8, 8, 3, 3), "w")
    return _model([node], [VALUE("x", FLOAT, [1, 8, 16, 16])], [weight])


@_bomb
def conv_with_huge_pads() -> onnx.ModelProto:
    return _convs("Conv", pads=[1 << 20] * 4)


@_bomb
def conv_with_huge_dilations() -> onnx.ModelProto:
    return _convs("Conv", dilations=[1 << 40] * 2, pads=[1 << 40] * 4)


@_bomb
def conv_transpose_with_huge_strides() -> onnx.ModelProto:
    return _convs("ConvTranspose", strides=[1 << 20] * 2)


@_bomb
def max_pool_with_a_huge_kernel() -> onnx.ModelProto:
    attributes = {"kernel_shape": [1 << 31] * 2, "pads": [(1 << 31) - 1] * 4}
    node = _node("MaxPool", ["x"], ["y"], **attributes)
    return _model([node], [VALUE("x", FLOAT, [1, 8, 16, 16])])


@_bomb
def lstm_of_a_huge_state() -> onnx.ModelProto:
    body = "u = Unsqueeze(m, a) y, h, c = LSTM<hidden_size=1099511627776>(u, p, p)"
    return _text(body, a=_ints(0), p=_floats(1, 64, 16))


@_bomb
def sequence_of_65_536_tensors() -> onnx.ModelProto:
    body = "q = SplitToSequence<axis=0>(z) y = ConcatFromSequence<axis=0>(q)"
    return _text(body, "float[4,16] x, float[65536] z")


# Loops and nesting.


def _loop(trips: int, *body: onnx.NodeProto, shape: list[int] | None = None) -> onnx.ModelProto:
    """A Loop that passes ``v`` to ``r`` and never ends by its condition."""
    inner = helper.make_graph(
        [_node("Identity", ["go"], ["on"]), *body],
        "body",
        [VALUE("i", INT64, []), VALUE("go", TensorProto.BOOL, []), VALUE("v", FLOAT, shape)],
        [VALUE("on", TensorProto.BOOL, []), VALUE("r", FLOAT, shape)],
    )
    weights = [
        numpy_helper.from_array(np.int64(trips), "trips"),
        numpy_helper.from_array(np.bool_(True), "yes"),
        numpy_helper.from_array(_floats(16, 16), "w"),
    ]
    nodes = [
        _node("MatMul", ["x", "w"], ["m"]),
        _node("Loop", ["trips", "yes", "m"], ["y"], body=inner),
    ]
    return _model(nodes, weights=weights)


@_bomb
def loop_without_end() -> onnx.ModelProto:
    return _loop(1 << 62, _node("Relu", ["v"], ["r"]), shape=[4, 16])


@_bomb
def loop_that_doubles() -> onnx.ModelProto:
    return _loop(60, _node("Concat", ["v", "v"], ["r"], axis=0))


@_bomb
def loop_of_constants() -> onnx.ModelProto:
    """A Loop that a reader could compute ahead of time, had it the time."""
    model = _loop(1 << 40, _node("Concat", ["v", "v"], ["r"], axis=0))
    model.graph.node[1].input[2] = "w"
    return model


@_bomb
def scan_of_a_terabyte() -> onnx.ModelProto:
    inner = helper.make_graph(
        [_node("Relu", ["v"], ["r"])], "body", [VALUE("v", FLOAT, [16])], [VALUE("r", FLOAT, [16])]
    )
    nodes = [
        _node("Expand", ["x", "d"], ["e"]),
        _node("Scan", ["e"], ["y"], body=inner, num_scan_inputs=1),
    ]
    weights = [numpy_helper.from_array(_ints(1 << 36, 16), "d")]
    return _model(nodes, [VALUE("x", FLOAT, [1, 16])], weights)


@_bomb
def ifs_nested_30_deep() -> onnx.ModelProto:
    nodes = [_node("Relu", ["x"], ["y0"])]
    for depth in range(30):
        branches = [
            helper.make_graph(nodes, "then", [], [VALUE(f"y{depth}", FLOAT, None)]),
            helper.make_graph(
                [_node("Neg", ["x"], [f"e{depth}"])], "else", [], [VALUE(f"e{depth}", FLOAT, None)]
            ),
        ]
        ends = ["flag"], [f"y{depth + 1}"]
        nodes = [_node("If", *ends, then_branch=branches[0], else_branch=branches[1])]
    nodes.append(_node("Identity", ["y30"], ["y"]))
    inputs = [VALUE("x", FLOAT, [4, 16]), VALUE("flag", TensorProto.BOOL, [])]
    return _model(nodes, inputs)


def _functions(count: int, last_calls: int | None = None) -> onnx.ModelProto:
    """Each function calls the next one twice; the last is a Relu, or calls another one."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]

    def calls(name: str) -> list[onnx.NodeProto]:
        ends = (["a"], ["b"]), (["b"], ["c"])
        return [_node(name, *each, domain="local") for each in ends]

    functions = []
    for number in range(count):
        body = calls(f"f{number + 1}")
        if number == count - 1:
            body = [_node("Relu", ["a"], ["c"])] if last_calls is None else calls(f"f{last_calls}")
        make = helper.make_function
        functions.append(make("local", f"f{number}", ["a"], ["c"], body, opsets))
    return _model([_node("f0", ["x"], ["y"], domain="local")], functions=functions)


@_bomb
def functions_that_double_22_times() -> onnx.ModelProto:
    return _functions(23)


@_bomb
def functions_that_double_60_times() -> onnx.ModelProto:
    return _functions(61)


@_bomb
def function_that_calls_itself() -> onnx.ModelProto:
    return _functions(1, last_calls=0)


@_bomb
def functions_that_call_each_other() -> onnx.ModelProto:
    return _functions(30, last_calls=3)


@_bomb
def chain_of_100_000_nodes() -> onnx.ModelProto:
    nodes = [_node("Identity", [f"t{n}"], [f"t{n + 1}"]) for n in range(100_000)]
    nodes[0].input[0], nodes[-1].output[0] = "x", "y"
    return _model(nodes)


# Many of one kind, or one that is large.


@_bomb
def initializers_100_000() -> onnx.ModelProto:
    weights = [numpy_helper.from_array(np.float32(n), f"c{n}") for n in range(100_000)]
    nodes = [_node("Sum", ["x", *(weight.name for weight in weights)], ["y"])]
    return _model(nodes, weights=weights)


@_bomb
def concat_of_one_tensor_100_000_times() -> onnx.ModelProto:
    return _model([_node("Concat", ["x"] * 100_000, ["y"], axis=0)])


@_bomb
def attribute_of_ten_million_ints() -> onnx.ModelProto:
    node = _node("Concat", ["x", "x"], ["y"], axis=0)
    node.attribute.add(name="spare", type=onnx.AttributeProto.INTS).ints.extend([1] * 10_000_000)
    return _model([node])


@_bomb
def names_of_ten_megabytes() -> onnx.ModelProto:
    name = "n" * 10_000_000
    nodes = [
        _node("Relu", ["x"], [name], name=name),
        _node("MatMul", [name, "w"], ["y"], name=name + "2"),
    ]
    return _model(nodes, weights=[numpy_helper.from_array(_floats(16, 16), "w")])


@_bomb
def strings_of_ten_megabytes() -> onnx.ModelProto:
    strings = np.array(["s" * 1_000_000] * 10, object)
    nodes = [_node("Relu", ["x"], ["y"]), _node("Identity", ["strings"], ["z"])]
    model = _model(nodes, weights=[numpy_helper.from_array(strings, "strings")])
    model.graph.output.append(VALUE("z", TensorProto.STRING, [10]))
    return model


# Shapes that can't be.


def _declared(dims: list[int], raw: bytes = bytes(64)) -> onnx.ModelProto:
    weight = TensorProto(name="w", data_type=FLOAT, raw_data=raw, dims=dims)
    return _model([_node("Add", ["x", "w"], ["y"])], weights=[weight])


@_bomb
def initializer_whose_size_overflows() -> onnx.ModelProto:
    return _declared([1 << 62, 4])


@_bomb
def initializer_with_negative_dims() -> onnx.ModelProto:
    return _declared([-4, -4])


@_bomb
def initializer_of_100_dims() -> onnx.ModelProto:
    return _declared([1] * 99 + [16])


@_bomb
def input_of_terabytes() -> onnx.ModelProto:
    model = _text("y = Relu(m)")
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = TERA
    return model


@_bomb
def input_of_100_dims() -> onnx.ModelProto:
    weights = [numpy_helper.from_array(_floats(1), "w")]
    return _model([_node("Add", ["x", "w"], ["y"])], [VALUE("x", FLOAT, [1] * 100)], weights)


@_bomb
def reshape_to_100_dims() -> onnx.ModelProto:
    return _text("r = Reshape(m, d) y = Relu(r)", d=np.array([1] * 98 + [4, 16], np.int64))


@_bomb
def value_info_of_terabytes() -> onnx.ModelProto:
    model = _text("y = Relu(m)")
    model.graph.value_info.append(VALUE("m", FLOAT, [TERA, TERA]))
    return model


@_bomb
def sparse_initializer_of_terabytes() -> onnx.ModelProto:
    sparse = helper.make_sparse_tensor(
        numpy_helper.from_array(_floats(2), "w"), numpy_helper.from_array(_ints(0, 7), "i"), [TERA]
    )
    model = _model([_node("ReduceSum", ["w"], ["s"]), _node("Add", ["x", "s"], ["y"])])
    model.graph.sparse_initializer.append(sparse)
    return model
