from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest
from benchmarks.rtx_builds import multiplies, not_low_precision, operand_types
from hypothesis import given
from hypothesis import strategies as st

from qdqtune.engines.tensorrt._layer_info import (
    Layer,
    LayerTensor,
    parse_layer_info,
    read_layer_info,
    type_named,
)
from qdqtune.engines.tensorrt._layer_naming import LayerKind, kind_of, map_layers
from qdqtune.graph._index import GraphIndex
from qdqtune.records._errors import UsageError

SAMPLES = Path(__file__).parents[1] / "data" / "tensorrt"
NAMES_ONLY = {"Layers": ["a + b", "c"], "Bindings": ["x", "y"]}


def info_of(value: Any) -> tuple[Layer, ...]:
    return parse_layer_info(json.dumps(value))


def read(sample: str) -> tuple[Layer, ...]:
    return read_layer_info(SAMPLES / sample)


def tensor(name: str, **fields: Any) -> dict[str, Any]:
    return {"Name": name, "Dimensions": [1, -1], **fields}


SMALL = GraphIndex(
    ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 17]>\n'
        "g (float[2] x) => (float[2] y) { [a] h = Relu(x) [b] y = Relu(h) }"
    )
)


class TestForms:
    # COMPUTE, REFORMAT, QDQ, OTHER; counted by type, Origin and name in the files.
    @pytest.mark.parametrize(
        ("sample", "kinds"),
        [
            ("trex_resnet18_a100/fp32.graph.json", (23, 1, 0, 8)),
            ("trex_resnet18_a100/fp16.graph.json", (23, 2, 0, 11)),
            ("trex_resnet18_a100/qat.graph.json", (23, 2, 10, 2)),
            ("trex_resnet18_a100/qat-residual.graph.json", (22, 0, 3, 1)),
            ("trex_resnet18_a100/qat-residual-qgap.graph.json", (22, 0, 1, 1)),
            ("trt1016/model-trained-exportLayerInfo.json", (8, 1, 0, 0)),
            ("trt1016/result-04.log", (8, 1, 0, 0)),
            ("trt1016/EngineInspector.oneline.log", (9, 3, 0, 1)),
            ("trt860_h200/convnext.fp16.graph.json", (24, 9, 0, 8)),
            ("trt860_h200/encoder.fp16.graph.json", (1, 2, 0, 0)),
            ("trt860_h200/mobilenet_v2.fp16.graph.json", (53, 1, 0, 27)),
            ("trt860_h200/unet.fp16.graph.json", (27, 2, 0, 0)),
            ("trt860_h200/resnet18.fp16.graph.json", (23, 18, 0, 18)),
            ("trt860_h200/resnet18.all-int8.graph.json", (32, 16, 2, 17)),
            ("trt860_h200/resnet18.weighted-ops-int8.graph.json", (31, 17, 5, 18)),
            ("rtx171/cat_int8.sm89.layers.txt", (3, 1, 3, 4)),
            ("rtx171/dw_int8.sm89.layers.txt", (1, 0, 2, 0)),
            ("rtx171/dyn.sm89.layers.txt", (2, 2, 0, 1)),
            ("rtx171/fp32.sm89.layers.txt", (2, 2, 0, 0)),
            ("rtx171/fp8.sm89.layers.txt", (4, 0, 1, 0)),
            ("rtx171/int8pc.sm89.layers.txt", (4, 0, 1, 0)),
            ("rtx171/r_aonly.sm89.layers.txt", (3, 1, 2, 0)),
            ("rtx171/r_fp16.sm89.layers.txt", (3, 2, 0, 0)),
            ("rtx171/r_q_noskip.sm89.layers.txt", (5, 0, 2, 0)),
            ("rtx171/r_q_skip.sm89.layers.txt", (5, 0, 2, 0)),
            ("rtx171/r_wonly.sm89.layers.txt", (3, 2, 2, 0)),
            ("rtx171/tfm_fp16.sm89.layers.txt", (10, 0, 0, 0)),
            ("rtx171/tfm_int8.sm89.layers.txt", (13, 0, 0, 0)),
            ("rtx171/v_actperch.sm89.layers.txt", (1, 1, 2, 0)),
            ("rtx171/v_maxpool.sm89.layers.txt", (3, 1, 2, 0)),
        ],
    )
    def test_real_files_are_read_and_classified(
        self, sample: str, kinds: tuple[int, int, int, int]
    ) -> None:
        layers = read(sample)
        counts = Counter(map(kind_of, layers))
        assert tuple(counts[kind] for kind in LayerKind) == kinds
        tensors = [each for layer in layers for each in (*layer.inputs, *layer.outputs)]
        assert {each.dtype for each in tensors} <= {
            "Float", "Half", "Int8", "FP8", "Int32", "Int64",
        }  # fmt: skip

    def test_text_and_json_tell_the_same(self) -> None:
        as_json = read("trt1016/model-trained-exportLayerInfo.json")
        as_text = read("trt1016/result-04.log")
        told = [
            [(x.name, x.kind, x.inputs, x.nodes, x.origin) for x in layers]
            for layers in (as_json, as_text)
        ]
        assert told[0] == told[1]
        assert as_text[4].nodes == ("node_linear", "node_relu_2")

    def test_only_the_first_profile_counts(self) -> None:
        layers = read("trt1016/EngineInspector.oneline.log")
        assert layers[-1].name == "__myl_Cast_myl5_7"
        assert not any("profile" in layer.name for layer in layers)

    def test_kernels_before_the_first_suffix_of_a_profile_belong_to_it(self) -> None:
        listed = ["a", "__mye_myl1_0", "b_myl1_1", "a [profile 1]", "__mye_myl2_0"]
        listed += ["b [profile 1]_myl2_1", "a [profile 2]"]
        assert [layer.name for layer in info_of({"Layers": listed})] == listed[:3]
        swapped = info_of(["__mye_myl1_0", "b_myl1_1", "__mye_myl2_0", "b [profile 1]_myl2_1"])
        assert [layer.name for layer in swapped] == ["__mye_myl1_0", "b_myl1_1"]

    def test_a_name_that_ends_like_a_profile_everywhere_is_a_name(self) -> None:
        assert len(info_of(["a [profile 1]", "b"])) == 2

    @pytest.mark.parametrize(
        "value",
        [
            NAMES_ONLY,
            NAMES_ONLY["Layers"],
            {"layers": NAMES_ONLY["Layers"]},
            {"LayerInfo": [{"name": "a + b"}, {"Name": "c"}], "something new": 1},
            {"layerInfo": {"Layers": NAMES_ONLY["Layers"]}},
        ],
    )
    def test_containers(self, value: Any) -> None:
        assert [layer.name for layer in info_of(value)] == ["a + b", "c"]

    def test_version_11_has_other_keys(self) -> None:
        entry = {
            "Name": "conv_myl0_1",
            "LayerType": "correlation",
            "Inputs": [tensor("x", Datatype="Int8", Format="(NHWC) Channel major format")],
            "Constants": [tensor("w", Datatype="FP8", Format="(Linear) Row major linear format")],
            "Outputs": [tensor("y", Datatype="BFloat16", Format="(Linear)")],
            "TacticName": "t",
            "Metadata": "[ONNX Layer: a | Local Function: f]\x1f[ONNX Layer: b]\x1e[ONNX Layer: a]",
        }
        tensors = [{"Name": "x", "IOMode": "Input"}, {"Name": "y", "IOMode": "Output"}]
        layers = info_of({"Layers": [entry], "I/O Tensors": tensors, "Engine Metadata": {}})
        assert layers == (
            Layer(
                "conv_myl0_1",
                "correlation",
                (LayerTensor("x", "Int8", (1, -1)),),
                (LayerTensor("y", "BFloat16", (1, -1)),),
                (LayerTensor("w", "FP8", (1, -1)),),
                ("a", "b"),
            ),
        )

    def test_control_characters_stand_as_they_are(self) -> None:
        text = '{"Layers": [{"Name": "a\tb", "Metadata": "[ONNX Layer: a\tb]\x1e[ONNX Layer: c]"}]}'
        (layer,) = parse_layer_info(text)
        assert layer.nodes == ("a\tb", "c")

    def test_what_was_cut_out_of_metadata_is_not_told(self) -> None:
        metadata = "[ONNX Layer: a]\x1f[ONNX La ... yer: b]\x1f[ONNX Layer: c]"
        (layer,) = info_of([{"Name": "n", "Metadata": metadata}])
        assert layer.nodes == ("a", "c")

    @pytest.mark.parametrize(
        ("phrase", "name"),
        [
            ("Row major linear FP32", "Float"),
            ("Thirty-two wide channel vectorized row major Int8 format", "Int8"),
            ("Channel major FP16 format where channel % 8 == 0", "Half"),
            ("Float", "Float"), ("Half", "Half"), ("BFloat16", "BFloat16"), ("FP8", "FP8"),
            ("UInt8", "UInt8"), ("INT4", "Int4"), ("FP4", "FP4"), ("Int64", "Int64"),
            ("Bool", "Bool"), ("Row major linear BF16", "BFloat16"), ("E8M0", "E8M0"),
        ],
    )  # fmt: skip
    def test_types_are_told_by_words(self, phrase: str, name: str) -> None:
        assert type_named(phrase) == name

    def test_windows_ends_of_lines_and_byte_order_marks(self) -> None:
        text = (SAMPLES / "trt1016/result-04.log").read_bytes().decode().replace("\n", "\r\n")
        assert len(parse_layer_info(text)) == 9
        assert len(parse_layer_info("\ufeff" + json.dumps(NAMES_ONLY))) == 2


class TestKinds:
    @pytest.mark.parametrize(
        ("layer", "kind"),
        [
            (Layer("Reformatting CopyNode for Input Tensor 0 to a", ""), LayerKind.REFORMAT),
            (Layer("a copy", "Shuffle"), LayerKind.REFORMAT),
            (Layer("a_copy_input", "ElementWise"), LayerKind.REFORMAT),
            (Layer("q", "Reformat", origin="QDQ"), LayerKind.QDQ),
            (Layer("q", "Reformat", origin="SLICE"), LayerKind.REFORMAT),
            (Layer("c", "Reformat", origin="CAST"), LayerKind.REFORMAT),
            (
                Layer(
                    "q",
                    "Reformat",
                    (LayerTensor("x", "Half", ()),),
                    (LayerTensor("y", "Int8", ()),),
                ),
                LayerKind.QDQ,
            ),
            (Layer("n", "Reformat"), LayerKind.REFORMAT),
            (Layer("__myl_TranReshCast_myl0_1", "kgen"), LayerKind.REFORMAT),
            (Layer("__myl_Tran_myl0_1", "kgen", nodes=("/Transpose",)), LayerKind.COMPUTE),
            (Layer("__myl_AddMulMinMaxRounCast_myl0_1", "kgen"), LayerKind.COMPUTE),
            (Layer("__myl_Mul_myl0_1", "kgen", nodes=("/Mul",)), LayerKind.COMPUTE),
            (Layer("trainStation1", "trainStation"), LayerKind.OTHER),
            (Layer("a + b", "CaskConvolution"), LayerKind.COMPUTE),
            (Layer("p", "PluginV3"), LayerKind.COMPUTE),
        ],
    )
    def test_by_type_origin_and_name(self, layer: Layer, kind: LayerKind) -> None:
        assert kind_of(layer) is kind

    def test_what_a_placement_costs_is_no_overhead(self) -> None:
        layers = read("trex_resnet18_a100/qat.graph.json")
        costs = [layer.name for layer in layers if kind_of(layer) is LayerKind.QDQ]
        assert len(costs) == 10
        assert all(name.startswith("QuantizeLinear") for name in costs)

    @pytest.mark.parametrize(
        ("sample", "floats"),
        [
            ("resnet18.fp16", 21),
            ("resnet18.weighted-ops-int8", 0),
            ("resnet18.all-int8", 0),
        ],
    )
    def test_kernels_of_libraries_tell_what_they_multiply(self, sample: str, floats: int) -> None:
        layers = read(f"trt860_h200/{sample}.graph.json")
        products = {node for layer in layers if multiplies(layer) for node in layer.nodes}
        named = [node for node in products if node.endswith(("/Conv", "/Gemm"))]
        assert len(named) == 21
        assert len(not_low_precision(operand_types(layers, named))) == floats


class TestErrors:
    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "empty"),
            ("hello", "neither JSON .* nor a log"),
            ('{"Layers": [', "cut off after 12"),
            ('{"Layers": ["a', "cut off"),
            ('{"Layers": ["a" "b"]}', "line 1, column 17"),
            ("{}", "no list under 'Layers', it is a dict"),
            ('{"Bindings": []}', "an object with .'bindings'"),
            ('{"Layers": 3}', "it is a int"),
            ('{"Layers": {"Layers": {"Layers": {"Layers": []}}}}', "no list"),
            ("3", "it is a int"),
            ("null", "a NoneType"),
            ('{"Layers": []}', "is empty"),
            ('{"Layers": [3]}', "layer 0 has no name"),
            ('{"Layers": ["a", {"Name": 7}]}', "layer 1 has no name but '7'"),
            ("[" * 100_000, "nested too deeply"),
            ('{"Layers": [' + "1" * 5000 + "]}", "can't be read"),
            ("Layers:\nName: a, LayerType: gemm, Inputs: [ { Name: x", "breaks off"),
            ("Layers:\nName: a, LayerType: ge", "not a layer"),
        ],
    )
    def test_say_what_is_wrong_and_where(self, text: str, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            parse_layer_info(text)

    def test_name_the_file(self, tmp_path: Path) -> None:
        broken = tmp_path / "broken.json"
        broken.write_bytes(b"\xff\xfe{")
        for path in (broken, tmp_path, tmp_path / "missing.json"):
            with pytest.raises(UsageError, match=path.name) as raised:
                read_layer_info(path)
            assert "--exportLayerInfo" in raised.value.hint

    def test_files_that_break_off_are_refused(self) -> None:
        text = (SAMPLES / "trt1016/model-trained-exportLayerInfo.json").read_text()
        for length in range(1, len(text.rstrip()), 61):
            with pytest.raises(ValueError, match=r"cut off|in line"):
                parse_layer_info(text[:length])


JUNK = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6),
        st.sampled_from(["\ud800", "a [profile 1]", "{ForeignNode[a...b]}", "", "_myl0_0"]),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["Layers", "Name", "LayerType", "Inputs", "Outputs", "Constants", "Weights", "Type",
                 "Count", "Metadata", "Dimensions", "Datatype", "Format/Datatype", "Bindings"]
            ),
            inner,
            max_size=6,
        ),
    ),
    max_leaves=12,
)  # fmt: skip


class TestHostileFiles:
    @given(JUNK, st.lists(st.dictionaries(st.just("Name"), JUNK) | JUNK, max_size=3))
    def test_anything_in_json_is_read_or_refused(self, junk: Any, entries: list[Any]) -> None:
        for value in (junk, {"Layers": entries, "Bindings": junk}, [{"Name": "a", "Inputs": junk}]):
            try:
                layers = info_of(value)
            except ValueError:
                continue
            map_layers(SMALL, layers)
            for layer in layers:
                assert kind_of(layer) in LayerKind
                assert layer.name.encode() is not None
                assert all(isinstance(dim, int) for each in layer.inputs for dim in each.dims)

    @given(
        st.integers(0, 6000), st.binary(min_size=1, max_size=4), st.sampled_from(["log", "json"])
    )
    def test_changed_bytes_are_read_or_refused(self, at: int, new: bytes, form: str) -> None:
        name = {"log": "result-04.log", "json": "model-trained-exportLayerInfo.json"}[form]
        content = bytearray((SAMPLES / "trt1016" / name).read_bytes())
        at += len(content) - 7000 if form == "log" else 0
        content[at : at + len(new)] = new
        try:
            info = parse_layer_info(content.decode(errors="replace"))
        except ValueError:
            return
        assert all(isinstance(layer.name, str) for layer in info)


def test_a_list_of_broken_tensors_is_searched_once() -> None:
    """It took the square of its length: minutes for this one."""
    broken = "{ Name: x, " * 50_000
    text = f"Layers:\nName: a, LayerType: gemm, Inputs: [{broken}], Outputs: []\n"
    (layer,) = parse_layer_info(text)
    assert layer.inputs == ()
