"""The demo names the winner, whoever that is."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from benchmarks.demo import FLOAT, TUNED, verdict, write_rivals

from qdqtune import zoo
from qdqtune.engines._timing import compare_blocks
from qdqtune.records._measurement import BenchmarkEntry, BenchRecord, EngineInfo, Measurement

RIVALS = ("quantize_static u8/s8", "quantize_static s8/s8")
ROUNDS = 30


def entry(name: str, latency_ms: float, sqnr_db: float | None = None) -> BenchmarkEntry:
    noise = [1.0 + 0.002 * (n % 5 - 2) for n in range(ROUNDS)]
    blocks = tuple((latency_ms * each, latency_ms * each) for each in noise)
    baseline = tuple((10.0, 10.0) for _ in range(ROUNDS + 1))
    if name == FLOAT:
        return BenchmarkEntry(name, Measurement(baseline))
    found = compare_blocks(baseline, blocks)
    return BenchmarkEntry(
        name, Measurement(blocks), found, {} if sqnr_db is None else {"y": sqnr_db}
    )  # fmt: skip


def record(u8: BenchmarkEntry, s8: BenchmarkEntry, tuned: BenchmarkEntry) -> BenchRecord:
    return BenchRecord(EngineInfo("e", "1", "d", "i"), (entry(FLOAT, 10.0), u8, s8, tuned), {}, 0)


@pytest.mark.parametrize(
    ("u8_ms", "s8_ms", "tuned_ms", "words"),
    [
        (8.0, 12.0, 6.0, "tuned wins, against quantize_static u8/s8 1.3"),
        (12.0, 14.0, 8.0, "tuned wins, against float 1.2"),
        (12.0, 8.0, 9.0, "quantize_static s8/s8 wins, tuned against it 0.8"),
        (12.0, 14.0, 11.0, "float wins, tuned against it 0.9"),
        (8.0, 12.0, 8.0, "tuned and quantize_static u8/s8 are equally fast"),
    ],
)
def test_the_winner_is_named(u8_ms: float, s8_ms: float, tuned_ms: float, words: str) -> None:
    u8, s8 = entry(RIVALS[0], u8_ms, 30.0), entry(RIVALS[1], s8_ms, 30.0)
    said = verdict(record(u8, s8, entry(TUNED, tuned_ms, 31.0)))
    assert said.startswith(words)
    assert "only" not in said


def test_a_winner_that_computes_something_else_is_told() -> None:
    u8, s8 = entry(RIVALS[0], 5.0, 7.26), entry(RIVALS[1], 12.0, 30.0)
    said = verdict(record(u8, s8, entry(TUNED, 8.0, 31.0)))
    assert said.startswith("quantize_static u8/s8 wins")
    assert said.endswith("But the outputs of quantize_static u8/s8 are only 7.3 dB from float.")


def test_what_the_engine_does_not_run_does_not_win() -> None:
    failed = BenchmarkEntry(RIVALS[0], Measurement(error="no kernel"))
    said = verdict(record(failed, entry(RIVALS[1], 12.0), entry(TUNED, 8.0)))
    assert said.startswith("tuned wins, against float")
    broken = BenchmarkEntry(TUNED, Measurement(error="no kernel"))
    assert "could not be compared" in verdict(
        record(entry(RIVALS[0], 9.0), entry(RIVALS[1], 9.0), broken)
    )


def test_quantize_static_quantizes_to_what_is_said(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(zoo.build("resnet18", width=8, image=32), path)
    types = {"u8/s8": onnx.TensorProto.UINT8, "s8/s8": onnx.TensorProto.INT8}
    for name, file in write_rivals(path, tmp_path).items():
        graph = onnx.load(file).graph
        kinds = {tensor.name: tensor.data_type for tensor in graph.initializer}
        activations = {
            kinds[node.input[2]]
            for node in graph.node
            if node.op_type == "QuantizeLinear" and node.input[0] not in kinds
        }
        assert activations == {types[name.removeprefix("quantize_static ")]}
        scales = [tensor for tensor in graph.initializer if tensor.name.endswith("_scale")]
        assert any(len(scale.dims) == 1 and scale.dims[0] > 1 for scale in scales)  # per channel
