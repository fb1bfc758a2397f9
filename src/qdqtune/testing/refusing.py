"""Promise: what can't be run is refused with an exception that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune.testing.bench import Bench
from qdqtune.testing.models import Arrays, model_of, tower_feeds


def _garbage(path: Path) -> None:
    path.write_bytes(bytes(range(255, 0, -1)) * 4)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _missing(path: Path) -> None:
    path.unlink(missing_ok=True)


def _directory(path: Path) -> None:
    path.mkdir(exist_ok=True)


def _unknown_op(path: Path) -> None:
    onnx.save(model_of("g (float[4] x) => (float[4] y) { y = Frobnicate(x) }"), path)


def _unknown_domain(path: Path) -> None:
    model = model_of("g (float[4] x) => (float[4] y) { y = Frobnicate(x) }")
    model.graph.node[0].domain = "nobody.knows"
    model.opset_import.add(domain="nobody.knows", version=1)
    onnx.save(model, path)


def _old_op(path: Path) -> None:
    text = "g (float[4] x) => (float[8] y) { y = Upsample<scales=[2.0]>(x) }"
    onnx.save(model_of(text), path)


def _no_opset(path: Path) -> None:
    model = model_of("g (float[4] x) => (float[4] y) { y = Relu(x) }")
    del model.opset_import[:]
    onnx.save(model, path)


def _type_error(path: Path) -> None:
    text = np.array([b"a", b"b", b"c", b"d"], object)
    model = model_of("g (float[4] x) => (float[4] y) { y = Add(x, s) }", s=text)
    onnx.save(model, path)


def _shape_error(path: Path) -> None:
    weights = np.ones((5, 4), np.float32)
    onnx.save(model_of("g (float[4] x) => (float[4] y) { y = MatMul(x, w) }", w=weights), path)


def _missing_weights(path: Path) -> None:
    model = model_of("g (float[4] x) => (float[4] y) { y = Mul(x, w) }", w=np.ones(4, np.float32))
    weights = path.with_suffix(".gone")
    onnx.save(model, path, save_as_external_data=True, location=weights.name, size_threshold=0)
    weights.unlink()


BAD_MODELS: dict[str, tuple[Callable[[Path], None], str]] = {
    "garbage": (_garbage, ""),
    "an empty file": (_empty, ""),
    "a missing file": (_missing, ""),
    "a folder": (_directory, ""),
    "an unknown op": (_unknown_op, "Frobnicate"),
    "an unknown domain": (_unknown_domain, "Frobnicate"),
    "an op that its opset lacks": (_old_op, "Upsample"),
    "without an opset": (_no_opset, "Relu"),
    "a type error": (_type_error, "Add"),
    "shapes that do not fit": (_shape_error, "MatMul"),
    "missing external data": (_missing_weights, ".gone"),
}
"""By what is wrong: how to write it, and what the error may name instead of the file."""


_GOOD = tower_feeds()

BAD_FEEDS: dict[str, Arrays] = {
    "a missing input": {},
    "an unknown input": _GOOD | {"another": np.zeros(1, np.float32)},
    "an input of another type": {"x": _GOOD["x"].astype(np.float64)},
    "an input of another rank": {"x": _GOOD["x"][None]},
    "an input of another size": {"x": _GOOD["x"][:, :7]},
}
"""By what is wrong with them."""


class RefusesNonsense:
    """Bad files and bad feeds."""

    @pytest.mark.parametrize("fault", BAD_MODELS)
    def test_bad_models_are_refused(self, bench: Bench, fault: str) -> None:
        """A file that is no good model is an error that names the file or the op; never a crash."""
        write, op = BAD_MODELS[fault]
        path = bench.folder / f"bad {fault}.onnx"
        write(path)
        failure = bench.refusal(lambda: _use(bench, path), f"the model: {fault}")
        named = [path.name] + ([op] if op else [])
        assert any(name in str(failure) for name in named), (
            f"the model: {fault}: the error should name {' or '.join(map(repr, named))}. "
            f"It is: {failure}"
        )

    @pytest.mark.parametrize("fault", BAD_FEEDS)
    def test_bad_feeds_are_refused_when_timing(self, bench: Bench, fault: str) -> None:
        """Feeds that don't fit the model are an error of `set_feeds`, or of the first timed run."""
        with bench.opened(bench.tower()) as model:

            def request() -> None:
                bench.worker.feed(model, BAD_FEEDS[fault])
                if bench.engine.runs:
                    bench.worker.time(model, 1)

            bench.refusal(request, f"fed {fault}")

    @pytest.mark.parametrize("fault", BAD_FEEDS)
    def test_bad_feeds_are_refused_when_running(self, bench: Bench, fault: str) -> None:
        """Feeds that don't fit the model are an error of `run`."""
        bench.needs_runs()
        with bench.opened(bench.tower()) as model:
            feeds = BAD_FEEDS[fault]
            bench.refusal(lambda: bench.worker.run(model, feeds), f"run on {fault}")


def _use(bench: Bench, path: Path) -> None:
    """Opens and, if it can, runs a model: who makes times up need not look into it before that."""
    feeds: Arrays = {"x": np.zeros(4, np.float32)}
    with bench.opened(path, feeds=feeds) as model:
        if not bench.engine.runs:
            return
        if bench.engine.measures:
            bench.worker.time(model, 1)
        else:
            bench.worker.run(model, feeds)
