"""What a candidate costs: writing it, and what it leaves behind in the worker.

Prints the median time from a placement to a file that loads (ResNet-50, and a chain of 2,000
nodes), the time to index and fingerprint large graphs, and the worker's memory after 50 and 500
candidates.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

import onnx
import onnx_ir as ir
import psutil

from qdqtune import zoo
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.calibration._ranges import collect_ranges
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.engines._worker import Worker
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import merge, rule_of, unit
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import CalibrationSource


def make_inserter(model: onnx.ModelProto, folder: Path, worker: Worker) -> Inserter:
    loaded = ir.from_proto(model)
    fold(loaded)
    base = PreparedModel(loaded, folder)
    ranges = collect_ranges(base, worker, random_inputs(base.index, 1), CalibrationSource.RANDOM)
    return Inserter(base, native_dialect("onnxruntime"), "int8", ranges)


def random_placement(inserter: Inserter, rng: random.Random) -> Placement:
    """Half of the ops that can be quantized."""
    nodes = [node for node in inserter.index.nodes if rule_of(inserter.dialect, node)]
    chosen = rng.sample(nodes, len(nodes) // 2)
    return merge(unit(inserter.index, inserter.dialect, node, whole=True) for node in chosen)


def writing_ms(inserter: Inserter, count: int) -> float:
    rng = random.Random(0)
    placements = [random_placement(inserter, rng) for _ in range(count)]
    seconds = []
    for placement in placements:
        start = time.perf_counter()
        inserter.write(placement, "candidate")
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds) * 1000


def memory_mb(
    inserter: Inserter, worker: Worker, count: int, checkpoints: list[int]
) -> list[float]:
    rng = random.Random(1)
    feeds = worker.store(next(random_inputs(inserter.index, 1)))
    seen = []
    for done in range(1, count + 1):
        path = inserter.write(random_placement(inserter, rng), "candidate")
        opened = worker.open(path)
        worker.feed(opened, feeds)
        worker.time(opened, 2)
        worker.release(opened)
        if done in checkpoints:
            assert worker.pid is not None
            seen.append(psutil.Process(worker.pid).memory_info().rss / 1e6)
    return seen


def indexing_s(nodes: int) -> float:
    model = ir.from_proto(zoo.build("chain", nodes=nodes))
    start = time.perf_counter()
    GraphIndex(model)
    fingerprint(model)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--candidates", type=int, default=500, help="for the worker's memory")
    last = parser.parse_args().candidates
    alone = SessionOptions(threads=1)
    for name, settings in (("resnet50", {}), ("chain", {"nodes": 2000})):
        with Worker("onnxruntime", alone) as worker, tempfile.TemporaryDirectory() as folder:
            inserter = make_inserter(zoo.build(name, **settings), Path(folder), worker)
            median_ms = writing_ms(inserter, 50)
            print(f"{name}: a candidate is written in {median_ms:.1f} ms (median of 50)")
    with Worker("onnxruntime", alone) as worker, tempfile.TemporaryDirectory() as folder:
        inserter = make_inserter(zoo.build("resnet18"), Path(folder), worker)
        early, late = memory_mb(inserter, worker, last, [min(50, last - 1), last])
        print(f"worker: {early:.0f} MB after 50 candidates, {late:.0f} MB after {last}: "
              f"{late / early:.3f}x")  # fmt: skip
    small = statistics.median(indexing_s(10_000) for _ in range(5))
    large = statistics.median(indexing_s(100_000) for _ in range(3))
    print(f"index and fingerprint: 10,000 nodes {small:.2f} s, 100,000 nodes {large:.2f} s: "
          f"{large / small:.1f}x")  # fmt: skip


if __name__ == "__main__":
    main()
