"""The examples at the end of each command's help: they can be parsed, and they work."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune._parser import Parser
from qdqtune.autotune.__main__ import main as autotune
from qdqtune.autotune.region_inspect import main as region_inspect
from qdqtune.cli.main import get_parser, main
from qdqtune.zoo.__main__ import main as zoo
from tests.cli.test_parser import PARSERS
from tests.conftest import model_from_text

PROGRAMS: dict[str, Callable[[Sequence[str]], int]] = {
    "qdqtune": main,
    "python -m qdqtune.autotune.region_inspect": region_inspect,
    "python -m qdqtune.autotune": autotune,
    "python -m qdqtune.zoo": zoo,
}


def examples_of(parser: object) -> tuple[str, ...]:
    assert isinstance(parser, Parser)
    return parser.examples


EXAMPLES = [line for parser in PARSERS.values() for line in examples_of(parser)]


@pytest.mark.parametrize("prog", PARSERS)
def test_help_ends_with_two_examples_that_the_command_can_parse(prog: str) -> None:
    parser = PARSERS[prog]
    lines = examples_of(parser)
    assert len(lines) == 2
    assert parser.format_help().endswith(f"examples:\n  {lines[0]}\n  {lines[1]}\n")
    for line in lines:
        assert len(line) < 98
        words, own = shlex.split(line), prog.split()
        assert words[: len(own)] == own
        parser.parse_args(words[len(own) :])


def test_so_does_that_of_all_commands() -> None:
    parser = get_parser()
    lines = examples_of(parser)
    assert len(lines) == 2
    for line in lines:
        parser.parse_args(shlex.split(line)[1:])


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the examples read: a model, a quantized one, and samples."""
    folder = tmp_path_factory.mktemp("given")
    rng = np.random.default_rng(0)
    model = model_from_text(
        """g (float[N,3,8,8] x) => (float[N,3,8,8] y) {
            c = Conv<pads=[1,1,1,1]>(x, w) r = Relu(c) y = Add(r, x)
        }""",
        w=rng.normal(size=(3, 3, 3, 3)).astype(np.float32),
    )
    source, quantized = folder / "model.onnx", folder / "quantized.onnx"
    onnx.save(model, source)
    np.savez(folder / "samples.npz", x=rng.normal(size=(4, 1, 3, 8, 8)).astype(np.float32))
    assert main(["insert", str(source), "--ops", "Conv", "-o", str(quantized), "-q"]) == 0
    return folder


@pytest.fixture
def folder(given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One with these files, to work in."""
    shutil.copytree(given, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("folder", "brief_timing")
@pytest.mark.parametrize("line", EXAMPLES)
@pytest.mark.docs
def test_examples_work(line: str) -> None:
    program = next(name for name in PROGRAMS if line.startswith(name))
    words = shlex.split(line)[len(program.split()) :]
    for run in ("autotuner_output", "run_onnxruntime", "run_openvino"):
        if run in line:
            tune = ["tune", "model.onnx", "--engine", "simulated", "--preset", "quick"]
            assert main([*tune, "-o", run]) == 0
    assert PROGRAMS[program]([*words, *(["--force"] if "-o" in words else [])]) == 0
