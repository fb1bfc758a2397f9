"""Promise: quantized ops compute what Q/DQ mean, also where short sums would overflow."""

from __future__ import annotations

import numpy as np
import pytest

from qdqtune.qdq.dialects import dialect_named
from qdqtune.testing.bench import Bench
from qdqtune.testing.models import Array, nearness_db
from qdqtune.testing.quantized import OPS, QuantizedModel, op_type_of, quantized_op

# Rounding of ties, and the order of float operations around an integer sum.
_SLACK = 0.01
_LEAST_EQUAL = 0.9
_HINT = (
    "If only large values are wrong, sums of products saturate at 16 bits: claim a dialect with "
    "7-bit weights (its name ends in -novnni). If all are, scales or zero points are mixed up"
)


class ComputesQuantized:
    """Single quantized ops, compared with ONNX's reference op by op."""

    @pytest.mark.parametrize("op", OPS)
    def test_quantized_ops_are_exact(self, bench: Bench, op: str) -> None:
        """Per-channel weights, biases and zero points off zero: right to one step of the result."""
        _check(bench, op, extreme=False)

    @pytest.mark.parametrize("op", OPS)
    def test_extreme_values_do_not_overflow(self, bench: Bench, op: str) -> None:
        """The largest inputs times the largest weights, all of one sign: sums are kept in full."""
        bench.needs_runs()
        _check(bench, op, extreme=True)


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
    assert found.shape == wanted.shape, f"{what}: {found.shape} instead of {wanted.shape}"
    if made.step is None:
        near_db = nearness_db(wanted, found)
        assert near_db >= bench.promise.op_db, (
            f"{what} is {near_db:.1f} dB from ONNX's reference, promised are "
            f"{bench.promise.op_db:g}. {_HINT}"
        )
        return
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
