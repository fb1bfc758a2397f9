"""Tune regions that you choose instead of those that are found.

    python examples/custom_regions.py

Here every residual block of a ResNet is one region, so that a block is quantized as a whole or in
parts, but independently of the blocks around it. Blocks with the same structure and shapes are one
pattern, and are tuned once.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import onnx

from qdqtune import zoo
from qdqtune.autotune import QDQAutotunerBase, Region, region_of
from qdqtune.autotune.workflows import EngineBenchmark
from qdqtune.graph import GraphIndex


class BlockAutotuner(QDQAutotunerBase):
    """An autotuner for given regions."""

    def __init__(self, model: onnx.ModelProto, dialect: str) -> None:
        super().__init__(model, dialect=dialect)
        # Regions contain positions in this graph: it is folded, the file's graph is not.
        self.regions = residual_blocks(self.graph)


def residual_blocks(graph: GraphIndex) -> list[Region]:
    """Divide the nodes behind every Add and the Relu that follows it."""
    blocks: list[list[str]] = [[]]
    before = ""
    for node in graph.nodes:
        blocks[-1].append(node.name or "")
        if (before, node.op_type) == ("Add", "Relu"):
            blocks.append([])
        before = node.op_type
    return [region_of(graph, names, region_id=number) for number, names in enumerate(blocks)]


def tune(autotuner: QDQAutotunerBase, schemes: int) -> Sequence[float]:
    """Measure candidates for every region; returns the best speedup after each pattern."""
    speedups = []
    autotuner.initialize()
    with EngineBenchmark("onnxruntime", threads=1, timing_runs=20) as benchmark:
        baseline_ms = benchmark.run(autotuner.export_onnx(insert_qdq=False))
        autotuner.submit(baseline_ms)
        for region in autotuner.regions:
            autotuner.set_profile_region(region)
            found = autotuner.current_profile_pattern_schemes
            if found is None:
                continue
            for _ in range(schemes):
                if autotuner.generate() == -1:
                    break
                autotuner.submit(benchmark.run(autotuner.export_onnx()))
            if found.best_scheme is not None:
                speedups.append(baseline_ms / found.best_scheme.latency_ms)
                print(f"block {region.id}, {len(region.nodes)} nodes: {speedups[-1]:.2f}x")
        autotuner.set_profile_region(None)
    return speedups


def main() -> None:
    """Tune the blocks of a small ResNet."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--schemes", type=int, default=8, help="candidates for each pattern")
    parser.add_argument("--width", type=int, default=32, help="channels of the first block")
    options = parser.parse_args()
    model = zoo.build("resnet18", image=64, width=options.width)
    autotuner = BlockAutotuner(model, dialect="onnxruntime")
    tune(autotuner, options.schemes)
    autotuner.export_onnx("custom_regions.onnx", best=True)
    quantized = autotuner.placement(best=True)
    print(f"custom_regions.onnx: {len(quantized.edges)} places are quantized")


if __name__ == "__main__":
    main()
