"""Subgraph mode: how many builds, how much time, and how good its models are.

- `real`: zoo models on ONNX Runtime and OpenVINO, one thread, preset quick, tuned in both modes;
  then one interleaved run of the float model and both files. At most 12 whole-model builds; seconds
  at most the larger of 60 and a quarter of what the peer's search would take; not slower than what
  region mode finds by more than 1 %, decided by a 90 % interval.
- `depth`: an encoder of 24 layers needs at most 2 builds more than one of 6.
- `exact`: random models on the simulated engine without noise. With costs that add up, always the
  enumerated optimum; with fusion and layouts, within 2 % of it in at least 90 of 100.
- `builds`: the simulated GPU with builds as long as TensorRT's: at most 1/50 of the time that the
  peer's search would take. What was built once is kept, as TensorRT's serialized engines can be;
  every candidate of the peer is another model.

    make bench ARGS="subgraphs real --models resnet50,vit --engines onnxruntime"
    make bench ARGS="subgraphs exact --seeds 100"
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import onnx

from benchmarks import results, subgraph_exact
from benchmarks.blankets import CONFIDENCE
from benchmarks.subgraph_peer import candidate_s, peer_s, write_all_quantized
from qdqtune import zoo
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._timing import compare_blocks
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import Comparison
from qdqtune.workflows.tuning._tune import plan_tune, tune

KIND = "subgraphs"
MODELS: dict[str, dict[str, Any]] = {
    "resnet50": {"image": 160},
    "bert": {"layers": 12},
    "vit": {"layers": 12, "width": 256},
    "convnext": {},
    "mobilenet_v2": {},
    "efficientnet": {},
    "shufflenet_v2": {"width": 1.0},
}
"""Zoo models, with settings that make one float run last some milliseconds."""
ENGINES = ("onnxruntime", "openvino")
DEPTHS = (6, 24)
# What TensorRT 8.6 took for a ResNet-18 of 21 layers at batch 32 was 30 to 190 s: here it is 71.
BUILD_OPTIONS = {"profile": "gpu", "build_s": "8", "build_kernel_s": "3"}

MOST_BUILDS, MOST_MORE_BUILDS = 12, 2
LEAST_SECONDS, PART_OF_PEER = 60.0, 0.25
LEAST_RATIO, NEAR, LEAST_NEAR, EXACT = 0.99, 0.02, 0.9, 1e-9
PART_OF_BUILDING = 1 / 50

REAL_COLUMNS = {
    "engine": "engine", "model": "model", "groups": "groups",
    "builds": "builds", "bar": "most_builds", "subgraph builds": "subgraph_builds",
    "seconds": "seconds", "bar ": "most_seconds", "peer's": "peer_s", "region's": "region_s",
    "over float": "over_float", "region over float": "region_over_float",
    "over region": "over_region", "90 %": "over_region_interval", "bar  ": "least_ratio",
    "kept float": "kept_float", "met": "met", "commit": "commit",
}  # fmt: skip
DEPTH_COLUMNS = {
    "engine": "engine", "layers": "layers", "builds": "builds", "bar": "most_builds",
    "subgraph builds": "subgraph_builds", "seconds": "seconds", "speedup": "speedup",
    "met": "met", "commit": "commit",
}  # fmt: skip
EXACT_COLUMNS = {
    "profile": "profile", "costs": "case", "models": "models", "exact": "exact",
    "within 2 %": "near", "bar": "bar", "of groups alone": "groups_near",
    "assembled exact": "raw_exact", "assembled within 2 %": "raw_near",
    "kept float": "kept_float", "worst": "worst", "which": "worst_seed",
    "median best": "best", "builds": "builds", "met": "met", "commit": "commit",
}  # fmt: skip
BUILDS_COLUMNS = {
    "model": "model", "patterns": "patterns", "one candidate s": "candidate_s",
    "peer's s": "peer_s", "builds": "builds", "subgraph builds": "subgraph_builds",
    "seconds": "seconds", "of peer's": "of_peer", "bar": "bar", "speedup": "speedup", "met": "met",
    "commit": "commit",
}  # fmt: skip


def written(name: str, folder: Path, **settings: Any) -> tuple[Path, Feeds]:
    """A zoo model as a file, and something to run it on."""
    path = folder / f"{name}.onnx"
    onnx.save(zoo.build(name, **{**MODELS.get(name, {}), **settings}), path)
    feeds = next(random_inputs(GraphIndex(load_model(path)), 1, InputRequest(seed=1)))
    return path, feeds


def measure_real(name: str, engine: str, budget_s: float) -> dict[str, Any]:
    """One record: a model on an engine in both modes."""
    options = SessionOptions(threads=1)
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        space = Path(folder)
        path, feeds = written(name, space)
        region, subgraph = (
            tune(
                path, workflow=mode, engine=engine, threads=1, preset="quick",
                output_dir=space / mode,
            )
            for mode in ("region", "subgraph")
        )  # fmt: skip
        everything = write_all_quantized(path, space / "everything.onnx", engine)
        one_s = candidate_s(engine, options, [path, everything], feeds)
        over = _compared(engine, [path, region.model, subgraph.model], feeds, budget_s)
    summary = subgraph.summary
    peer = peer_s(region.summary.patterns, one_s)
    record: dict[str, Any] = {
        "engine": engine,
        "model": name,
        "groups": summary.groups,
        "builds": summary.benchmarks,
        "most_builds": MOST_BUILDS,
        "subgraph_builds": summary.subgraph_benchmarks,
        "seconds": summary.seconds.total,
        "most_seconds": max(LEAST_SECONDS, PART_OF_PEER * peer),
        "peer_s": peer,
        "region_s": region.summary.seconds.total,
        "region_builds": region.summary.benchmarks,
        "over_float": over[0, 2].ratio,
        "region_over_float": over[0, 1].ratio,
        "over_region": over[1, 2].ratio,
        "over_region_interval": [over[1, 2].low, over[1, 2].high],
        "least_ratio": LEAST_RATIO,
        "kept_float": summary.kept_float,
        "sqnr_db": summary.output_sqnr_db,
    }
    met = {
        "builds": record["builds"] <= MOST_BUILDS,
        "seconds": record["seconds"] <= record["most_seconds"],
        "speed": over[1, 2].high >= LEAST_RATIO,
    }
    return {**record, "met": _met(met)}


def _compared(
    engine: str, files: Sequence[Path], feeds: Feeds, budget_s: float
) -> dict[tuple[int, int], Comparison]:
    """How much faster each file is than each before it, from one interleaved run."""
    with Worker(engine, SessionOptions(threads=1)) as worker:
        alone = worker.measure(files[0], feeds)
        runs = max(60, round(1000.0 * budget_s / alone.latency_ms))
        measured, _ = compare_files(worker, files, feeds, runs=runs)
    return {
        (one, other): compare_blocks(measured[one].blocks_ms, measured[other].blocks_ms, CONFIDENCE)
        for other in range(len(files))
        for one in range(other)
    }


def measure_depth(engine: str, layers: int, fewest: int | None) -> dict[str, Any]:
    """One record: an encoder of so many layers; `fewest` is what the shallow one needed."""
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        path, _ = written("bert", Path(folder), layers=layers, sequence=64)
        summary = tune(
            path, workflow="subgraph", engine=engine, threads=1, preset="quick",
            output_dir=Path(folder, "run"),
        ).summary  # fmt: skip
    bar = None if fewest is None else fewest + MOST_MORE_BUILDS
    return {
        "engine": engine,
        "layers": layers,
        "builds": summary.benchmarks,
        "most_builds": "" if bar is None else bar,
        "subgraph_builds": summary.subgraph_benchmarks,
        "seconds": summary.seconds.total,
        "speedup": summary.speedup,
        "met": "" if bar is None else _met({"builds": summary.benchmarks <= bar}),
    }


def measure_builds(name: str) -> dict[str, Any]:
    """One record: a model on the simulated GPU, whose builds take long on its own clock."""
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        space = Path(folder)
        path, feeds = written(name, space)
        patterns = plan_tune(path, engine="simulated", engine_options=BUILD_OPTIONS).patterns
        everything = write_all_quantized(
            path, space / "everything.onnx", "simulated", BUILD_OPTIONS
        )
        options = SessionOptions(threads=1, engine_options=BUILD_OPTIONS)
        one_s = candidate_s("simulated", options, [path, everything], feeds)
        kept = {**BUILD_OPTIONS, "plan_cache": str(space / "plans")}
        # Answers of the reference engine would be slow to compute, and are not asked for.
        summary = tune(
            path, workflow="subgraph", engine="simulated", engine_options=kept,
            threads=1, preset="quick", min_sqnr_db=None, output_dir=space / "run",
        ).summary  # fmt: skip
    seconds = summary.seconds.building + summary.seconds.timing
    peer = peer_s(patterns, one_s)
    return {
        "model": name,
        "patterns": patterns,
        "candidate_s": one_s,
        "peer_s": peer,
        "builds": summary.benchmarks,
        "subgraph_builds": summary.subgraph_benchmarks,
        "seconds": seconds,
        "of_peer": f"1/{peer / seconds:.0f}",
        "bar": f"1/{1 / PART_OF_BUILDING:.0f}",
        "speedup": summary.speedup,
        "met": _met({"seconds": seconds <= PART_OF_BUILDING * peer}),
    }


def measure_exact(case: str, profile: str, seeds: int, jobs: int) -> dict[str, Any]:
    """One record: random models, each against all its placements."""
    with ProcessPoolExecutor(jobs) as pool:
        found: list[dict[str, Any]] = []
        for each in pool.map(
            subgraph_exact.measure, [(seed, case, profile) for seed in range(seeds)]
        ):
            found.append(each)
            if each["loss"] > (EXACT if case == subgraph_exact.ADDITIVE else NEAR):
                print(f"{case} {profile}:", each, flush=True)
    worst = max(found, key=lambda each: each["loss"])
    near = sum(each["loss"] <= NEAR for each in found)
    exact = sum(abs(each["loss"]) <= EXACT for each in found)
    additive = case == subgraph_exact.ADDITIVE
    raw = [each["raw_loss"] for each in found if each["raw_loss"] is not None]
    return {
        "profile": profile,
        "case": case,
        "models": seeds,
        "exact": exact,
        "near": near,
        "bar": "all exact" if additive else f"{LEAST_NEAR * seeds:.0f} near",
        "groups_near": sum(each["groups_loss"] <= NEAR for each in found),
        "raw_exact": sum(abs(loss) <= EXACT for loss in raw),
        "kept_float": sum(each["kept_float"] for each in found),
        "raw_near": f"{sum(loss <= NEAR for loss in raw)} of {len(raw)}",
        "worst": worst["loss"],
        "worst_seed": worst["seed"],
        "best": sorted(each["best"] for each in found)[seeds // 2],
        "builds": max(each["builds"] for each in found),
        "met": _met({"loss": exact == seeds if additive else near >= LEAST_NEAR * seeds}),
    }


def _met(bars: Mapping[str, bool]) -> str:
    """Yes, or which bars were missed."""
    missed = [name for name, met in bars.items() if not met]
    return f"no: {', '.join(missed)}" if missed else "yes"


def run_real(options: argparse.Namespace) -> None:
    for engine in options.engines.split(","):
        for name in options.models.split(","):
            results.keep(KIND, "real", measure_real(name, engine, options.budget_s))
    results.show(KIND, "real", REAL_COLUMNS, "engine", "model")


def run_depth(options: argparse.Namespace) -> None:
    for engine in options.engines.split(","):
        fewest: int | None = None
        for layers in DEPTHS:
            record = results.keep(KIND, "depth", measure_depth(engine, layers, fewest))
            fewest = record["builds"] if fewest is None else fewest
    results.show(KIND, "depth", DEPTH_COLUMNS, "engine", "layers")


def run_exact(options: argparse.Namespace) -> None:
    for profile in options.profiles.split(","):
        for case in subgraph_exact.SWITCHES:
            results.keep(KIND, "exact", measure_exact(case, profile, options.seeds, options.jobs))
    results.show(KIND, "exact", EXACT_COLUMNS, "profile", "case")


def run_builds(options: argparse.Namespace) -> None:
    for name in options.models.split(","):
        results.keep(KIND, "builds", measure_builds(name))
    results.show(KIND, "builds", BUILDS_COLUMNS, "model")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "real": run_real,
    "depth": run_depth,
    "exact": run_exact,
    "builds": run_builds,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts that are asked for, append to the results file, print tables from it."""
    logging.getLogger().setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(prog="make bench ARGS=subgraphs…", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)}; all unless said")
    parser.add_argument("--models", default=",".join(MODELS), help="zoo models, by comma")
    parser.add_argument("--engines", default=",".join(ENGINES))
    parser.add_argument("--budget_s", type=float, default=12.0, help="seconds of runs per file")
    parser.add_argument("--profiles", default="cpu-vnni", help="simulated, for `exact`")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    unknown = set(options.part) - PARTS.keys()
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    for part, run in PARTS.items():
        if part in options.part or not options.part:
            run(options)
