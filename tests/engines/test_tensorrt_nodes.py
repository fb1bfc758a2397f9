from __future__ import annotations

import random
import tracemalloc
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import parser

from qdqtune.engines.layers._wiring import ModelWiring, split
from qdqtune.engines.tensorrt._layer_info import Layer, LayerTensor, read_layer_info
from qdqtune.engines.tensorrt._layer_naming import map_layers
from qdqtune.graph._index import GraphIndex, name_nodes
from qdqtune.graph._op_classes import WEIGHTED_OPS
from qdqtune.records._layers import BETWEEN, CLOSED, NAMED, PART, UNKNOWN, MappedLayer
from qdqtune.search.subgraphs._fusion_groups import fusion_groups

SAMPLES = Path(__file__).parents[1] / "data" / "tensorrt"
LISTS = sorted(
    str(path.relative_to(SAMPLES))
    for path in (*SAMPLES.glob("trt860_h200/*.json"), *SAMPLES.glob("rtx171/*.layers.txt"))
)
WITHOUT_NODES = {"shape_call", "signal", "wait"}
BLOCK = """
n = LayerNormalization(x, s)
q0 = MatMul(n, w) q = Reshape(q0, heads)
k0 = MatMul(n, w) k1 = Reshape(k0, heads) k = Transpose(k1)
a = MatMul(q, k) a2 = Mul(a, c) a3 = Softmax(a2)
v0 = MatMul(n, w) v = Reshape(v0, heads)
b = MatMul(a3, v) b2 = Reshape(b, flat)
o = MatMul(b2, w) y = Add(x, o)
"""


def index_of(proto: onnx.ModelProto) -> GraphIndex:
    model = ir.from_proto(proto)
    name_nodes(model)
    return GraphIndex(model)


def graph(body: str, inputs: str = "x", weights: str = "", output: str = "y") -> GraphIndex:
    """A graph whose nodes are called after their first outputs."""
    given_in = ", ".join(f"float[4,4] {name}" for name in inputs.split())
    stored = ", ".join(f"float[1] {name} = {{1}}" for name in weights.split())
    stored = f"<{stored}>" if stored else ""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        f"g ({given_in}) => (float[4,4] {output}) {stored} {{ {body} }}"
    )
    for node in proto.graph.node:
        node.name = node.output[0]
    return index_of(proto)


def named(*names: str) -> GraphIndex:
    """A chain of Relus with these names, from `x` to `y`; its tensors are t0, t1 and so on."""
    nodes = [
        onnx.helper.make_node("Relu", [f"t{i}" if i else "x"], [f"t{i + 1}"], name=name)
        for i, name in enumerate(names)
    ]
    nodes[-1].output[0] = "y"
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in "xy"]
    weights = [onnx.helper.make_tensor(name, 1, [1], [1.0]) for name in ("w", "w + v")]
    return index_of(
        onnx.helper.make_model(
            onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:], weights),
        )
    )


def layer(
    name: str, kind: str = "Myelin", *, reads: str = "", writes: str = "", origin: str = ""
) -> Layer:
    inputs, outputs = (
        tuple(LayerTensor(tensor, "Half", ()) for tensor in names.split())
        for names in (reads, writes)
    )
    return Layer(name, kind, inputs, outputs, origin=origin)


def mapped(index: GraphIndex, *layers: Layer) -> list[MappedLayer]:
    return map_layers(index, layers)


def sample(path: str) -> tuple[GraphIndex, tuple[Layer, ...]]:
    file = SAMPLES / path
    model = file.with_name(file.name.partition(".")[0] + ".onnx")
    return index_of(onnx.load(model, load_external_data=False)), read_layer_info(file)


def executed(layers: Collection[MappedLayer]) -> dict[str, tuple[str, ...]]:
    return {each.name: each.nodes for each in layers if each.executes}


def is_convex(index: GraphIndex, nodes: Collection[str]) -> bool:
    """Whether no path leaves the nodes and comes back."""
    wiring = ModelWiring(index)
    inside = set(nodes)
    seen: set[str] = set()
    waiting = [b for a in inside for b in wiring.after(a) if b not in inside]
    while waiting:
        name = waiting.pop()
        if name in inside:
            return False
        if name not in seen:
            seen.add(name)
            waiting += wiring.after(name)
    return True


class TestRealEngines:
    @pytest.mark.parametrize("path", LISTS)
    def test_products_have_layers_and_groups_are_sound(self, path: str) -> None:
        index, listed = sample(path)
        layers = map_layers(index, listed)
        products = {node.name for node in index.nodes if node.op_type in WEIGHTED_OPS}
        assert products <= {name for each in layers if each.executes for name in each.nodes}
        assert all(each.nodes for each in layers if each.op_type not in WITHOUT_NODES)
        groups = fusion_groups(index, layers)
        assert sorted(name for group in groups for name in group.nodes) == sorted(index.node)
        assert all(is_convex(index, group.nodes) for group in groups)

    @pytest.mark.parametrize("path", [path for path in LISTS if path.startswith("trt860")])
    def test_names_alone_tell_nearly_as_much(self, path: str) -> None:
        index, listed = sample(path)
        full = executed(map_layers(index, listed))
        bare = executed(mapped(index, *(Layer(each.name, "") for each in listed)))
        # Without types, a reshape is as good as any other layer.
        assert {k: v for k, v in bare.items() if not k.startswith("reshape_after_")} == full

    def test_a_resnet_reads_as_one_would_fuse_it(self) -> None:
        layers = map_layers(*sample("trt860_h200/resnet18.fp16.graph.json"))
        kinds = [" ".join(each.node_types) for each in layers if each.executes]
        assert kinds[:5] == ["Conv Relu", "MaxPool", "Conv Relu", "Conv Add Relu", "Conv Relu"]
        assert kinds[-2:] == ["GlobalAveragePool", "Gemm"]
        assert [kinds.count(kind) for kind in ("Conv Relu", "Conv", "Conv Add Relu")] == [9, 3, 8]
        assert {each.precision for each in layers if each.executes} == {"float16"}

    def test_int8_layers_fit_the_float_model(self) -> None:
        layers = map_layers(*sample("trt860_h200/resnet18.all-int8.graph.json"))
        assert {each.precision for each in layers if each.executes} == {"int8"}
        quantize = next(each for each in layers if each.name == "x_QuantizeLinear")
        assert (quantize.how, quantize.converts) == (BETWEEN, True)
        assert quantize.nodes == ("/stem/stem.0/Conv", "/stem/stem.2/Relu")

    def test_an_encoder_that_is_one_layer_comes_in_sublayers(self) -> None:
        before, *sublayers, behind = map_layers(*sample("trt860_h200/encoder.fp16.graph.json"))
        assert {each.how for each in sublayers} == {CLOSED}
        of_block = [each for each in sublayers if any("/layers.3/" in name for name in each.nodes)]
        computing = [
            " ".join(op for op in each.node_types if op not in ("Constant", "Identity"))
            for each in of_block
        ]
        assert computing == [
            "LayerNormalization",
            "MatMul Add Reshape Transpose",
            "MatMul Add Reshape Transpose",
            "MatMul Add Reshape Transpose",
            "MatMul Pow Mul Softmax MatMul Transpose Reshape",
            "MatMul Add Add",
            "LayerNormalization",
            "MatMul Add Div Erf Add Mul Mul",
            "MatMul Add Add",
        ]
        assert sublayers[7].name.endswith("[Normalization]]}#7")
        assert before.nodes == sublayers[0].nodes
        assert behind.nodes == sublayers[-1].nodes
        assert (before.how, behind.how) == (BETWEEN, BETWEEN)

    def test_a_node_can_be_in_several_layers(self) -> None:
        layers = map_layers(*sample("rtx171/tfm_int8.sm89.layers.txt"))
        having = [each.op_type for each in layers if "/fc1/MatMul" in each.nodes]
        assert having == ["gemm", "kgen"]

    def test_layers_that_copy_serve_others(self) -> None:
        layers = map_layers(*sample("rtx171/cat_int8.sm89.layers.txt"))
        first, last = layers[0], layers[-1]
        assert (first.how, first.nodes, first.converts) == (BETWEEN, ("convB",), False)
        assert (last.how, last.converts) == (BETWEEN, True)
        assert "convC" in last.nodes
        assert [each.how for each in layers if each.op_type == "wait"] == [UNKNOWN, UNKNOWN]


class TestNames:
    @pytest.mark.parametrize(
        ("known", "name", "found"),
        [
            ("a b", "a + b", "a b"),
            ("a b c d", "a + b || c + d", "a b c d"),
            ("a b c", "PWN(PWN(a), b) + c", "a b c"),
            ("/v/MatMul /k/MatMul", "/v/MatMul+/k/MatMul_myl0_1", "/v/MatMul /k/MatMul"),
            ("a b", "w + a + b", "a b"),
            ("a v", "w + v + a", "a"),
            ("a", "a_clone_3", "a"),
            ("a_1 a", "a_1", "a_1"),
            ("a", "a_7", "a"),
            ("a", "reshape_before_a", "a"),
            ("a", "fc.bias + (Unnamed Layer* 3) [Shuffle] + a", "a"),
            ("Shuffle a", "(Unnamed Layer* 3) [Shuffle] + a", "a"),
            ("a b", "a [profile 1] + b", "a b"),
            ("a", "b + weights_quantized", ""),
            ("a", "__myl_MulSum_myl4_1", ""),
        ],
    )
    def test_grammar(self, known: str, name: str, found: str) -> None:
        (result,) = mapped(named(*known.split()), layer(name, "PointWiseV2"))
        assert set(result.nodes) == set(found.split())
        assert result.how == (NAMED if found else UNKNOWN)

    def test_names_may_hold_what_stands_between_names(self) -> None:
        hostile = ["a + b", "b", "f(x, y)", "c", "c+d", "PWN(c)", "q || r", "[0] ... {z}", "e"]
        index = named(*hostile)
        (result,) = mapped(index, layer("a + b + PWN(f(x, y), c+d) + [0] ... {z} || q || r", ""))
        assert result.nodes == ("a + b", "f(x, y)", "c+d", "q || r", "[0] ... {z}")
        (kernel,) = mapped(index, layer("c+d+PWN(c)+e_myl3_12", "gemm"))
        assert kernel.nodes == ("c+d", "PWN(c)", "e")

    @given(st.randoms(use_true_random=False), st.sampled_from([" + ", "+", " || ", ", "]))
    def test_any_names_are_found_again(self, chance: random.Random, between: str) -> None:
        letters = ["a", "b", "+", " + ", "(", ")", ", ", "/", ".", "_1", " "]
        known = {"".join(chance.choices(letters, k=chance.randint(1, 6))) for _ in range(12)}
        # A name that begins or ends like a separator can't be told from it.
        known = {f"<{name}>" for name in known}
        chosen = chance.sample(sorted(known), k=chance.randint(1, len(known)))
        (result,) = mapped(named(*sorted(known)), layer(between.join(chosen), "x"))
        assert set(result.nodes) == set(chosen)

    def test_nodes_without_names_are_called_after_their_outputs(self) -> None:
        index = named("", "")
        (result,) = mapped(index, layer("node_of_t1 + node_of_y", "ElementWise"))
        assert result.node_types == ("Relu", "Relu")
        told = replace(layer("__myl_Relu_myl0_0", "kgen"), nodes=("node_of_y",))
        assert mapped(index, told)[0].nodes == result.nodes[1:]

    def test_metadata_counts_more_than_the_name(self) -> None:
        told = replace(layer("a_myl0_1", "kgen"), nodes=("b", "not there", "a_3"))
        assert mapped(named("a", "b"), told)[0].nodes == ("b",)


class TestWiring:
    def test_what_is_between_its_tensors_is_in_a_layer(self) -> None:
        index = named("a", "b", "c", "d")
        first, middle = mapped(index, layer("a", "x"), layer("?", "x", reads="t1", writes="t3"))
        assert (middle.how, middle.nodes) == (CLOSED, ("b", "c"))
        assert first.how == NAMED

    def test_tensors_are_known_through_reformats(self) -> None:
        index = named("a", "b", "c", "d")
        copies = (
            layer("Reformatting CopyNode for Input Tensor 0 to {ForeignNode[?...?]}", "Reformat",
                  reads="t1", writes="in"),
            layer("{ForeignNode[?...?]}", reads="in", writes="out"),
            layer("Reformatting CopyNode for Output Tensor 0 to {ForeignNode[?...?]}", "NoOp",
                  reads="out", writes="t3"),
        )  # fmt: skip
        assert [each.nodes for each in mapped(index, *copies)] == [("b", "c")] * 3

    def test_without_a_beginning_only_the_last_node_is_sure(self) -> None:
        (result,) = mapped(named("a", "b", "c"), layer("?", "kgen", reads="?", writes="y"))
        assert result.nodes == ("c",)

    def test_a_kernel_in_the_middle_of_known_nodes_does_a_part(self) -> None:
        index = named("a", "b")
        layers = mapped(
            index,
            layer("a", "gemm", reads="x", writes="k"),
            layer("?", "kgen", reads="k", writes="t1"),
            layer("b", "gemm", reads="t1", writes="y"),
        )
        assert (layers[1].how, layers[1].nodes) == (PART, ("b",))

    def test_a_no_op_executes_what_nobody_else_does(self) -> None:
        result = mapped(named("a", "b"), layer("a", "gemm"), layer("a + b", "NoOp"))
        assert executed(result) == {"a": ("a",), "a + b": ("b",)}

    def test_of_another_model_nothing_is_known(self) -> None:
        result = mapped(named("a", "b"), layer("c + d", "gemm", reads="e", writes="f"))
        assert (result[0].how, result[0].nodes) == (UNKNOWN, ())


class TestPartsCompiledAsAWhole:
    def test_ends_tell_what_tensors_do_not(self) -> None:
        index = named("a", "b", "c", "d")
        result = mapped(index, layer("a", "x"), layer("{ForeignNode[b...c]}", ""))
        assert result[1].nodes == ("b", "c")

    def test_metadata_of_a_large_part_is_not_complete(self) -> None:
        told = replace(layer("{ForeignNode[a...c]}", reads="x", writes="t3"), nodes=("a", "c"))
        (result,) = mapped(named("a", "b", "c", "d"), told)
        assert (result.how, result.nodes) == (NAMED, ("a", "b", "c"))

    def test_names_with_dots_in_them(self) -> None:
        index = named("a...b", "b", "c...", "d")
        assert mapped(index, layer("{ForeignNode[a...b...c...]}", ""))[0].nodes == (
            "a...b", "b", "c...",
        )  # fmt: skip

    def test_parts_follow_each_other(self) -> None:
        parts = ("{ForeignNode[a...b]}", "{ForeignNode[(Unnamed Layer* 3) [Shuffle]...d]}")
        result = mapped(named("a", "b", "c", "d"), *(layer(part, "") for part in parts))
        assert [each.nodes for each in result] == [("a", "b"), ("c", "d")]

    def test_an_unknown_end_is_where_the_next_part_begins(self) -> None:
        parts = ("{ForeignNode[a...?]}", "{ForeignNode[c...?]}")
        result = mapped(named("a", "b", "c", "d"), *(layer(part, "") for part in parts))
        assert [each.nodes for each in result] == [("a", "b"), ("c", "d")]

    def test_it_may_begin_with_a_weight(self) -> None:
        index = graph("a = Relu(x) b = Mul(a, w) y = Relu(b)", weights="w")
        (result,) = mapped(index, layer("{ForeignNode[w...(Unnamed Layer* 3)]}", ""))
        assert result.nodes == ("a", "b", "y")

    def test_side_branches_are_inside(self) -> None:
        index = graph("a = Relu(x) b = Relu(a) c = Sigmoid(a) d = Tanh(z) e = Mul(b, c) "
                      "f = Mul(e, d) y = Relu(f)", inputs="x z")  # fmt: skip
        for part in (
            layer("{ForeignNode[a...y]}", reads="x z", writes="y"),
            layer("{ForeignNode[a...y]}", ""),
        ):
            sublayers = mapped(index, part)
            assert sorted(name for each in sublayers for name in each.nodes) == sorted(index.node)

    def test_sublayers_of_a_transformer(self) -> None:
        index = graph(BLOCK, weights="s w c heads flat")
        sublayers = mapped(index, layer("{ForeignNode[n...y]}", reads="x", writes="y"))
        assert [each.nodes for each in sublayers] == [
            ("n",), ("q0", "q"), ("k0", "k1", "k"), ("v0", "v"), ("a", "a2", "a3", "b", "b2"),
            ("o", "y"),
        ]  # fmt: skip

    @pytest.mark.parametrize(
        ("body", "sublayers"),
        [
            ("m = ReduceMean(x) d = Sub(x, m) p = Pow(d, c) v = ReduceMean(p) e = Sqrt(v) "
             "n = Div(d, e) g = Mul(n, c) h = MatMul(g, w) y = Relu(h)",
             ["m d p v e n g", "h y"]),
            ("t = Transpose(x) h = MatMul(t, w) y = Relu(h)", ["t h y"]),
            ("t = Transpose(x) a = MatMul(t, w) b = MatMul(t, w) y = Add(a, b)",
             ["t", "a", "b y"]),
            ("p = GlobalAveragePool(x) g = Conv(p, w) e = Sigmoid(g) y = Mul(x, e)",
             ["p", "g e y"]),
            ("v = Transpose(w) h = MatMul(x, v) y = Relu(h)", ["v h y"]),
            ("v = Transpose(w) h = MatMul(x, v) k = MatMul(h, v) y = Relu(k)", ["v h", "k y"]),
            ("a = Relu(x) y = Softmax(a)", ["a", "y"]),
            ("q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) r = QuantizeLinear(w, s) "
             "e = DequantizeLinear(r, s) h = MatMul(d, e) k = QuantizeLinear(h, s) "
             "y = DequantizeLinear(k, s)", ["q d r e h k y"]),
        ],
    )  # fmt: skip
    def test_natural_sublayers(self, body: str, sublayers: list[str]) -> None:
        index = graph(body, weights="w c s")
        result = mapped(index, layer("{ForeignNode[a...b]}", reads="x", writes="y"))
        assert [each.nodes for each in result] == [
            tuple(sublayer.split()) for sublayer in sublayers
        ]

    def test_a_row_without_end_is_cut(self) -> None:
        index = named(*(f"n{i}" for i in range(500)))
        sublayers = mapped(index, layer("{ForeignNode[n0...n499]}", ""))
        assert 5 < len(sublayers) < 20

    @given(st.randoms(use_true_random=False))
    def test_sublayers_are_disjoint_complete_and_convex(self, chance: random.Random) -> None:
        index = random_graph(chance, nodes=30)
        inside = {name for name in index.node if chance.random() < chance.choice([0.6, 1.0])}
        sublayers = split(ModelWiring(index), inside)
        assert sorted(name for sublayer in sublayers for name in sublayer) == sorted(inside)
        if len(inside) == len(index.node):  # else a path may go through nodes that are not inside
            assert all(is_convex(index, sublayer) for sublayer in sublayers)

    def test_what_bodies_read_is_read_by_the_node(self) -> None:
        proto = parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]>\n'
            "g (float[4] x, bool c) => (float[4] y) { h = Relu(x) k = Exp(h) "
            "y = If(c) <then_branch = t () => (float[4] a) { a = Relu(k) }, "
            "else_branch = e () => (float[4] b) { b = Relu(h) }> }"
        )
        for node in proto.graph.node:
            node.name = node.output[0]
        sublayers = mapped(index_of(proto), layer("{ForeignNode[h...y]}", reads="x", writes="y"))
        assert [each.nodes for each in sublayers] == [("h", "k"), ("y",)]


OPS = ["MatMul", "MatMul", "Relu", "Add", "Add", "Mul", "Softmax", "Transpose", "Concat",
       "ReduceMean", "LayerNormalization", "TopK", "Identity"]  # fmt: skip
TWO_INPUTS = {"MatMul", "Add", "Mul", "Concat"}


def random_graph(chance: random.Random, nodes: int) -> GraphIndex:
    """Wired at random; shapes and types mean nothing."""
    tensors = ["x", "z", "w", "s"]
    made = []
    for number in range(nodes):
        op_type = chance.choice(OPS)
        read = chance.choices(tensors[-12:] if chance.random() < 0.8 else tensors, k=2)
        read = read if op_type in TWO_INPUTS else read[:1]
        made.append(onnx.helper.make_node(op_type, read, [f"t{number}"], name=f"n{number}"))
        tensors.append(f"t{number}")
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2]) for name in ("x", "z", tensors[-1])]
    weights = [onnx.helper.make_tensor(name, 1, [1], [1.0]) for name in "ws"]
    drawn = onnx.helper.make_graph(made, "g", ends[:2], ends[2:], weights)
    return index_of(onnx.helper.make_model(drawn))


def test_a_name_of_nothing_but_dots_takes_no_more_memory_than_it_has() -> None:
    index = graph("a = Relu(x) y = Relu(a)")
    layer = Layer("{ForeignNode[" + "..." * 10_000 + "]}", "")
    tracemalloc.start()
    map_layers(index, (layer,))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 100 << 20


@pytest.mark.parametrize("name", ["a...y", "......a...y", "a...y......"])
def test_ends_of_a_part_are_names_that_the_model_has(name: str) -> None:
    (layer,) = map_layers(
        graph("a = Relu(x) y = Relu(a)"), (Layer(f"{{ForeignNode[{name}]}}", ""),)
    )
    assert layer.nodes == ("a", "y")
