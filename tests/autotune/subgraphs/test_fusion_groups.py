from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtune import zoo
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._shapes import infer_shapes
from qdqtune.records._layers import BETWEEN, NAMED, PART, MappedLayer
from qdqtune.search.subgraphs._fusion_groups import Flow, FusionGroup, fusion_groups
from qdqtune.workflows._inspect import layers_of
from tests.autotune.graphs import from_text, long_chain, weight
from tests.autotune.subgraphs.random_layers import random_graph, random_layers


def below(index: GraphIndex) -> list[int]:
    """By node: the set of nodes behind it, as bits."""
    made = {value.name: n for n, node in enumerate(index.nodes) for value in node.outputs}
    reached = [0] * len(index.nodes)
    for number in reversed(range(len(index.nodes))):
        for value in index.nodes[number].inputs:
            maker = made.get(value.name) if value is not None else None
            if maker is not None:
                reached[maker] |= reached[number] | 1 << number
    return reached


def leaving(index: GraphIndex, groups: Sequence[FusionGroup]) -> list[tuple[int, str]]:
    """Groups that a path leaves and comes back to, with a node outside on such a path."""
    reached = below(index)
    found = []
    for group in groups:
        inside = sum(1 << index.position[name] for name in group.nodes)
        after = 0
        for name in group.nodes:
            after |= reached[index.position[name]]
        for number, node in enumerate(index.nodes):
            is_outside = after >> number & 1 and not inside >> number & 1
            if is_outside and reached[number] & inside:
                found.append((group.number, node.name or ""))
    return found


def check(index: GraphIndex, groups: Sequence[FusionGroup]) -> None:
    """Every node once, in order, and nothing that can't be cut out."""
    count = Counter(name for group in groups for name in group.nodes)
    assert count == Counter(node.name for node in index.nodes)
    positions = [[index.position[name] for name in group.nodes] for group in groups]
    assert positions == sorted(sorted(each) for each in positions)
    assert [group.number for group in groups] == list(range(len(groups)))
    assert not leaving(index, groups)


def layer(*nodes: str, how: str = NAMED) -> MappedLayer:
    return MappedLayer("+".join(nodes), "", 1.0, nodes=nodes, how=how)


def node_sets(groups: Sequence[FusionGroup]) -> list[str]:
    return [" ".join(group.nodes) for group in groups]


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(1, 45), st.integers(0, 16))
def test_any_layers_give_groups_that_can_be_cut_out(seed: int, size: int, count: int) -> None:
    rng = random.Random(seed)
    index = random_graph(rng, size)
    layers = random_layers(rng, index, count)
    groups = fusion_groups(index, layers)
    check(index, groups)
    mentioned = {name for each in layers for name in each.nodes}
    for group in groups:
        if mentioned.isdisjoint(group.nodes):
            assert group.is_structural
        assert all(set(layers[number].nodes) & set(group.nodes) for number in group.layers)
    told = {number for group in groups for number in group.layers}
    assert told == {number for number, each in enumerate(layers) if each.nodes}


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30), st.integers(2, 40))
def test_names_and_the_order_within_layers_count_for_nothing(seed: int, size: int) -> None:
    rng = random.Random(seed)
    index = random_graph(rng, size)
    layers = random_layers(rng, index, 8)
    groups = fusion_groups(index, layers)
    assert groups == fusion_groups(index, layers)
    names = [node.name or "" for node in index.nodes]
    others = [f"{number}/{name}" for number, name in enumerate(rng.sample(names, len(names)))]
    renamed = dict(zip(names, others, strict=True))
    for node in index.nodes:
        node.name = renamed[node.name or ""]
    told = [
        replace(each, nodes=tuple(renamed.get(name, name) for name in reversed(each.nodes)))
        for each in layers
    ]
    again = fusion_groups(GraphIndex(index.model), told)
    assert [group.layers for group in again] == [group.layers for group in groups]
    assert [group.nodes for group in again] == [
        tuple(renamed[name] for name in group.nodes) for group in groups
    ]


TWO_CONVS = """
g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
    a = Conv(x, w)
    b = Relu(a)
    c = Conv(b, w)
    d = Add(c, b)
    y = Relu(d)
}"""


@pytest.mark.parametrize(
    ("layers", "expected", "made_of"),
    [
        ([], ["n0 n1", "n2 n3 n4"], [(), ()]),
        ([layer("n0"), layer("n2")], ["n0 n1", "n2 n3 n4"], [(0,), (1,)]),
        # A kernel and its epilogue; a layer that serves; one that nobody knows.
        (
            [layer("n0"), layer("n0", "n1"), layer("n0", "n1", how=PART), layer("x")],
            ["n0 n1", "n2 n3 n4"],
            [(0, 1, 2), ()],
        ),
        # Two convolutions that both claim the Relu between: it stays with what makes its input.
        ([layer("n0", "n1"), layer("n1", "n2")], ["n0 n1", "n2 n3 n4"], [(0,), (1,)]),
        # One layer for both convolutions is one group, if nothing else lies between...
        ([layer("n0", "n1", "n2", "n3")], ["n0 n1 n2 n3 n4"], [(0,)]),
        # ...and takes in the Relu, but not a convolution.
        ([layer("n0", "n2", "n3", "n4")], ["n0 n1 n2 n3 n4"], [(0,)]),
        ([layer("n1", "n3")], ["n0", "n1", "n2", "n3 n4"], [(), (0,), (), (0,)]),
        ([layer("n3", how=BETWEEN)], ["n0 n1", "n2 n3 n4"], [(), (0,)]),
    ],
)
def test_groups_of_two_convolutions(
    layers: list[MappedLayer], expected: list[str], made_of: list[tuple[int, ...]]
) -> None:
    index = from_text(TWO_CONVS, w=weight(4, 4, 1, 1))
    groups = fusion_groups(index, layers)
    assert node_sets(groups) == expected
    assert [group.layers for group in groups] == made_of
    check(index, groups)


def test_what_many_layers_mention_does_not_glue_them_together() -> None:
    maps = ["x", *(f"r{n}" for n in range(8))]
    lines = [f"c{n} = Conv({maps[n]}, w) r{n} = Relu(c{n})" for n in range(8)]
    text = f"""
    g (float[1,4,8,8] x, float m) => (float[1,4,8,8] y) {{
        k = Cast<to: int = 1>(m)
        {" ".join(lines)}
        y = Mul(r7, k)
    }}"""
    index = from_text(text, w=weight(4, 4, 1, 1))
    layers = [layer("n0", f"n{1 + 2 * n}", f"n{2 + 2 * n}") for n in range(8)]
    groups = fusion_groups(index, layers)
    check(index, groups)
    convolutions = [f"n{1 + 2 * n} n{2 + 2 * n}" for n in range(8)]
    assert node_sets(groups)[1:-1] == convolutions[1:-1]
    assert node_sets(groups)[-1].startswith(convolutions[-1])


def test_shapes_are_one_group_and_constants_go_with_their_reader() -> None:
    text = """
    g (float[N,4,8,8] x) => (float[N,256] y) {
        s = Shape(x)
        d = Gather(s, zero)
        e = Unsqueeze(d, zero1)
        f = Concat<axis: int = 0>(e, rest)
        v = Relu(w)
        a = Conv(x, v)
        y = Reshape(a, f)
    }"""
    index = from_text(
        text,
        w=weight(4, 4, 1, 1),
        zero=np.array(0),
        zero1=np.array([0]),
        rest=np.array([256]),
    )
    groups = fusion_groups(index, [])
    assert node_sets(groups)[0] == "n0 n1 n2 n3"
    assert "n4 n5" in node_sets(groups)[1]
    check(index, groups)


def test_a_bad_layer_does_not_swallow_the_model() -> None:
    index = long_chain(400)
    names = [node.name or "" for node in index.nodes]
    layers = [layer(names[0], names[-1]), *(layer(name) for name in names[1:-1])]
    groups = fusion_groups(index, layers)
    assert len(groups) == 400
    layers = [layer(a, b) for a, b in pairwise(names)]
    assert max(len(group.nodes) for group in fusion_groups(index, layers)) <= 64


@pytest.mark.parametrize(
    ("nodes", "between"),
    [({0, 1}, set()), ({0, 2}, {1}), ({0, 3}, {1, 2}), ({1, 4}, {2, 3}), ({4, 5}, set())],
)
def test_what_lies_between(nodes: set[int], between: set[int]) -> None:
    """A chain 0-1-2-3-4, and 5 beside it, which reads 1."""
    flow = Flow([(), (0,), (1,), (2,), (3,), (1,)], [(1,), (2, 5), (3,), (4,), (), ()])
    assert flow.between(nodes) == between
    parts = list(flow.parts(nodes))
    assert len(parts) == (2 if between else 1)


def test_an_edge_beside_a_way_back_does_not_hold_a_set_together() -> None:
    flow = Flow([(), (0,), (0, 1), (2,)], [(1, 2), (2,), (3,), ()])
    assert list(flow.parts({0, 2, 3})) == [{0}, {2, 3}]
    assert not flow.can_join(2, {0})
    assert flow.can_join(2, {0, 1})
    assert flow.can_join(0, {1, 2})


def test_what_lies_very_far_apart_is_parted_without_looking() -> None:
    size = 5000
    flow = Flow([(), *((n,) for n in range(size - 1))], [*((n + 1,) for n in range(size - 1)), ()])
    assert flow.between({0, 1, size - 1}) is None
    assert list(flow.parts({0, 1, size - 1})) == [{size - 1}, {0, 1}]


MODELS = [
    ("resnet18", {"blocks": (1, 1), "width": 16, "image": 32}),
    ("bert", {"layers": 2, "width": 64, "head_width": 32, "sequence": 16, "vocabulary": 100}),
    ("shufflenet_v2", {"image": 32}),
]


@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
@pytest.mark.parametrize(("name", "values"), MODELS, ids=[name for name, _ in MODELS])
def test_groups_of_real_layers(
    name: str, values: dict[str, object], engine: str, tmp_path: Path
) -> None:
    if engine == "openvino":
        pytest.importorskip("openvino")
    path = tmp_path / "model.onnx"
    onnx.save(zoo.build(name, **values), path)
    layers = layers_of(path, engine=engine, threads=1, runs=1).layers
    model = load_model(path)
    infer_shapes(model)
    index = GraphIndex(model)
    groups = fusion_groups(index, layers)
    check(index, groups)
    assert sum(group.is_structural for group in groups) <= 2
    ops = [[index.node[node].op_type for node in group.nodes] for group in groups]
    leads = [sum(op in ("Conv", "Gemm", "MatMul") for op in each) for each in ops]
    assert max(leads) <= 2
    if name != "bert":
        assert {"Relu"}.isdisjoint(each[0] for each in ops)
