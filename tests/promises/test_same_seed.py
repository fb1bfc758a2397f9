"""The same seed and the same measurements give the same result: a recorded journal is replayed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from qdqtune.records._tuning import TuneEvent, TuneResult
from tests.promises.faulty import OTHER_NOISE
from tests.promises.models import two_convs

Tune = Callable[..., TuneResult]

JOURNAL = "measurements.jsonl"


@pytest.fixture
def noisy_tune(faulty_tune: Tune) -> Callable[..., tuple[TuneResult, list[str]]]:
    """Tunes on a noisy machine; returns the result and the steps that led to it."""

    def run(folder: str) -> tuple[TuneResult, list[str]]:
        events: list[TuneEvent] = []
        noise = {"seed": "1", "noise": "0.05", "drift": "0.05"}
        result = faulty_tune(two_convs(), folder, noise=noise, callbacks=[events.append])
        # Only the search knows how much is still planned.
        steps = [f"{one.stage}: {one.message}" for one in events if one.planned is not None]
        return result, steps

    return run


def gains(folder: Path) -> list[float]:
    lines = map(json.loads, (folder / JOURNAL).read_text().splitlines())
    return [line["gain"] for line in lines if line["kind"] == "measurement"]


def test_the_same_measurements_lead_to_the_same_result_whatever_the_machine_does(
    noisy_tune: Callable[..., tuple[TuneResult, list[str]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, steps = noisy_tune("first")
    assert first.summary.benchmarks > 2
    assert len(steps) > 1

    again, same_steps = noisy_tune("again")
    assert same_steps == steps
    assert gains(again.output_dir) == gains(first.output_dir)
    assert again.model.read_bytes() == first.model.read_bytes()

    # What was measured when is no part of what was measured.
    lines = (first.output_dir / JOURNAL).read_text().splitlines(keepends=True)
    head = [line for line in lines if json.loads(line)["kind"] != "measurement"]
    rest = [line for line in lines if json.loads(line)["kind"] == "measurement"]
    random.Random(0).shuffle(rest)
    (tmp_path / "replayed").mkdir()
    (tmp_path / "replayed" / JOURNAL).write_text("".join(head + rest))
    monkeypatch.setenv(OTHER_NOISE, "2")
    replayed, same_steps = noisy_tune("replayed")
    assert replayed.summary.baseline_ms != first.summary.baseline_ms
    assert same_steps == steps
    assert replayed.summary.benchmarks == 0
    assert replayed.summary.memo_hits == first.summary.benchmarks
    assert replayed.placement == first.placement
    assert replayed.summary.seeds == first.summary.seeds
