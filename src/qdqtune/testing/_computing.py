"""Promise: the engine computes what an ONNX model specifies, and quantized ops follow Q/DQ."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.graph._atomic_files import TemporaryFolder
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import select_ops
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import Ranges
from qdqtune.testing._bench import (
    ODDITIES,
    Array,
    Arrays,
    Bench,
    Case,
    model_of,
    nearness_db,
    reference,
    zoo_case,
)

_OUTPUT = "h"

# For rounding of ties, and the order of float operations around an integer sum.
_SLACK = 0.01
_LEAST_EQUAL = 0.9
# An input that is rounded to another step at run time, because it lies between two.
_LEAST_DYNAMIC_DB = 60.0
_HINT = (
    "If only large values are wrong, sums of products saturate at 16 bits: claim a dialect with "
    "7-bit weights (its name ends in -novnni). If all are, scales or zero points are mixed up"
)
_RUNS = 3


@dataclass(frozen=True)
class QuantizedOp:
    """An op to quantize.

    Attributes:
        inputs: Shapes and names of the model's inputs.
        result: Shape of the result.
        body: The op, which reads these inputs, and may read a weight `w` and a bias `b`.
        weight: Shape of its weight; empty if it has none.
        channels: Axis of the weight's output channels.
    """

    inputs: str
    result: str
    body: str
    weight: tuple[int, ...] = ()
    channels: int = 0

    @property
    def text(self) -> str:
        """A model that writes the op's result to `h`; its output `y` is -`h`.

        Not by Neg: TensorRT 8.6 has no kernel for one behind an integer Conv.
        """
        body = f"h = {self.body} y = Sub(zero, h)"
        return f"g (float{self.inputs}) => (float{self.result} y) {{ {body} }}"


OPS: dict[str, QuantizedOp] = {
    "Conv": QuantizedOp(
        "[1,32,6,6] x", "[1,16,4,4]", "Conv<kernel_shape=[3,3]>(x, w, b)", (16, 32, 3, 3)
    ),
    "pointwise Conv": QuantizedOp(
        "[1,64,4,4] x", "[1,16,4,4]", "Conv<kernel_shape=[1,1]>(x, w)", (16, 64, 1, 1)
    ),
    "depthwise Conv": QuantizedOp(
        "[1,32,6,6] x", "[1,32,4,4]", "Conv<group=32, kernel_shape=[3,3]>(x, w)", (32, 1, 3, 3)
    ),
    "Gemm": QuantizedOp("[4,64] x", "[4,16]", "Gemm<transB=1>(x, w, b)", (16, 64)),
    "MatMul": QuantizedOp("[3,64] x", "[3,16]", "MatMul(x, w)", (64, 16), channels=1),
    "Add": QuantizedOp("[1,16,6,6] x, float[1,16,6,6] x2", "[1,16,6,6]", "Add(x, x2)"),
}
"""By name; the op type is its last word."""


@dataclass(frozen=True)
class QuantizedModel:
    """A Q/DQ model of one op.

    Attributes:
        model: The model, which must not be changed.
        feeds: Its inputs.
        expected: Its outputs by ONNX's reference, op by op without fusion.
        step: The size of one quantization step of the output; None if it is not quantized.
    """

    model: onnx.ModelProto
    feeds: Arrays
    expected: Arrays
    step: float | None


def op_type_of(name: str) -> str:
    """Return the op type of one of `OPS`."""
    return name.split()[-1]


@functools.cache
def quantized_op(
    name: str, dialect: str, quant_type: str, *, extreme: bool, dynamic: bool = False
) -> QuantizedModel:
    """Quantizes an op.

    Args:
        name: One of `OPS`.
        dialect: Name of the dialect.
        quant_type: One of the dialect's quant types.
        extreme: Whether to use the largest values only, which overflow short accumulators.
        dynamic: Whether its input is quantized at run time, without Q and DQ.

    Raises:
        ValueError: If the dialect leaves it float.
    """
    op = OPS[name]
    rng = np.random.default_rng(len(name))
    proto = model_of(op.text, **_constants(op, rng, extreme=extreme))
    feeds = {value.name: _input(value, rng, extreme=extreme) for value in proto.graph.input}
    result = -reference(proto, feeds)["y"]
    ranges = {key: (float(array.min()), float(array.max())) for key, array in feeds.items()}
    # Wider than needed, and not evenly: a result halfway between two steps would be a tie.
    ranges[_OUTPUT] = (1.03 * float(result.min()), 1.1 * float(result.max()))
    op_type = "" if dynamic else op_type_of(name)
    quantized, step = _quantize(proto, op_type, dialect, quant_type, Ranges(ranges))
    return QuantizedModel(quantized, feeds, reference(quantized, feeds), step)


def _quantize(
    proto: onnx.ModelProto, op_type: str, dialect: str, quant_type: str, ranges: Ranges
) -> tuple[onnx.ModelProto, float | None]:
    """Return the Q/DQ model, and the step of its op's result; without type, it is dynamic."""
    model = ir.from_proto(proto)
    infer_shapes(model)
    dialect_choice = dialect_named(dialect)
    with TemporaryFolder() as folder:
        inserter = Inserter(PreparedModel(model, folder), dialect_choice, quant_type, ranges)
        if not op_type:
            dynamic = Placement.of(dynamic=[proto.graph.node[0].name])
            return onnx.load(inserter.write(dynamic, "quantized")), None
        chosen = select_ops(inserter.index, dialect_choice, [op_type], quant_type)
        if not chosen.placement:
            raise ValueError(f"{dialect} does not quantize {op_type}: {chosen.left_float}")
        pairs = inserter.encoder.pairs(inserter.index.effective(chosen.placement))
        quantized = onnx.load(inserter.write(chosen.placement, "quantized"))
    scales = [float(pair.encoding.scale) for pair in pairs if pair.tensor == _OUTPUT]
    return quantized, scales[0] if scales else None


def _constants(op: QuantizedOp, rng: np.random.Generator, *, extreme: bool) -> Arrays:
    zero = {"zero": np.zeros((), np.float32)}
    if not op.weight:
        return zero
    channels = op.weight[op.channels]
    shape = [1] * len(op.weight)
    shape[op.channels] = channels
    if extreme:
        # Half of the channels sum to the largest number, the others to the smallest.
        signs = np.where(np.arange(channels) % 2, -1.0, 1.0).reshape(shape)
        weight = np.broadcast_to(signs, op.weight)
    else:
        sizes = 2.0 ** rng.uniform(-3.0, 1.0, channels)
        weight = rng.standard_normal(op.weight) * sizes.reshape(shape)
    constants = {**zero, "w": np.ascontiguousarray(weight, np.float32)}
    if ", b)" in op.body:
        bias = np.zeros(channels) if extreme else rng.standard_normal(channels)
        constants["b"] = bias.astype(np.float32)
    return constants


def _input(value: onnx.ValueInfoProto, rng: np.random.Generator, *, extreme: bool) -> Array:
    shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
    if extreme:
        return np.ones(shape, np.float32)
    # Not centered: zero is neither at an end nor in the middle of the quantized range.
    return rng.uniform(-0.7, 1.3, shape).astype(np.float32)


class ComputesQuantized:
    """Single quantized ops, compared with ONNX's reference op by op."""

    @pytest.mark.parametrize("op", OPS)
    def test_quantized_ops_are_exact(self, bench: Bench, op: str) -> None:
        """Per-channel weights, biases and nonzero zero points: off by at most one step."""
        _check(bench, op, extreme=False)

    @pytest.mark.parametrize("op", OPS)
    def test_extreme_values_do_not_overflow(self, bench: Bench, op: str) -> None:
        """The largest inputs times the largest weights, all of one sign, don't overflow the sum."""
        bench.needs_runs()
        _check(bench, op, extreme=True)

    @pytest.mark.parametrize("extreme", [False, True], ids=["ordinary", "extreme"])
    @pytest.mark.parametrize("op", ["Gemm", "MatMul"])
    def test_dynamic_ops_are_exact(self, bench: Bench, op: str, extreme: bool) -> None:
        """Products whose input is quantized at run time, if the dialect offers them."""
        dialect, kind = bench.engine.dialect, "extreme" if extreme else "ordinary"
        if op not in dialect_named(dialect).dynamic:
            pytest.skip(f"the dialect {dialect} does not quantize inputs of {op} at run time")
        for quant_type in bench.engine.promised_types:
            made = quantized_op(op, dialect, quant_type, extreme=extreme, dynamic=True)
            path = bench.write(f"dynamic {kind} {op} {quant_type} {dialect}", made.model)
            with bench.opened(path, feeds=made.feeds) as model:
                bench.needs_runs()
                found = bench.worker.run(model, made.feeds)["y"]
            what = f"a dynamic {op} ({quant_type} in the dialect {dialect}, file {path})"
            least_db = min(bench.promise.op_db, _LEAST_DYNAMIC_DB)
            _check_near(what, least_db, made.expected["y"], found)

    def test_unfused_sums_are_exact(self, bench: Bench) -> None:
        """A Sum before a layer normalization, if the dialect offers it."""
        dialect = bench.engine.dialect
        if not dialect_named(dialect).unfused_sums:
            pytest.skip(f"the dialect {dialect} keeps no sums from being fused")
        text = "s = Sum(x, x2) y = LayerNormalization(s, gamma)"
        case = Case.of(
            model_of(
                f"g (float[4,16] x, float[4,16] x2) => (float[4,16] y) {{ {text} }}",
                gamma=np.linspace(0.5, 2.0, 16, dtype=np.float32),
            ),
            {name: np.random.default_rng(5).random((4, 16), np.float32) for name in ("x", "x2")},
        )
        _check_run(bench, bench.write("unfused sum", case.model), case)


def _check(bench: Bench, op: str, *, extreme: bool) -> None:
    dialect = bench.engine.dialect
    if op_type_of(op) not in dialect_named(dialect).rules:
        pytest.skip(f"the dialect {dialect} does not quantize {op}")
    for quant_type in bench.engine.promised_types:
        made = quantized_op(op, dialect, quant_type, extreme=extreme)
        kind = "extreme" if extreme else "ordinary"
        path = bench.write(f"{kind} {op} {quant_type} {dialect}", made.model)
        with bench.opened(path, feeds=made.feeds) as model:
            if not bench.engine.runs:
                continue
            found = bench.worker.run(model, made.feeds)["y"]
            assert len(bench.worker.time(model, 1)) == 1
        what = f"a quantized {op} ({quant_type} in the dialect {dialect}, file {path})"
        _check_result(bench, what, made, found)
    bench.needs_runs()


def _check_result(bench: Bench, what: str, made: QuantizedModel, found: Array) -> None:
    wanted, engine = made.expected["y"], bench.engine
    if made.step is None:
        _check_near(what, bench.promise.op_db, wanted, found)
        return
    assert found.shape == wanted.shape, f"{what}: {found.shape} instead of {wanted.shape}"
    steps = np.abs(found.astype(np.float64) - wanted) / made.step
    rounding = bench.promise.epsilon * float(np.abs(wanted).max()) / made.step
    assert steps.max() <= engine.steps + _SLACK + rounding, (
        f"{what} is off by up to {steps.max():.1f} steps. {_HINT}"
    )
    equal = float((steps <= engine.steps - 0.5).mean())
    assert equal >= _LEAST_EQUAL, (
        f"{what} is off by {engine.steps} in {1 - equal:.0%} of its results: more than ties make. "
        "Is a zero point or a bias rounded away, or the result rounded down?"
    )


def _check_near(what: str, least_db: float, wanted: Array, found: Array) -> None:
    assert found.shape == wanted.shape, f"{what}: {found.shape} instead of {wanted.shape}"
    near_db = nearness_db(wanted, found)
    assert near_db >= least_db, (
        f"{what} is {near_db:.1f} dB from ONNX's reference, promised are {least_db:g}. {_HINT}"
    )


class RunsModels:
    """Opening, running and timing, compared with ONNX's reference implementation."""

    @pytest.mark.parametrize("architecture", zoo.ARCHITECTURES)
    def test_zoo_models_run(self, bench: Bench, architecture: str) -> None:
        """Every small zoo model opens, computes what the reference does, and can be timed."""
        _skip_unpromised(bench, architecture)
        case = zoo_case(architecture)
        _check_run(bench, bench.write(architecture, case.model), case)

    @pytest.mark.parametrize("oddity", ODDITIES)
    def test_odd_models_run(self, bench: Bench, oddity: str) -> None:
        """Outputs, scalars, integers and open dims follow ONNX's semantics."""
        case = ODDITIES[oddity]()
        _check_run(bench, bench.write(oddity, case.model), case)

    @pytest.mark.parametrize("oddity", ODDITIES)
    def test_inputs_are_told(self, bench: Bench, oddity: str) -> None:
        """`Session.inputs` has all inputs in order, with numpy's type names and open dims."""
        proto = ODDITIES[oddity]().model
        with bench.opened(bench.write(oddity, proto)) as model:
            told = model.inputs
        declared = proto.graph.input
        assert [spec.name for spec in told] == [value.name for value in declared], (
            f"{oddity}: the inputs' names or their order differ from the model's"
        )
        for spec, value in zip(told, declared, strict=True):
            kind = value.type.tensor_type
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type).name
            assert spec.dtype == dtype, f"{oddity}: {spec.name} is {dtype}, told {spec.dtype!r}"
            fixed = [dim.dim_value or None for dim in kind.shape.dim]
            found = [dim if isinstance(dim, int) else None for dim in spec.shape]
            assert found == fixed, (
                f"{oddity}: {spec.name} has the dims {fixed}, told {spec.shape}. An open one is a "
                "name or None, never a number"
            )

    def test_external_data_is_found(self, bench: Bench) -> None:
        """Weights in a file next to the model are read, as a search's candidates have them."""
        case = _weighted()
        aside = {"save_as_external_data": True, "location": "weights", "size_threshold": 0}
        _check_run(bench, bench.write("external/model", case.model, **aside), case)

    def test_any_path_will_do(self, bench: Bench) -> None:
        """Spaces and non-ASCII letters in a path don't matter."""
        case = _weighted()
        path = bench.write("a folder, größer 模型/ein Modell é", case.model)
        _check_run(bench, path, case)

    @pytest.mark.parametrize("architecture", ["convnext", "bert"])
    def test_outputs_repeat(self, bench: Bench, architecture: str) -> None:
        """The same inputs give bit-identical outputs, in another run and after another open."""
        bench.needs_runs()
        _skip_unpromised(bench, architecture)
        case = zoo_case(architecture)
        path = bench.write(architecture, case.model)
        outputs: list[tuple[str, Arrays]] = []
        for when in ("in the same session", "after opening the file again"):
            with bench.opened(path) as model:
                outputs += [(when, bench.worker.run(model, case.feeds[0])) for _ in range(2)]
        for when, other in outputs[1:]:
            for name, expected in outputs[0][1].items():
                assert np.array_equal(expected, other[name], equal_nan=True), (
                    f"{architecture}: {name} differs from the first run's {when}. Look for buffers "
                    "that are used again before they are copied"
                )


def _skip_unpromised(bench: Bench, architecture: str) -> None:
    if architecture not in bench.engine.architectures:
        pytest.skip(f"{bench.engine.name} does not promise to run {architecture}")


def _weighted() -> Case:
    weights = np.random.default_rng(3).standard_normal((16, 8), np.float32)
    model = model_of("g (float[4, 16] x) => (float[4, 8] y) { y = MatMul(x, w) }", w=weights)
    return Case.of(model, {"x": np.eye(4, 16, dtype=np.float32)})


def _check_run(bench: Bench, path: Path, case: Case) -> None:
    """Run all feeds in one session before checking any result, then time it."""
    with bench.opened(path) as model:
        if not bench.engine.runs:
            for feeds in case.feeds:
                bench.worker.feed(model, feeds)
        bench.needs_runs()
        found = [bench.worker.run(model, feeds) for feeds in case.feeds]
        for feeds in case.feeds:
            bench.worker.feed(model, feeds)
            samples = bench.worker.time(model, _RUNS)
            assert len(samples) == _RUNS, f"{path.name}: {len(samples)} samples of {_RUNS} runs"
            assert min(samples) > 0, f"{path.name}: a run took {min(samples)} ms"
    for expected, outputs in zip(case.expected, found, strict=True):
        _check_outputs(path.name, bench.promise.models_db, expected, outputs)


def _check_outputs(what: str, least_db: float, expected: Arrays, outputs: Arrays) -> None:
    assert list(outputs) == list(expected), (
        f"{what}: `run` returned the outputs {list(outputs)}, the model has {list(expected)}"
    )
    for name, wanted in expected.items():
        got = outputs[name]
        assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), (
            f"{what}: {name} is {got.dtype}{got.shape} instead of {wanted.dtype}{wanted.shape}"
        )
        found_db = nearness_db(wanted, got)
        assert found_db >= least_db, (
            f"{what}: {name} is {found_db:.1f} dB from ONNX's reference, promised are "
            f"{least_db:g} (`float_db`). Below 10 dB, outputs or inputs may be exchanged; above, "
            "it may be a lower precision than `info().float_type` tells"
        )
