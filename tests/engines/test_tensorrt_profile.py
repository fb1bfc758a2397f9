from __future__ import annotations

from pathlib import Path

import pytest

from qdqtune.engines.tensorrt._layer_info import (
    Layer,
    LayerTensor,
    parse_layer_info,
    parse_profile,
    read_layer_info,
)
from qdqtune.engines.tensorrt._layer_naming import LayerKind, kind_of, ms_of_layers
from qdqtune.records._measurement import LayerTime

SAMPLES = Path(__file__).parents[1] / "data" / "tensorrt" / "trex_resnet18_a100"


def timed(build: str) -> list[tuple[Layer, float]]:
    layers = read_layer_info(SAMPLES / f"{build}.graph.json")
    return ms_of_layers(layers, parse_profile((SAMPLES / f"{build}.profile.json").read_text()))


def written(*entries: str, runs: int = 10) -> str:
    """As trtexec writes it."""
    return "\n, ".join([f'[\n  {{ "count" : {runs} }}', *entries]) + "\n]\n"


def entry(name: str, ms: str = "20, 2, 1.5, 100") -> str:
    keys = ("timeMs", "averageMs", "medianMs", "percentage")
    times = ", ".join(f'"{k}" : {v}' for k, v in zip(keys, ms.split(", "), strict=False) if v)
    return f'{{ "name" : "{name}", {times} }}'


class TestRealProfiles:
    # Total, reformats without those of Q/DQ, Q/DQ; milliseconds.
    @pytest.mark.parametrize(
        ("build", "total", "reformats", "qdq"),
        [
            ("fp32", 2.12, 0.05, 0.0),
            ("fp16", 1.02, 0.09, 0.0),
            ("qat", 1.10, 0.05, 0.23),
            ("qat-residual", 0.73, 0.0, 0.12),
            ("qat-residual-qgap", 0.67, 0.0, 0.10),
        ],
    )
    def test_tell_what_time_is_spent_on(
        self, build: str, total: float, reformats: float, qdq: float
    ) -> None:
        spent = dict.fromkeys(LayerKind, 0.0)
        for layer, ms in timed(build):
            spent[kind_of(layer)] += ms
        assert sum(spent.values()) == pytest.approx(total, abs=0.005)
        assert spent[LayerKind.REFORMAT] == pytest.approx(reformats, abs=0.005)
        assert spent[LayerKind.QDQ] == pytest.approx(qdq, abs=0.005)
        assert spent[LayerKind.OTHER] == 0

    def test_all_reformats_of_a_slow_placement(self) -> None:
        reformats = [ms for layer, ms in timed("qat") if layer.kind == "Reformat"]
        assert sum(reformats) == pytest.approx(0.28, abs=0.005)

    def test_become_layer_times(self) -> None:
        (first, ms), (second, _), *_ = timed("qat-residual")
        assert first.timed(ms) == LayerTime(
            "QuantizeLinear_2",
            "Reformat",
            ms,
            precision="float32",
            inputs=("input.1",),
            outputs=(first.outputs[0].name,),
        )
        assert second.timed().precision == "int8"


class TestForms:
    @pytest.mark.parametrize(
        "name", ["a", 'say "a"', "a\\b", "a\x1eb\x1f", "a, b}", '", "', "{ForeignNode[a...b]}"]
    )
    def test_names_are_written_as_they_are(self, name: str) -> None:
        text = written(entry(name), entry("z", "0, 0, 0, -nan"))
        assert parse_profile(text) == [(name, 1.5), ("z", 0.0)]

    @pytest.mark.parametrize(
        ("times", "ms"),
        [
            ("20, 2, 1.5, 100", 1.5),
            ("20, 2, 1.5, nan", 1.5),
            ("20, 2, 1e-05, inf", 1e-05),
            ("20, 2", 2.0),
            ("20, 2, nan", 2.0),
            ("20", 2.0),
        ],
    )
    def test_the_median_counts_if_there_is_one(self, times: str, ms: float) -> None:
        assert parse_profile(written(entry("a", times))) == [("a", ms)]

    def test_json_of_others(self) -> None:
        text = '[{"count": 4}, {"name": "a\\"b", "timeMs": 8}, {"name": "c", "averageMs": 3}, 7]'
        assert parse_profile(text) == [('a"b', 2.0), ("c", 3.0)]

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "not a profile"),
            ('{"a": 1}', "not a profile"),
            ("[]", "no layers"),
            (written(), "no layers"),
            (written(entry("a"))[:-3], "cut off after"),
            (written('{ "name" : "a", "time" : 3 }'), "entries without times"),
            (written(entry("a", "x")), "no time of the layer 'a'"),
            ('[{"name": "a"}]', "no time of the layer 'a'"),
            ('[{"name": ]', "not JSON"),
            ("[" * 5000 + "]" * 5000, "not JSON|no layers"),
        ],
    )
    def test_what_is_no_profile_is_refused(self, text: str, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            parse_profile(text)


class TestPairing:
    def test_equal_names_go_by_order(self) -> None:
        same = [Layer("a", "gemm"), Layer("a", "kgen"), Layer("b", "NoOp")]
        result = ms_of_layers(same, [("a", 1.0), ("b", 0.0), ("a", 2.0)])
        assert [(layer.kind, ms) for layer, ms in result] == [
            ("gemm", 1.0), ("NoOp", 0.0), ("kgen", 2.0),
        ]  # fmt: skip

    def test_names_written_in_another_way_go_by_position(self) -> None:
        result = ms_of_layers(parse_layer_info('["a", "b"]'), [("a", 1.0), ("b\\u001f", 2.0)])
        assert [(layer.name, ms) for layer, ms in result] == [("a", 1.0), ("b", 2.0)]

    def test_layers_that_the_information_lacks_have_their_times(self) -> None:
        tensors = (LayerTensor("x", "Half", ()),)
        layers = (Layer("a", "gemm", tensors), Layer("gone", "gemm"), Layer("g", "gemm"))
        copy = "Reformatting CopyNode for Input Tensor 0 to a"
        result = ms_of_layers(layers, [(copy, 0.5), ("a", 1.0)])
        assert [kind_of(layer) for layer, _ in result] == [LayerKind.REFORMAT, LayerKind.COMPUTE]
        assert result[1][0].timed().precision == "float16"
