"""What a pattern cache saves: a model tuned without one, and with that of its sibling.

`python -m benchmarks.warm_start` tunes each pair of models below in three ways: the first one, the
second one without a cache, and the second one with the cache of the first. On the simulated engine,
latencies are those of the cost model, without noise; on others, both results are timed in turns,
in several processes: two opens of one file may differ by some percent.

- `benchmarks`: candidates timed with the cache over those without: at most 0.25 for a sibling, and
  1.1 for a model that has nothing to do with the first one.
- `near end`: after what part of its benchmarks the run without a cache was within 1 % of its own
  end.
- `latency`: that of the result with the cache over that of the one without: at most 1.01.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from qdqtune import bench, zoo
from qdqtune.records._tuning import TuneResult
from qdqtune.report._formatting import text_table
from qdqtune.testing.simulated import true_latency_ms
from qdqtune.workflows.tuning._journal_format import whole_lines
from qdqtune.workflows.tuning._tune import tune

SIMULATED = "simulated"
NEAR = 0.01
_OPENINGS = 6
_RESNET = {"image": 64}
_ENCODER = {"width": 128, "sequence": 32, "vocabulary": 1000}


@dataclass(frozen=True)
class Model:
    """A model of the zoo, with other than its usual settings."""

    name: str
    settings: Mapping[str, Any]

    def write(self, path: Path) -> Path:
        """Write it to a file."""
        onnx.save(zoo.build(self.name, **self.settings), path)
        return path


PAIRS = {
    "resnet18 to resnet34": (Model("resnet18", _RESNET), Model("resnet34", _RESNET)),
    "4 to 12 layers": (
        Model("bert", {**_ENCODER, "layers": 4}), Model("bert", {**_ENCODER, "layers": 12}),
    ),
    "batch 1 to 8": (Model("resnet18", _RESNET), Model("resnet18", {**_RESNET, "batch": 8})),
    "other weights": (Model("resnet18", _RESNET), Model("resnet18", {**_RESNET, "seed": 1})),
    "other weights of mobilenet_v2": (
        Model("mobilenet_v2", _RESNET), Model("mobilenet_v2", {**_RESNET, "seed": 1}),
    ),
    "unrelated: resnet18 to bert": (
        Model("resnet18", _RESNET), Model("bert", {**_ENCODER, "layers": 4}),
    ),
    "unrelated: bert to mobilenet_v2": (
        Model("bert", {**_ENCODER, "layers": 4}), Model("mobilenet_v2", _RESNET),
    ),
}  # fmt: skip


def near_end(result: TuneResult) -> float:
    """After what part of its benchmarks a run had a candidate within 1 % of its best one."""
    gains: dict[str, float] = {}
    best: list[float] = []
    lines = list(whole_lines(result.output_dir / "measurements.jsonl"))
    found = [line for line in lines if line["kind"] == "measurement"]
    for line in found:
        before = gains.setdefault(line["reference"], 0.0)
        if line["gain"] is not None:
            gains.setdefault(line["candidate"], before + line["gain"])
        best.append(max(gains.values(), default=0.0))
    first = next((n for n, gain in enumerate(best, 1) if gain >= best[-1] - NEAR), len(best))
    return first / max(1, len(best))


def latency_ratio(engine: str, profile: str, warm: TuneResult, cold: TuneResult) -> float:
    """The latency of one result over that of another."""
    files = [warm.output_dir / "optimized_final.onnx", cold.output_dir / "optimized_final.onnx"]
    if engine == SIMULATED:
        one, other = (true_latency_ms(onnx.load(file), profile) for file in files)
        return one / other
    ratios: list[float] = []
    for opening in range(_OPENINGS):
        first = opening % 2  # what is opened first may be a little slower
        ordered = files[first], files[1 - first]
        timed = bench(ordered, engine=engine, threads=1, opening=opening).entries
        ratio = timed[0].measurement.latency_ms / timed[1].measurement.latency_ms
        ratios.append(1.0 / ratio if first else ratio)
    return statistics.geometric_mean(ratios)


def measure(pair: str, engine: str, profile: str, preset: str, seed: int) -> list[float]:
    """The three ratios of a pair."""
    first, second = PAIRS[pair]
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        room = Path(folder)
        options: dict[str, Any] = {"engine": engine, "preset": preset, "report": False}
        if engine == SIMULATED:
            options |= {"engine_options": {"profile": profile, "seed": str(seed)}, "min_sqnr_db": 0}
        else:
            options |= {"threads": 1}
        known = tune(first.write(room / "a.onnx"), output_dir=room / "a", seed=seed, **options)
        cache = known.output_dir / "autotuner_state_pattern_cache.yaml"
        model = second.write(room / "b.onnx")
        cold = tune(model, output_dir=room / "cold", seed=seed, **options)
        warm = tune(model, output_dir=room / "warm", seed=seed, pattern_cache=cache, **options)
        counts = warm.summary.benchmarks, cold.summary.benchmarks
        print(f"{pair}, seed {seed}: {counts[0]} against {counts[1]}", flush=True)
        return [
            counts[0] / max(1, counts[1]),
            near_end(cold),
            latency_ratio(engine, profile, warm, cold),
        ]


def _row(pair: str, found: Sequence[Sequence[float]]) -> list[str]:
    benchmarks, near, latency = zip(*found, strict=True)
    bar = 1.1 if pair.startswith("unrelated") else 0.25
    is_met = max(latency) <= 1.0 + NEAR and max(benchmarks) <= bar
    return [
        pair,
        f"{statistics.mean(benchmarks):.2f}", f"{max(benchmarks):.2f}",
        f"{statistics.mean(near):.2f}",
        f"{math.exp(statistics.mean(map(math.log, latency))):.3f}", f"{max(latency):.3f}",
        "met" if is_met else "missed",
    ]  # fmt: skip


def main(arguments: Iterable[str] | None = None) -> None:
    """Tune all pairs and print one row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--pairs", default=",".join(PAIRS))
    parser.add_argument("--engine", default=SIMULATED)
    parser.add_argument("--profile", default="cpu-vnni", help="of the simulated engine")
    parser.add_argument("--preset", default="default")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args(None if arguments is None else list(arguments))
    rows = []
    for pair in options.pairs.split(","):
        seeds = range(options.seeds)
        where = options.engine, options.profile, options.preset
        rows.append(_row(pair, [measure(pair, *where, seed) for seed in seeds]))
    titles = ["pair", "benchmarks", "most", "near end", "latency", "most ", "bar"]
    print(text_table(titles, rows))


if __name__ == "__main__":
    main()
