from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from tests.in_process import real_processes

from qdqtune.engines._hosts import LocalHost
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import Worker

HERE = Path(__file__).parent
PATH = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))

CONV_TEXT = """
<ir_version: 9, opset_import: ["" : 17]>
agraph (float[1, 3, 8, 8] x) => (float[1, 4, 8, 8] y)
<float[4, 3, 3, 3] w>
{
    c = Conv <pads = [1, 1, 1, 1]> (x, w)
    y = Relu(c)
}
"""


@pytest.fixture(scope="module", autouse=True)
def processes() -> Iterator[None]:
    """All engines are tried as they are used: in a process of their own."""
    with real_processes():
        yield


@pytest.fixture
def conv_path(tmp_path: Path) -> Path:
    """A Conv with weights 1/27 and a Relu."""
    model = onnx.parser.parse_model(CONV_TEXT)
    weights = np.full((4, 3, 3, 3), 1 / 27, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    model.graph.node[0].name = "the_conv"
    path = tmp_path / "conv.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture
def conv_feeds() -> dict[str, np.ndarray]:
    return {"x": np.ones((1, 3, 8, 8), dtype=np.float32)}


@pytest.fixture
def worker() -> Iterator[Worker]:
    """A worker with the real ONNX Runtime on one thread."""
    with Worker(options=SessionOptions(threads=1), timeout_s=60) as worker:
        yield worker


@pytest.fixture
def faulty_with() -> Iterator[Callable[..., Worker]]:
    """Starts workers with the engine that misbehaves: ``faulty_with(timeout_s=1)``."""
    with contextlib.ExitStack() as stack:

        def start(**options: object) -> Worker:
            defaults = {"timeout_s": 60, "host": LocalHost(variables={"PYTHONPATH": PATH})}
            worker = Worker("faulty_engine:FaultyEngine", **{**defaults, **options})
            return stack.enter_context(worker)

        yield start


@pytest.fixture
def faulty(faulty_with: Callable[..., Worker]) -> Worker:
    return faulty_with()


@pytest.fixture
def model_that(tmp_path: Path) -> Callable[..., Path]:
    """Writes a "model" for the faulty engine: ``model_that("segfault", at="open")``."""

    def write(fault: str = "", **fields: object) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}_{fault or 'good'}.json"
        path.write_text(json.dumps({"fault": fault, **fields}))
        return path

    return write
