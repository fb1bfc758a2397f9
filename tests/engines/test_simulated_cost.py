"""What holds for the simulated cost of any graph, and what it says about known models."""

from __future__ import annotations

import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from qdqtune import zoo
from qdqtune.graph._folding import fold
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import merge, rule_of, unit, why_not
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._ranges import CalibrationSource, Ranges
from qdqtune.testing.simulated import PROFILES, kernels_of, true_latency_ms

CONVERSIONS = {"QuantizeLinear", "DequantizeLinear", "Reformat"}
SHAPE = [1, 16, 10, 10]
UNARY = ("Relu", "Sigmoid", "MaxPool", "Transpose", "Softmax", "AveragePool")
BINARY = ("Add", "Mul")
profiles = st.sampled_from(sorted(PROFILES))


@dataclass
class Graph:
    """A graph under construction; every tensor has the same shape, so any wiring is legal."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[str] = field(default_factory=lambda: ["x"])

    def add(self, op_type: str, inputs: list[str]) -> None:
        name = f"t{len(self.nodes)}"
        attributes: dict[str, object] = {}
        if op_type in ("MaxPool", "AveragePool"):
            attributes = {"kernel_shape": [1, 1]}
        if op_type == "Transpose":
            attributes = {"perm": [0, 1, 3, 2]}
        if op_type == "Conv":
            inputs = [*inputs, "w"]
        self.nodes.append(helper.make_node(op_type, inputs, [name], name=name, **attributes))
        self.tensors.append(name)

    def model(self, pairs: list[tuple[str, int]] = [], low: str = "uint8") -> onnx.ModelProto:  # noqa: B006
        """The graph with Q/DQ pairs on a tensor, for all its readers or all but the first."""
        nodes = [helper.make_node(n.op_type, n.input, n.output, n.name) for n in self.nodes]
        for node, source in zip(nodes, self.nodes, strict=True):
            node.attribute.extend(source.attribute)
        for tensor, skipped in pairs:
            for node in [n for n in nodes if tensor in n.input][skipped:]:
                for position, name in enumerate(node.input):
                    node.input[position] = f"{tensor}_d" if name == tensor else name
            quantize = helper.make_node(
                "QuantizeLinear", [tensor, "s", "z"], [f"{tensor}_q"], f"{tensor}_Q"
            )
            dequantize = helper.make_node(
                "DequantizeLinear", [f"{tensor}_q", "s", "z"], [f"{tensor}_d"], f"{tensor}_D"
            )
            made = [i for i, node in enumerate(nodes) if tensor in node.output]
            place = made[0] + 1 if made else 0
            nodes[place:place] = [quantize, dequantize]
        value = helper.make_tensor_value_info
        constants = {
            "w": np.ones((16, 16, 1, 1), np.float32),
            "s": np.float32(0.1).reshape(()),
            "z": np.zeros((), low),
        }
        graph = helper.make_graph(
            nodes,
            "g",
            [value("x", 1, SHAPE)],
            [value(self.tensors[-1], 1, SHAPE)],
            [numpy_helper.from_array(array, name) for name, array in constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    graph = Graph()
    for _ in range(draw(st.integers(2, 14))):
        op_type = draw(st.sampled_from(("Conv", *UNARY, *BINARY)))
        recent = st.sampled_from(graph.tensors[-4:])
        graph.add(op_type, [draw(recent) for _ in range(2 if op_type in BINARY else 1)])
    return graph


@st.composite
def graphs_and_pairs(draw: st.DrawFn) -> tuple[Graph, list[tuple[str, int]]]:
    graph = draw(graphs())
    tensors = st.sampled_from(graph.tensors[:-1])
    return graph, draw(
        st.lists(
            st.tuples(tensors, st.integers(0, 1)), min_size=1, max_size=8, unique_by=lambda p: p[0]
        )
    )


def shuffled(model: onnx.ModelProto, rng: random.Random) -> onnx.ModelProto:
    """The same graph: nodes in another legal order, nodes and inner tensors renamed."""
    left = list(model.graph.node)
    known = {"x", "w", "s", "z"}
    order = []
    while left:
        ready = [node for node in left if known.issuperset(node.input)]
        chosen = rng.choice(ready)
        left.remove(chosen)
        known.update(chosen.output)
        order.append(chosen)
    kept = {"x", model.graph.output[0].name}
    inner = [name for node in order for name in node.output if name not in kept]
    names = dict(
        zip(inner, rng.sample([f"v{i}" for i in range(len(inner))], len(inner)), strict=True)
    )
    result = onnx.ModelProto()
    result.CopyFrom(model)
    del result.graph.node[:]
    for position, node in enumerate(order):
        copy = result.graph.node.add()
        copy.CopyFrom(node)
        copy.name = f"node{rng.random()}{position}"
        copy.input[:] = [names.get(name, name) for name in node.input]
        copy.output[:] = [names.get(name, name) for name in node.output]
    return result


@given(graphs_and_pairs(), profiles, st.integers(0, 2**32))
def test_order_and_names_do_not_matter(drawn, profile, seed):
    graph, pairs = drawn
    model = graph.model(pairs, "int8" if profile == "gpu" else "uint8")
    again = shuffled(model, random.Random(seed))
    assert true_latency_ms(again, profile) == pytest.approx(true_latency_ms(model, profile), 1e-9)


@given(graphs_and_pairs(), profiles)
def test_every_op_is_in_one_kernel(drawn, profile):
    graph, pairs = drawn
    model = graph.model(pairs)
    kernels = kernels_of(model, profile)
    done = [name for k in kernels if k.op_type not in CONVERSIONS for name in k.nodes]
    assert sorted(done) == sorted(node.name for node in graph.nodes)
    assert all(k.ms > 0 for k in kernels)
    assert true_latency_ms(model, profile) == sum(kernel.ms for kernel in kernels)


@given(graphs(), profiles, st.data())
def test_a_lone_pair_never_pays(graph, profile, data):
    pair = data.draw(st.tuples(st.sampled_from(graph.tensors[:-1]), st.integers(0, 1)))
    model = graph.model([pair], "int8" if profile == "gpu" else "uint8")
    computing = [k for k in kernels_of(model, profile) if k.op_type not in CONVERSIONS]
    assume(all(kernel.precision == "float" for kernel in computing))
    assert true_latency_ms(model, profile) >= true_latency_ms(graph.model(), profile)


@given(graphs_and_pairs(), st.data())
def test_without_integer_kernels_no_pair_ever_pays(drawn, data):
    graph, pairs = drawn
    fewer = data.draw(st.lists(st.sampled_from(pairs), unique=True))
    all_ms = true_latency_ms(graph.model(pairs), "float-only")
    assert all_ms >= true_latency_ms(graph.model(fewer), "float-only")


def test_other_processes_find_the_same(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(zoo.build("mobilenet_v2", image=32, width=0.5), path)
    code = (
        "import sys; from qdqtune.testing.simulated import true_latency_ms\n"
        "print(repr(true_latency_ms(sys.argv[1], sys.argv[2])))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code, str(path), "gpu"],
            capture_output=True,
            text=True,
            check=True,
            env={"PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert found == {f"{true_latency_ms(path, 'gpu')!r}\n"}


def test_open_dims_are_one_unless_told():
    model = zoo.build("mobilenet_v2", image=128)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "batch"
    name = model.graph.input[0].name
    one = true_latency_ms(model)
    assert one == true_latency_ms(model, input_shapes={name: (1, 3, 128, 128)})
    assert true_latency_ms(model, input_shapes={name: (8, 3, 128, 128)}) > 4 * one


def test_weights_are_not_needed(tmp_path):
    model = zoo.build("resnet18", image=32, width=16)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=256)
    (tmp_path / "weights").unlink()
    assert true_latency_ms(path) == pytest.approx(true_latency_ms(model), 1e-12)


def speedups(folder: Path, profile: str, model: onnx.ModelProto, tries: int = 0) -> list[float]:
    """Of everything quantized, of the weighted ops, and of the best of some random choices."""
    dialect = dialect_named(PROFILES[profile].dialect)
    loaded = ir.from_proto(model)
    fold(loaded)
    base = PreparedModel(loaded, folder)
    floats = [name for name in base.index.value if base.index.is_float(name)]
    ranges = Ranges(dict.fromkeys(floats, (-1.0, 1.0)), CalibrationSource.RANDOM, 1)
    inserter = Inserter(base, dialect, "int8", ranges)
    nodes = [n for n in base.index.nodes if rule_of(dialect, n)]
    nodes = [n for n in nodes if not why_not(base.index, dialect, n, "int8")]

    def ms(chosen: list[ir.Node]) -> float:
        units = (unit(base.index, dialect, node, whole=True) for node in chosen)
        return true_latency_ms(inserter.proto(merge(units)), profile)

    none = ms([])
    weighted = ms([node for node in nodes if node.op_type in ("Conv", "Gemm", "MatMul")])
    rng = random.Random(0)
    best, kept = none, set()
    for _ in range(tries):
        start, length = rng.randrange(len(nodes)), rng.randint(1, 12)
        flipped = kept ^ set(range(start, min(start + length, len(nodes))))
        found = ms([nodes[i] for i in sorted(flipped)])
        if found < best:
            best, kept = found, flipped
    return [none / ms(nodes), none / weighted, none / best]


def test_a_resnet_gains(tmp_path):
    model = zoo.build("resnet18")
    for profile in ("cpu-vnni", "cpu"):
        everything, weighted, _ = speedups(tmp_path, profile, model)
        assert 1.5 < weighted <= everything < 2.2


def test_a_shufflenet_gains_in_parts_only(tmp_path):
    model = zoo.build("shufflenet_v2", image=128)
    everything, weighted, best = speedups(tmp_path, "cpu-vnni", model, tries=80)
    assert max(everything, weighted) < 1.0
    assert best > 1.03
