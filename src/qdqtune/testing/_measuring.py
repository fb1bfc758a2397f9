"""Promise: the engine reports everything a time depends on, run times, and layers that add up."""

from __future__ import annotations

import contextlib
import functools
import json
import math
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.engines._comparison import compare_files
from qdqtune.engines._interface import SessionOptions
from qdqtune.engines._worker import OpenModel
from qdqtune.engines.layers._mapper import nodes_of_layers
from qdqtune.graph._index import GraphIndex
from qdqtune.records._measurement import EngineInfo
from qdqtune.testing._bench import TOWER_LAYERS, Bench, feeds_of, tower_feeds
from qdqtune.testing._computing import quantized_op

_TIMES_THE_WORK = 8
_TIMED_RUNS = 20
# Samples may exclude a lot, such as time of other processes or copies to a device, but not nearly
# all.
_LEAST_SHARE = 0.05
_MOST_SHARE = 1.1
_AA_LEAST_SAME, _AA_MOST_DIFFERENT = 2, 3
_AA_BUDGET_S = 0.4
_RUNS = 10
_ATTEMPTS = 3
# A profile adds overhead, and excludes the time between layers.
_LEAST_SUM, _MOST_SUM = 0.5, 1.6
_LEAST_MAPPED = 0.95
_LOW_PRECISIONS = ("int8", "uint8", "int4", "uint4", "float8")


class TellsWhatItIs:
    """The engine's description, and the options in it."""

    @pytest.mark.parametrize("field", ["name", "version", "device", "isa"])
    def test_nothing_is_left_out(self, bench: Bench, field: str) -> None:
        """Name, version, device and instruction set are reported, since times depend on them."""
        value = getattr(bench.worker.info(), field)
        assert isinstance(value, str), f"`info().{field}` is {value!r}, no text"
        assert value.strip(), f"`info().{field}` is empty: times of two of them would be mixed up"

    def test_options_are_told(self, bench: Bench) -> None:
        """Every option that was passed is in `info` as text, and so are the threads.

        Otherwise times measured with and without an option would be taken for the same.
        """
        options = _with_others(bench)
        info = bench.worker.info(options)
        told = dict(info.options)
        missing = {k: v for k, v in options.engine_options.items() if told.get(k) != v}
        assert not missing, f"`info().options` is {told}: {missing} was given and is not there"
        assert {type(text) for pair in told.items() for text in pair} <= {str}, f"no text: {told}"
        assert info.threads == options.threads, f"`info().threads` is {info.threads}"

    def test_info_repeats(self, bench: Bench) -> None:
        """The same query gives the same answer, even after models were opened."""
        first = bench.worker.info()
        with bench.opened(bench.tower()):
            second = bench.worker.info()
        assert first == second, (
            f"`info` was {first}, then {second}: nothing that changes by itself belongs there"
        )

    def test_differences_are_told(self, bench: Bench) -> None:
        """Other threads or options change `info`; threads don't if they can't be set."""
        options = bench.engine.options
        if options.threads is not None:
            infos = [bench.worker.info(replace(options, threads=threads)) for threads in (1, 2)]
            assert infos[0] != infos[1], f"one and two threads have the same `info`: {infos[0]}"
        if others := dict(bench.engine.other_options):
            infos = [bench.worker.info(options), bench.worker.info(_with_others(bench))]
            assert infos[0] != infos[1], f"`info` does not depend on {others}"

    def test_info_can_be_kept_in_a_file(self, bench: Bench) -> None:
        """`info` survives a round trip through JSON."""
        info = bench.worker.info()
        again = EngineInfo.from_dict(json.loads(json.dumps(info.to_dict())))
        assert again == info, f"{info} became {again} on its way through JSON"

    def test_an_unknown_option_is_refused(self, bench: Bench) -> None:
        """An unknown option causes an error that names it."""
        options, path = _with(bench, {"no_such_option": "1"}), bench.tower()
        failure = bench.refusal(
            lambda: bench.worker.open(path, options), "opened with the option no_such_option=1"
        )
        assert "no_such_option" in str(failure), f"the error should name the option: {failure}"

    def test_other_options_work(self, bench: Bench) -> None:
        """A model also opens with the engine's other options."""
        if not bench.engine.other_options:
            pytest.skip(f"no `other_options` of {bench.engine.name} were named")
        with bench.opened(bench.tower(), _with_others(bench)) as model:
            assert model.build_s > 0


def _with_others(bench: Bench) -> SessionOptions:
    return _with(bench, bench.engine.other_options)


def _with(bench: Bench, more: Mapping[str, str]) -> SessionOptions:
    options = bench.engine.options
    return replace(options, engine_options={**options.engine_options, **more})


class TimesModels:
    """Timing: amounts, units and comparisons."""

    @pytest.mark.parametrize("runs", [1, 7])
    def test_as_many_samples_as_asked(self, bench: Bench, runs: int) -> None:
        """`time_runs(n)` returns n positive numbers; a clock that is too coarse gives zeros."""
        bench.needs_runs()
        with bench.opened(bench.tower(), feeds=tower_feeds()) as model:
            samples = bench.worker.time(model, runs)
        assert len(samples) == runs, f"{len(samples)} samples were returned of {runs} runs"
        assert all(0 < each < math.inf for each in samples), f"they must be positive: {samples}"

    def test_a_measurement_is_complete(self, bench: Bench) -> None:
        """A measurement has samples, and the seconds that building and timing took.

        The `clock_s` of an engine with simulated times must advance while it builds.
        """
        bench.needs_runs()
        measured = bench.worker.measure(bench.tower(), tower_feeds(), blocks=2, runs=5, drop=1)
        assert measured.ok, f"a plain model could not be measured: {measured.error}"
        assert [len(block) for block in measured.blocks_ms] == [5, 5]
        assert measured.build_s > 0, "opening took no time on the engine's clock"
        assert measured.timing_s > 0, "timed runs took no time on the engine's clock"

    def test_samples_are_milliseconds(self, bench: Bench) -> None:
        """The samples of a request add up to about the duration of the request.

        For an engine with simulated times, that is the duration on its own `clock_s`.
        """
        bench.needs_runs()
        with bench.opened(bench.tower(), feeds=tower_feeds()) as model:
            bench.worker.time(model, 2)
            before_s, start = bench.worker.totals.timing_s, time.monotonic()
            samples = bench.worker.time(model, _TIMED_RUNS)
            waited_s, spent_s = time.monotonic() - start, bench.worker.totals.timing_s - before_s
        assert spent_s > 0, "timed runs took no time on the engine's clock"
        share = sum(samples) / 1000.0 / spent_s
        least = 0.0 if bench.engine.program else _LEAST_SHARE
        assert least <= share <= _MOST_SHARE, (
            f"{_TIMED_RUNS} runs took {spent_s * 1000:.3g} ms on the engine's clock, their samples "
            f"add up to {sum(samples):.3g}. If one is a thousandfold of the other, `time_runs` "
            "returns seconds or microseconds; if far too little, it doesn't wait for the end of a "
            "run"
        )
        assert spent_s <= waited_s or not bench.engine.measures, (
            f"the engine says that runs took {spent_s:.3g} s, but it answered after {waited_s:.3g}"
        )

    def test_more_work_takes_longer(self, bench: Bench) -> None:
        """A model with eight times the products is clearly slower."""
        bench.needs_runs()
        fast, slow = (
            bench.worker.measure(path, tower_feeds(), blocks=3, runs=4)
            for path in (bench.tower(), bench.tower(TOWER_LAYERS * _TIMES_THE_WORK))
        )
        assert fast.ok, fast.error
        assert slow.ok, slow.error
        assert slow.latency_ms > 2.0 * fast.latency_ms, (
            f"{_TIMES_THE_WORK} times the work takes {slow.latency_ms:.4g} ms instead of "
            f"{fast.latency_ms:.4g}. Is the run over when the clock is read? Are results cached?"
        )

    def test_a_model_is_as_fast_as_itself(self, bench: Bench) -> None:
        """A file compared with itself gives no difference; noise may occasionally cause one."""
        bench.needs_runs()
        path, feeds = bench.tower(), tower_feeds()
        same: list[float] = []
        different: list[float] = []
        while len(different) < _AA_MOST_DIFFERENT:
            measured, (compared,) = compare_files(
                bench.worker, [path, path], feeds, budget_s=_AA_BUDGET_S
            )
            assert compared is not None, [each.error for each in measured]
            found = different if compared.verdict.differs else same
            found.append(compared.ratio)
            if len(same) == _AA_LEAST_SAME:
                return
        raise AssertionError(
            f"one file was found to differ from itself in speed, by {different}. Do first runs do "
            "more? Do threads of one session spin while another runs? Is the machine too busy?"
        )


class TellsLayers:
    """Layers: names, times, precision, and the nodes that they come from."""

    def test_layers_are_told(self, bench: Bench) -> None:
        """Every layer has a name; a second query returns layers of the same types."""
        with _large(bench) as model:
            first, second = (bench.worker.layers(model, _RUNS) for _ in range(2))
        assert first, "`layer_times` returned nothing"
        twice = [name for name, n in Counter(each.name for each in first).items() if n > 1]
        assert not twice, f"several layers are called {twice[:3]}"
        assert all(layer.op_type for layer in first), "a layer has no `op_type`"
        # Not by name: OpenVINO numbers generated layers, and continues counting.
        kinds, again = ([layer.op_type for layer in layers] for layers in (first, second))
        assert kinds == again, f"asked again, there are other layers: {again} instead of {kinds}"

    def test_layers_add_up(self, bench: Bench) -> None:
        """No layer takes negative time, and all together take about as long as a run."""
        bench.needs_runs()
        with _large(bench) as model:
            for _ in range(_ATTEMPTS):
                before_s = bench.worker.totals.timing_s
                fastest_ms = min(bench.worker.time(model, _RUNS))
                # Including time taken by other processes, which samples may exclude.
                mean_ms = (bench.worker.totals.timing_s - before_s) * 1000.0 / _RUNS
                layers = bench.worker.layers(model, _RUNS)
                assert all(layer.ms >= 0 for layer in layers), "a layer takes less than 0 ms"
                sum_ms = sum(layer.ms for layer in layers)
                if _LEAST_SUM * fastest_ms <= sum_ms <= _MOST_SUM * mean_ms:
                    return
        raise AssertionError(
            f"the layers add up to {sum_ms:.3g} ms, and a run takes {fastest_ms:.3g} ms or more. "
            "Are they milliseconds per run, without warm-up, and without whole subgraphs?"
        )

    def test_layers_need_feeds(self, bench: Bench) -> None:
        """Timing the layers of a model without feeds fails with a message that says so."""
        _skip_without_layers(bench)
        with bench.opened(_large_path(bench)) as model:
            bench.refusal(
                lambda: bench.worker.layers(model, 1), "`layer_times` before any `set_feeds`"
            )

    def test_layers_are_found_in_the_model(self, bench: Bench) -> None:
        """At least 95 % of the time, or of the layers, is in layers with known ONNX nodes."""
        with _large(bench) as model:
            layers = bench.worker.layers(model, _RUNS)
        index = GraphIndex(ir.from_proto(_large_model()))
        mapped = nodes_of_layers(index, layers)
        weights = [layer.ms if bench.engine.runs else 1.0 for layer in mapped]
        known = [weight for weight, layer in zip(weights, mapped, strict=True) if layer.nodes]
        lost = [layer.name for layer in mapped if not layer.nodes]
        assert sum(known) >= _LEAST_MAPPED * sum(weights), (
            f"only {sum(known) / sum(weights):.0%} of the time is in layers whose ONNX nodes are "
            f"found; unknown are {lost[:5]}. `LayerTime.origins` should name nodes or outputs"
        )

    def test_quantized_ops_compute_in_integers(self, bench: Bench) -> None:
        """Q/DQ in the engine's own dialect gives a kernel of that type, which is reported."""
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
            convs = {node.name for node in index.nodes if node.op_type == "Conv"}
            told = {
                layer.name: layer.precision
                for layer in nodes_of_layers(index, layers)
                if layer.executes and not convs.isdisjoint(layer.nodes)
            }
            assert any(text.startswith(_LOW_PRECISIONS) for text in told.values()), (
                f"a Conv quantized to {quant_type} in the dialect {dialect} has the layers {told}: "
                "`LayerTime.precision` is not told, or the dialect is not what the engine fuses"
            )


def _skip_without_layers(bench: Bench) -> None:
    if not bench.engine.layers:
        pytest.skip(f"{bench.engine.name} does not promise to tell its layers")


@functools.cache
def _large_model() -> onnx.ModelProto:
    """Build a model that takes a millisecond or more: tiny layers are mostly overhead."""
    return zoo.build("resnet18", blocks=(2, 2), width=32, image=64)


def _large_path(bench: Bench) -> Path:
    return bench.write("layers", _large_model())


@contextlib.contextmanager
def _large(bench: Bench) -> Iterator[OpenModel]:
    _skip_without_layers(bench)
    with bench.opened(_large_path(bench), feeds=feeds_of(_large_model())) as model:
        yield model
