"""A worker imports its engine and little else: a tune starts several of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.engines.test_onnxruntime_files import add, save

from qdqtune.engines import _registry as registry
from qdqtune.engines._worker_environment import write_arrays

# What reads models in the parent, and what that imports.
HEAVY = {"onnx_ir", "onnxscript", "sympy"}
WORKER = f"""
import json, sys
from qdqtune.engines._worker_main import Server

engine, model, feeds, outputs = sys.argv[1:]
server = Server(engine)
for request in (
    {{"op": "info", "options": {{"threads": 1}}}},
    {{"op": "open", "path": model, "options": {{"threads": 1}}}},
    {{"op": "run", "session": 1, "feeds": feeds, "outputs": outputs}},
    {{"op": "feed", "session": 1, "feeds": feeds}},
    {{"op": "time", "session": 1, "runs": 2}},
    {{"op": "layers", "session": 1, "runs": 2}},
    {{"op": "close", "session": 1}},
):
    answer = json.loads(server.answer({{"number": 0, **request}}))
    assert "result" in answer, answer
    imported = {HEAVY!r} & set(sys.modules)
    assert not imported, (request["op"], imported)
"""


@pytest.mark.parametrize("weights", [0, 12_000])  # from 10,000 on, the engine looks for unused ones
@pytest.mark.parametrize("engine", ["onnxruntime", "openvino"])
def test_a_worker_does_without_what_reads_models_in_the_parent(
    tmp_path: Path, engine: str, weights: int
) -> None:
    if not (status := registry.available(engine)).usable:
        pytest.skip(status.reason)
    model = save(tmp_path, add("used"), extra=weights)
    feeds, outputs = tmp_path / "feeds", tmp_path / "outputs"
    write_arrays(feeds, {"x": np.ones(4, np.float32)})
    arguments = [registry.worker_class(engine), model, str(feeds), str(outputs)]
    done = subprocess.run(
        [sys.executable, "-c", WORKER, *arguments], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
