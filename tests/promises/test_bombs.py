"""Small hostile inputs end in a result or a refusal, in bounded memory and time."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.promises import bombs, limited
from tests.promises.limited import MOST_BYTES, run_limited
from tests.tiers import tiered

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="watches processes the way Linux does"),
    pytest.mark.timeout(3600),  # of all commands together; each has a limit of its own
]

# Commands in which the engine, or we, could take most; no limit of the system stops them.
WATCHED = ("bench", "quantize", "tune")


def test_there_are_many_and_all_differ() -> None:
    assert len(set(bombs.NAMES)) == len(bombs.NAMES) >= 64


@pytest.mark.parametrize("work", ["time.sleep(600)", "list(iter(int, 1))"])
def test_a_command_that_goes_on_is_seen(
    work: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it waits or computes."""
    monkeypatch.setattr(limited, "MOST_SECONDS", 1.0)
    (tmp_path / "folder").mkdir()
    outcome = run_limited(["python", "-c", f"import time; {work}"], tmp_path / "folder")
    assert outcome.code is None
    assert "did not end" in outcome.faults()[0]


@pytest.mark.parametrize("name", tiered(bombs.NAMES, fast=3, slow=60))
def test_a_bomb_does_no_harm(name: str, tmp_path: Path) -> None:
    lines = bombs.lay(name, tmp_path / "bomb")
    line = random.Random(name).choice(lines)
    check([line], tmp_path / "bomb")


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", bombs.NAMES)
def test_a_bomb_does_no_harm_to_any_command(name: str, tmp_path: Path) -> None:
    check(bombs.lay(name, tmp_path / "bomb"), tmp_path / "bomb")


@pytest.mark.parametrize("name", tiered(bombs.NAMES, slow=6))
def test_all_processes_together_stay_below_the_limit_of_each(name: str, tmp_path: Path) -> None:
    """Nothing but our own limits holds here: half of the memory for each of two processes."""
    lines = [line for line in bombs.lay(name, tmp_path / "bomb") if line[0] in WATCHED]
    limit = ["--max_memory", str(MOST_BYTES // 2)]
    check([[*line, *limit] for line in lines], tmp_path / "bomb", address_space=None)


def check(
    lines: Sequence[Sequence[str]], folder: Path, address_space: int | None = MOST_BYTES
) -> None:
    faults = {}
    for line in lines:
        outcome = run_limited(line, folder, address_space=address_space)
        if outcome.faults():
            faults[" ".join(line)] = [*outcome.faults(), outcome.output[-2000:]]
    assert not faults
