"""Dynamic ops, and sums that are kept from being fused, on a simulated machine."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text
from tests.qdq.test_round_trip import inserter_for

from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.records._placement import Placement
from qdqtune.testing.simulated import PROFILES, Kernel, kernels_of, true_latency_ms

DYNAMIC = PROFILES["cpu-dynamic"]
TEXT = """g (float[64,256] x) => (float[64,256] y) {
    h = MatMul(x, w) a = Add(h, b) g = Gemm<transB=1>(x, v, b) s = Add(a, g)
    y = LayerNormalization(s, b)
}"""


@pytest.fixture
def inserter(tmp_path: Path) -> Inserter:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(256, 256)).astype(np.float32) for name in ("w", "v")}
    proto = model_from_text(TEXT, b=np.ones(256, np.float32), **weights)
    return inserter_for(proto, DIALECTS["onnxruntime"], "int8", str(tmp_path))


def written(inserter: Inserter, *dynamic: str, unfused: tuple[str, ...] = ()) -> onnx.ModelProto:
    return inserter.proto(Placement.of(dynamic=dynamic, unfused=unfused))


def kinds(kernels: tuple[Kernel, ...]) -> list[str]:
    return [kernel.op_type for kernel in kernels]


def test_a_dynamic_op_is_one_kernel_and_readers_share_its_input(inserter: Inserter) -> None:
    found = kernels_of(written(inserter, "n0", "n2"), DYNAMIC)
    product = "MatMulInteger"
    assert kinds(found) == ["DynamicQuantizeLinear", product, product, "Add", "LayerNormalization"]
    # The bias is part of it, whether it was a Gemm's or is an Add of the model.
    assert [kernel.nodes[-1] for kernel in found[1:3]] == ["n1", "n2"]
    assert {kernel.precision for kernel in found[1:3]} == {"uint8"}
    one = kernels_of(written(inserter, "n0"), DYNAMIC)
    assert kinds(one).count("DynamicQuantizeLinear") == 1


def test_it_is_as_fast_as_the_profile_says(inserter: Inserter) -> None:
    float_ms, dynamic_ms = (
        true_latency_ms(written(inserter, *ops), DYNAMIC) for ops in ((), ("n0", "n2"))
    )
    assert dynamic_ms < float_ms
    slower = [replace(DYNAMIC, dynamic=0.5), replace(DYNAMIC, dynamic_steps=40.0)]
    for profile in slower:
        assert true_latency_ms(written(inserter, "n0", "n2"), profile) > dynamic_ms
        assert true_latency_ms(written(inserter), profile) == float_ms


@pytest.mark.parametrize("profile", sorted(PROFILES.keys() - {"cpu-dynamic"}))
def test_elsewhere_it_never_pays(profile: str, inserter: Inserter) -> None:
    float_ms = true_latency_ms(written(inserter), profile)
    assert true_latency_ms(written(inserter, "n0", "n2"), profile) > float_ms
    assert true_latency_ms(written(inserter, unfused=("n3",)), profile) >= float_ms


def test_neighbours_convert(inserter: Inserter) -> None:
    """It reads and writes floats, whatever is around it."""
    planner = QuantizationPlanner(inserter.index, inserter.dialect)
    placement = planner.placement(["n3"], dynamic=["n0", "n2"])
    found = kinds(kernels_of(inserter.proto(placement), DYNAMIC))
    assert found.count("QuantizeLinear") == 2
    assert found.count("DequantizeLinear") == 1


def test_a_sum_is_not_fused_with_its_normalization(inserter: Inserter) -> None:
    fused, apart = written(inserter), written(inserter, unfused=("n3",))
    assert true_latency_ms(apart, DYNAMIC) < true_latency_ms(fused, DYNAMIC)
    plain = replace(DYNAMIC, fused_norm_steps=0.0)
    assert true_latency_ms(apart, plain) >= true_latency_ms(fused, plain)


def test_nothing_else_costs_more_with_dynamic_kernels(inserter: Inserter) -> None:
    planner = QuantizationPlanner(inserter.index, inserter.dialect)
    proto = inserter.proto(planner.placement(planner.units))
    apart = replace(DYNAMIC, fused_norm_steps=0.0)
    assert kernels_of(proto, apart) == kernels_of(proto, "cpu-vnni")
