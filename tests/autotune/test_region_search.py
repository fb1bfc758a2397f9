"""Which regions there are."""

from __future__ import annotations

import io
from collections.abc import Callable

import onnx
import pytest
from benchmarks.regions import long_skips, residual_stack, split_concat_chain
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.graph._index import GraphIndex
from qdqtune.records._errors import ModelError, UsageError
from qdqtune.search.patterns._region_pattern import RegionPattern
from qdqtune.search.regions._region import Region, RegionType, leaves, walk
from qdqtune.search.regions._region_search import (
    CombinedRegionSearch,
    RegionPartitioner,
    TopDownRegionBuilder,
)
from tests.autotune.graphs import from_text, index_of, leaf, long_chain, weight, zoo_index
from tests.conftest import model_from_text
from tests.models import small_models

DEPTH = 20_000
BLOCK = ["Conv", "Relu", "Conv", "Add", "Relu"]


def ops(region: Region, index: GraphIndex) -> list[str]:
    return [index.nodes[node].op_type for node in sorted(region.get_region_nodes_and_descendants())]


def search(index: GraphIndex, *sizes: int) -> list[Region]:
    return CombinedRegionSearch(index, *sizes).search_regions()


def check_cover(regions: list[Region], index: GraphIndex) -> None:
    found = [node for region in leaves(regions) for node in region.nodes]
    assert sorted(found) == list(range(len(index.nodes)))
    ids = [region.id for region in walk(regions)]
    assert sorted(ids) == list(range(len(ids)))
    for region in walk(regions):
        composite = region.type is RegionType.COMPOSITE
        assert composite == bool(region.children)
        assert not (composite and region.nodes)
        assert all(child.level == region.level + 1 for child in region.children)


def test_resnet_blocks() -> None:
    index = zoo_index("resnet18")
    regions = search(index)
    found = [ops(region, index) for region in regions]
    assert found[0] == ["Conv", "Relu", "MaxPool"]
    assert found.count(BLOCK) == 5
    assert found.count(["Conv", "Relu", "Conv", "Conv", "Add", "Relu"]) == 3
    assert found[-1] == ["GlobalAveragePool", "Flatten", "Gemm"]
    assert len({RegionPattern.from_region(region, index) for region in regions}) == 4


def test_shufflenet_units() -> None:
    index = zoo_index("shufflenet_v2")
    unit = ["Conv", "Relu", "Conv", "Conv", "Relu", "Concat"]
    unit += ["Reshape", "Transpose", "Reshape", "Split"]
    assert [ops(region, index) for region in search(index)].count(unit) > 5


def test_transformer_blocks() -> None:
    index = zoo_index("vit")
    regions = search(index)
    found = [ops(region, index) for region in regions]
    attention = [each for each in found if "Softmax" in each]
    mlp = [each for each in found if "Erf" in each]
    assert len(attention) == len(mlp) == 12
    for each in attention + mlp[:-1]:
        assert each[0] == "LayerNormalization"
        assert each[-1] == "Add"
    patterns = {RegionPattern.from_region(r, index) for r in regions if "Softmax" in ops(r, index)}
    assert len(patterns) == 1


@pytest.mark.parametrize("name", ["efficientnet", "convnext", "bert", "unet", "yolo"])
def test_leaves_are_disjoint_and_cover_the_zoo(name: str) -> None:
    index = zoo_index(name)
    check_cover(search(index), index)


@given(small_models(), st.integers(1, 5), st.integers(1, 5))
def test_leaves_are_disjoint_and_cover_any_model(
    model: onnx.ModelProto, sequence: int, least: int
) -> None:
    index = index_of(model)
    regions = search(index, sequence, least)
    check_cover(regions, index)
    for region in walk(regions):
        nodes = region.get_region_nodes_and_descendants()
        made = {value.name for node in nodes for value in index.nodes[node].outputs}
        read = {
            value.name
            for node in nodes
            for value in index.nodes[node].inputs
            if value is not None and not index.is_constant(value.name or "")
        }
        seen = {
            name
            for name in made
            if not index.readers(name)
            or any(not e.node or index.position[e.node] not in nodes for e in index.readers(name))
        }
        assert sorted(region.inputs) == sorted(read - made)
        assert sorted(region.outputs) == sorted(seen)


@pytest.mark.parametrize(
    ("build", "nodes"),
    [(long_chain, DEPTH), (residual_stack, 4000), (split_concat_chain, 4000), (long_skips, 4000)],
)
def test_depth_is_no_problem(build: Callable[[int], GraphIndex], nodes: int) -> None:
    index = build(nodes)
    regions = search(index)
    check_cover(regions, index)
    assert max(len(region.nodes) for region in leaves(regions)) <= 10


def test_sequences_have_few_weighted_ops() -> None:
    text = "".join(f"t{i + 1} = Conv(t{i}, w) " for i in range(11))
    index = from_text(
        f"g (float[1,4,8,8] t0) => (float[1,4,8,8] t11) {{ {text} }}", w=weight(4, 4, 1, 1)
    )
    (top,) = search(index)
    assert [len(child.nodes) for child in top.children] == [3, 3, 3, 2]
    assert [len(region.nodes) for region in search(index, 2, 5)[0].children] == [2] * 5 + [1]
    assert len(search(index, 10, 12)[0].nodes) == 11


def test_one_more_graph_output_changes_no_region() -> None:
    body = "{ a = Relu(x) b = Sigmoid(a) c = Tanh(b) y = Add(a, c) }"
    plain = search(from_text(f"g (float[8] x) => (float[8] y) {body}"))
    tapped = search(from_text(f"g (float[8] x) => (float[8] y, float[8] c) {body}"))
    assert [region.nodes for region in plain] == [region.nodes for region in tapped]


def test_searching_twice_gives_the_same() -> None:
    trees = []
    for _ in range(2):
        index = zoo_index("shufflenet_v2")
        trees.append([(r.id, r.level, sorted(r.nodes), r.inputs) for r in walk(search(index))])
    assert trees[0] == trees[1]


def test_what_a_body_reads_is_read_by_its_node() -> None:
    index = from_text(
        """
        g (float[8] x, bool p) => (float[8] y) {
            a = Relu(x)
            b = Sigmoid(a)
            y = If(p) <
                then_branch = t () => (float[8] u) { u = Add(a, b) },
                else_branch = e () => (float[8] v) { v = Identity(a) }
            >
        }"""
    )
    regions = search(index)
    check_cover(regions, index)
    assert [sorted(region.nodes) for region in regions] == [[0, 1, 2]]
    assert regions[0].inputs == ["x", "p"]


def test_unsorted_nodes_are_refused() -> None:
    model = model_from_text("g (float[8] x) => (float[8] y) { a = Relu(x) y = Relu(a) }")
    model.graph.node.insert(0, model.graph.node.pop())
    with pytest.raises(ModelError, match="made after it"):
        search(index_of(model))


def test_sizes_below_one_are_refused() -> None:
    index = from_text("g (float[8] x) => (float[8] y) { y = Relu(x) }")
    with pytest.raises(UsageError, match="0 nodes"):
        CombinedRegionSearch(index, 0)


def test_the_first_half_of_the_search() -> None:
    index = zoo_index("resnet18", width=8, image=32)
    parts = RegionPartitioner(index).partition_graph()
    assert sorted(node for part in parts for node in part.nodes) == list(range(len(index.nodes)))
    assert not any(part.children for part in parts)
    assert all(part.outputs for part in parts)


def test_the_second_half_of_the_search() -> None:
    index = long_chain(30)
    root = leaf(*range(30), region_id=4)
    built = TopDownRegionBuilder(index, root, 7, 5).build_composite_region()
    assert built.type is RegionType.COMPOSITE
    assert (built.id, [child.id for child in built.children][:2]) == (7, [8, 9])
    assert built.get_region_nodes_and_descendants() == root.nodes
    small = TopDownRegionBuilder(index, leaf(0, 1)).build_composite_region()
    assert small.type is RegionType.LEAF
    with pytest.raises(UsageError):
        TopDownRegionBuilder(index, root, 0, 0)


def test_the_tree_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    index = long_chain(30)
    found = CombinedRegionSearch(graph=index, maximum_sequence_region_size=5)
    found.search_regions()
    found.print_tree(max_items=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Region[id=0, level=0, type=COMPOSITE")
    assert any(line.startswith("  Region[id=1, level=1, type=LEAF") for line in lines)
    assert any("nodes: " in line and line.endswith("and 3 more") for line in lines)
    text = io.StringIO()
    found.print_tree(found.regions[0].children[0], indent=3, file=text)
    assert text.getvalue().startswith("      Region[id=1")


def test_borders_with_constants() -> None:
    index = from_text(
        "g (float[4,8] x) => (float[4,8] y) { a = MatMul(x, w) y = MatMul(a, w) }", w=weight(8, 8)
    )
    search_of, region = CombinedRegionSearch(index), leaf(0, 1)
    search_of.compute_region_boundaries(region)
    assert (region.inputs, region.outputs) == (["x"], ["y"])
    search_of.compute_region_boundaries(region, include_constant=True)
    assert region.inputs == ["x", "w"]
