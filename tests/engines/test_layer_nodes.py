"""Layers to nodes, on graphs that a reader can check by eye.

A node is called after its first output, in capitals.
"""

from __future__ import annotations

import itertools

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper, parser

from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.graph._index import GraphIndex, name_nodes
from qdqtune.records._layers import BETWEEN, CLOSED, NAMED, PART, UNKNOWN, MappedLayer
from qdqtune.records._measurement import LayerTime
from qdqtune.records._placement import Edge


def graph(body: str, *constants: str, names: bool = True) -> GraphIndex:
    text = f"g (float[1,4,8,8] x, float[1,4,8,8] x2) => (float[1,4,8,8] y) {{ {body} }}"
    proto = parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')
    for node in proto.graph.node:
        node.name = node.output[0].upper() if names else ""
    for name in constants:
        proto.graph.initializer.append(numpy_helper.from_array(np.zeros(4, np.float32), name))
    model = ir.from_proto(proto)
    name_nodes(model)
    return GraphIndex(model)


def layer(
    kind: str, origins: str = "", wires: str = "", precision: str = "float32", name: str = "?"
) -> LayerTime:
    """A layer; `wires` are like ``a b -> c``."""
    reads, _, writes = wires.partition("->")
    return LayerTime(
        name,
        kind,
        1.0,
        precision=precision,
        origins=tuple(origins.split()),
        inputs=tuple(reads.split()),
        outputs=tuple(writes.split()),
    )


def mapped(index: GraphIndex, *layers: LayerTime) -> list[MappedLayer]:
    found = nodes_of_layers(index, layers)
    executed = [node for each in found if each.executes for node in each.nodes]
    assert len(executed) == len(set(executed))
    return found


def told(index: GraphIndex, *layers: LayerTime) -> list[tuple[str, str]]:
    """For each layer its nodes, and how they were found."""
    return [(" ".join(each.nodes), each.how) for each in mapped(index, *layers)]


def test_what_every_node_reads_is_not_followed_from_every_layer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    count = 3000
    names = ["x", *(f"t{number}" for number in range(1, count)), "y"]
    pairs = list(itertools.pairwise(names))
    index = graph(" ".join(f"{out} = Mul({given}, s)" for given, out in pairs), "s")
    layers = [layer("Mul", out.upper(), f"{given} s -> {out}") for given, out in pairs]
    followed = 0
    readers = GraphIndex.readers

    def counted(index: GraphIndex, tensor: str) -> tuple[Edge, ...]:
        nonlocal followed
        found = readers(index, tensor)
        followed += len(found)
        assert followed <= 10 * count
        return found

    monkeypatch.setattr(GraphIndex, "readers", counted)
    assert told(index, *layers) == [(out.upper(), NAMED) for _, out in pairs]


CONV_BN = """
c1 = Conv(x, w) b1 = BatchNormalization(c1, s, s, s, s) r1 = Relu(b1)
c2 = Conv(r1, w) b2 = BatchNormalization(c2, s, s, s, s) a = Add(b2, x) y = Relu(a)"""


@pytest.mark.parametrize(
    "origin",
    ["C", "c", "c_nchwc", "C_token_12", "C/MatMulAddFusion", "C/QuickGeluFusion/", "C_quant",
     "C_new_reshape", "C/WithoutBiases", "c_nchwc_token_3", "c_bn_nchwc"],
)  # fmt: skip
def test_a_name_is_understood_with_what_engines_add_to_it(origin: str) -> None:
    index = graph("c = Conv(x, w) y = Relu(c)", "w")
    assert told(index, layer("Conv", origin), layer("Relu", "Y")) == [("C", NAMED), ("Y", NAMED)]


def test_an_own_name_counts_if_nothing_else_is_told() -> None:
    index = graph("c = Conv(x, w) y = Relu(c)", "w")
    assert told(index, layer("Conv", name="C + Y")) == [("C Y", NAMED)]
    # ONNX Runtime calls a node without a name after its op and its number.
    unnamed = [
        layer("Relu", wires="t -> y", name="C"),
        layer("Conv", wires="x -> t", name="Y"),
    ]
    assert told(index, *unnamed[::-1]) == [("C", CLOSED), ("Y", CLOSED)]


def test_blocked_layers_are_named_after_the_tensor_that_they_had_first() -> None:
    layers = [
        layer("Conv", "r1_nchwc", "x -> t0"),
        layer("Conv", "b2_nchwc", "t0 x -> t1"),
        layer("ReorderOutput", "ReorderOutput", "t1 -> y"),
    ]
    index = graph(CONV_BN, "w", "s")
    assert told(index, *layers) == [
        ("C1 B1 R1", NAMED),
        ("C2 B2 A Y", NAMED),
        ("C2 B2 A Y", BETWEEN),
    ]


def test_a_folded_batch_norm_takes_its_conv_along() -> None:
    layers = [
        layer("Convolution", "Multiply_5050 B1 R1", "x -> a0"),
        layer("Convolution", "Multiply_5051 B2 A Y", "a0 x -> a1"),
    ]
    assert told(graph(CONV_BN, "w", "s"), *layers) == [("C1 B1 R1", NAMED), ("C2 B2 A Y", NAMED)]


def test_a_batch_norm_that_became_a_convolution_has_no_conv_of_another_layer() -> None:
    index = graph("b = BatchNormalization(x, s, s, s, s) c = Conv(b, w) y = Relu(c)", "w", "s")
    layers = [layer("Conv", "b_bn_nchwc", "x -> t0"), layer("Conv", "y_nchwc", "t0 -> t1")]
    assert told(index, *layers) == [("B", NAMED), ("C Y", NAMED)]


def test_what_computes_is_found_before_what_moves() -> None:
    index = graph("c = Conv(x, w) g, h = GRU(c, w, w) t = Transpose(g) y = Conv(t, w)", "w")
    layers = [
        layer("Convolution", "C", "x -> t0"),
        layer("Transpose", "", "t0 -> t1"),
        layer("RNNSeq", "", "t1 -> t2"),
        layer("Convolution", "Y", "t2 -> t3"),
    ]
    assert told(index, *layers)[1:3] == [("G T", BETWEEN), ("G T", CLOSED)]


def test_an_add_runs_in_the_last_layer_that_feeds_it() -> None:
    index = graph("c1 = Conv(x, w) c2 = Conv(x2, w) a = Add(c1, c2) y = Relu(a)", "w")
    first, second = layer("Conv", "C2", "x2 -> t2"), layer("Conv", "C1", "x t2 -> t1")
    assert told(index, first, second) == [("C2", NAMED), ("C1 A Y", NAMED)]


def test_what_a_layer_reads_and_writes_under_our_names_is_its_own() -> None:
    index = graph(
        "p = MatMul(x, w) d = Div(p, w) e = Erf(d) q = Add(e, w) m = Mul(p, q) y = Relu(m)", "w"
    )
    layers = [
        layer("MatMul", "P", "x w -> p"),
        layer("Gelu", "Gelu_token_7", "p -> m"),
        layer("Relu", "Y", "m -> y"),
    ]
    assert told(index, *layers) == [("P", NAMED), ("D E Q M", CLOSED), ("Y", NAMED)]


def test_a_tensor_that_is_kept_was_not_fused_behind() -> None:
    """The scaling is in front of the product, because the engine hands `t` on as it is."""
    index = graph("t = Transpose(x) s = Mul(t, w) y = MatMul(s, x2)", "w")
    layers = [layer("Transpose", "T", "x -> t"), layer("FusedMatMul", "Y/Fusion/", "t x2 -> y")]
    assert told(index, *layers) == [("T", NAMED), ("S Y", NAMED)]


def test_an_identity_is_the_tensor_that_it_copies() -> None:
    index = graph("i = Identity(x) e = Erf(i) f = Exp(e) g = Add(f, i) d = Sub(g, i) y = Mul(d, i)")
    layers = [
        layer("Fused", "", "x -> f"),
        layer("Fused", "", "f x -> d"),
        layer("Mul", "Y", "d x -> y"),
    ]
    assert told(index, *layers) == [("I E F", CLOSED), ("G D", CLOSED), ("Y", NAMED)]


def test_nothing_else_runs_in_the_middle_of_a_layer() -> None:
    index = graph("c = Conv(x, w) a = Add(c, w) i = Identity(a) y = Relu(i)", "w")
    layers = [layer("Reorder", "", "x# -> t0"), layer("Convolution", "C Y", "t0 -> t1")]
    assert told(index, *layers) == [("C A I Y", BETWEEN), ("C A I Y", NAMED)]


def test_a_duplicated_conversion_is_no_place_for_arithmetic() -> None:
    index = graph(
        """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) a = Add(d, x2)
        y = LayerNormalization(a, s)""",
        "s", "z",
    )  # fmt: skip
    layers = [
        layer("QuantizeLinear", "Q", "x -> q"),
        layer("DequantizeLinear", "D/duplicated_token_3", "q -> d/copy"),
        layer("SkipLayerNormalization", "", "d/copy x2 -> y"),
    ]
    assert told(index, *layers) == [("Q", NAMED), ("D", NAMED), ("A Y", CLOSED)]
    assert [each.converts for each in mapped(index, *layers)] == [True, True, False]


def test_quantization_goes_with_the_op_that_it_is_for() -> None:
    index = graph(
        """q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z) v = DequantizeLinear(w, s, z)
        c = Conv(d, v) r = Relu(c) p = QuantizeLinear(r, s, z) y = DequantizeLinear(p, s, z)""",
        "s", "z", "w",
    )  # fmt: skip
    layers = [
        layer("QuantizeLinear", "Q", "x -> q"),
        layer("QLinearConv", "C", "q w -> p", "uint8"),
        layer("DequantizeLinear", "Y", "p -> y", "uint8"),
    ]
    assert told(index, *layers) == [("Q", NAMED), ("D V C R P", NAMED), ("Y", NAMED)]


def test_a_layer_without_names_has_what_lies_between_its_neighbours() -> None:
    index = graph("c = Conv(x, w) r = Relu(c) n = Softmax(r) y = Conv(n, w)", "w")
    layers = [
        layer("Convolution", "C", "x -> t0"),
        layer("Softmax", "", "t0 -> t1"),
        layer("Convolution", "Y", "t1 -> t2"),
    ]
    assert told(index, *layers) == [("C R", NAMED), ("N", CLOSED), ("Y", NAMED)]


def test_a_reorder_may_stand_for_a_transpose() -> None:
    index = graph("c = Conv(x, w) t = Transpose(c) y = MatMul(t, w)", "w")
    layers = [
        layer("Convolution", "C", "x -> t0"),
        layer("Reorder", "", "t0 -> t1"),
        layer("FullyConnected", "Y", "t1 -> t2"),
    ]
    assert told(index, *layers) == [("C", NAMED), ("T", CLOSED), ("Y", NAMED)]


def test_a_reorder_between_layers_serves_the_one_that_reads_it() -> None:
    index = graph("c = Conv(x, w) y = Conv(c, w)", "w")
    layers = [
        layer("Convolution", "C", "x -> t0"),
        layer("Reorder", "", "t0 -> t1", "float32"),
        layer("Convolution", "Y", "t1 -> t2", "int8"),
        layer("Reorder", "", "t2 -> t3", "int8"),
    ]
    found = mapped(index, *layers)
    assert [each.nodes for each in found] == [("C",), ("Y",), ("Y",), ("Y",)]
    assert [each.how for each in found] == [NAMED, BETWEEN, NAMED, BETWEEN]
    assert [each.converts for each in found] == [False, True, False, False]


def test_a_node_that_several_layers_execute_belongs_to_one() -> None:
    index = graph("c = Conv(x, w) y = LayerNormalization(c, w)", "w")
    layers = [
        layer("Convolution", "C", "x -> t0"),
        layer("MVN", "MVN_7", "t0 -> t1"),
        layer("Subgraph", "Multiply_8 Y", "t1 -> t2"),
    ]
    assert told(index, *layers) == [("C", NAMED), ("Y", PART), ("Y", NAMED)]


def test_an_operand_that_is_transposed_first_is_not_the_product() -> None:
    index = graph("m = MatMul(x, x2) y = Add(m, w)", "w")
    layers = [
        layer("Transpose", "M/transpose_a", "x -> t#"),
        layer("FullyConnected", "Y", "t# x2# -> y#"),
    ]
    assert told(index, *layers) == [("M Y", BETWEEN), ("M Y", NAMED)]


def test_of_copies_the_first_has_the_node() -> None:
    index = graph("m = Mul(x, w) c = MatMul(m, x2) y = MatMul(m, c)", "w")
    layers = [
        layer("Eltwise", "M_1", "x -> m1#"),
        layer("MatMul", "C", "m1# x2 -> c#"),
        layer("Eltwise", "M", "x -> m#"),
        layer("MatMul", "Y", "m# c# -> y#"),
    ]
    assert told(index, *layers) == [("M", NAMED), ("C", NAMED), ("M", PART), ("Y", NAMED)]


def test_a_node_runs_no_later_than_what_reads_it() -> None:
    """OpenVINO computes it in both layers, and names it with the second."""
    index = graph("m = Mul(x, w) c = MatMul(m, x2) d = MatMul(m, c) y = Relu(d)", "w")
    layers = [layer("MatMul", "C", "x x2 -> t0"), layer("MatMul", "M D Y", "x t0 -> t1")]
    assert told(index, *layers) == [("M C", NAMED), ("D Y", NAMED)]


def test_the_layer_that_fits_gets_a_node_which_two_are_named_after() -> None:
    index = graph("q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z)", "s", "z")
    layers = [layer("Reformat", "Q"), layer("QuantizeLinear", "Q"), layer("Subgraph", "Y")]
    assert told(index, *layers) == [("Q", BETWEEN), ("Q", NAMED), ("Y", NAMED)]


def test_what_is_known_before_a_run_is_folded() -> None:
    index = graph(
        """h = Shape(x) k = Gather(h, i) j = Concat <axis = 0> (k, i)
        t = Transpose(w) r = Reshape(x, j) y = MatMul(r, t)""",
        "w", "i",
    )  # fmt: skip
    layers = [layer("Reshape", "R", "x -> r"), layer("MatMul", "Y", "r -> y")]
    assert told(index, *layers) == [("R", NAMED), ("T Y", NAMED)]
    # With open dims it isn't known, and engines run it.
    layers.insert(0, layer("Shape", "H", "x -> h"))
    assert told(index, *layers) == [("H", NAMED), ("K J R", NAMED), ("T Y", NAMED)]


def test_a_product_that_was_merged_with_its_equal_is_in_no_other_layer() -> None:
    index = graph("c = Conv(x, w) d = Conv(x, w) y = Concat <axis = 1> (c, d)", "w")
    layers = [layer("Conv", "C", "x -> c"), layer("Concat", "Y", "c -> y")]
    assert told(index, *layers) == [("C", NAMED), ("Y", NAMED)]


def test_nodes_need_no_names() -> None:
    index = graph(
        "c = Conv(x, w) r = Relu(c) y = MaxPool <kernel_shape = [2, 2]> (r)", "w", names=False
    )
    layers = [layer("Conv", "r_nchwc", "x -> t0"), layer("MaxPool", "", "t0 -> y")]
    assert told(index, *layers) == [("Conv_c Relu_r", NAMED), ("MaxPool_y", CLOSED)]


def test_what_nothing_is_known_of_stays_unknown() -> None:
    index = graph("y = Relu(x)")
    assert told(index, layer("kernel", name="x13")) == [("", UNKNOWN)]
    assert told(index) == []
