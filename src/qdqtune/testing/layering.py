"""Promise: the layers that the engine runs, with times that add up, found again in the model."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.engines.isolated import OpenModel
from qdqtune.engines.layer_nodes import nodes_of_layers
from qdqtune.graph.index import GraphIndex
from qdqtune.testing.bench import Bench
from qdqtune.testing.models import feeds_of
from qdqtune.testing.quantized import quantized_op

_RUNS = 10
_ATTEMPTS = 3
# A profile costs something, and leaves out what lies between the layers.
_LEAST_SUM, _MOST_SUM = 0.5, 1.6
_LEAST_MAPPED = 0.95
_LOW_PRECISIONS = ("int8", "uint8", "int4", "uint4", "float8")


class TellsLayers:
    """Layers: names, times, precision, and the nodes that they come from."""

    def test_layers_are_told(self, bench: Bench) -> None:
        """There are layers with a name each; asked again, they are of the same kinds."""
        with _large(bench) as model:
            first, second = (bench.worker.layers(model, _RUNS) for _ in range(2))
        assert first, "`layer_times` returned nothing"
        names = [layer.name for layer in first]
        twice = sorted({name for name in names if names.count(name) > 1})
        assert not twice, f"several layers are called {twice[:3]}"
        assert all(layer.op_type for layer in first), "a layer has no `op_type`"
        # Not by name: OpenVINO numbers what it has made itself, and goes on counting.
        kinds, again = ([layer.op_type for layer in layers] for layers in (first, second))
        assert kinds == again, f"asked again, there are other layers: {again} instead of {kinds}"

    def test_layers_add_up(self, bench: Bench) -> None:
        """No layer takes less than nothing, and together they take about what a run does."""
        bench.needs_runs()
        with _large(bench) as model:
            for _ in range(_ATTEMPTS):
                before_s = bench.worker.timing_s
                fastest_ms = min(bench.worker.time(model, _RUNS))
                # With what other processes took meanwhile, which samples may leave out.
                mean_ms = (bench.worker.timing_s - before_s) * 1000.0 / _RUNS
                layers = bench.worker.layers(model, _RUNS)
                assert all(layer.ms >= 0 for layer in layers), "a layer takes less than 0 ms"
                sum_ms = sum(layer.ms for layer in layers)
                if _LEAST_SUM * fastest_ms <= sum_ms <= _MOST_SUM * mean_ms:
                    return
        raise AssertionError(
            f"the layers add up to {sum_ms:.3g} ms, and a run takes {fastest_ms:.3g} ms or more. "
            "Are they in milliseconds? Divided by the number of runs? Are warm-up runs counted, "
            "or layers twice: whole subgraphs beside what is in them?"
        )

    def test_layers_need_feeds(self, bench: Bench) -> None:
        """The layers of a model without feeds can't be timed, and that is said."""
        _skip_without_layers(bench)
        with bench.opened(_large_path(bench)) as model:
            bench.refusal(
                lambda: bench.worker.layers(model, 1), "`layer_times` before any `set_feeds`"
            )

    def test_layers_are_found_in_the_model(self, bench: Bench) -> None:
        """At least 95 % of the time, or of the layers, are in layers with known ONNX nodes."""
        with _large(bench) as model:
            layers = bench.worker.layers(model, _RUNS)
        index = GraphIndex(ir.from_proto(_large_model()))
        mapped = nodes_of_layers(index, layers)
        weights = [layer.ms if bench.engine.runs else 1.0 for layer in mapped]
        known = [weight for weight, layer in zip(weights, mapped, strict=True) if layer.nodes]
        lost = [layer.name for layer in mapped if not layer.nodes]
        assert sum(known) >= _LEAST_MAPPED * sum(weights), (
            f"only {sum(known) / sum(weights):.0%} of the time is in layers whose ONNX nodes are "
            "found (or of the layers, where there are no times); "
            f"unknown are {lost[:5]}. Tell `LayerTime.origins`: the names of the nodes, or of "
            "their outputs, that the engine says a layer was made of"
        )

    def test_quantized_ops_compute_in_integers(self, bench: Bench) -> None:
        """Q/DQ written in the engine's own dialect make a kernel of that type, and it is told."""
        _skip_without_layers(bench)
        if not bench.engine.integer_layers:
            pytest.skip(f"{bench.engine.name} does not promise integer kernels")
        dialect = bench.engine.dialect
        for quant_type in bench.engine.promised_types:
            made = quantized_op("Conv", dialect, quant_type, extreme=False)
            path = bench.write(f"Conv {quant_type} {dialect}", made.model)
            with bench.opened(path, feeds=made.feeds) as model:
                layers = bench.worker.layers(model, _RUNS)
            index = GraphIndex(ir.from_proto(made.model))
            told = {
                layer.name: layer.precision
                for layer in nodes_of_layers(index, layers)
                if layer.executes and _has_conv(index, layer.nodes)
            }
            assert any(text.startswith(_LOW_PRECISIONS) for text in told.values()), (
                f"a Conv quantized to {quant_type} in the dialect {dialect} runs in the "
                f"layers {told or [layer.name for layer in layers]} (name and precision). Either "
                "`LayerTime.precision` is not told, or the dialect is not what the engine fuses"
            )


def _skip_without_layers(bench: Bench) -> None:
    if not bench.engine.layers:
        pytest.skip(f"{bench.engine.name} does not promise to tell its layers")


@functools.cache
def _large_model() -> onnx.ModelProto:
    """A model of a millisecond or more: the times of very small layers are mostly overhead."""
    return zoo.build("resnet18", blocks=(2, 2), width=32, image=64)


def _large_path(bench: Bench) -> Path:
    return bench.write("layers", _large_model())


@contextlib.contextmanager
def _large(bench: Bench) -> Iterator[OpenModel]:
    _skip_without_layers(bench)
    with bench.opened(_large_path(bench), feeds=feeds_of(_large_model())) as model:
        yield model


def _has_conv(index: GraphIndex, nodes: tuple[str, ...]) -> bool:
    return any(index.node[name].op_type == "Conv" for name in nodes)
