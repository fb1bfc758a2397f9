"""Small hostile inputs end in a result or a refusal, in bounded memory and time."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import pytest

from tests.promises import bombs
from tests.promises.limited import run_limited

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes the way Linux does"),
    pytest.mark.timeout(3600),
]

SAMPLE = random.Random(28).sample(bombs.NAMES, 6)


def test_there_are_many_and_all_differ() -> None:
    assert len(set(bombs.NAMES)) == len(bombs.NAMES) >= 64


@pytest.mark.parametrize("name", SAMPLE)
def test_a_bomb_does_no_harm(name: str, tmp_path: Path) -> None:
    lines = bombs.lay(name, tmp_path / "bomb")
    line = random.Random(name).choice(lines)
    outcome = run_limited(line, tmp_path / "bomb")
    assert not outcome.faults(), (line, outcome)


@pytest.mark.slow
@pytest.mark.parametrize("name", bombs.NAMES)
def test_a_bomb_does_no_harm_to_any_command(name: str, tmp_path: Path) -> None:
    faults = {}
    for line in bombs.lay(name, tmp_path / "bomb"):
        outcome = run_limited(line, tmp_path / "bomb")
        if outcome.faults():
            faults[" ".join(line)] = [*outcome.faults(), outcome.output[-2000:]]
    assert not faults
