"""The class that an engine's author inherits."""

from __future__ import annotations

from typing import ClassVar

import pytest

from qdqtune.testing._bench import Bench, EngineUnderTest
from qdqtune.testing._computing import ComputesQuantized, RunsModels
from qdqtune.testing._measuring import TellsLayers, TellsWhatItIs, TimesModels
from qdqtune.testing._robustness import KeepsSessionsApart, RefusesNonsense, SurvivesFailures


class HasBench:
    """The bench that all tests of a class share; override the fixture `engine`."""

    _benches: ClassVar[dict[EngineUnderTest, Bench]] = {}

    @pytest.fixture
    def engine(self) -> EngineUnderTest:
        """The engine; must be overridden."""
        raise NotImplementedError(
            f"{type(self).__name__} has no fixture `engine`: define one that returns an "
            "EngineUnderTest"
        )

    @pytest.fixture
    def bench(self, engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
        """The bench, created on first use."""
        return self.bench_of(engine, tmp_path_factory)

    def bench_of(self, engine: EngineUnderTest, tmp_path_factory: pytest.TempPathFactory) -> Bench:
        """Create the bench of an engine."""
        if engine not in self._benches:
            self._benches[engine] = Bench(engine, tmp_path_factory.mktemp("conformance"))
        return self._benches[engine]

    @classmethod
    def teardown_class(cls) -> None:
        """Ends the class's workers."""
        while cls._benches:
            cls._benches.popitem()[1].close()


# Pytest runs the tests of the last base class first.
class EngineConformance(
    SurvivesFailures,
    RefusesNonsense,
    KeepsSessionsApart,
    TellsLayers,
    TimesModels,
    ComputesQuantized,
    RunsModels,
    TellsWhatItIs,
    HasBench,
):
    """Every requirement on an engine.

    Inherit it, and override the fixture `engine`::

        class TestMyEngine(EngineConformance):
            @pytest.fixture
            def engine(self) -> EngineUnderTest:
                return EngineUnderTest("my_package.engine:MyEngine", dialect="onnxruntime")

    The tests of a class share one worker, which ends with the class.
    """
