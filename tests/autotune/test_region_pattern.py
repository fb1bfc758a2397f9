"""What a pattern says, and what it doesn't depend on."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.graph._index import GraphIndex
from qdqtune.records._errors import AutotunerError, InvalidSchemeError
from qdqtune.search.patterns._insertion_points import ResolvedInsertionPoint
from qdqtune.search.patterns._region_pattern import InsertionScheme, RegionPattern
from qdqtune.search.regions._canonical import canonical_region, scalable
from qdqtune.search.regions._region import Region
from tests.autotune.graphs import (
    composite,
    disguised,
    from_text,
    index_of,
    leaf,
    long_chain,
    weight,
)
from tests.models import small_models

DEPTH = 20_000
BLOCK = (
    "g (float[1,4,8,8] x) => (float[1,4,8,8] y) "
    "{{ a = Conv<pads=[1,1,1,1]>(x, w, b) r = Relu(a) y = {} }}"
)


def signature(index: GraphIndex, *, shapes: bool = False) -> str:
    region = leaf(*range(len(index.nodes)))
    return RegionPattern.from_region(region, index, shapes=shapes).signature


def block(last: str, kernel: int = 3) -> GraphIndex:
    return from_text(BLOCK.format(last), w=weight(4, 4, kernel, kernel), b=weight(4))


def moved(region: Region, old: GraphIndex, new: GraphIndex, names: dict[str, str]) -> Region:
    """The same region in a disguised copy."""

    def position(node: int) -> int:
        return new.position[names[old.nodes[node].name or ""]]

    if not region.children:
        return leaf(*map(position, region.nodes), region_id=region.id)
    return composite(
        *(moved(c, old, new, names) for c in reversed(region.children)), region_id=region.id
    )


def check_disguise(model: onnx.ModelProto, region: Region, index: GraphIndex, seed: int) -> None:
    """A copy has the same patterns, and schemes stand for the same places in it."""
    copy, nodes, tensors = disguised(model, seed)
    other = index_of(copy)
    there = moved(region, index, other, nodes)
    for shapes in (False, True):
        pattern = RegionPattern.from_region(region, index, shapes=shapes)
        assert pattern == RegionPattern.from_region(there, other, shapes=shapes)
    here_full = pattern.get_full_insertion_scheme(region, index)
    there_full = pattern.get_full_insertion_scheme(there, other)
    # Whether an output pays is up to its readers outside, so of two outputs that a pattern can't
    # tell apart one may be a point and the other not: outputs are compared as places only.
    edges = InsertionScheme(here_full.node_inputs, here_full.child_region_inputs)
    assert (
        edges.hash == InsertionScheme(there_full.node_inputs, there_full.child_region_inputs).hash
    )
    for mine, theirs in ((edges, edges), (here_full, there_full)):
        expected = {
            (tensors[p.tensor_name], _name(p, index, nodes))
            for p in pattern.matches(region, index, mine)
        }
        found = pattern.matches(there, other, theirs)
        assert {(p.tensor_name, _name(p, other, None)) for p in found} == expected


def _name(point: ResolvedInsertionPoint, index: GraphIndex, names: dict[str, str] | None) -> str:
    if point.node_index is None:
        return ""
    name = index.nodes[point.node_index].name or ""
    return name if names is None else names[name]


@given(small_models(), st.data())
def test_leaf_patterns_are_canonical(model: onnx.ModelProto, data: st.DataObject) -> None:
    index = index_of(model)
    nodes = data.draw(st.sets(st.sampled_from(range(len(index.nodes))), min_size=1))
    check_disguise(model, leaf(*nodes), index, data.draw(st.integers(0, 1000)))


@given(small_models(), st.data())
def test_composite_patterns_are_canonical(model: onnx.ModelProto, data: st.DataObject) -> None:
    index = index_of(model)
    homes = [data.draw(st.integers(0, 2)) for _ in index.nodes]
    children = [
        leaf(*(node for node, home in enumerate(homes) if home == each), region_id=each)
        for each in sorted(set(homes))
    ]
    inner = composite(*children[:2], region_id=10)
    region = composite(inner, *children[2:], region_id=11)
    check_disguise(model, region, index, data.draw(st.integers(0, 1000)))


TIES = {
    # Two pairs of branches: which Relu belongs to which Sigmoid shows only further down.
    "pairs": """
        a = Relu(x) b = Relu(x) c = Sigmoid(x) d = Sigmoid(x)
        e = Add(a, d) f = Add(b, c) y = Concat<axis=0>(e, f)""",
    # Rings of three and six: nobody's neighbours differ.
    "rings": " ".join(f"a{i} = Relu(x)" for i in range(9))
    + " "
    + " ".join(
        f"s{i} = Mul(a{i}, a{j})"
        for i, j in [(0, 1), (1, 2), (2, 0), (3, 4), (4, 5), (5, 6), (6, 7), (7, 8), (8, 3)]
    )
    + " y = Sum("
    + ", ".join(f"s{i}" for i in range(9))
    + ")",
    "parallel": " ".join(f"a{i} = Relu(x) b{i} = Tanh(a{i})" for i in range(6))
    + " y = Sum("
    + ", ".join(f"b{i}" for i in range(6))
    + ")",
}


@pytest.mark.parametrize("name", TIES)
def test_ties_are_broken_the_same_way(name: str) -> None:
    text = f"g (float[2,4] x) => (float y) {{ {TIES[name]} }}"
    index = from_text(text)
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]>\n{text}')
    for position, node in enumerate(model.graph.node):
        node.name = f"n{position}"
    for seed in range(12):
        check_disguise(model, leaf(*range(len(index.nodes))), index, seed)


def test_shapes_decide_between_branches_of_equal_structure() -> None:
    text = """
        g (float[1,4,8,8] x) => (float[1,4,8,8] y) {{
            a = Conv<auto_pad="SAME_UPPER">(x, {})
            b = Conv<auto_pad="SAME_UPPER">(x, {})
            y = Add(a, b)
        }}"""
    weights = {"u": weight(4, 4, 3, 3), "v": weight(4, 4, 1, 1)}
    one, two = (from_text(text.format(*order), **weights) for order in ("uv", "vu"))
    assert signature(one) == signature(two)
    assert signature(one, shapes=True) == signature(two, shapes=True)


def test_the_text_can_be_read() -> None:
    assert signature(block("Add(r, x)")) == ("Conv[pads=1x1x1x1](e0,c,c)->Relu(%0)->Add(%1,e0)=>%2")


def test_shapes_and_types_are_told_on_demand() -> None:
    index = from_text(
        "g (float16[N,4] x) => (float16[N,2] y) { y = MatMul(x, w) }",
        w=np.ones((4, 2), np.float16),
    )
    assert signature(index) == "MatMul(e0,c)=>%0"
    text = "MatMul(e0:float16[?x4],c:float16[4x2])=float16[?x2]=>%0"
    assert signature(index, shapes=True) == text


def test_shapes_are_part_of_one_pattern_only() -> None:
    small, large = block("Add(r, x)", 3), block("Sub(r, x)", 3)
    other = from_text(
        BLOCK.format("Add(r, x)").replace("8,8", "16,16"), w=weight(4, 4, 3, 3), b=weight(4)
    )
    assert signature(small) == signature(other)
    assert signature(small, shapes=True) != signature(other, shapes=True)
    assert signature(small) != signature(large)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("Sub(r, x)", "Sub(x, r)"),
        ("Sub(r, x)", "Sub(r, a)"),
        ("Add(r, x)", "Add(r, a)"),
        ("Add(r, r)", "Add(r, x)"),
        ("Concat<axis=1>(r, x)", "Concat<axis=2>(r, x)"),
        ("Clip(r, , x)", "Clip(r, x)"),
        ("Relu(r)", "Relu(a)"),
    ],
)
def test_different_wiring_is_a_different_pattern(one: str, two: str) -> None:
    assert signature(block(one)) != signature(block(two))


def test_one_tensor_read_twice_is_one_external() -> None:
    text = "g (float[8] x, float[8] z) => (float[8] y) {{ a = Relu(x) b = Tanh({}) y = Add(a, b) }}"
    assert signature(from_text(text.format("x"))).count("e0") == 2
    assert signature(from_text(text.format("x"))) != signature(from_text(text.format("z")))


def test_what_leaves_the_region_is_part_of_the_pattern() -> None:
    index = block("Add(r, x)")
    assert canonical_region(leaf(0), index).signature() == "Conv[pads=1x1x1x1](e0,c,c)=>%0"
    text = "g (float[8] x) => (float[8] y{}) {{ a = Relu(x) y = Tanh(a) }}"
    assert signature(from_text(text.format(""))) == "Relu(e0)->Tanh(%0)=>%1"
    assert signature(from_text(text.format(", float[8] a"))) == "Relu(e0)->Tanh(%0)=>%0,%1"


def test_names_in_bodies_dont_count_but_their_ops_do() -> None:
    text = """
        g (float[8] x, bool p) => (float[8] y) {{
            {0} = Relu(x)
            y = If(p) <
                then_branch = t () => (float[8] {1}) {{ {1} = {2}({0}) }},
                else_branch = e () => (float[8] v) {{ v = Identity(x) }}
            >
        }}"""
    plain = signature(from_text(text.format("a", "u", "Tanh")))
    assert plain == signature(from_text(text.format("q", "w", "Tanh")))
    assert plain != signature(from_text(text.format("a", "u", "Sin")))
    assert "%0" in plain  # what the body captures is wiring


def test_composites_tell_how_children_are_wired() -> None:
    index = block("Sub(x, r)")
    region = composite(leaf(0, 1, region_id=1), leaf(2, region_id=2))
    pattern = RegionPattern.from_region(region, index)
    assert pattern.signature == (
        "COMPOSITE(Conv[pads=1x1x1x1](e0,c,c)->Relu(%0)=>%1+Sub(e0,e1)=>%0){e0;e0,#0.0}=>#1.0"
    )
    assert pattern.is_composite
    assert not pattern.is_leaf
    assert pattern.size == 3
    swapped = RegionPattern.from_region(region, block("Sub(r, x)"))
    assert swapped != pattern


def test_deep_composites() -> None:
    depth = 4000
    index = long_chain(DEPTH)
    region = leaf(depth - 1, region_id=0)
    for level in range(1, depth):
        first = leaf(depth - 1 - level, region_id=2 * level)
        region = composite(first, region, region_id=2 * level + 1)
    pattern = RegionPattern.from_region(region, index)
    assert pattern.size == depth
    assert pattern.signature.count("COMPOSITE(") == depth - 1


def test_long_leaves() -> None:
    assert signature(long_chain(DEPTH)).count("->") == DEPTH - 1


def test_many_equal_branches_end_in_time() -> None:
    branches = 300
    text = " ".join(f"a{i} = Relu(x) b{i} = Tanh(a{i})" for i in range(branches))
    names = ", ".join(f"b{i}" for i in range(branches))
    index = from_text(f"g (float[8] x) => (float[8] y) {{ {text} y = Sum({names}) }}")
    region = leaf(*range(len(index.nodes)))
    assert RegionPattern.from_region(region, index).size == 2 * branches + 1


def test_the_three_ways_to_match() -> None:
    index = block("Add(r, x)")
    region = leaf(0, 1, 2)
    for shapes in (False, True):
        pattern = RegionPattern.from_region(region, index, shapes=shapes)
        assert pattern.matches(RegionPattern(pattern.signature, 99))
        assert pattern.matches(region, index) == [0, 1, 2]
        assert pattern.matches(leaf(0, 1), index) is None
        scheme = pattern.get_full_insertion_scheme(region, index)
        assert ResolvedInsertionPoint("x", 0, 0) in pattern.matches(region, index, scheme)
        assert pattern.matches(leaf(0, 1), index, scheme) == set()


def test_wrong_questions_are_refused() -> None:
    index = block("Add(r, x)")
    pattern = RegionPattern.from_region(leaf(0), index)
    with pytest.raises(InvalidSchemeError, match="without its graph"):
        pattern.matches(leaf(0))  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="in a pattern"):
        pattern.matches(pattern, None, InsertionScheme())  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        pattern.matches("Conv")  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="doesn't have the pattern"):
        pattern.get_full_insertion_scheme(leaf(0, 1), index)
    with pytest.raises(AutotunerError, match="another model"):
        RegionPattern.from_region(leaf(99), index)
    with pytest.raises(AutotunerError, match="in two"):
        RegionPattern.from_region(composite(leaf(0, region_id=1), leaf(0, 1, region_id=2)), index)


def test_small_things() -> None:
    pattern = RegionPattern("x" * 100, 3)
    assert pattern.get_short_signature(10) == "xxxxxxx..."
    assert len(pattern.get_hash()) == 32
    assert str(pattern) == pattern.signature
    assert len({pattern, RegionPattern("x" * 100, 3)}) == 1
    empty = RegionPattern.from_region(leaf(), block("Relu(r)"))
    assert empty.is_empty
    assert empty.signature == "EMPTY"


def test_a_tree_as_text() -> None:
    index = block("Add(r, x)")
    region = composite(leaf(0, 1, region_id=1), leaf(2, region_id=2), region_id=3)
    lines = RegionPattern.from_region(region, index).format_tree(region, index).split("\n")
    assert [line.split(":")[0] for line in lines] == ["Region 3", "  Region 1", "  Region 2"]
    assert lines[2].endswith("(size=1)")


@given(small_models(), st.booleans())
def test_a_signature_with_shapes_says_what_the_structure_is(
    model: onnx.ModelProto, nested: bool
) -> None:
    index = index_of(model)
    half = len(index.nodes) // 2
    region = leaf(*range(len(index.nodes)))
    if nested:
        parts = leaf(*range(half), region_id=1), leaf(*range(half, len(index.nodes)), region_id=2)
        region = composite(*(part for part in parts if part.nodes))
    plain = RegionPattern.from_region(region, index)
    assert RegionPattern.from_region(region, index, shapes=True).structure == plain
    assert plain.structure == plain


@pytest.mark.parametrize("text", ["a):float[1]=>", "it's ):float[1x2]", '"(c:float[1])=-', ")=-"])
def test_text_of_attributes_is_not_taken_for_a_shape(text: str) -> None:
    node = onnx.helper.make_node("Own", ["x"], ["y"], "n0", domain="own.ops", text=text)
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [4])
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = onnx.helper.make_graph([node], "g", [value], [result])
    index = GraphIndex(ir.from_proto(onnx.helper.make_model(graph)))
    plain, shaped = (
        RegionPattern.from_region(leaf(0), index, shapes=shapes) for shapes in (False, True)
    )
    assert plain != shaped
    assert shaped.structure == plain == plain.structure


@pytest.mark.parametrize(
    ("groups", "same"), [(1, (1,)), (2, (2, 4)), (4, (2, 4)), (8, (8,))], ids=str
)
def test_a_conv_is_dense_grouped_or_depthwise_at_any_width(
    groups: int, same: tuple[int, ...]
) -> None:
    def structure(count: int) -> tuple[str, tuple[int, ...]]:
        text = f"g (float[1,8,9,9] x) => (float[1,8,7,7] y) {{ y = Conv<group={count}>(x, w, b) }}"
        index = from_text(text, w=weight(8, 8 // count, 3, 3), b=weight(8))
        return scalable(signature(index, shapes=True))

    found, dims = structure(groups)
    assert {count for count in (1, 2, 4, 8) if structure(count)[0] == found} == set(same)
    assert 8 // groups in dims


def test_a_concat_has_any_number_of_inputs() -> None:
    """As in a DenseNet, where each layer reads one more; the result has the channels of all."""

    def structure(inputs: int, axis: int = 1) -> tuple[str, tuple[int, ...]]:
        names = [f"x{number}" for number in range(inputs)]
        header = ", ".join(f"float[1,{2 if axis == 1 else 6},4] {name}" for name in names)
        body = f"c = Concat<axis={axis}>({', '.join(names)}) y = Relu(c)"
        index = from_text(f"g ({header}) => (float[N,C,W] y) {{ {body} }}")
        return scalable(signature(index, shapes=True))

    assert structure(3)[0] == structure(5)[0] != structure(3, axis=2)[0]
    assert len(structure(3)[1]) == len(structure(5)[1])
    assert structure(3)[1] != structure(5)[1]


def test_its_representation_is_whole() -> None:
    pattern = RegionPattern("Relu(e0)=>%0" * 20, 3)
    assert repr(pattern) == f"RegionPattern({pattern.signature!r}, size=3)"
