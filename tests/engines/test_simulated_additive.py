"""Without fusion and layouts, a model costs what its ops do, and its conversions."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from benchmarks.subgraph_models import random_model
from tests.conftest import model_from_text

from qdqtune.engines._interface import SessionOptions
from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._ranges import CalibrationSource, Ranges
from qdqtune.testing.simulated import PROFILES, Kernel, SimulatedEngine, kernels_of
from qdqtune.testing.simulated._engine import Settings

QUANTIZE, DEQUANTIZE = "QuantizeLinear", "DequantizeLinear"
ADDITIVE = {
    name: replace(profile, fuses=False, has_layouts=False) for name, profile in PROFILES.items()
}


def placements(
    model: onnx.ModelProto, folder: Path, dialect: str
) -> tuple[QuantizationPlanner, Inserter]:
    """What a dialect can quantize of a model, and who writes it."""
    loaded = ir.from_proto(model)
    fold(loaded)
    base = PreparedModel(loaded, folder)
    floats = [name for name in base.index.value if base.index.is_float(name)]
    ranges = Ranges(dict.fromkeys(floats, (-1.0, 1.0)), CalibrationSource.RANDOM, 1)
    rules = dialect_named(dialect)
    return QuantizationPlanner(base.index, rules), Inserter(base, rules, "int8", ranges)


def some_choices(names: list[str], seed: int, count: int) -> list[list[str]]:
    """Nothing, everything, and choices of all densities."""
    rng = random.Random(seed)
    densities = [rng.random() for _ in range(count)]
    return [[], names, *([name for name in names if rng.random() < p] for p in densities)]


def conversions(index: GraphIndex, low: dict[str, bool]) -> Counter[tuple[str, int]]:
    """Which conversions the forms of the ops ask for: kind and elements, once per tensor."""
    outputs = {value.name for value in index.model.graph.outputs}
    wanted: Counter[tuple[str, int]] = Counter()
    for name, value in index.value.items():
        if index.is_constant(name) or not index.is_float(name):
            continue
        maker = value.producer()
        is_low = maker is not None and low[maker.name or ""]
        readers = {low[edge.node] for edge in index.readers(name) if edge.node}
        readers |= {False} if name in outputs else set()
        if is_low and False in readers:
            wanted[DEQUANTIZE, int(np.prod(index.shape(name)))] += 1
        if not is_low and True in readers:
            wanted[QUANTIZE, int(np.prod(index.shape(name)))] += 1
    return wanted


def conversion_ms(elements: int, profile: str) -> float:
    machine = PROFILES[profile]
    return elements * 5 / machine.conversion_bandwidth / 1e6 + machine.launch_us / 1e3


@pytest.mark.parametrize("profile", ["cpu-vnni", "cpu"])
@pytest.mark.parametrize("seed", range(12))
def test_ops_and_conversions_add_up(tmp_path, seed, profile):
    """Each op has one cost as float and one quantized, whatever the others are."""
    units, inserter = placements(random_model(seed), tmp_path, PROFILES[profile].dialect)
    index = units.index
    if any(node.op_type == "Flatten" for node in index.nodes):
        pytest.skip("a view has no form of its own")
    costs: dict[tuple[str, bool], float] = {}
    for chosen in some_choices(list(units.units), seed, 16):
        kernels = kernels_of(inserter.proto(units.placement(chosen)), ADDITIVE[profile])
        ops = [k for k in kernels if k.op_type not in (QUANTIZE, DEQUANTIZE)]
        low = {name: kernel.precision != "float" for kernel in ops for name in kernel.nodes}
        assert low.keys() == {node.name for node in index.nodes}
        assert all(low[name] for name in chosen if name in units.compute)
        for kernel in ops:
            known = costs.setdefault((kernel.name, low[kernel.nodes[0]]), kernel.ms)
            assert kernel.ms == known
        wanted = conversions(index, low)
        predicted = sum(costs[k.name, low[k.nodes[0]]] for k in ops) + sum(
            count * conversion_ms(elements, profile) for (_, elements), count in wanted.items()
        )
        assert sum(kernel.ms for kernel in kernels) == pytest.approx(predicted, rel=1e-9)
        have = Counter(k.op_type for k in kernels if k not in ops)
        assert have == Counter(kind for kind, _ in wanted.elements())


def test_what_is_between_quantized_ops_is_quantized(tmp_path):
    """The one way in which neighbours matter: Q/DQ can't say that such an op is float."""
    body = "a = Conv(x, w) b = Sigmoid(a) y = Conv(b, w)"
    model = model_from_text(
        f"g (float[1,8,9,9] x) => (float[1,8,9,9] y) {{ {body} }}",
        w=np.ones((8, 8, 1, 1), np.float32),
    )
    units, inserter = placements(model, tmp_path, "onnxruntime")
    convs = [name for name in units.units if units.index.node[name].op_type == "Conv"]
    placement = units.placement(convs)
    assert placement == units.placement(units.units)
    kernels = kernels_of(inserter.proto(placement), ADDITIVE["cpu-vnni"])
    assert [(k.op_type, k.precision) for k in kernels] == [
        (QUANTIZE, "uint8"), ("Conv", "uint8"), ("Sigmoid", "uint8"), ("Conv", "uint8"),
        (DEQUANTIZE, "uint8"),
    ]  # fmt: skip


def tensorrt_unit(folder: Path, chosen: set[str]) -> list[tuple[str, str]]:
    """Kernels of a residual sum on the GPU: its pairs stand on inputs only."""
    model = model_from_text(
        "g (float[1,8,9,9] x) => (float[1,8,9,9] y) { a = Conv(x, w) y = Add(a, x) }",
        w=np.ones((8, 8, 1, 1), np.float32),
    )
    units, inserter = placements(model, folder, "tensorrt")
    names = [name for name in units.units if units.index.node[name].op_type in chosen]
    kernels: tuple[Kernel, ...] = kernels_of(
        inserter.proto(units.placement(names)), ADDITIVE["gpu"]
    )
    return [(k.op_type, k.precision) for k in kernels]


def test_a_low_precision_kernel_makes_quantized_values_whoever_reads_them(tmp_path):
    assert tensorrt_unit(tmp_path, {"Conv"}) == [
        (QUANTIZE, "int8"), ("Conv", "int8"), (DEQUANTIZE, "int8"), ("Add", "float")
    ]  # fmt: skip
    assert tensorrt_unit(tmp_path, {"Conv", "Add"}) == [
        (QUANTIZE, "int8"), ("Conv", "int8"), ("Add", "int8"), (DEQUANTIZE, "int8")
    ]  # fmt: skip


def test_a_sum_behind_a_float_op_has_its_pair_in_vain(tmp_path):
    assert tensorrt_unit(tmp_path, {"Add"}) == [
        (QUANTIZE, "int8"), (DEQUANTIZE, "int8"), ("Conv", "float"), ("Add", "float")
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ["Conv Relu", "Sigmoid Mul"]),
        ({"fusion": "0"}, ["Conv Relu", "Sigmoid", "Mul"]),
        ({"profile": "gpu"}, ["Conv Relu Sigmoid Mul"]),
        ({"profile": "gpu", "fusion": "0"}, ["Conv", "Relu", "Sigmoid", "Mul"]),
    ],
)
def test_without_fusion_ops_are_kernels_of_their_own(options, expected):
    """But an activation that is quantized as part of an op is part of it as float, too."""
    model = model_from_text(
        "g (float[1,8,9,9] x) => (float[1,8,9,9] y)"
        "{ a = Conv(x, w) b = Relu(a) c = Sigmoid(b) y = Mul(b, c) }",
        w=np.ones((8, 8, 1, 1), np.float32),
    )
    kinds = {node.name or f"n{n}": node.op_type for n, node in enumerate(model.graph.node)}
    kernels = kernels_of(model, Settings.from_options(options).profile)
    assert [" ".join(kinds[name] for name in kernel.nodes) for kernel in kernels] == expected


@pytest.mark.parametrize(("layout", "expected"), [("1", 2), ("0", 0)])
def test_layouts_can_be_switched_off(tmp_path, layout, expected):
    model = model_from_text(
        "g (float[1,8,9,9] x) => (float[1,8,9,9] y) { y = Conv(x, w) }",
        w=np.ones((8, 8, 1, 1), np.float32),
    )
    machine = Settings.from_options({"layout": layout}).profile
    units, inserter = placements(model, tmp_path, machine.dialect)
    kernels = kernels_of(inserter.proto(units.placement(units.units)), machine)
    assert sum(kernel.op_type == "Reformat" for kernel in kernels) == expected


@pytest.mark.parametrize("seed", range(3))
def test_layers_are_found_in_quantized_models(tmp_path, seed):
    """Every op that does work is in the layer that its kernel is; with and without fusion."""
    units, inserter = placements(random_model(seed), tmp_path, "onnxruntime")
    path = inserter.write(units.placement(units.units), "all")
    proto = onnx.load(path)
    feeds = {
        value.name: np.zeros([d.dim_value for d in value.type.tensor_type.shape.dim], np.float32)
        for value in proto.graph.input
    }
    index = GraphIndex(ir.load(path))
    for options in ({}, {"fusion": "0", "layout": "0"}):
        session = SimulatedEngine().open(str(path), SessionOptions(engine_options=options))
        session.set_feeds(feeds)
        layers = session.layer_times(1)
        for layer, mapped in zip(layers, nodes_of_layers(index, layers), strict=True):
            assert set(layer.origins) <= set(mapped.nodes)
