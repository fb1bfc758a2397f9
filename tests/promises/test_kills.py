"""A run that is killed before any change of its folder ends like one that is not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.promises.killing import SITUATIONS

ROOT = Path(__file__).parents[2]
SAMPLE = ("subgraph", "hand_over_other")


def killing(folder: Path, *arguments: str) -> dict[str, dict[str, Any]]:
    """Reports by situation."""
    command = [sys.executable, "-m", "tests.promises.killing", str(folder), *arguments]
    paths = os.pathsep.join(path for path in sys.path if path)
    environment = {**os.environ, "PYTHONPATH": paths, "TMPDIR": str(folder)}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_runs_that_are_killed_are_recovered_by_the_same_command(tmp_path: Path) -> None:
    for name, report in killing(tmp_path, *SAMPLE, "--kills", "1").items():
        assert report["wrong"] == [], name
        assert report["recovered"] == report["kills"] == 1, name


@pytest.mark.slow
@pytest.mark.parametrize("name", SITUATIONS)
def test_states_that_a_kill_leaves_are_recovered(name: str, tmp_path: Path) -> None:
    report = killing(tmp_path, name, "--states", "12")[name]
    assert report["wrong"] == []
    assert report["recovered"] == report["tried"] == 12


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", SITUATIONS)
def test_every_state_that_a_kill_leaves_is_recovered(name: str, tmp_path: Path) -> None:
    report = killing(tmp_path, name)[name]
    assert report["wrong"] == []
    assert report["recovered"] == report["tried"] == report["states"] > 50
    assert report["kills"]  # in the second run
