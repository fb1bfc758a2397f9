"""Regions by scope against regions by structure: what a search ends with.

`python -m benchmarks.region_divisions` searches in models of the zoo, or in files, with both kinds
of regions on a simulated machine, with noisy block timing on virtual time, seed after seed. Nothing
is measured, so it runs anywhere. `latency` is that of what a search by scope found, without noise,
over that of what one by structure found: the mean over the seeds, with its 95 % interval.

With `--engine`, both are tuned on a real one, and results are timed in turns in several processes.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import onnx_ir as ir

from benchmarks.search_quality import FLOAT_MS, NOISES, Replay, Table
from benchmarks.warm_start import latency_ratio
from qdqtune import zoo
from qdqtune.config import AUTO_STRATEGY, SCOPE, STRUCTURE
from qdqtune.engines.layers._latency import shares_of_latency
from qdqtune.graph._folding import fold
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq.dialects import dialect_named
from qdqtune.records._measurement import LayerTime
from qdqtune.records._ranges import CalibrationSource, Ranges
from qdqtune.report._formatting import text_table
from qdqtune.rules._order import draft_placement
from qdqtune.search._space import Space, State, group_ops
from qdqtune.search.strategies._registry import make_strategy
from qdqtune.search.strategies._strategy import SearchTask, SteppedStrategy
from qdqtune.testing.simulated import PROFILES, kernels_of, true_latency_ms
from qdqtune.workflows.tuning._preflight import seeds_of
from qdqtune.workflows.tuning._time_budget import PRESETS
from qdqtune.workflows.tuning._tune import tune

MODELS = (
    "resnet18", "mobilenet_v2", "efficientnet", "shufflenet_v2", "convnext", "vit:layers=4", "bert",
    "gpt", "unet", "yolo",
)  # fmt: skip

# The 97.5 % quantiles of Student's distribution from one degree of freedom on.
_STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)


class Model(Table):
    """A model of which placements are timed when they are asked for.

    Args:
        name: A file, or a name of the zoo with settings, as in `vit:layers=4`.
        profile: The simulated machine.
        folder: Where its weights are kept.
    """

    def __init__(self, name: str, profile: str, folder: Path) -> None:
        self.name = name
        self._profile = profile
        loaded = _load(name)
        fold(loaded)
        base = PreparedModel(loaded, folder)
        dialect = dialect_named(PROFILES[profile].dialect)
        floats = [name for name in base.index.value if base.index.is_float(name)]
        ranges = Ranges(dict.fromkeys(floats, (-1.0, 1.0)), CalibrationSource.RANDOM, 1)
        self._inserter = Inserter(base, dialect, "int8", ranges)
        self.planner = QuantizationPlanner(base.index, dialect)
        self.ruled = draft_placement(self.planner, "int8").chosen
        kernels = kernels_of(self._inserter.proto(self.planner.placement(())), profile)
        self.float_ms = sum(kernel.ms for kernel in kernels)
        layers = [LayerTime(kernel.name, kernel.op_type, kernel.ms) for kernel in kernels]
        self.shares = shares_of_latency(base.index, layers)
        self._known: dict[str, float] = {}

    def ms(self, state: State) -> float:
        """The true latency of a choice, scaled."""
        key = self.space.key(state)
        if key not in self._known:
            proto = self._inserter.proto(self.space.placement(state))
            self._known[key] = true_latency_ms(proto, self._profile)
        return self._known[key] * FLOAT_MS / self.float_ms

    def search(self, regions: str, seed: int, preset: str) -> tuple[float, int, int]:
        """Search once: the true latency of what is found, candidates timed, and choices."""
        grouping = group_ops(self.planner.index, self.planner, None, regions)
        self.space = Space(self.planner, grouping.groups, self.shares)
        ruled = frozenset(self.ruled)
        seeds = {
            **seeds_of(self.space, {}, grouping),
            "rules": frozenset(
                n for n in self.space.everything if ruled.issuperset(self.space.groups[n].nodes)
            ),
        }
        limits = PRESETS[preset].limits(len(grouping.groups), grouping.patterns)
        task = SearchTask(self.space, {k: v for k, v in seeds.items() if v}, limits, seed)
        strategy = make_strategy(task, AUTO_STRATEGY)
        assert isinstance(strategy, SteppedStrategy)
        machine = Replay(self, NOISES["usual"], seed)
        for trial in strategy.trials():
            strategy.tell(trial, machine.scores(trial))
        return self.ms(strategy.best), strategy.asked, len(grouping.groups)


def _load(name: str) -> ir.Model:
    if name.endswith(".onnx"):
        return ir.load(name)
    architecture, _, settings = name.partition(":")
    pairs = (setting.split("=") for setting in settings.split(",") if setting)
    return ir.from_proto(zoo.build(architecture, **{key: int(value) for key, value in pairs}))


def row(name: str, profile: str, preset: str, seeds: int) -> list[str]:
    """Compare both kinds of regions in one model."""
    with tempfile.TemporaryDirectory() as folder:
        model = Model(name, profile, Path(folder))
        ends = [
            [model.search(regions, seed, preset) for regions in (STRUCTURE, SCOPE)]
            for seed in range(seeds)
        ]
    both = list(zip(*ends, strict=True))
    speedups = [FLOAT_MS / statistics.geometric_mean(end[0] for end in each) for each in both]
    asked = [statistics.mean(end[1] for end in each) for each in both]
    return [
        name.rpartition("/")[2], profile, *(f"{each:.3f}" for each in speedups),
        *(f"{each:.0f}" for each in asked), *(str(each[0][2]) for each in both),
        *_mean_of([scope[0] / structure[0] for structure, scope in ends]),
    ]  # fmt: skip


def measured_row(name: str, engine: str, preset: str, seeds: int) -> list[str]:
    """Compare both kinds of regions in one model on a real engine."""
    ends, ratios = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        ir.save(_load(name), file)
        for seed in range(seeds):
            structure, scope = (
                tune(
                    file, engine=engine, threads=1, preset=preset, seed=seed, regions=regions,
                    min_sqnr_db=None, report=False, output_dir=Path(folder) / f"{regions}{seed}",
                )
                for regions in (STRUCTURE, SCOPE)
            )  # fmt: skip
            ratios.append(latency_ratio(engine, "", scope, structure))
            ends.append((structure.summary, scope.summary))
    both = list(zip(*ends, strict=True))
    speedups = [statistics.geometric_mean(end.speedup for end in each) for each in both]
    asked = [statistics.mean(end.benchmarks for end in each) for each in both]
    return [
        name.rpartition("/")[2], engine, *(f"{each:.3f}" for each in speedups),
        *(f"{each:.0f}" for each in asked), "-", "-", *_mean_of(ratios),
    ]  # fmt: skip


def _mean_of(ratios: Sequence[float]) -> list[str]:
    """Their geometric mean, with its 95 % interval."""
    logs = [math.log(ratio) for ratio in ratios]
    mean = statistics.mean(logs)
    error = math.inf
    if len(logs) > 1:
        quantile = _STUDENT[min(len(logs) - 2, len(_STUDENT) - 1)]
        error = quantile * statistics.stdev(logs) / math.sqrt(len(logs))
    return [f"{math.exp(mean):.4f}", f"{math.exp(mean - error):.4f}-{math.exp(mean + error):.4f}"]


def main(arguments: Iterable[str] | None = None) -> None:
    """Compare both kinds of regions in every model, and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--profiles", default="cpu-vnni,gpu")
    parser.add_argument("--engine", help="a real engine, instead of the simulated machines")
    parser.add_argument("--preset", choices=PRESETS, default="quick")
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(None if arguments is None else list(arguments))
    rows = []
    for model in options.models:
        compare = row if options.engine is None else measured_row
        for machine in (options.engine or options.profiles).split(","):
            rows.append(compare(model, machine, options.preset, options.seeds))
            print(*rows[-1], flush=True)
    titles = [
        "model", "machine", "structure", "scope", "asked", "asked", "choices", "choices",
        "latency", "interval",
    ]  # fmt: skip
    print(text_table(titles, rows))


if __name__ == "__main__":
    main()
