"""Strategies by name, and those of other packages."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from qdqtune.records._errors import UsageError
from qdqtune.search._space import Space
from qdqtune.search.strategies._bayesian import BayesianSearch
from qdqtune.search.strategies._local_search import LocalSearch
from qdqtune.search.strategies._registry import make_strategy, strategy_class
from qdqtune.search.strategies._strategy import (
    Limits,
    Score,
    SearchTask,
    SteppedStrategy,
    Trial,
)
from qdqtune.workflows.tuning._tune import tune
from tests.autotune.test_search import only_together, table

PAGE = Path(__file__).parents[2] / "docs/extend/strategy.md"

Announce = Callable[..., None]


@pytest.fixture
def announce(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Announce:
    """Install a package whose entry points are strategies."""

    def install(code: str, *names: str, package: str = "toy_strategies") -> None:
        (tmp_path / f"{package}.py").write_text(code)
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = "".join(f"{name}\n" for name in names)
        (info / "entry_points.txt").write_text(f"[qdqtune.strategies]\n{lines}")
        sys.modules.pop(package, None)

    monkeypatch.syspath_prepend(tmp_path)
    return install


def toy() -> str:
    """The strategy of docs/extend/strategy.md."""
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (code,) = [block for block in blocks if "class OneByOne" in block]
    return code


@pytest.fixture(scope="module")
def space() -> Space:
    return table("gated", "cpu").space


def test_the_number_of_choices_decides(space: Space) -> None:
    assert isinstance(make_strategy(SearchTask(space)), BayesianSearch)
    many = Space(space.planner, [*space.groups, *space.groups], {})
    assert isinstance(make_strategy(SearchTask(many)), LocalSearch)
    assert isinstance(make_strategy(SearchTask(space), "local_search"), LocalSearch)


def test_unknown_names_are_refused_with_those_that_are_known(announce: Announce) -> None:
    announce(toy(), "one_by_one = toy_strategies:OneByOne")
    with pytest.raises(UsageError, match="Unknown strategy 'random'") as told:
        strategy_class("random")
    assert told.value.hint == "Choices: auto, bayesian, local_search, assembly, one_by_one."


def test_a_strategy_of_the_other_workflow_is_refused(space: Space) -> None:
    with pytest.raises(UsageError, match="assembly requires --workflow subgraph"):
        make_strategy(SearchTask(space), "assembly")


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("class OneByOne: pass", "toy_strategies:OneByOne is not a SearchStrategy class"),
    ],
)
def test_a_broken_plugin_is_named_with_its_package(announce: Announce, code: str, why: str) -> None:
    announce(code, "one_by_one = toy_strategies:OneByOne")
    with pytest.raises(UsageError, match=why) as told:
        strategy_class("one_by_one")
    assert "toy_strategies 1.0" in told.value.hint


def test_two_packages_with_one_name_are_refused(announce: Announce) -> None:
    announce(toy(), "one_by_one = toy_strategies:OneByOne")
    announce(toy(), "one_by_one = other_strategies:OneByOne", package="other_strategies")
    with pytest.raises(UsageError, match="another package has one of that name"):
        strategy_class("one_by_one")


def test_a_plugin_can_not_replace_a_built_in_one(announce: Announce) -> None:
    announce(toy(), "bayesian = toy_strategies:OneByOne")
    assert strategy_class("bayesian") is BayesianSearch


def test_the_strategy_of_the_docs_searches(announce: Announce, space: Space) -> None:
    announce(toy(), "one_by_one = toy_strategies:OneByOne")
    search = make_strategy(SearchTask(space, limits=Limits(benchmarks=5)), "one_by_one")
    asked = []
    for trial in search.trials():
        asked.append(trial)
        answer = only_together(0)
        search.tell(trial, [answer(trial, state) for state in trial.candidates])
    assert [trial.stage for trial in asked] == [f"group {n}" for n in range(5)]
    assert (search.best, search.gain) == ({0}, pytest.approx(0.09))


def test_trials_asked_together_may_be_told_in_any_order(space: Space) -> None:
    def played(*, backwards: bool) -> list[Trial]:
        search = LocalSearch(SearchTask(space, {"all": space.everything}, Limits(benchmarks=60)))
        asked = []
        while trials := search.ask():
            asked += trials
            for trial in reversed(trials) if backwards else trials:
                scores = [Score(0.01 * len(state), 0.002) for state in trial.candidates]
                search.tell(trial, scores)
        return asked

    one, other = played(backwards=False), played(backwards=True)
    assert one == other
    assert len(one) > 5


def test_a_run_searches_with_the_strategy_that_was_named(
    announce: Announce, tmp_path: Path
) -> None:
    announce(toy(), "one_by_one = toy_strategies:OneByOne")
    model = Path(__file__).parents[1] / "data/runs/before-configs/model.onnx"
    stages: list[str] = []
    result = tune(
        model, engine="simulated", preset="quick", output_dir=tmp_path / "run", max_benchmarks=3,
        strategy="one_by_one", callbacks=[lambda event: stages.append(event.stage)],
    )  # fmt: skip
    assert result.summary.benchmarks == 3
    assert {"group 0", "group 1", "group 2"} <= set(stages)
    assert result.summary.conditions["strategy"] == "one_by_one"
    again = tune(
        model, engine="simulated", preset="quick", output_dir=tmp_path / "run", max_benchmarks=3
    )  # fmt: skip
    assert "strategy" not in again.summary.conditions  # as in folders of earlier versions
    with pytest.raises(UsageError, match="Unknown strategy 'two_by_two'"):
        tune(model, engine="simulated", output_dir=tmp_path / "other", strategy="two_by_two")
    assert not (tmp_path / "other").exists()


class Boundless(SteppedStrategy):
    """Keeps to no limit, and sometimes has nothing to ask."""

    def steps(self):
        for number in range(len(self.space.groups)):
            yield []
            yield [Trial(self.best, (frozenset({number}),), stage="each alone")]


def test_a_strategy_that_keeps_to_no_limit_is_cut_short(space: Space) -> None:
    strategy = Boundless(SearchTask(space, limits=Limits(benchmarks=2)))
    asked = []
    for trial in strategy.trials():
        asked.append(trial.candidates)
        strategy.tell(trial, [Score(0.0, 0.01)])
    assert asked == [(frozenset({0}),), (frozenset({1}),)]
    assert strategy.is_cut_short


def test_a_step_without_trials_does_not_end_the_search(space: Space) -> None:
    strategy = Boundless(SearchTask(space))
    asked = 0
    for trial in strategy.trials():
        asked += 1
        strategy.tell(trial, [Score(0.0, 0.01)])
    assert asked == len(space.groups) > 1
    assert not strategy.is_cut_short
