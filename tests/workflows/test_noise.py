"""A machine on which nothing can be seen: the run waits a while, and says what it can't decide."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnx
import pytest

from qdqtune.records._tuning import Noise
from qdqtune.report._tuning import tune_text
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows.tuning import _baseline as baseline
from qdqtune.workflows.tuning import _baseline as noise
from qdqtune.workflows.tuning._baseline import Found, noise_when_quiet
from qdqtune.workflows.tuning._tune import tune
from tests.promises.models import two_convs


class Clock:
    """Time passes in sleeps and checks only."""

    def __init__(self, *detectable: float, check_s: float = 0.5) -> None:
        self.now_s = 100.0
        self.told: list[str] = []
        self._detectable = itertools.chain(detectable, itertools.repeat(detectable[-1]))
        self._check_s = check_s

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def check(self) -> Found:
        self.now_s += self._check_s
        return Noise(1.0, next(self._detectable)), 5.0, 0.1

    def tell(self, stage: str, message: str) -> None:
        assert stage == "noise"
        self.told.append(message)

    def found(self, monkeypatch: pytest.MonkeyPatch, budget_s: float | None) -> Noise:
        monkeypatch.setattr(noise, "time", self)
        return noise_when_quiet(self.check, budget_s, self.tell)[0]


def test_a_quiet_machine_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.02)
    assert clock.found(monkeypatch, 60.0).detectable == 0.02
    assert clock.now_s == 100.5
    assert clock.told == ["a screening sees differences from 2.0 % on"]


def test_noise_that_hides_small_gains_comes_with_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(0.24)
    clock.found(monkeypatch, 60.0)
    assert clock.now_s == 100.5
    assert clock.told[0].startswith("a screening sees differences from 24.0 % on: the machine is")
    assert "Stop other work" in clock.told[0]


def test_a_run_waits_for_quiet_and_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(1.7, 1.2, 0.03)
    assert clock.found(monkeypatch, 60.0).detectable == 0.03
    assert clock.told[0] == (
        "only differences from 170 % on can be seen: waiting up to 6 s for the machine to be quiet"
    )
    assert [message.startswith("only") for message in clock.told] == [True, True, False]


@pytest.mark.parametrize("budget_s", [5.0, 60.0, 600.0, None])
def test_a_run_waits_no_longer_than_a_tenth_of_its_budget(
    monkeypatch: pytest.MonkeyPatch, budget_s: float | None
) -> None:
    clock = Clock(1.7)
    assert clock.found(monkeypatch, budget_s).hides_everything
    waited_s = clock.now_s - 100.5
    assert waited_s <= (30.0 if budget_s is None else 0.1 * budget_s)
    assert (waited_s > 0.0) is (budget_s is None or budget_s > 15.0)


def test_a_run_that_can_see_nothing_hands_float_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(baseline, "check_noise", lambda *_: (Noise(1.3, 1.7), 5.0, 0.1))
    model = tmp_path / "model.onnx"
    onnx.save(two_convs(), model)
    result = tune(
        model, engine="simulated", engine_options=QUIET, output_dir=tmp_path / "run", budget_s=5.0
    )
    assert result.summary.kept_float
    assert result.summary.benchmarks == 0
    assert "differences below 170 % can't be seen" in result.summary.reason
    assert result.model.read_bytes() == model.read_bytes()
    text = tune_text(result)
    assert "too busy to decide anything" in text
    assert "Stop other work" in text
