"""`python -m qdqtune.autotune`: its flags in every spelling, and how it fails."""

from __future__ import annotations

import json
import logging
import shlex
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune.autotune import __main__ as autotune
from qdqtune.autotune.__main__ import apply_mode_presets, get_parser, main
from qdqtune.config import TuneConfig
from qdqtune.records._inputs import InputRequest
from qdqtune.workflows.tuning import _tune as tuning
from tests.conftest import model_from_text

Capture = pytest.CaptureFixture[str]

# What scripts that were written for the released command rely on.
FLAGS = {
    "--onnx_path": ("onnx_path", None),
    "-m": ("onnx_path", None),
    "--output_dir": ("output_dir", "./autotuner_output"),
    "-o": ("output_dir", "./autotuner_output"),
    "--mode": ("mode", "default"),
    "--schemes_per_region": ("num_schemes", 50),
    "-s": ("num_schemes", 50),
    "--pattern_cache": ("pattern_cache_file", None),
    "--qdq_baseline": ("qdq_baseline", None),
    "--state_file": ("state_file", None),
    "--node_filter_list": ("node_filter_list", None),
    "--quant_type": ("quant_type", "int8"),
    "--default_dq_dtype": ("default_dq_dtype", "float32"),
    "--use_trtexec": ("use_trtexec", False),
    "--timing_cache": ("timing_cache", f"{tempfile.gettempdir()}/trtexec_timing.cache"),
    "--warmup_runs": ("warmup_runs", 50),
    "--timing_runs": ("timing_runs", 100),
    "--plugin_libraries": ("plugin_libraries", None),
    "--plugins": ("plugin_libraries", None),
    "--trtexec_benchmark_args": ("trtexec_benchmark_args", None),
    "--verbose": ("verbose", False),
    "-v": ("verbose", False),
}


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    weight = np.random.default_rng(0).normal(size=(8, 8, 1, 1)).astype(np.float32)
    proto = model_from_text(
        "g (float[1,8,8,8] x) => (float[1,8,8,8] y) { c = Conv(x, w) y = Relu(c) }", w=weight
    )
    onnx.save(proto, "m.onnx")
    return "m.onnx"


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_destinations_and_defaults(flag: str) -> None:
    dest, default = FLAGS[flag]
    actions = {name: action for action in get_parser()._actions for name in action.option_strings}
    assert actions[flag].dest == dest
    assert get_parser().parse_args(["-m", "x"]).__dict__[dest] == (
        "x" if dest == "onnx_path" else default
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--model a --output b --quant-type fp8 --schemes-per-region 20",
         {"onnx_path": "a", "output_dir": "b", "quant_type": "fp8", "num_schemes": 20,
          "_explicit_num_schemes": True}),
        ("--onnx-path a --node_filter-list f", {"node_filter_list": "f"}),
        ("-m a --plugins p.so q.so --threads 2", {"plugin_libraries": ["p.so", "q.so"]}),
        ("-m a --mode subgraph --use-trtexec --incremental-validation",
         {"mode": "subgraph", "use_trtexec": True, "incremental_validation": True}),
        ("-m a --no-incremental-validation --graph-json=g.json",
         {"incremental_validation": False, "graph_json": "g.json"}),
        ("-m a --mode quick --workflow subgraph", {"mode": "quick", "workflow": "subgraph"}),
        ("-m a --mode subgraph --mode quick", {"mode": "quick", "workflow": "subgraph"}),
        ("-m a --mode subgraph --workflow subgraph", {"mode": "subgraph", "workflow": "subgraph"}),
        ("-m a --warmup-runs 5 --timing-runs 20",
         {"warmup_runs": 5, "_explicit_warmup_runs": True, "_explicit_num_schemes": False}),
        ("-m a --budget 2m --resume never --seed 3",
         {"budget": 120.0, "seed": 3, "resume": "never"}),
    ],
)  # fmt: skip
def test_spellings(line: str, expected: dict[str, Any]) -> None:
    options = vars(get_parser().parse_args(line.split()))
    assert {name: options[name] for name in expected} == expected


@pytest.mark.parametrize("flag", ["--trtexec-args", "--trtexec_benchmark_args"])
@pytest.mark.parametrize("value", ["--stronglyTyped", "--fp16 --opt-shapes=x:1x3", "-v"])
def test_a_command_line_may_begin_with_dashes(flag: str, value: str) -> None:
    assert get_parser().parse_args(["-m", "a", flag, value]).trtexec_benchmark_args == value


def test_presets_leave_what_was_said() -> None:
    options = get_parser().parse_args(["-m", "a", "--mode", "quick", "-s", "50"])
    apply_mode_presets(options)
    assert (options.num_schemes, options.warmup_runs, options.timing_runs) == (50, 10, 50)


def asked(line: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `tune` is asked for by a command line."""
    seen: dict[str, Any] = {}

    class Asked(Exception):
        pass

    def ask(model: str, config: TuneConfig, **request: Any) -> None:
        seen.update(vars(config), **request, model=model)
        raise Asked

    monkeypatch.setattr(tuning, "tune", ask)
    with pytest.raises(Asked):
        autotune._run(get_parser().parse_args(shlex.split(line)))
    return seen


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("", {"preset": "default", "schemes_per_region": None, "timing_runs": None}),
        ("--mode region --graph_json g.json",
         {"preset": "default", "workflow": "region", "graph_json": None}),
        ("--mode subgraph --timing_runs 3 --schemes_per_region 30",
         {"preset": "default", "workflow": "subgraph", "incremental_validation": True,
          "graph_json": None, "timing_runs": 3}),
        ("--mode subgraph --trtexec-args=--optShapes=x:1x8x8x8",
         {"inputs": InputRequest({"x": (1, 8, 8, 8)}), "min_shapes": None, "max_shapes": None}),
        ("--mode subgraph --trtexec-args=--maxShapes=x:9x8x8x8 --min-shapes x:1x8x8x8",
         {"min_shapes": InputRequest({"x": (1, 8, 8, 8)}),
          "max_shapes": InputRequest({"x": (9, 8, 8, 8)})}),
        ("--mode subgraph --trtexec-args '--shapes=x:2x8x8x8 --optShapes=x:1x8x8x8'",
         {"inputs": InputRequest({"x": (2, 8, 8, 8)}), "engine_options": {}}),
        ("--mode region --trtexec-args=--maxShapes=x:9x8x8x8 --shapes x:1x8x8x8",
         {"inputs": InputRequest({"x": (1, 8, 8, 8)}), "max_shapes": None}),
        ("--mode subgraph --graph-json g.json --no-incremental-validation",
         {"graph_json": "g.json", "incremental_validation": False}),
        ("--mode quick --timing_runs 100", {"preset": "quick", "timing_runs": 100}),
        ("--mode quick --workflow subgraph", {"preset": "quick", "workflow": "subgraph"}),
        ("--mode quick --mode subgraph", {"preset": "quick", "workflow": "subgraph"}),
        ("--workflow subgraph", {"preset": "default", "workflow": "subgraph"}),
        ("--mode extensive -s 50", {"preset": "extensive", "schemes_per_region": 50}),
        ("--state_file s.yaml --seed 7", {"state_file": "s.yaml", "seed": 7}),
        ("--restart --budget 90s", {"restart": True, "resume": "auto", "budget_s": 90.0}),
        ("--node_filter_list f.txt", {"region_filter": ["conv*", "n1"], "preset": "default"}),
        ("--engine simulated --threads 1", {"engine": "simulated", "threads": 1}),
        ("--pattern_cache missing.yaml", {"pattern_cache": None}),
    ],
)  # fmt: skip
def test_what_is_asked_for(
    line: str, expected: dict[str, Any], model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("f.txt").write_text("# names\nconv*\n\n n1 \n")
    request = asked(f"-m {model} {line}", monkeypatch)
    assert {name: request[name] for name in expected} == expected


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("-m missing.onnx", ["missing.onnx does not exist"]),
        ("-m {model} --mode subgraph --graph_json missing.json", ["missing.json"]),
        ("-m {model} --mode subgraph --use_trtexec", ["Leave --use_trtexec out", "--graph_json"]),
        ("-m {model} --qdq_baseline missing.onnx", ["baseline missing.onnx does not exist"]),
        ("-m {model} --use_trtexec", ["trtexec is not installed", "put it on PATH"]),
        ("-m {model} --use_trtexec --engine onnxruntime", ["contradicts"]),
        ("-m {model} --plugins missing.so", ["plugin library missing.so does not exist"]),
        ("-m {model} --node_filter_list missing.txt", ["missing.txt can't be read"]),
        ("-m {model} --node_filter_list empty.txt", ["empty.txt holds no pattern", "one wildcard"]),
        ("-m {model} --quant_type fp8 --engine onnxruntime", ["no quant type 'fp8'"]),
        ("-m {model} --engine nope", ["Unknown engine 'nope'"]),
        ("-m {model} -o {model}", ["can't be made"]),
    ],
)
def test_failures_are_told_and_exit_with_1(
    line: str, words: list[str], model: str, capsys: Capture
) -> None:
    Path("empty.txt").write_text("# nothing yet\n\n  # conv1\n")
    assert main(line.format(model=model).split()) == 1
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    for word in words:
        assert word in errors
    assert not Path("autotuner_output", "optimized_final.onnx").exists()


def test_what_is_of_no_use_is_warned_of(model: str, capsys: Capture) -> None:
    Path("p.so").touch()
    line = (
        "--graph_json g.json --no-incremental-validation --plugins p.so --trtexec-args --fp16 "
        "--warmup_runs 5 --default_dq_dtype float16"
    )
    arguments = f"-m {model} --engine simulated --mode quick {line} --pattern_cache missing.yaml"
    assert main(arguments.split()) == 0
    captured = capsys.readouterr()
    for words in (
        "--graph_json belongs to subgraph mode",
        "--incremental_validation belongs to subgraph mode",
        "simulated takes no plugin libraries",
        "simulated takes no arguments of trtexec: --fp16",
        "there is no pattern cache missing.yaml",
        "--warmup_runs has no effect: every block of timed runs",
        "--default_dq_dtype has no effect: the float type of every tensor is known",
    ):
        assert f"WARNING: {words}" in captured.err
    assert "--schemes_per_region" not in captured.err
    first, second = captured.out.splitlines()[:2]
    assert first.startswith("Baseline: ")
    assert second.startswith("Final: ")
    assert second.endswith("x speedup)")


def test_the_schemes_of_subgraphs_are_not_counted(
    model: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "qdqtune")
    asked(f"-m {model} --mode quick -s 30", monkeypatch)
    assert not caplog.text
    asked(f"-m {model} --mode quick --workflow subgraph -s 30", monkeypatch)
    assert "--schemes_per_region has no effect: in subgraph mode" in caplog.text


@pytest.mark.parametrize(
    "line", ["--mode subgraph --workflow region", "--mode quick --mode extensive"]
)
def test_modes_that_contradict_each_other(line: str, model: str, capsys: Capture) -> None:
    assert main(["-m", model, *line.split()]) == 2
    assert "contradict each other" in capsys.readouterr().err


def test_json(model: str, capsys: Capture) -> None:
    assert main(["-m", model, "--engine", "simulated", "--mode=quick", "--format=json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["kind"] == "summary"
    assert summary["command"].startswith(f"python -m qdqtune.autotune -m {model} ")


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, ["interrupted"]),
        (ZeroDivisionError("oops"), 1, ["ZeroDivisionError: oops", "report it"]),
        (OSError(28, "No space left on device"), 1, ["No space left"]),
    ],
)
def test_whatever_happens(
    error: BaseException, code: int, words: list[str], model: str, capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(tuning, "tune", fail)
    assert main(["-m", model]) == code
    errors = capsys.readouterr().err
    assert "Traceback" not in errors
    for word in words:
        assert word in errors


def test_verbose_sets_the_level(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotune, "_run", lambda _options: 0)
    for arguments, level in (([], logging.WARNING), (["--verbose"], logging.DEBUG)):
        assert main(["-m", model, *arguments]) == 0
        assert logging.getLogger("qdqtune").level == level


def test_usage_errors(capsys: Capture) -> None:
    assert main([]) == 2
    assert main(["-m", "a", "--trtexec_args", "'open"]) == 2
    assert "must be a command line with every quote closed" in capsys.readouterr().err
    assert main(["--help"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "at most N candidates for each pattern of the model, taken together" in said
