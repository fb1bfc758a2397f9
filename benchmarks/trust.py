"""How far a comparison can be trusted on this machine.

Compares a model with itself (two opens of one file) and with a copy that has one layer more, and
counts the verdicts. The bars: at most 5 of 100 comparisons of the same model find a difference; at
least 90 of 100 find the copy that is 3 % slower, none calls it faster; none takes more than 8 s.

    python -m benchmarks.trust --comparisons 100 --model-ms 8

With `--repeat`, it repeats `qdqtune bench` of two files in fresh processes on one core, first
quiet, then beside busy processes on that core, and counts the intervals that hold the median of all
ratios. The bars with five busy processes: at least 18 of 20 do, none of them wider than 25 % of its
ratio; quiet, the median width is at most 1.1 times that of an earlier checkout.

    python -m benchmarks.trust --repeat FLOAT.onnx INT8.onnx --times 20 --other OTHER_CHECKOUT

With `--openings`, it makes the last comparison of a tune on simulated machines whose openings
differ by more or less, in one process, in three and in five. The bars for five: at most 1 of 100
equal models is called faster where openings differ by 2 %, at least 95 of 100 intervals hold the
truth where they differ by 15 %, and at least 95 of 100 gains of 3 % are found where they differ by
0.2 %.

    python -m benchmarks.trust --openings 1000
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from qdqtune.config import DEFAULT_THRESHOLD
from qdqtune.engines._comparison import FEWEST_OPENINGS, MOST_OPENINGS, combine, compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._timing import plan_turns, take_turns
from qdqtune.engines._worker import StoredFeeds, Worker
from qdqtune.records._measurement import Comparison
from qdqtune.testing.simulated._machine import Machine, Noise, RunNoise
from qdqtune.workflows.tuning._final_check import why_not_shipped

CHANNELS = 64
# The files of a simulated comparison take so long, and have so many rounds in all processes.
SIMULATED_MS = 5.0
SIMULATED_ROUNDS = 30
PROBE_SIZE = 28
WIDEST = 0.25


def write_chain(path: Path, size: int, layers: int) -> Path:
    """Writes a chain of equal Conv and Relu layers, so that a layer costs one part of the whole."""
    random = np.random.default_rng(0)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []
    tensor = "x"
    for layer in range(layers):
        scale = 1.0 / math.sqrt(9 * CHANNELS)
        values = random.normal(0.0, scale, (CHANNELS, CHANNELS, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{layer}"))
        nodes.append(
            helper.make_node("Conv", [tensor, f"w{layer}"], [f"c{layer}"], pads=[1, 1, 1, 1])
        )
        nodes.append(helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"]))
        tensor = f"r{layer}"
    shape = [1, CHANNELS, size, size]
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(tensor, TensorProto.FLOAT, shape)],
        weights,
    )
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def image(size: int) -> dict[str, npt.NDArray[np.float32]]:
    random = np.random.default_rng(1)
    return {"x": random.standard_normal((1, CHANNELS, size, size)).astype(np.float32)}


def size_for(worker: Worker, folder: Path, model_ms: float, layers: int) -> int:
    """Finds the image size at which the chain takes about so long."""
    probe = write_chain(folder / "probe.onnx", PROBE_SIZE, layers)
    measured = worker.measure(probe, image(PROBE_SIZE), blocks=5)
    return max(4, round(PROBE_SIZE * math.sqrt(model_ms / measured.latency_ms)))


class Tally:
    """Verdicts, ratios and seconds of one kind of comparison."""

    def __init__(self) -> None:
        self.verdicts: Counter[str] = Counter()
        self.ratios: list[float] = []
        self.seconds: list[float] = []

    def add(self, worker: Worker, paths: list[Path], feeds: StoredFeeds) -> None:
        """Makes one comparison."""
        start = time.perf_counter()
        measurements, (comparison,) = compare_files(worker, paths, feeds)
        self.seconds.append(time.perf_counter() - start)
        if comparison is None:
            raise SystemExit(f"a model failed: {[m.error for m in measurements]}")
        self.verdicts[comparison.verdict.value] += 1
        self.ratios.append(comparison.ratio)

    def summary(self) -> dict[str, object]:
        """Returns the counts and what they cost."""
        return {
            **{verdict: self.verdicts[verdict] for verdict in ("faster", "same", "slower")},
            "median_ratio": round(float(np.median(self.ratios)), 4),
            "ratio_sd": round(float(np.std(self.ratios)), 4),
            "median_s": round(float(np.median(self.seconds)), 2),
            "longest_s": round(max(self.seconds), 2),
        }


def truth(worker: Worker, paths: list[Path], feeds: StoredFeeds, rounds: int) -> Comparison | None:
    """Measures a pair for long; stopping early is no problem, the interval says how sure it is."""
    _, (comparison,) = compare_files(worker, paths, feeds, budget_s=float(rounds))
    return comparison


@contextlib.contextmanager
def busy_processes(count: int, core: int) -> Iterator[None]:
    """So many processes that do nothing but keep a core busy."""
    spin = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(spin) for _ in range(count)]
    try:
        for process in processes:
            os.sched_setaffinity(process.pid, {core})
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def bench_once(source: Path, files: Sequence[str], core: int) -> Comparison:
    """One `qdqtune bench` of two files, by the checkout with this source, on one core."""
    command = [sys.executable, "-m", "qdqtune", "bench", *files]
    done = subprocess.run(
        [*command, "--threads", "1", "--quiet", "--format", "json"],
        env={**os.environ, "PYTHONPATH": str(source)},
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return Comparison.from_dict(json.loads(done.stdout)["models"][1]["speedup"])


def repeated(sources: Mapping[str, Path], files: Sequence[str], times: int, core: int) -> None:
    """Prints how often the intervals of each checkout hold, taking turns, and how wide they are."""
    found: dict[str, list[Comparison]] = {name: [] for name in sources}
    for _ in range(times):
        for name, source in sources.items():
            found[name].append(bench_once(source, files, core))
    median_widths: list[float] = []
    for name, comparisons in found.items():
        middle = float(np.median([each.ratio for each in comparisons]))
        widths = [(each.high - each.low) / each.ratio for each in comparisons]
        holds = [
            each.low <= middle <= each.high and width <= WIDEST
            for each, width in zip(comparisons, widths, strict=True)
        ]
        median_widths.append(float(np.median(widths)))
        ratios = [each.ratio for each in comparisons]
        print(
            f"  {name}: {middle:.3f}x ({min(ratios):.3f} to {max(ratios):.3f}), {sum(holds)} of "
            f"{times} hold, width {median_widths[-1]:.1%} (at most {max(widths):.1%}), "
            f"waiting {np.median([each.contention for each in comparisons]):.0%}",
            flush=True,
        )
    if len(median_widths) > 1:
        print(f"  median width: {median_widths[0] / median_widths[1]:.2f} times the other's")


def simulated_final(noise: Noise, speedup: float, seed: int, openings: int) -> Comparison:
    """The last comparison of a tune as a simulated machine would have it, in so many processes."""
    latencies_ms = [SIMULATED_MS, SIMULATED_MS / speedup]
    found: list[Comparison] = []
    for process in range(openings):
        machine = Machine(noise, seed, process)
        opens = [machine.run_noise(name) for name in (b"baseline", b"candidate")]

        def time_block(model: int, runs: int, opens: list[RunNoise] = opens) -> list[float]:
            return opens[model].samples_ms(latencies_ms[model], runs)

        plan = plan_turns(latencies_ms, budget_s=1.0, rounds=SIMULATED_ROUNDS // openings)
        found += take_turns(time_block, plan)[1]
    return combine(found)


def compare_openings(count: int) -> None:
    """Prints what ships, and how often the interval is right, by how much openings differ."""
    for offset, speedup in ((0.02, 1.0), (0.15, 1.137), (0.002, 1.03), (0.003, 1.03)):
        print(f"openings differ by {offset:.1%}, the candidate is {speedup:g}x as fast")
        noise = Noise(offset=offset)
        for openings in (1, FEWEST_OPENINGS, MOST_OPENINGS):
            found = [simulated_final(noise, speedup, seed, openings) for seed in range(count)]
            shipped = sum(not why_not_shipped(each, DEFAULT_THRESHOLD) for each in found)
            holds = sum(each.low <= speedup <= each.high for each in found)
            width = np.median([(each.high - each.low) / 2.0 / each.ratio for each in found])
            print(
                f"  in {openings}: {shipped} of {count} ship, {holds} intervals hold the truth, "
                f"half of them are {width:.1%} wide to each side",
                flush=True,
            )


def repeat_quiet_and_busy(arguments: argparse.Namespace) -> None:
    sources = {"here": Path(__file__).parents[1] / "src"}
    if arguments.other is not None:
        sources["other"] = arguments.other / "src"
    for busy in (0, arguments.busy):
        print(f"{busy} busy processes on core {arguments.core}", flush=True)
        with busy_processes(busy, arguments.core):
            repeated(sources, arguments.repeat, arguments.times, arguments.core)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--comparisons", type=int, default=100, help="of each kind")
    parser.add_argument("--model-ms", type=float, default=8.0)
    parser.add_argument("--percent", type=float, default=3.0, help="how much slower the copy is")
    parser.add_argument("--truth-s", type=int, default=120, help="seconds to verify that")
    parser.add_argument("--repeat", nargs=2, metavar="MODEL", help="the files to repeat `bench` of")
    parser.add_argument("--times", type=int, default=20, help="how often (default: %(default)s)")
    parser.add_argument("--busy", type=int, default=5, help="busy processes (default: %(default)s)")
    parser.add_argument("--core", type=int, default=0, help="which core (default: %(default)s)")
    parser.add_argument("--other", type=Path, help="another checkout, to compare with")
    parser.add_argument("--openings", type=int, metavar="N", help="simulated comparisons")
    arguments = parser.parse_args()
    if arguments.openings:
        compare_openings(arguments.openings)
        return
    if arguments.repeat:
        repeat_quiet_and_busy(arguments)
        return
    layers = round(100.0 / arguments.percent)

    with (
        tempfile.TemporaryDirectory() as name,
        Worker(options=SessionOptions(threads=1)) as worker,
    ):
        folder = Path(name)
        size = size_for(worker, folder, arguments.model_ms, layers)
        base = write_chain(folder / "base.onnx", size, layers)
        slower = write_chain(folder / "slower.onnx", size, layers + 1)
        feeds = worker.store(image(size))
        info = worker.info()
        latency_ms = worker.measure(base, feeds, blocks=10).latency_ms
        print(f"{info.device} ({info.isa}), {layers} layers, image {size}, {latency_ms:.1f} ms")
        same_kind, slower_kind = Tally(), Tally()
        for count in range(1, arguments.comparisons + 1):
            same_kind.add(worker, [base, base], feeds)
            slower_kind.add(worker, [base, slower], feeds)
            if count % 10 == 0:
                print(count, dict(same_kind.verdicts), dict(slower_kind.verdicts), flush=True)
        known = truth(worker, [base, slower], feeds, arguments.truth_s)
        result = {
            "latency_ms": round(latency_ms, 2),
            "comparisons": arguments.comparisons,
            "same_file": same_kind.summary(),
            "slower_file": slower_kind.summary(),
            "true_ratio": None if known is None else known.to_dict(),
        }
        print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
