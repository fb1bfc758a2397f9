"""Promise: `info` tells all that a time depends on; it is part of every memo's key."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from qdqtune.engines.interface import SessionOptions
from qdqtune.records.measurement import EngineInfo
from qdqtune.testing.bench import Bench

_UNKNOWN = "no_such_option"


class TellsWhatItIs:
    """The fingerprint, and the options in it."""

    @pytest.mark.parametrize("field", ["name", "version", "device", "isa"])
    def test_nothing_is_left_out(self, bench: Bench, field: str) -> None:
        """Name, version, device and instruction set are told: a time holds for these alone."""
        value = getattr(bench.worker.info(), field)
        assert isinstance(value, str), f"`info().{field}` is {value!r}, no text"
        assert value.strip(), f"`info().{field}` is empty: times of two of them would be mixed up"

    def test_options_are_told(self, bench: Bench) -> None:
        """Every option that was given is in `info`, as text, with the threads."""
        options = _with_others(bench)
        info = bench.worker.info(options)
        told = dict(info.options)
        missing = {k: v for k, v in options.engine_options.items() if told.get(k) != v}
        assert not missing, (
            f"`info().options` is {told}: {missing} was given and is not there. Times measured "
            "with and without it would be taken for the same"
        )
        assert all(isinstance(text, str) for pair in told.items() for text in pair), (
            f"options are text: {told}"
        )
        assert info.threads == options.threads, (
            f"{options.threads} threads were asked for, `info().threads` is {info.threads}"
        )

    def test_info_repeats(self, bench: Bench) -> None:
        """The same question has the same answer, also after models were opened."""
        first = bench.worker.info()
        with bench.opened(bench.tower()):
            second = bench.worker.info()
        assert first == second, (
            f"`info` was {first}, then {second}: nothing that changes by itself belongs there"
        )

    def test_differences_are_told(self, bench: Bench) -> None:
        """Other threads or options make another `info`; who is tried without threads takes none."""
        options = bench.engine.options
        if options.threads is not None:
            infos = [bench.worker.info(replace(options, threads=threads)) for threads in (1, 2)]
            assert infos[0] != infos[1], f"one and two threads have the same `info`: {infos[0]}"
        if bench.engine.other_options:
            other = bench.worker.info(_with_others(bench))
            assert other != bench.worker.info(), (
                f"`info` does not depend on {dict(bench.engine.other_options)}"
            )

    def test_info_can_be_kept_in_a_file(self, bench: Bench) -> None:
        """Written as JSON and read again, `info` is the same."""
        info = bench.worker.info()
        again = EngineInfo.from_dict(json.loads(json.dumps(info.to_dict())))
        assert again == info, f"{info} became {again} on its way through JSON"

    def test_an_unknown_option_is_refused(self, bench: Bench) -> None:
        """An option that the engine doesn't have is an error that names it."""
        given = {**bench.engine.options.engine_options, _UNKNOWN: "1"}
        options = replace(bench.engine.options, engine_options=given)
        path = bench.tower()
        failure = bench.refusal(
            lambda: bench.worker.open(path, options), f"opened with the option {_UNKNOWN}=1"
        )
        assert _UNKNOWN in str(failure), f"the error should name the option {_UNKNOWN}: {failure}"

    def test_other_options_work(self, bench: Bench) -> None:
        """A model opens with the engine's other options as well."""
        if not bench.engine.other_options:
            pytest.skip(f"no `other_options` of {bench.engine.name} were named")
        with bench.opened(bench.tower(), _with_others(bench)) as model:
            assert model.build_s > 0


def _with_others(bench: Bench) -> SessionOptions:
    options = bench.engine.options
    given = {**options.engine_options, **bench.engine.other_options}
    return replace(options, engine_options=given)
