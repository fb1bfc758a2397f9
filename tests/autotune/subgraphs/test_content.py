"""Equal subgraphs have equal keys, whatever their names, and their parts correspond."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from qdqtune import zoo
from qdqtune.search.subgraphs._quantizable_groups import content_of
from tests.autotune.graphs import disguised, from_text, index_of
from tests.conftest import model_from_text
from tests.cutting import SMALL, cut

TEXT = """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
    a = Conv<pads=[1,1,1,1]>(x, w1)
    b = Relu(a)
    c = Conv<pads=[1,1,1,1]>(b, w2)
    d = Relu(c)
    y = Add(d, b)
}"""


def kernel(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def weights() -> dict[str, np.ndarray]:
    return {f"w{n}": kernel(n, 4, 4, 3, 3) for n in (1, 2)}


def test_subgraphs_that_differ_in_names_and_values_are_equal() -> None:
    index = from_text(TEXT, **weights())
    first, second = content_of(index, ["n0", "n1"]), content_of(index, ["n3", "n2"])
    assert first.key == second.key
    assert (first.nodes, second.nodes) in (
        (("n0", "n1"), ("n2", "n3")),
        (("n1", "n0"), ("n3", "n2")),
    )
    assert (first.inputs, first.outputs) == (("x",), ("b",))
    assert (second.inputs, second.outputs) == (("b",), ("d",))


def test_the_order_in_which_nodes_are_named_does_not_matter() -> None:
    index = from_text(TEXT, **weights())
    names = [f"n{n}" for n in range(5)]
    assert content_of(index, names) == content_of(index, reversed(names))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["resnet18", "bert"])
def test_places_correspond_in_a_model_in_disguise(name: str, seed: int, tmp_path) -> None:
    proto = zoo.build(name, **SMALL[name])
    for number, node in enumerate(proto.graph.node):
        node.name = f"node{number}"
    copy, nodes, tensors = disguised(proto, seed)
    index, other = index_of(proto), index_of(copy)
    groups = [
        [node.name for node in proto.graph.node[at : at + 3]]
        for at in range(0, len(proto.graph.node), 3)
    ]
    kinds = set()
    for group in groups:
        one, two = content_of(index, group), content_of(other, [nodes[name] for name in group])
        assert one.key == two.key
        kinds.add(one.key)
        assert {tensors[each] for each in one.inputs} == set(two.inputs)
        assert {tensors[each] for each in one.outputs} == set(two.outputs)
        for mine, its in zip(one.nodes, two.nodes, strict=True):
            assert index.node[mine].op_type == other.node[its].op_type
    assert len(kinds) > 4


def key_of(text: str, **more: np.ndarray) -> str:
    index = from_text(text, **more)
    return content_of(index, index.node).key


PLAIN = "g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Conv<pads=[1,1,1,1]>(x, w) y = Relu(a) }"


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        (PLAIN.replace("8,8", "16,16"), kernel(0, 4, 4, 3, 3)),
        (PLAIN.replace("[1,4", "[2,4"), kernel(0, 4, 4, 3, 3)),
        (PLAIN.replace("[1,1,1,1]", "[2,2,2,2]").replace("Conv<", "Conv<dilations=[2,2],"), None),
        (PLAIN.replace("Relu", "Sigmoid"), None),
        (PLAIN.replace("x, w)", "x, w, b)"), None),
        (PLAIN.replace("float[", "float16["), kernel(0, 4, 4, 3, 3).astype(np.float16)),
        (PLAIN.replace("[1,1,1,1]", "[0,0,0,0]"), kernel(0, 4, 4, 1, 1)),
        (PLAIN.replace("Conv<", "Conv<group=2,"), kernel(0, 4, 2, 3, 3)),
    ],
    ids=["size", "batch", "dilation", "op", "bias", "type", "taps", "groups"],
)  # fmt: skip
def test_what_computes_something_else_is_another_subgraph(
    text: str, weight: np.ndarray | None
) -> None:
    more = {"b": kernel(1, 4)} if "w, b" in text else {}
    plain = key_of(PLAIN, w=kernel(0, 4, 4, 3, 3))
    other = key_of(text, w=kernel(0, 4, 4, 3, 3) if weight is None else weight, **more)
    assert plain != other


def test_it_matters_what_others_read_of_it() -> None:
    more = "y = Relu(a) z = Neg(a)"
    text = PLAIN.replace("y = Relu(a)", more).replace("y)", "y, float[1,4,8,8] z)")
    index = from_text(text, w=kernel(0, 4, 4, 3, 3))
    alone = from_text(PLAIN, w=kernel(0, 4, 4, 3, 3))
    seen = content_of(index, ["n0", "n1"])
    assert set(seen.outputs) == {"a", "y"}
    assert seen.key != content_of(alone, ["n0", "n1"]).key


def test_an_activation_in_the_place_of_a_weight_is_another_subgraph() -> None:
    constant = "g (float[8,8] x, float[8,8] z) => (float[8,8] y) { y = MatMul(x, w) }"
    index = from_text(constant, w=kernel(0, 8, 8))
    other = from_text(constant.replace("x, w", "x, z"))
    assert content_of(index, ["n0"]).key != content_of(other, ["n0"]).key


def test_layers_of_a_kind_are_one_subgraph(tmp_path) -> None:
    sizes = {**SMALL["bert"], "layers": 3}
    made = cut(zoo.build("bert", **sizes), tmp_path)
    largest = max(made.subgraphs, key=lambda subgraph: len(subgraph.groups))
    assert len(largest.groups) >= 3
    one = cut(zoo.build("bert", **SMALL["bert"]), tmp_path)
    assert {subgraph.key for subgraph in one.subgraphs} <= {
        subgraph.key for subgraph in made.subgraphs
    }


def test_a_model_without_shapes_still_has_keys() -> None:
    proto = model_from_text(PLAIN, w=kernel(0, 4, 4, 3, 3))
    onnx.checker.check_model(proto)
    index = index_of(proto)
    index.value["a"].shape = None
    assert content_of(index, ["n0", "n1"]).key
