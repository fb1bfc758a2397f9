"""Small sound models of every kind that a file can be; the fuzzer breaks copies of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from qdqtune import zoo

#: Where seeds with external data keep their weights.
WEIGHTS = "weights.bin"

_RNG = np.random.default_rng(0)
_KERNEL = _RNG.normal(size=(4, 3, 3, 3)).astype(np.float32)
_POINT = _RNG.normal(size=(4, 4, 1, 1)).astype(np.float32)
_VECTOR = _RNG.uniform(0.5, 1.5, 4).astype(np.float32)
_SQUARE = _RNG.normal(size=(4, 4)).astype(np.float32)

_CONVS = """
g (float[1,3,8,8] x) => (float[1,4,8,8] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1)
    b = BatchNormalization(a, s, s, s, s)
    c = Relu(b)
    d = Conv(c, w2, s)
    y = Add(c, d)
}"""
_TOKENS = """
g (int64[1,4] ids) => (float[1,4,4] y) {
    e = Gather(w, ids)
    q = MatMul(e, w)
    k = Transpose<perm=[0,2,1]>(q)
    p = MatMul(q, k)
    s = Softmax<axis=-1>(p)
    y = MatMul(s, e)
}"""
_CONSTANTS = """
g (float[N,4] x) => (float[N,4] y, float[4,4] w) {
    w = Constant<value = float[4,4] {1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16}>()
    i = Identity(w)
    t = Transpose<perm=[1,0]>(i)
    h = MatMul(x, t)
    f = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>()
    y = Add(h, f)
}"""
_BRANCHES = """
g (float[1,4] x, bool c) => (float[1,4] y) {
    h = MatMul(x, w)
    y = If (c) <
        then_branch = t () => (float[1,4] a) { a = MatMul(h, w) },
        else_branch = e () => (float[1,4] b) { k = Relu(h) b = Add(k, s) }
    >
}"""
_LOOP = """
g (float[1,4] x, int64 n, bool c) => (float[1,4] y) {
    y = Loop (n, c, x) <
        body = b (int64 i, bool go, float[1,4] v) => (bool on, float[1,4] u) {
            on = Identity(go)
            u = MatMul(v, w)
        }
    >
}"""
_SCAN = """
g (float[1,4] x, float[3,1,4] xs) => (float[1,4] y, float[3,1,4] ys) {
    y, ys = Scan <num_scan_inputs = 1,
        body = b (float[1,4] v, float[1,4] e) => (float[1,4] u, float[1,4] o) {
            u = Add(v, e)
            o = MatMul(u, w)
        }
    > (x, xs)
}"""
_FUNCTIONS = """
<ir_version: 8, opset_import: ["": 17, "local": 1]>
g (float[1,4] x) => (float[1,4] y) {
    h = MatMul(x, w)
    y = local.outer(h)
}
<domain: "local", opset_import: ["": 17, "local": 1]>
outer (a) => (b) { m = local.inner(a) b = Neg(m) }
<domain: "local", opset_import: ["": 17]>
inner (a) => (b) { b = Relu(a) }"""
_FOREIGN = """
<ir_version: 8, opset_import: ["": 17, "com.example": 2]>
g (float[1,4] x) => (float[1,4] y, float[1,4] z) {
    h = MatMul(x, w)
    y = com.example.Strange<level = 3>(h)
    z = Relu(h)
}"""
_QDQ = """
g (float[1,4] x) => (float[1,4] y) {
    xq = QuantizeLinear(x, scale, zero)
    xd = DequantizeLinear(xq, scale, zero)
    wd = DequantizeLinear<axis=1>(w8, scales, zeros)
    h = MatMul(xd, wd)
    hq = QuantizeLinear(h, scale, zero)
    y = DequantizeLinear(hq, scale, zero)
}"""
_STRINGS = """
g (float[1,4] x, string[2] words) => (float[1,4] y, string[2] lower) {
    y = MatMul(x, w)
    lower = StringNormalizer<case_change_action = "LOWER">(words)
}"""
_SEQUENCES = """
g (float[1,4] x) => (float[1,4] y) {
    h = MatMul(x, w)
    s = SequenceConstruct(h, x)
    i = Constant<value = int64 {0}>()
    a = SequenceAt(s, i)
    o = Optional(a)
    y = OptionalGetElement(o)
}"""
_OLD = """
g (float[1,3,8,8] x) => (float[1,4] y) {
    a = Conv<kernel_shape=[3,3]>(x, w1)
    b = BatchNormalization<epsilon=0.001, momentum=0.9>(a, s, s, s, s)
    d, mask = Dropout<ratio=0.5>(b)
    u = Upsample<mode="nearest", scales=[1.0, 1.0, 2.0, 2.0]>(d)
    c = Slice<starts=[0], ends=[4], axes=[3]>(u)
    p = GlobalAveragePool(c)
    f = Flatten(p)
    y = Softmax(f)
}"""
_HALF = "g (float16[1,4] x) => (float16[1,4] y) { h = MatMul(x, w) y = Relu(h) }"
_BRAIN = "g (bfloat16[1,4] x) => (bfloat16[1,4] y) { h = MatMul(x, w) y = Relu(h) }"


def text_model(text: str, opset: int = 17, **weights: npt.NDArray[Any]) -> onnx.ModelProto:
    """A model from ONNX text, every node named."""
    header = (
        "" if text.lstrip().startswith("<") else f'<ir_version: 8, opset_import: ["": {opset}]>'
    )
    model = parser.parse_model(header + text)
    for position, node in enumerate(model.graph.node):
        node.name = f"n{position}"
    for name, array in weights.items():
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    return model


def nested(depth: int, prefix: str = "") -> onnx.ModelProto:
    """Ifs inside Ifs, as deep as asked for; protobuf itself takes 31."""
    value = helper.make_tensor_value_info
    condition, fed = f"{prefix}c", f"{prefix}x"

    def end(name: str) -> onnx.GraphProto:
        node = helper.make_node("Relu", [fed], [name], name=f"n_{name}")
        return helper.make_graph([node], name, [], [value(name, TensorProto.FLOAT, [1])])

    body = end(f"{prefix}deepest")
    for level in range(depth, 0, -1):
        branches = {"then_branch": body, "else_branch": end(f"{prefix}else{level}")}
        name = f"{prefix}y{level}"
        node = helper.make_node("If", [condition], [name], name=f"if_{name}", **branches)
        body = helper.make_graph([node], name, [], [value(name, TensorProto.FLOAT, [1])])
    body.input.extend([value(fed, TensorProto.FLOAT, [1]), value(condition, TensorProto.BOOL, [])])
    return helper.make_model(body, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def function_chain(length: int, *, cyclic: bool = False) -> onnx.ModelProto:
    """Functions that each call the next; the last one calls the first if cyclic."""
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("local", 1)]
    functions = []
    for position in range(length):
        callee, domain = f"f{position + 1}", "local"
        if position == length - 1:
            callee, domain = ("f0", "local") if cyclic else ("Relu", "")
        node = helper.make_node(callee, ["a"], ["b"], domain=domain)
        functions.append(
            helper.make_function("local", f"f{position}", ["a"], ["b"], [node], opsets)
        )
    value = helper.make_tensor_value_info
    call = helper.make_node("f0", ["x"], ["y"], name="call", domain="local")
    x, y = (value(name, TensorProto.FLOAT, [1]) for name in ("x", "y"))
    graph = helper.make_graph([call], "g", [x], [y])
    return helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=functions)


def _qdq() -> onnx.ModelProto:
    return text_model(
        _QDQ,
        scale=np.array(0.1, np.float32),
        zero=np.array(3, np.uint8),
        w8=_RNG.integers(-127, 127, (4, 4)).astype(np.int8),
        scales=_VECTOR,
        zeros=np.zeros(4, np.int8),
    )


#: Sound models by name; each call makes a new one.
SEEDS: dict[str, Callable[[], onnx.ModelProto]] = {
    "convs": lambda: text_model(_CONVS, w1=_KERNEL, w2=_POINT, s=_VECTOR),
    "external": lambda: text_model(_CONVS, w1=_KERNEL, w2=_POINT, s=_VECTOR),
    "tokens": lambda: text_model(_TOKENS, w=_SQUARE),
    "constants": lambda: text_model(_CONSTANTS),
    "branches": lambda: text_model(_BRANCHES, w=_SQUARE, s=_VECTOR),
    "loop": lambda: text_model(_LOOP, w=_SQUARE),
    "scan": lambda: text_model(_SCAN, w=_SQUARE),
    "functions": lambda: text_model(_FUNCTIONS, w=_SQUARE),
    "foreign": lambda: text_model(_FOREIGN, w=_SQUARE),
    "qdq": _qdq,
    "strings": lambda: text_model(_STRINGS, w=_SQUARE),
    "sequences": lambda: text_model(_SEQUENCES, w=_SQUARE),
    "old": lambda: text_model(_OLD, 7, w1=_KERNEL, s=_VECTOR),
    "half": lambda: text_model(_HALF, w=_SQUARE.astype(np.float16)),
    "brain": lambda: text_model(_BRAIN, w=_SQUARE.astype(ml_dtypes.bfloat16)),
    "nested": lambda: nested(8),
    "function_chain": lambda: function_chain(20),
    "chain": lambda: zoo.build("chain", nodes=30),
    "bert": lambda: zoo.build("bert", layers=1, width=64, sequence=8, vocabulary=50),
}


def write_seed(name: str, folder: Path) -> onnx.ModelProto:
    """Make a seed; one with external data writes its weights into the folder."""
    model = SEEDS[name]()
    if name == "external":
        onnx.save(
            model, folder / "seed.onnx", save_as_external_data=True, location=WEIGHTS,
            size_threshold=0,
        )  # fmt: skip
        (folder / "seed.onnx").unlink()
    return model
