"""Everything that qdqtune expects of an engine: `pip install 'qdqtune[testing]'`, then pytest."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from qdqtune.testing import EngineConformance, EngineUnderTest

HERE = str(Path(__file__).parent)


class TestPlainOrt(EngineConformance):
    """About ninety checks; say here what the engine does not offer."""

    @pytest.fixture
    def engine(self) -> EngineUnderTest:
        """The engine, and where its process finds it."""
        return EngineUnderTest(
            "plain_ort:PlainOrt",
            dialect="onnxruntime",
            layers=False,
            environment={"PYTHONPATH": os.pathsep.join([HERE, *sys.path])},
        )
