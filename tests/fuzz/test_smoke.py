"""Short runs of the fuzzer; `python -m benchmarks.fuzz` is the long one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.fuzz.mutants import make_mutant
from tests.fuzz.seeds import SEEDS, write_seed

ROOT = Path(__file__).parents[2]
SLOW = pytest.mark.slow


def try_mutants(*options: str) -> list[dict[str, object]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.lane", *options],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("name", SEEDS)
def test_seeds_are_sound(name: str, tmp_path: Path) -> None:
    model = write_seed(name, tmp_path)
    path = tmp_path / "seed.onnx"
    path.write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(path), full_check=True)


def test_mutants_are_repeatable(tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        files.append(make_mutant(17, tmp_path / name).path.read_bytes())
    assert files[0] == files[1]


@pytest.mark.skipif(sys.platform != "linux", reason="watches files the way Linux does")
@pytest.mark.parametrize(
    ("options", "count"),
    [
        (["--first", "0", "--count", "60", "--only", "read"], 60),
        pytest.param(["--first", "60", "--count", "300", "--only", "read"], 300, marks=SLOW),
        pytest.param(["--first", "40", "--count", "20"], 20, marks=SLOW),
    ],
    ids=["few", "read", "every-command"],
)
def test_mutants_work_or_are_refused(options: list[str], count: int) -> None:
    records = try_mutants(*options)
    assert len(records) == count
    assert [record for record in records if record["problems"]] == []
    answers = [answer for record in records for answer in record["answers"].values()]
    assert answers.count(0) >= count // 10, "mutants that nobody reads test nothing"
