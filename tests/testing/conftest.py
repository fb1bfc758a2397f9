from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from qdqtune.testing import Bench, EngineUnderTest

HERE = Path(__file__).parent
PAGE = HERE.parent.parent / "docs" / "extend" / "engine.md"


@pytest.fixture(scope="session")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files that the page about engines shows."""
    folder = tmp_path_factory.mktemp("shown")
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    for name, text in blocks:
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def faulty_bench(shown: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """The engine that the page shows, with faults by option."""
    path = os.pathsep.join(map(str, (HERE, shown, *sys.path)))
    environment = {"PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"}
    engine = EngineUnderTest("broken_engine:BrokenEngine", environment=environment)
    bench = Bench(engine, tmp_path_factory.mktemp("faulty"))
    yield bench
    bench.close()
