"""Promise: whatever ONNX model it is, the engine opens it, and computes what it says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune import zoo
from qdqtune.testing.bench import Bench
from qdqtune.testing.models import (
    ODDITIES,
    Arrays,
    Case,
    model_of,
    nearness_db,
    zoo_case,
)

_RUNS = 3


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
        """Outputs, scalars, integers and open dims are taken as ONNX means them."""
        case = ODDITIES[oddity]()
        _check_run(bench, bench.write(oddity, case.model), case)

    @pytest.mark.parametrize("oddity", ODDITIES)
    def test_inputs_are_told(self, bench: Bench, oddity: str) -> None:
        """`Session.inputs` has all inputs in order, types in numpy's words, open dims left open."""
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
                f"{oddity}: {spec.name} has the dims {fixed} (None: open), told {spec.shape}. An "
                "open dim is a name or None, never a number"
            )

    def test_external_data_is_found(self, bench: Bench) -> None:
        """Weights in a file beside the model are read: a search's candidates are such files."""
        path = bench.subfolder("external") / "model.onnx"
        case = _weighted()
        copy = onnx.ModelProto()
        copy.CopyFrom(case.model)
        onnx.save(copy, path, save_as_external_data=True, location="weights", size_threshold=0)
        _check_run(bench, path, case)

    def test_any_path_will_do(self, bench: Bench) -> None:
        """Blanks and letters beyond ASCII in a path don't matter."""
        path = bench.subfolder("a folder, größer 模型") / "ein Modell é.onnx"
        case = _weighted()
        onnx.save(case.model, path)
        _check_run(bench, path, case)

    @pytest.mark.parametrize("architecture", ["convnext", "bert"])
    def test_outputs_repeat(self, bench: Bench, architecture: str) -> None:
        """The same inputs give the same outputs, bit by bit: run again, and opened again."""
        bench.needs_runs()
        _skip_unpromised(bench, architecture)
        case = zoo_case(architecture)
        path = bench.write(architecture, case.model)
        outputs: list[Arrays] = []
        for _ in range(2):
            with bench.opened(path) as model:
                outputs += [bench.worker.run(model, case.feeds[0]) for _ in range(2)]
        for number, other in enumerate(outputs[1:], 1):
            for name, expected in outputs[0].items():
                assert np.array_equal(expected, other[name], equal_nan=True), (
                    f"{architecture}: {name} differs from the first run's "
                    f"{'in the same session' if number == 1 else 'after opening the file again'}. "
                    "Look for buffers that are used again before they are copied"
                )


def _skip_unpromised(bench: Bench, architecture: str) -> None:
    if architecture not in bench.engine.architectures:
        pytest.skip(f"{bench.engine.name} does not promise to run {architecture}")


def _weighted() -> Case:
    weights = np.random.default_rng(3).standard_normal((16, 8), np.float32)
    model = model_of("g (float[4, 16] x) => (float[4, 8] y) { y = MatMul(x, w) }", w=weights)
    return Case.of(model, {"x": np.eye(4, 16, dtype=np.float32)})


def _check_run(bench: Bench, path: Path, case: Case) -> None:
    """All feeds are run in one session before any result is looked at, then timed."""
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
            f"{what}: {name} is {got.dtype}{list(got.shape)} instead of "
            f"{wanted.dtype}{list(wanted.shape)}"
        )
        found_db = nearness_db(wanted, got)
        assert found_db >= least_db, (
            f"{what}: {name} is {found_db:.1f} dB from ONNX's reference, promised are "
            f"{least_db:g} (`float_db`). Below 10 dB it is something else that was computed: are "
            "outputs, or inputs, exchanged? Above, it may be a lower precision than the one that "
            "`info().float_type` tells"
        )
