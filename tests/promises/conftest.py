from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest

from qdqtune.engines import _registry as registry
from qdqtune.records._tuning import TuneResult
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows.tuning._tune import tune
from tests.promises.faulty import ENTRY

ROOT = Path(__file__).parents[2]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registers the engine ``faulty`` so that workers find it, too."""
    monkeypatch.setitem(registry.ENGINES, ENTRY.name, ENTRY)
    found = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(found))


@pytest.fixture
def faulty_tune(stand_in: None, tmp_path: Path) -> Callable[..., TuneResult]:
    """Tunes on the stand-in: ``faulty_tune(two_convs(), fault="segfault", poisoned="n2")``."""

    def run(
        model: onnx.ModelProto,
        folder: str = "run",
        fault: str = "",
        poisoned: str = "",
        noise: Mapping[str, str] = QUIET,
        **options: Any,
    ) -> TuneResult:
        path = tmp_path / "model.onnx"
        onnx.save(model, path)
        own = {"fault": fault, "poisoned": poisoned}
        return tune(
            path,
            engine="faulty",
            engine_options={**noise, **own},
            preset="quick",
            output_dir=tmp_path / folder,
            **options,
        )

    return run
