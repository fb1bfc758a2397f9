"""Runs to report on, made of records."""

from __future__ import annotations

from dataclasses import replace

from qdqtune.graph._layout import lay_out
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._report import (
    BORDER,
    DYNAMIC,
    FLOAT,
    QUANTIZED,
    EdgeView,
    GraphView,
    LayerChange,
    NodeView,
    PatternRow,
    ReportDetails,
    RunView,
    SchemeRow,
    TensorRow,
    TrialView,
)
from qdqtune.records._tuning import Batch, Blanket, Noise, Seconds, Summary

HOSTILE = (
    "<script>window.hurt = 1</script>",
    '"><img src=x onerror="window.hurt = 1">',
    "</script><script>window.hurt = 1</script>",
    "' onmouseover='window.hurt = 1",
    "{{ 7 * 7 }} {% raw %}",
    "\x1b[31mred\x1b[0m",
    "safe\u202egnp.exe",
    "n" * 500,
    "<!--<script>",
    "&lt;b&gt;",
)
"""Names that a page must show as text."""

SUMMARY = Summary(
    model="models/net.onnx", engine=EngineInfo("onnxruntime", "1.22", "a CPU", "avx2", 1, {}),
    dialect="onnxruntime", quant_type="int8", calibration="data", calibrated_on="8 samples",
    calibration_method="max", seed=0, preset="quick", stopped="finished", baseline_ms=10.0,
    final_ms=5.0, speedup=2.0, speedup_interval=(1.9, 2.1), confidence=0.99, kept_float=False,
    reason="", output_sqnr_db=30.0, metric=None, noise=Noise(1.0, 0.01), benchmarks=3, memo_hits=0,
    failed=1, regions=2, patterns=1, groups=2, qdq_pairs=4, seconds=Seconds(60.0, 10.0, 40.0, 5.0),
    seeds={"everything": 1.8, "rules": 1.5}, version="0.1", command="qdqtune tune models/net.onnx",
    blanket=Blanket("everything", 5.5, 1.8, (1.7, 1.9), 25.0), conditions={"min_sqnr_db": 15.0},
    date="2026-01-01T00:00:00+00:00",
)  # fmt: skip


def run_of(names: tuple[str, ...] = ("stem", "body", "head"), nodes: int = 0) -> RunView:
    """A run on a chain of nodes with these names; more nodes are added up to a number."""
    names = (*names, *(f"node_{n}" for n in range(nodes - len(names))))
    count, forms = len(names) + 2, (QUANTIZED, FLOAT, DYNAMIC)
    edges = [(n, n + 1) for n in range(count - 1)] + [(n, n + 4) for n in range(1, count - 5, 4)]
    layout = lay_out(count, edges)
    inside = [
        NodeView(name, "Conv", (0.0, 0.0), forms[n % 3], n % len(names), n // 8, n % 2, name, 21.5)
        for n, name in enumerate(names)
    ]
    every = [
        NodeView("x", "Input", (0.0, 0.0), BORDER), *inside,
        NodeView("y", "Output", (0.0, 0.0), BORDER),
    ]  # fmt: skip
    graph = GraphView(
        tuple(replace(node, place=at) for node, at in zip(every, layout.nodes, strict=True)),
        tuple(
            EdgeView(*edge, quantized=n % 2 == 0, border=n % 3 == 0, bends=bends)
            for n, (edge, bends) in enumerate(zip(edges, layout.bends, strict=True))
        ),
        tuple(f"region {name}" for name in names),
        tuple(f"because of {name}" for name in names),
        layout.width,
        layout.height,
    )
    first = names[0]
    details = ReportDetails(
        f"runs/{first}", "fingerprint", graph,
        (
            LayerChange(names[:2], ("Conv", "Relu"), before_ms=2.0, after_ms=1.0, precision="int8"),
            LayerChange(names[-1:], (first,), before_ms=1.0, after_ms=1.5),
            LayerChange((first,), (), "conversion", 0.0, 0.25),
        ),
        (PatternRow(("Conv", first), 2, first,
                    (SchemeRow((first,), "c0000", 5.0, True, f"kept {first}"),), 1.0, 0.5),),
        (TensorRow(first, first, first, 12.0, 0.5, 8.0, 1.0, (-1.0, 2.0)),), f"samples {first}",
        {"everything": "c0000", "rules": "c0001", "tuned": "c0000"},
        {"c0000": 30.0, "c0001": 40.0},
    )  # fmt: skip
    trials = (
        TrialView("c0000", 1.0, "seeds", 0.69, 0.01, True, "", 5.0),
        TrialView("c0001", 2.0, first, 0.4, 0.02, False, "", 6.7),
        TrialView("c0002", 3.0, "flips", None, 0.0, False, f"refused {first}", None),
    )
    summary = replace(
        SUMMARY, model=f"models/{first}", lost_to_accuracy=first, calibrated_on=first,
        command=f"qdqtune tune {first}", mode="subgraph",
        batches=(Batch(first, 2, 1, 1.5, 1.4, 0.01, True),),
    )  # fmt: skip
    return RunView(summary, f"runs/{first}", trials, details)
