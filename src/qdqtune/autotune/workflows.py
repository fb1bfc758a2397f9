"""Tuning and timing as functions; the benchmark that they measure with is one per process."""

from __future__ import annotations

from qdqtune.workflows.benchmark_instance import benchmark_onnx_model, init_benchmark_instance
from qdqtune.workflows.benchmarks import (
    Benchmark,
    EngineBenchmark,
    TensorRTPyBenchmark,
    TrtExecBenchmark,
)
from qdqtune.workflows.fusion import groups_of
from qdqtune.workflows.graph_json import generate_graph_json
from qdqtune.workflows.region_patterns import region_pattern_autotuning_workflow
from qdqtune.workflows.subgraph_patterns import extract_subgraph, subgraph_autotuning_workflow

__all__ = [
    "Benchmark",
    "EngineBenchmark",
    "TensorRTPyBenchmark",
    "TrtExecBenchmark",
    "benchmark_onnx_model",
    "extract_subgraph",
    "generate_graph_json",
    "groups_of",
    "init_benchmark_instance",
    "region_pattern_autotuning_workflow",
    "subgraph_autotuning_workflow",
]
