"""Options: one field is a flag, a keyword, a check and a part of a run's identity."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune._command_configs import (
    CompareConfig,
    ConvertConfig,
    ExportConfig,
    GroupsConfig,
    InsertConfig,
    InspectConfig,
    LayersConfig,
    OverwriteConfig,
    ShapesConfig,
    StripConfig,
    VerifyConfig,
)
from qdqtune.cli._compare import ShownConfig as ComparisonShown
from qdqtune.cli._flags import config_from
from qdqtune.cli._inspect import ShownConfig as InspectionShown
from qdqtune.cli._tune import DryRunConfig
from qdqtune.cli.main import get_parser, main
from qdqtune.config import BenchConfig, EngineFlagsConfig, NameFilters, QuantizeConfig, TuneConfig
from qdqtune.options import options_of
from qdqtune.records._errors import UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._precision import Precision
from qdqtune.records._ranges import RangeMethod
from qdqtune.workflows._bench import bench
from qdqtune.workflows._quantize import quantize
from qdqtune.workflows.tuning._tune import plan_tune, tune
from tests.conftest import model_from_text


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "model.onnx"
    onnx.save(model_from_text("g (float[1,8] x) => (float[1,8] y) { y = Relu(x) }"), path)
    return str(path)


# A value of each option as it is typed, and what Python has for it.
WILDCARDS_FILE = Path(__file__).with_name("data") / "wildcards.txt"
TYPED: dict[str, tuple[list[str], Any]] = {
    "output_dir": (["-o", "run"], "run"),
    "resume": (["--resume", "never"], "never"),
    "restart": (["--restart"], True),
    "force": (["--force"], True),
    "report": (["--no_report"], False),
    "engine": (["--engine", "simulated"], "simulated"),
    "engine_options": (["--engine_option", "a=1", "--engine_option", "b=2=3"],
                       {"a": "1", "b": "2=3"}),
    "threads": (["--threads", "3"], 3),
    "quant_type": (["--quant_type", "fp8"], "fp8"),
    "regions": (["--regions", "structure"], "structure"),
    "precision": (["--precision", "float16"], "float16"),
    "optimize": (["--no_optimize"], False),
    "workflow": (["--mode", "subgraph"], "subgraph"),
    "strategy": (["--strategy", "bayesian"], "bayesian"),
    "dynamic_only": (["--dynamic_only"], True),
    "preset": (["--preset", "quick"], "quick"),
    "budget_s": (["--budget", "2m"], 120.0),
    "max_benchmarks": (["--max_benchmarks", "7"], 7),
    "qdq_baseline": (["--qdq_baseline", "q.onnx"], "q.onnx"),
    "keep_scales": (["--keep_scales"], True),
    "pattern_cache": (["--pattern_cache", "c.yaml"], "c.yaml"),
    "cache_dir": (["--cache_dir", "cache"], "cache"),
    "node_filter": (["--node_filter", "a*, b", "--node_filter", "c"], ("a*", "b", "c")),
    "region_filter": (["--node_filter_list", str(WILDCARDS_FILE)], ("layer1*", "fc")),
    "graph_json": (["--workflow", "subgraph", "--graph_json", "g.json"], "g.json"),
    "incremental_validation": (["--workflow", "subgraph", "--no_incremental_validation"], False),
    "min_sqnr_db": (["--min_sqnr", "none"], None),
    "performance_threshold": (["--performance_threshold", "1.5"], 1.5),
    "evaluate": (["--evaluate", "m:f"], "m:f"),
    "max_drop": (["--max_drop", "0.2"], 0.2),
    "objective": (["--objective", "accuracy"], "accuracy"),
    "bias_correction": (["--bias_correction", "none"], "none"),
    "smoothing": (["--smoothing", "none"], "none"),
    "max_latency_ms": (["--max_latency", "2.5"], 2.5),
    "calibration_data": (["--calibration_data", "d.npz"], "d.npz"),
    "calibration_samples": (["--calibration_samples", "4"], 4),
    "calibration_method": (["--calibration_method", "minmax"], RangeMethod.MAX),
    "image_preprocessor": (["--image_preprocessor", "p.json"], "p.json"),
    "image_size": (["--image_size", "224x320"], (224, 320)),
    "image_resize": (["--image_resize", "pad"], "pad"),
    "image_shortest_edge": (["--image_shortest_edge", "256"], 256),
    "image_interpolation": (["--image_interpolation", "bicubic"], "bicubic"),
    "image_scale": (["--image_scale", "1"], 1.0),
    "image_mean": (["--image_mean", "0.5,-0.25,1e-3"], (0.5, -0.25, 0.001)),
    "image_std": (["--image_std", "2"], (2.0,)),
    "image_channel_order": (["--image_channel_order", "bgr"], "bgr"),
    "image_layout": (["--image_layout", "nhwc"], "nhwc"),
    "inputs": (["--shapes", "x:1x8", "--dim", "N=2", "--input_range", "x:0:1"],
               InputRequest({"x": (1, 8)}, {"N": 2}, {"x": (0, 1)})),
    "seed": (["--seed", "5"], 5),
    "workers": (["--workers", "3"], 3),
    "cluster": (["--cluster", "ray://10.0.0.1:10001"], "ray://10.0.0.1:10001"),
    "min_shapes": (["--min_shapes", "x:1x8"], InputRequest({"x": (1, 8)})),
    "max_shapes": (["--max_shapes", "x:9x8"], InputRequest({"x": (9, 8)})),
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [each.name for each, known in options_of(TuneConfig) if known.flags]
)
def test_a_flag_sets_its_field(name: str) -> None:
    typed, value = TYPED[name]
    config = config_from(get_parser().parse_args(["tune", "m.onnx", *typed]), TuneConfig)
    assert getattr(config, name) == value
    nothing_said = config_from(get_parser().parse_args(["tune", "m.onnx"]), TuneConfig)
    assert nothing_said == TuneConfig()


QUANTIZE_TYPED: dict[str, tuple[list[str], Any]] = {
    "quant_type": (["--quantize_mode", "fp8"], "fp8"),
    "nodes_to_quantize": (["--nodes_to_quantize", "a.*,b", "c"], ("a.*", "b", "c")),
    "nodes_to_exclude": (["--nodes_to_exclude", "x{1,2}"], ("x{1,2}",)),
    "op_types_to_quantize": (["--op_types_to_quantize", "Conv"], ("Conv",)),
    "op_types_to_exclude": (["--op_types_to_exclude", "Add"], ("Add",)),
    "performance_threshold": (["--performance_threshold", "none"], None),
    "dialect": (["--dialect", "tensorrt"], "tensorrt"),
    "per_channel": (["--no_per_channel"], False),
    "dynamic": (["--dynamic"], True),
    "precision": (["--high_precision_dtype", "float16"], "fp16"),
    "autotune": (["--autotune"], "default"),
    "autotune_output_dir": (["--autotune_output_dir", "d"], "d"),
    "save_placement": (["--save_placement", "p.json"], "p.json"),
    "report": (["--report", "r.html"], "r.html"),
}


BENCH_TYPED: dict[str, tuple[list[str], Any]] = {
    "runs": (["--runs", "9"], 9),
    "min_time_s": (["--min_time", "1.5s"], 1.5),
}
DATA: dict[str, tuple[list[str], Any]] = {
    "against": (["--against", "f.onnx"], "f.onnx"),
    "data": (["--calibration_data", "d.npz"], "d.npz"),
    "samples": (["--calibration_samples", "3"], 3),
    "calibration_data": (["--data", "d.npz"], "d.npz"),
    "calibration_samples": (["--samples", "3"], 3),
    "runs": (["--runs", "9"], 9),
    "quant_type": (["--quant_type", "fp8"], "fp8"),
    "dialect": (["--dialect", "tensorrt"], "tensorrt"),
    "save_placement": (["--save_placement", "p.json"], "p.json"),
}
INSERT_TYPED: dict[str, tuple[list[str], Any]] = {
    **{name: DATA[name] for name in ("dialect", "save_placement")},
    "ops": (["--ops", "Conv,Add"], ("Conv", "Add")),
    "nodes": (["--nodes", "a", "--nodes", "b"], ("a", "b")),
    "dynamic": (["--dynamic", "MatMul,n0"], ("MatMul", "n0")),
    "tensors": (["--tensors", "t"], ("t",)),
    "placement": (["--placement", "p.json"], "p.json"),
    "high_precision_dtype": (["--high_precision_dtype", "float16"], "fp16"),
}
CONVERT_TYPED: dict[str, tuple[list[str], Any]] = {
    "to": (["--to", "bf16"], "bf16"),
    "keep_io": (["--no_keep_io"], False),
    "keep_nodes": (["--keep_nodes", "a,b"], ("a", "b")),
    "keep_ops": (["--keep_ops", "Relu"], ("Relu",)),
}
SHAPES_TYPED: dict[str, tuple[list[str], Any]] = {
    "batch_size": (["--batch_size", "8"], 8),
    "inputs": (["--set", "x:1x8", "--dim", "N=2"], InputRequest({"x": (1, 8)}, {"N": 2})),
}
EXPORT_TYPED: dict[str, tuple[list[str], Any]] = {
    **DATA,
    "is_list": (["--list"], True),
    "candidate": (["--candidate", "c0001"], "c0001"),
    "pareto": (["--pareto", "2"], 2),
    "exclusion_list": (["--exclusion_list", "nncf"], "nncf"),
}
INSPECT_TYPED: dict[str, tuple[list[str], Any]] = {
    **DATA,
    "regions": (["--regions", "scope"], "scope"),
    "inputs": SHAPES_TYPED["inputs"],
    "max_sequence_size": (["--max_sequence_size", "5"], 5),
    "by_shape": (["--by_shape"], True),
    "why": (["--why", "t"], "t"),
    "graph_json": (["--graph_json", "g.json"], "g.json"),
    "layers": (["--layers"], True),
    "groups": (["--groups"], True),
    "sort": (["--sort", "time"], "time"),
    "all_regions": (["--all_regions"], True),
    "max_items": (["--max_items", "0"], 0),
}
INSPECT_TYPED["inputs"] = (["--shapes", "x:1x8", "--dim", "N=2"], SHAPES_TYPED["inputs"][1])
FLAGS_TYPED: dict[str, tuple[list[str], Any]] = {
    "timing_cache": (["--timing_cache", "t.cache"], "t.cache"),
    "plugin_libraries": (["--plugins", "a.so", "b.so"], ("a.so", "b.so")),
    "trtexec_benchmark_args": (["--trtexec_args", "--fp16"], "--fp16"),
    "dry_run": (["--dry_run"], True),
    "top": (["--top", "0"], 0),
}
# A command line, the configs that are made from it, and what is typed for their fields.
OTHERS: list[tuple[str, list[Any], dict[str, tuple[list[str], Any]]]] = [
    ("quantize m", [QuantizeConfig], QUANTIZE_TYPED),
    ("bench m", [BenchConfig, EngineFlagsConfig], {**BENCH_TYPED, **FLAGS_TYPED}),
    ("tune m", [EngineFlagsConfig, DryRunConfig], FLAGS_TYPED),
    ("insert m -o out", [InsertConfig], INSERT_TYPED),
    ("strip m -o out", [StripConfig],
     {**DATA, "weights_from": (["--weights_from", "f.onnx"], "f.onnx")}),
    ("convert m -o out --to fp16", [ConvertConfig], CONVERT_TYPED),
    ("optimize m -o out", [OverwriteConfig], {}),
    ("shapes m", [ShapesConfig], SHAPES_TYPED),
    ("export m", [ExportConfig], EXPORT_TYPED),
    ("compare m q", [CompareConfig, ComparisonShown], {**DATA, **FLAGS_TYPED}),
    ("verify m", [VerifyConfig], DATA),
    ("inspect m", [InspectConfig, LayersConfig, GroupsConfig, InspectionShown], INSPECT_TYPED),
]  # fmt: skip


@pytest.mark.parametrize(
    ("line", "config_class", "its_own", "name"),
    [(line, config_class, its_own, each.name) for line, config_classes, its_own in OTHERS
     for config_class in config_classes
     for each, known in options_of(config_class) if known.flags],
)  # fmt: skip
def test_a_flag_of_another_command_sets_its_field(
    line: str, config_class: Any, its_own: dict[str, tuple[list[str], Any]], name: str
) -> None:
    typed, value = its_own.get(name) or TYPED[name]
    if "--to" in typed:
        line = line.partition(" --to")[0]
    config = config_from(get_parser().parse_args([*line.split(), *typed]), config_class)
    assert getattr(config, name) == value
    if name != "to":
        plain = config_from(get_parser().parse_args(line.split()), config_class)
        assert plain == (config_class(to="fp16") if "--to" in line else config_class())


def test_other_names_of_options() -> None:
    config = QuantizeConfig(quantize_mode="fp8", high_precision_dtype="float16")
    assert (config.quant_type, config.float_type) == ("fp8", Precision.FP16)
    assert replace(config, threads=1).quant_type == "fp8"
    assert QuantizeConfig(precision=Precision.BF16).float_type is Precision.BF16


@pytest.mark.parametrize(
    ("name", "value"),
    [("threads", 0), ("precision", "fp8"), ("autotune", "slow"), ("performance_threshold", 0.5),
     ("nodes_to_exclude", 3), ("per_channel", "no"), ("quantize_mode", 8)],
)  # fmt: skip
def test_what_quantize_refuses(name: str, value: Any, model: str, tmp_path: Path) -> None:
    field = "quant_type" if name == "quantize_mode" else name
    with pytest.raises(UsageError, match=f"^{field} must be "):
        quantize(model, tmp_path / "out.onnx", **{name: value})
    with pytest.raises(UsageError, match=r"quantize\(\) has no option 'thread'"):
        quantize(model, thread=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "flag", "value", "must_be"),
    [
        ("threads", "--threads", 0, "a whole number from 1 up"),
        ("max_benchmarks", "--max_benchmarks", 0, "a whole number from 1 up"),
        ("calibration_samples", "--calibration_samples", -1, "a whole number from 1 up"),
        ("seed", "--seed", -1, "a whole number from 0 up"),
        ("budget_s", "--budget", 0.0, "a time above 0"),
        ("min_sqnr_db", "--min_sqnr", float("nan"), "none or a number of dB"),
        ("performance_threshold", "--performance_threshold", 0.5, "a ratio of 1 or more"),
        ("max_drop", "--max_drop", -0.5, "a number from 0 up"),
        ("image_size", "--image_size", 0, "a size such as 224"),
        ("image_std", "--image_std", 0, "a number above 0"),
    ],
)
def test_python_and_the_command_line_refuse_the_same(
    name: str, flag: str, value: Any, must_be: str, model: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for call in (tune, plan_tune):
        with pytest.raises(UsageError, match=f"^{name} must be {must_be}.*, not {value!r}"):
            call(model, **{name: value})
    assert main(["tune", model, f"{flag}={value}"]) == 2
    assert f"argument {flag}: must be {must_be}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", "2"), ("threads", True), ("threads", 2.0), ("seed", None), ("preset", "slow"),
        ("preset", 3), ("precision", "float8"), ("workflow", "pieces"), ("resume", "maybe"),
        ("engine", None), ("engine_options", ["a=1"]), ("optimize", "no"), ("node_filter", "a*"),
        ("node_filter", [1]), ("pattern_cache", 3), ("evaluate", 3), ("max_drop", "much"),
        ("calibration_method", "median"), ("inputs", [1, 2]), ("filters", ["a"]),
        ("performance_threshold", None), ("timing_runs", 0), ("schemes_per_region", 0),
        ("image_size", (1, 2, 3)), ("image_mean", "0.5"), ("image_mean", ()), ("image_scale", "1"),
    ],
)  # fmt: skip
def test_values_of_other_types_are_refused(name: str, value: Any, model: str) -> None:
    with pytest.raises(UsageError, match=f"^{name} must be ") as caught:
        tune(model, **{name: value})
    assert caught.value.hint.startswith(f"{name}: ")


def test_arrays_as_calibration_data() -> None:
    samples = [{"x": np.zeros((1, 8))}, {"x": np.ones((1, 8))}]
    for data in (samples, samples[0]["x"]):
        config = TuneConfig(calibration_data=data)
        assert config == TuneConfig()
        assert replace(config, threads=1).calibration_data is data


def test_numbers_of_numpy_are_numbers() -> None:
    config = TuneConfig(threads=np.int64(2), budget_s=np.float32(3))  # type: ignore[arg-type]
    assert (config.threads, config.budget_s) == (2, 3)


def test_a_misspelled_keyword_gets_the_nearest_one(model: str) -> None:
    with pytest.raises(UsageError, match=r"tune\(\) has no option 'thread'") as caught:
        tune(model, thread=1)  # type: ignore[call-arg]
    assert caught.value.hint == "Did you mean threads?"
    with pytest.raises(UsageError, match="'zzz'") as caught:
        tune(model, zzz=1)  # type: ignore[call-arg]
    assert "max_benchmarks" in caught.value.hint


def test_a_config_and_keywords(model: str) -> None:
    config = TuneConfig(engine="simulated", preset="quick", max_benchmarks=3)
    assert plan_tune(model, config).benchmarks == 3
    assert plan_tune(model, config, max_benchmarks=5).benchmarks == 5
    assert plan_tune(model=model, config=config).engine == "simulated"
    with pytest.raises(UsageError, match="config is a dict, not a TuneConfig"):
        plan_tune(model, {"preset": "quick"})  # type: ignore[arg-type]


def test_the_keywords_are_in_the_signature_and_in_the_documentation() -> None:
    keywords = list(inspect.signature(tune).parameters.values())[2:]
    for keyword, (each, known) in zip(keywords, options_of(TuneConfig), strict=True):
        assert (keyword.name, keyword.default) == (each.name, each.default)
        assert f"{each.name}: {known.help}" in str(inspect.getdoc(tune))


def test_the_identity_of_a_run() -> None:
    plain = TuneConfig()
    assert plain.identity() == {
        "calibration_method": None,
        "node_filter": [],
        "min_sqnr_db": 15.0,
        "evaluate": None,
        "max_drop": None,  # without a metric it means nothing
        "performance_threshold": 1.02,
    }
    for same in ({"threads": 2}, {"preset": "quick"}, {"max_drop": 0.5}, {"output_dir": "a"}):
        assert replace(plain, **same).identity() == plain.identity()
    other = replace(
        plain, evaluate="m:f", max_drop=0.5, optimize=False, node_filter=["b", "a"],
        region_filter=["r"], filters=NameFilters(nodes_to_exclude="stem"),
        calibration_method="minmax", objective="accuracy", max_latency_ms=5.0,
    )  # fmt: skip
    assert other.identity() == plain.identity() | {
        "calibration_method": "max",
        "node_filter": ["a", "b"],
        "evaluate": "m:f",
        "max_drop": 0.5,
        "objective": "accuracy",
        "max_latency_ms": 5.0,
        "optimize": False,
        "region_filter": ["r"],
        "filters": {
            "nodes_to_quantize": [],
            "nodes_to_exclude": ["stem"],
            "op_types_to_quantize": [],
            "op_types_to_exclude": [],
        },
    }


def test_a_least_time_makes_as_many_runs_as_it_takes(model: str) -> None:
    def kept_s(**more: Any) -> float:
        record = bench([model, model], engine="simulated", engine_options={"seed": "1"}, **more)
        return min(
            sum(sum(block) for block in entry.measurement.blocks_ms) / 1000.0
            for entry in record.entries
        )

    few_s = kept_s(runs=2)
    assert kept_s(min_time_s=20 * few_s) >= 19 * few_s  # the engine's times are noisy
