"""Regions that are the modules of a model."""

from __future__ import annotations

import random

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune import zoo
from qdqtune.config import SCOPE, STRUCTURE
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import dialect_named
from qdqtune.search._space import group_ops
from qdqtune.search.regions._region import Region, leaves, walk
from qdqtune.search.regions._scope_search import ScopeRegionSearch, division_of, find_regions
from qdqtune.search.regions._scopes import (
    NAME_SCOPES,
    kind_of,
    scope_of,
    scope_of_region,
    title_of,
)
from tests.autotune.graphs import index_of, shuffle, zoo_index
from tests.autotune.scoped import encoder, with_scopes
from tests.autotune.test_region_search import check_cover
from tests.conftest import model_from_text
from tests.models import small_models

ENCODER = """
encoder.layer: 46
  encoder.layer.0: 23
    encoder.layer.0.norm1: LayerNormalization
    encoder.layer.0.attn: 13
      encoder.layer.0.attn.q_proj: MatMul Add
      encoder.layer.0.attn.k_proj: MatMul Add
      encoder.layer.0.attn.v_proj: MatMul Add
      encoder.layer.0.attn: Transpose MatMul Softmax MatMul
      encoder.layer.0.attn.o_proj: MatMul Add Add
    encoder.layer.0.norm2: LayerNormalization
    encoder.layer.0.mlp: 8
      encoder.layer.0.mlp.fc1: MatMul Add Div Erf Mul
      encoder.layer.0.mlp.fc2: MatMul Add Add
  encoder.layer.1: 23
    encoder.layer.1.norm1: LayerNormalization
    encoder.layer.1.attn: 13
      encoder.layer.1.attn.q_proj: MatMul Add
      encoder.layer.1.attn.k_proj: MatMul Add
      encoder.layer.1.attn.v_proj: MatMul Add
      encoder.layer.1.attn: Transpose MatMul Softmax MatMul
      encoder.layer.1.attn.o_proj: MatMul Add Add
    encoder.layer.1.norm2: LayerNormalization
    encoder.layer.1.mlp: 8
      encoder.layer.1.mlp.fc1: MatMul Add Div Erf Mul
      encoder.layer.1.mlp.fc2: MatMul Add Add
norm: LayerNormalization
head: MatMul
"""
RESNET = """
stem: Conv Relu
layer1.0: 6
  layer1.0.conv1: Conv Relu
  layer1.0.conv2: Conv Add Relu
  layer1.0.downsample.0: Conv
fc: GlobalAveragePool Flatten
"""


def tree(regions: list[Region], index: GraphIndex) -> str:
    lines = []
    for region in walk(regions):
        ops = [index.nodes[n].op_type for n in sorted(region.nodes)]
        size = region.get_size_of_region_and_descendants()
        scope = ".".join(scope_of_region(region, index))
        lines.append(f"{'  ' * region.level}{scope}: {' '.join(ops) or size}\n")
    return "\n" + "".join(lines)


def search(model: onnx.ModelProto) -> tuple[list[Region], GraphIndex]:
    index = index_of(model)
    return ScopeRegionSearch(index).search_regions(), index


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
def test_the_regions_of_a_transformer_are_its_modules(exporter: str) -> None:
    regions, index = search(encoder(exporter))
    assert tree(regions, index) == ENCODER
    check_cover(regions, index)


@pytest.mark.parametrize("exporter", ["legacy", "dynamo"])
def test_sums_and_activations_are_in_the_region_of_the_conv_before_them(exporter: str) -> None:
    model = model_from_text(
        """g (float[1,4,8,8] x) => (float[1,4] y) {
            a = Conv(x, w) b = Relu(a)
            c = Conv(b, w) d = Relu(c) e = Conv(d, w)
            f = Conv(b, w) h = Add(f, e) i = Relu(h)
            j = GlobalAveragePool(i) y = Flatten(j)
        }""",
        w=np.zeros((4, 4, 1, 1), np.float32),
    )
    block = "layer1.0"
    scopes = ["stem", "relu", f"{block}.conv1", f"{block}.relu", f"{block}.conv2"]
    scopes += [f"{block}.downsample.0", block, f"{block}.relu", "fc", ""]
    regions, index = search(with_scopes(model, scopes, exporter))
    assert tree(regions, index) == RESNET
    check_cover(regions, index)


def test_what_leaves_a_module_and_comes_back_does_not_connect_it() -> None:
    """The residual Adds of a layer are neighbours, but each follows another projection."""
    regions, index = search(encoder("legacy", layers=1))
    adds = [region for region in leaves(regions) if scope_of_region(region, index)[-1] == "o_proj"]
    assert [len(region.nodes) for region in adds] == [3]


def test_a_large_module_is_divided_by_structure() -> None:
    text = "".join(f"t{n + 1} = Conv(t{n}, w) " for n in range(60))
    model = model_from_text(
        f"g (float[1,4,8,8] t0) => (float[1,4,8,8] t60) {{ {text} }}",
        w=np.zeros((4, 4, 1, 1), np.float32),
    )
    regions, index = search(with_scopes(model, ["features"] * 60))
    check_cover(regions, index)
    assert max(len(region.nodes) for region in leaves(regions)) <= 10
    assert division_of(index) == STRUCTURE  # one scope tells nothing apart


@pytest.mark.parametrize(
    ("name", "properties", "scope"),
    [
        ("/encoder/layer.0/attn/q_proj/MatMul", {}, "encoder.layer.0.attn.q_proj"),
        ("/layer2/layer2.0/downsample/downsample.0/Conv", {}, "layer2.0.downsample.0"),
        ("/Flatten", {}, ""),
        ("Conv_12", {}, ""),
        ("layer1.0.conv1", {}, "layer1.0"),
        ("Conv_/layer1/conv1/Conv_output_0", {}, "layer1.conv1"),
        ("node_linear", {NAME_SCOPES: "['', 'mlp', 'mlp.fc1', 'linear']"}, "mlp.fc1"),
        ("node_view", {NAME_SCOPES: "['', 'view']"}, ""),
        ("/mlp/Gemm", {NAME_SCOPES: "nonsense"}, "mlp"),
        ("/" * 100_000, {}, ""),
    ],
)
def test_scopes_are_read(name: str, properties: dict[str, str], scope: str) -> None:
    node = ir.Node("", "Conv", [], name=name, metadata_props=properties)
    assert ".".join(scope_of(node)) == scope


@pytest.mark.parametrize(
    ("scopes", "title"),
    [
        (["encoder.layer.0.attn.q_proj"], "encoder.layer.0.attn.q_proj"),
        (["encoder.layer.0.attn.q", "encoder.layer.11.attn.q"], "encoder.layer.*.attn.q"),
        (["layer.0.attn.q_proj", "layer.0.attn.k_proj"], "layer.0.attn.*_proj"),
        (["layer1.0.conv1", "layer12.1.conv1"], "layer*.*.conv1"),
        (["stem.conv", "stage.0.1.conv"], "*.conv"),
        (["a.b", "c.d"], ""),
        (["", ""], ""),
        ([], ""),
    ],
)
def test_titles_say_what_scopes_have_in_common(scopes: list[str], title: str) -> None:
    assert title_of([tuple(scope.split(".")) if scope else () for scope in scopes]) == title


@pytest.mark.parametrize(
    ("scope", "kind"),
    [
        ("layer1.0.conv2", "layer1.*.conv2"),
        ("encoder.layer.11.attn", "encoder.layer.*.attn"),
        ("encoder.layer_11.attn", "encoder.layer_*.attn"),
        ("head", "head"),
    ],
)
def test_layers_have_modules_of_the_same_kinds(scope: str, kind: str) -> None:
    assert kind_of(tuple(scope.split("."))) == kind


@pytest.mark.parametrize("name", zoo.ARCHITECTURES)
@pytest.mark.parametrize("regions", [SCOPE, STRUCTURE])
def test_every_model_is_covered_once(name: str, regions: str) -> None:
    index = zoo_index(name)
    check_cover(find_regions(index, regions), index)


def by_name(index: GraphIndex) -> set[frozenset[str]]:
    return {
        frozenset(index.nodes[node].name or "" for node in region.nodes)
        for region in leaves(ScopeRegionSearch(index).search_regions())
    }


@given(small_models(), st.lists(st.sampled_from(["a.0", "a.1", "a", "b.c", ""]), min_size=8),
       st.integers(0, 99))  # fmt: skip
def test_the_order_of_the_nodes_does_not_matter(
    model: onnx.ModelProto, scopes: list[str], seed: int
) -> None:
    with_scopes(model, scopes[: len(model.graph.node)])
    index = index_of(model)
    check_cover(ScopeRegionSearch(index).search_regions(), index)
    before = by_name(index)
    shuffle(model.graph, random.Random(seed))
    assert by_name(index_of(model)) == before


def test_folding_keeps_the_scopes() -> None:
    model = model_from_text(
        """g (float[1,4,8,8] x) => (float[1,4,8,8] y) {
            a = Conv(x, w) b = BatchNormalization(a, v, v, v, v)
            s = Shape(b) c = Reshape(b, s) y = Relu(c)
        }""",
        w=np.ones((4, 4, 1, 1), np.float32), v=np.ones(4, np.float32),
    )  # fmt: skip
    for exporter in ("legacy", "dynamo"):
        proto = onnx.ModelProto()
        proto.CopyFrom(model)
        with_scopes(proto, ["b.conv", "b.bn", "b", "b", "b.act"], exporter)
        loaded = ir.from_proto(proto)
        fold(loaded)
        scopes = {node.op_type: ".".join(scope_of(node)) for node in loaded.graph}
        assert scopes["Conv"] == "b.conv"
        assert scopes["Relu"] == "b.act"


def test_projections_are_chosen_one_by_one_and_in_all_layers() -> None:
    index = index_of(encoder("legacy"))
    planner = QuantizationPlanner(index, dialect_named("onnxruntime"))
    grouping = group_ops(index, planner, None, SCOPE)
    found = {frozenset(scope_of(index.node[name])[3:] for name in group.nodes)
             for group in grouping.groups if group.op_type == "MatMul"}  # fmt: skip
    assert frozenset({("attn", "q_proj")}) in found
    assert frozenset({("attn", "k_proj")}) in found
    titles = {view.title for view in grouping.views}
    assert {"encoder.layer.*.attn.*_proj", "encoder.layer.*.attn", "head"} <= titles
    assert grouping.divided_by == SCOPE
