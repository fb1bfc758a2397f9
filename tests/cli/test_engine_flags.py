"""What is said for trtexec on a command line, as options of the engine that is used."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

import pytest

from qdqtune.cli._flags import add_config, chosen_engine
from qdqtune.config import BenchConfig, EngineFlagsConfig
from tests.stand_ins.fixtures import stand_in_environment, write_stand_in_trtexec

RANGE = "--minShapes=x:1x3 --maxShapes=x:8x3"


def chosen(line: str) -> tuple[argparse.Namespace, dict[str, str]]:
    parser = argparse.ArgumentParser()
    add_config(parser, BenchConfig, EngineFlagsConfig)
    options = parser.parse_args(shlex.split(line))
    return options, chosen_engine(options)[1]


@pytest.fixture
def stand_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    for name, value in stand_in_environment(
        write_stand_in_trtexec(tmp_path), request.param
    ).items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("stand_in", ["10.16.1"], indirect=True)
@pytest.mark.usefixtures("stand_in")
@pytest.mark.parametrize(
    ("line", "run", "built_for"),
    [
        (f"--trtexec_benchmark_args '{RANGE} --optShapes=x:2x3'", ["x:2x3"], None),
        (f"--trtexec_benchmark_args '{RANGE} --shapes=x:4x3'", ["x:4x3"], None),
        (f"--trtexec_benchmark_args '{RANGE} --shapes=x:4x3 --optShapes=x:2x3'",
         ["x:4x3"], "x:2x3"),
        (f"--trtexec_benchmark_args '{RANGE} --optShapes=x:2x3' --shapes x:4x3",
         ["x:4x3"], "x:2x3"),
        (f"--trtexec_benchmark_args '{RANGE} --shapes=x:4x3 --optShapes=x:2x3' "
         "--engine_option opt_shapes=x:3x3", ["x:4x3"], "x:3x3"),
    ],
)  # fmt: skip
def test_shapes_that_are_run_and_those_that_are_built_for(
    line: str, run: list[str], built_for: str | None
) -> None:
    options, found = chosen(f"--engine trtexec {line}")
    assert options.shapes == run
    assert found.get("opt_shapes") == built_for
    options, found = chosen(f"--engine simulated {line.partition(' --engine_option')[0]}")
    assert (options.shapes, found) == (run, {})


@pytest.mark.parametrize(
    ("stand_in", "notes"), [("8.6.1", 0), ("11.1.0", 2)], indirect=["stand_in"]
)
@pytest.mark.usefixtures("stand_in")
def test_arguments_that_are_not_said_as_they_are(
    notes: int, caplog: pytest.LogCaptureFixture
) -> None:
    args = "--fp16 --workspace=4096 --verbose"
    _, found = chosen(f"--engine trtexec --trtexec_benchmark_args '{args}'")
    assert found == {"args": args}
    assert len(caplog.records) == notes
