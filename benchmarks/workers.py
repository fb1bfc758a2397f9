"""Several workers: how much time they save, and what they cost.

- `ray`: subgraph mode on a Ray cluster of three nodes on this machine, on the simulated engine with
  builds that take 2 s and are kept, as by engines whose builds take long: 1.8 and 3.2 times less
  wall time with 2 and 4 workers, and the same placement. Only the search is divided among them: its
  seconds are told apart.
- `cores`: ONNX Runtime with 1 and with 2 workers, each on a core of its own: 1.4 times less wall
  time, and a result that is not slower, from one interleaved run. Needs a quiet machine.
- `memory`: a thousand trials through 4 workers: memory of the driver at most 1.2 times that after
  a hundred, and as many file handles.
- `driver`: the driver's own seconds per trial of a model of 100,000 nodes: with 4 workers at most
  1.2 times those with one.

    make bench ARGS="workers ray --models mobilenet_v2"
    make bench ARGS="workers cores memory driver"
"""

from __future__ import annotations

import argparse
import logging
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import psutil

from benchmarks import results
from benchmarks.blankets import CONFIDENCE
from benchmarks.ray_clusters import running_cluster
from qdqtune import zoo
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._timing import compare_blocks
from qdqtune.engines._worker import Worker
from qdqtune.graph._files import load_model
from qdqtune.graph._index import GraphIndex
from qdqtune.records._inputs import InputRequest
from qdqtune.records._measurement import Comparison
from qdqtune.records._tuning import TuneEvent, TuneResult
from qdqtune.search.strategies._registry import BUILTIN_STRATEGIES
from qdqtune.search.strategies._strategy import NOTHING, Effort, SteppedStrategy, Steps, Trial
from qdqtune.workflows.tuning._tune import tune

KIND = "workers"
MODELS: dict[str, dict[str, Any]] = {
    "resnet50": {"image": 160},
    "mobilenet_v2": {},
    "efficientnet": {"image": 64},
}
WAITING = {"build_s": "2", "build_kernel_s": "0", "wait": "1"}
LEAST_SPEEDUP = {1: 1.0, 2: 1.8, 4: 3.2}
LEAST_ON_CORES, NOT_SLOWER = 1.4, 1.0
MOST_MEMORY, MOST_OWN = 1.2, 1.2
_RANDOM = "random"

RAY_COLUMNS = {
    "model": "model", "workers": "workers", "subgraph builds": "subgraph_builds",
    "seconds": "seconds", "times less": "speedup", "bar": "bar", "of the search": "search_s",
    "times less ": "search_speedup", "same placement": "same", "met": "met", "commit": "commit",
}  # fmt: skip
CORES_COLUMNS = {
    "model": "model", "with 1 s": "one_s", "with 2 s": "two_s", "times less": "speedup",
    "bar": "bar", "search with 1 s": "one_search_s", "with 2 s ": "two_search_s",
    "used": "used", "2 over 1": "over_one", "interval": "interval", "met": "met",
    "commit": "commit",
}  # fmt: skip
MEMORY_COLUMNS = {
    "where": "where", "trials": "trials", "MB": "mb", "MB after 100": "early_mb",
    "times": "times", "bar": "bar", "handles": "handles", "after 100": "early_handles",
    "met": "met", "commit": "commit",
}  # fmt: skip
DRIVER_COLUMNS = {
    "nodes": "nodes", "trials": "trials", "with 1 s": "one_s", "with 4 s": "four_s",
    "times": "times", "bar": "bar", "met": "met", "commit": "commit",
}  # fmt: skip


class _Search:
    """When the search of a run began and ended, from its progress."""

    def __init__(self) -> None:
        self._began_s = self._ended_s = 0.0

    def __call__(self, event: TuneEvent) -> None:
        if event.stage in ("subgraphs", "workers", "seeds") and not self._began_s:
            self._began_s = event.seconds
        if event.stage == "plan":
            self._began_s = event.seconds
        if event.stage == "accuracy" and not self._ended_s:
            self._ended_s = event.seconds

    @property
    def seconds(self) -> float:
        return self._ended_s - self._began_s


def _run(model: Path, output: Path, **options: Any) -> tuple[TuneResult, float, float]:
    """Tune; return also the seconds of everything and of the search."""
    search, began_s = _Search(), time.monotonic()
    result = tune(model, preset="quick", output_dir=output, callbacks=[search], **options)
    return result, time.monotonic() - began_s, search.seconds


def _written(name: str, folder: Path, **settings: Any) -> Path:
    path = folder / f"{name}.onnx"
    onnx.save(zoo.build(name, **settings), path)
    return path


def measure_ray(name: str, counts: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A record for each number of workers."""
    with (
        tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder,
        running_cluster(nodes=3, cores=2) as cluster,
    ):
        space = Path(folder)
        path = _written(name, space, image=64)
        first: tuple[bytes, float, float] | None = None
        for workers in counts:
            result, took_s, search_s = _run(
                path, space / str(workers), engine="simulated", workflow="subgraph",
                cluster=cluster.address, workers=workers,
                engine_options={**WAITING, "plan_cache": str(space / f"plans{workers}")},
            )  # fmt: skip
            placement = (result.output_dir / "placement.json").read_bytes()
            first = first or (placement, took_s, search_s)
            speedup, is_same = first[1] / took_s, placement == first[0]
            bar = LEAST_SPEEDUP[workers]
            yield {
                "model": name,
                "workers": workers,
                "subgraph_builds": result.summary.subgraph_benchmarks,
                "seconds": took_s,
                "speedup": speedup,
                "bar": bar,
                "search_s": search_s,
                "search_speedup": first[2] / search_s,
                "same": is_same,
                "met": _met({"time": speedup >= bar, "placement": is_same}),
            }


def measure_cores(name: str, budget_s: float) -> dict[str, Any]:
    """One record: a model tuned with one worker and with two."""
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        space = Path(folder)
        path = _written(name, space, **MODELS.get(name, {}))
        (one, one_s, one_search_s), (two, two_s, two_search_s) = (
            _run(path, space / str(workers), engine="onnxruntime", threads=1, workers=workers)
            for workers in (1, 2)
        )
        over = _compared(path, one.model, two.model, budget_s)
    used = sum(not each.left_out for each in two.summary.workers)
    speedup = one_s / two_s
    return {
        "model": name,
        "one_s": one_s,
        "two_s": two_s,
        "speedup": speedup,
        "bar": LEAST_ON_CORES,
        "one_search_s": one_search_s,
        "two_search_s": two_search_s,
        "used": used,
        "left_out": [each.left_out for each in two.summary.workers if each.left_out],
        "over_one": over.ratio,
        "interval": [over.low, over.high],
        "met": _met({"time": speedup >= LEAST_ON_CORES, "result": over.high >= NOT_SLOWER}),
    }


def _compared(path: Path, one: Path, other: Path, budget_s: float) -> Comparison:
    """How much faster the other result is, from one interleaved run with the float model."""
    feeds = next(random_inputs(GraphIndex(load_model(path)), 1, InputRequest(seed=1)))
    with Worker("onnxruntime", SessionOptions(threads=1)) as worker:
        alone = worker.measure(path, feeds)
        runs = max(60, round(1000.0 * budget_s / alone.latency_ms))
        measured, _ = compare_files(worker, [path, one, other], feeds, runs=runs)
    return compare_blocks(measured[1].blocks_ms, measured[2].blocks_ms, CONFIDENCE)


class _EnoughSeen(Exception):
    """Ends a run that has made its trials."""


def _random_trials(path: Path, trials: int, see: Callable[[int], None], **options: Any) -> None:
    """Tune with a strategy that asks about random choices, one to a trial.

    Args:
        path: The model.
        trials: How many trials, after which the run ends.
        see: Called with the number of trials that were answered, after each round.
        options: Of the run.
    """

    class RandomTrials(SteppedStrategy):
        def steps(self) -> Steps:
            rng, seen = random.Random(0), set[str]()
            while self.asked < trials:
                asked: list[Trial] = []
                while len(asked) < self.limits.workers:
                    part = rng.sample(range(len(self.space.groups)), len(self.space.groups) // 2)
                    state = self.space.closed(frozenset(part))
                    if self.space.key(state) not in seen:
                        seen.add(self.space.key(state))
                        asked.append(Trial(NOTHING, (state,), Effort.SCREEN))
                yield asked
                self.asked += len(asked)
                see(self.asked)
            raise _EnoughSeen

    BUILTIN_STRATEGIES[_RANDOM] = RandomTrials
    try:
        with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
            tune(
                path, engine="simulated", strategy=_RANDOM, preset="quick", min_sqnr_db=None,
                max_benchmarks=10 * trials, output_dir=Path(folder, "run"), **options,
            )  # fmt: skip
    except _EnoughSeen:
        pass
    finally:
        del BUILTIN_STRATEGIES[_RANDOM]


def measure_memory(where: str, trials: int, early: int) -> dict[str, Any]:
    """One record: memory and handles of the driver after some trials and after many."""
    seen: dict[int, tuple[float, int]] = {}
    driver = psutil.Process()

    def see(done: int) -> None:
        for wanted in (early, trials):
            if done >= wanted and wanted not in seen:
                seen[wanted] = driver.memory_info().rss / 1e6, driver.num_fds()

    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        path = _written("resnet18", Path(folder), width=16, image=64)
        if where == "ray":
            with running_cluster(nodes=3, cores=2) as cluster:
                _random_trials(path, trials, see, workers=4, cluster=cluster.address)
        else:
            _random_trials(path, trials, see, workers=4)
    (early_mb, early_handles), (mb, handles) = seen[early], seen[trials]
    return {
        "where": where,
        "trials": trials,
        "early": early,
        "early_mb": early_mb,
        "mb": mb,
        "times": mb / early_mb,
        "bar": MOST_MEMORY,
        "early_handles": early_handles,
        "handles": handles,
        "met": _met({"memory": mb <= MOST_MEMORY * early_mb, "handles": handles == early_handles}),
    }


def measure_driver(nodes: int, trials: int) -> dict[str, Any]:
    """One record: the processor's seconds that the driver takes for a trial of a large model."""
    each_s: dict[int, float] = {}
    with tempfile.TemporaryDirectory(prefix="qdqtune-bench-") as folder:
        path = _written("chain", Path(folder), nodes=nodes)
        for workers in (1, 4):
            at: list[tuple[int, float]] = []

            def see(done: int, at: list[tuple[int, float]] = at) -> None:
                at.append((done, time.process_time()))

            _random_trials(path, trials, see, workers=workers)
            # From the first round that was answered on: that of before has the start in it.
            (first, began_s), (last, ended_s) = at[0], at[-1]
            each_s[workers] = (ended_s - began_s) / (last - first)
    times = each_s[4] / each_s[1]
    return {
        "nodes": nodes,
        "trials": trials,
        "one_s": each_s[1],
        "four_s": each_s[4],
        "times": times,
        "bar": MOST_OWN,
        "met": _met({"time": times <= MOST_OWN}),
    }


def _met(bars: Mapping[str, bool]) -> str:
    """Yes, or which bars were missed."""
    missed = [name for name, met in bars.items() if not met]
    return f"no: {', '.join(missed)}" if missed else "yes"


def run_ray(options: argparse.Namespace) -> None:
    for name in options.models or ["efficientnet"]:
        for record in measure_ray(name, [int(each) for each in options.workers.split(",")]):
            results.keep(KIND, "ray", record)
    results.show(KIND, "ray", RAY_COLUMNS, "model", "workers")


def run_cores(options: argparse.Namespace) -> None:
    for name in options.models or ["resnet50", "mobilenet_v2"]:
        results.keep(KIND, "cores", measure_cores(name, options.budget_s))
    results.show(KIND, "cores", CORES_COLUMNS, "model")


def run_memory(options: argparse.Namespace) -> None:
    for where in ("here", "ray"):
        results.keep(
            KIND, "memory", measure_memory(where, options.trials, min(100, options.trials // 10))
        )
    results.show(KIND, "memory", MEMORY_COLUMNS, "where", "trials")


def run_driver(options: argparse.Namespace) -> None:
    results.keep(KIND, "driver", measure_driver(options.nodes, options.large_trials))
    results.show(KIND, "driver", DRIVER_COLUMNS, "nodes")


PARTS: dict[str, Callable[[argparse.Namespace], None]] = {
    "ray": run_ray,
    "cores": run_cores,
    "memory": run_memory,
    "driver": run_driver,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the parts that are asked for, append to the results file, print tables from it."""
    logging.getLogger().setLevel(logging.ERROR)
    parser = argparse.ArgumentParser(prog="make bench ARGS=workers…", description=__doc__)
    parser.add_argument("part", nargs="*", help=f"of {', '.join(PARTS)}; all unless said")
    parser.add_argument("--models", nargs="+", help="zoo models, for `ray` and `cores`")
    parser.add_argument("--workers", default="1,2,4", help="for `ray`, one first")
    parser.add_argument("--budget_s", type=float, default=12.0, help="seconds of runs per file")
    parser.add_argument("--trials", type=int, default=1000, help="for `memory`")
    parser.add_argument("--nodes", type=int, default=100_000, help="for `driver`")
    parser.add_argument("--large_trials", type=int, default=8, help="for `driver`")
    options = parser.parse_args(arguments)
    unknown = set(options.part) - PARTS.keys()
    if unknown:
        parser.error(f"there is no part {', '.join(sorted(unknown))}")
    for part, run in PARTS.items():
        if part in options.part or not options.part:
            run(options)


if __name__ == "__main__":
    main()
