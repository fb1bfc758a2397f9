"""What TensorRT is told: options, shapes as text, and what a model file says of its outside."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import model_from_text

from qdqtune.engines._interface import InputSpec, SessionOptions
from qdqtune.engines._signature import read_signature
from qdqtune.engines.tensorrt._settings import (
    COMMON,
    Settings,
    ShapeRange,
    ShapeRequest,
    float_type_of,
    parse_shapes,
    settings_of,
    shapes_text,
    sizes_text,
)

NAMES = st.text(
    st.characters(codec="utf-8", exclude_categories=("C", "Z"), exclude_characters="'"), min_size=1
)
SIZES = st.lists(st.integers(0, 5000), max_size=5).map(tuple)
RANGES = st.lists(
    st.tuples(st.integers(1, 50), st.integers(0, 50), st.integers(0, 50)), min_size=1, max_size=4
).map(
    lambda dims: ShapeRange(
        tuple(low for low, _, _ in dims),
        tuple(low + more for low, more, _ in dims),
        tuple(low + more + most for low, more, most in dims),
    )
)


def options_of(**given: str) -> SessionOptions:
    return SessionOptions(engine_options=given)


class TestShapesAsText:
    @given(shapes=st.dictionaries(NAMES, SIZES, max_size=4))
    def test_are_read_as_they_were_written(self, shapes: dict[str, tuple[int, ...]]) -> None:
        assert parse_shapes(shapes_text(shapes)) == shapes

    @pytest.mark.parametrize(
        ("text", "shapes"),
        [
            ("", {}),
            ("x:1x3x224x224", {"x": (1, 3, 224, 224)}),
            ("x:8,y:1x2", {"x": (8,), "y": (1, 2)}),
            (" x:8, y:1x2 ", {"x": (8,), "y": (1, 2)}),
            ("s:scalar,t:", {"s": (), "t": ()}),
            ("'a:b':2x3,c:4", {"a:b": (2, 3), "c": (4,)}),
            ("'a,b':2", {"a,b": (2,)}),
            ("images/in.0:1x3", {"images/in.0": (1, 3)}),
        ],
    )
    def test_are_those_of_the_tools(self, text: str, shapes: dict[str, tuple[int, ...]]) -> None:
        assert parse_shapes(text) == shapes

    @pytest.mark.parametrize(
        "text", ["x", "1x3", "x:1x", "x:-1x3", "x:1,3", "x:?x3", ":1x3", "x:1 x 3"]
    )
    def test_nonsense_is_refused(self, text: str) -> None:
        with pytest.raises(ValueError, match="can't be read as shapes"):
            parse_shapes(text)

    def test_a_scalar_has_a_word(self) -> None:
        assert sizes_text(()) == "scalar"


class TestShapeRange:
    @given(range_=RANGES, data=st.data())
    def test_has_what_lies_between(self, range_: ShapeRange, data: st.DataObject) -> None:
        ends = zip(range_.least, range_.most, strict=True)
        shape = tuple(data.draw(st.integers(low, high)) for low, high in ends)
        assert range_.has(shape)
        place = data.draw(st.integers(0, len(shape) - 1))
        for size in (range_.least[place] - 1, range_.most[place] + 1):
            assert not range_.has((*shape[:place], size, *shape[place + 1 :]))
        assert not range_.has((*shape, 1))
        assert not range_.has(shape[1:])

    @given(range_=RANGES, data=st.data())
    def test_grows_to_the_least_that_has_both(
        self, range_: ShapeRange, data: st.DataObject
    ) -> None:
        sizes = st.integers(0, 200)
        shape = tuple(data.draw(sizes) for _ in range_.least)
        grown = range_.with_usual(shape)
        assert grown.usual == shape
        assert all(grown.has(each) for each in (range_.least, range_.most, shape))
        ends = set(zip(grown.least, range_.least, shape, strict=True))
        ends |= set(zip(grown.most, range_.most, shape, strict=True))
        assert all(end in (known, new) for end, known, new in ends)


class TestShapeRequest:
    @given(range_=RANGES, data=st.data())
    def test_all_said_is_the_range(self, range_: ShapeRange, data: st.DataObject) -> None:
        requested = ShapeRequest({"x": range_.least}, {"x": range_.usual}, {"x": range_.most})
        ends = zip(range_.least, range_.most, strict=True)
        fed = tuple(data.draw(st.integers(low, high)) for low, high in ends)
        assert requested.range_of("x", None) == requested.range_of("x", fed) == range_

    @given(range_=RANGES, data=st.data())
    def test_whatever_is_said_a_range_has_the_feed_or_refuses_it(
        self, range_: ShapeRange, data: st.DataObject
    ) -> None:
        said = [
            {"x": shape} if data.draw(st.booleans()) else {}
            for shape in (range_.least, range_.usual, range_.most)
        ]
        requested = ShapeRequest(*said)
        fed = tuple(data.draw(st.integers(0, 200)) for _ in range_.least)
        try:
            found = requested.range_of("x", fed)
        except ValueError:
            assert said[0] or said[2]  # there was a limit
            assert not range_.has(fed) or not (said[0] and said[2])
            return
        assert found is not None
        assert found.has(fed)
        assert found.has(found.usual)
        assert all(found.has(shape) for each in said for shape in each.values())

    def test_nothing_said_and_nothing_fed_is_nothing_known(self) -> None:
        assert ShapeRequest().range_of("x", None) is None
        assert ShapeRequest().range_of("x", (2, 3)) == ShapeRange((2, 3), (2, 3), (2, 3))

    @pytest.mark.parametrize(
        ("least", "most", "fed", "reason"),
        [
            ((2,), (1,), None, "don't grow from 2 over"),
            ((2,), (4,), (5,), "is 5, which is not between 2 and 4|don't grow from 2 over 5 to 4"),
        ],
    )
    def test_contradictions_are_refused(
        self, least: tuple[int, ...], most: tuple[int, ...], fed: tuple[int, ...], reason: str
    ) -> None:
        with pytest.raises(ValueError, match=reason):
            ShapeRequest({"x": least}, {}, {"x": most}).range_of("x", fed)

    @pytest.mark.parametrize(
        ("shape", "fits"), [((4, 8), True), ((0, 8), True), ((4, 9), False), ((8,), False)]
    )
    def test_shapes_have_to_fit_the_dims(self, shape: tuple[int, ...], fits: bool) -> None:
        requested = ShapeRequest(most={"x": shape})
        if fits:
            requested.check_names({"x": (None, 8)})
            return
        with pytest.raises(ValueError, match=r"whose dims are \?x8"):
            requested.check_names({"x": (None, 8)})

    def test_names_have_to_be_inputs(self) -> None:
        with pytest.raises(ValueError, match="min_shapes names the input 'z'"):
            ShapeRequest(least={"z": (1,)}).check_names({"x": (None,)})


class TestSettings:
    def test_defaults(self) -> None:
        assert settings_of(SessionOptions()) == Settings()

    def test_all_are_read(self) -> None:
        given = {
            "typing": "weak", "precision": "bf16", "level": "5", "workspace_mib": "64",
            "min_shapes": "x:1", "opt_shapes": "x:2", "max_shapes": "x:3", "device": "2",
            "plugins": f"/a.so{os.pathsep}/b.so", "timing_cache": "/t", "plan_cache": "/p",
            "cuda_graph": "0",
        }  # fmt: skip
        assert set(given) == set(COMMON)
        requested = ShapeRequest({"x": (1,)}, {"x": (2,)}, {"x": (3,)})
        assert settings_of(SessionOptions(engine_options=given)) == Settings(
            "weak", "bf16", 5, 64, requested, ("/a.so", "/b.so"), "/t", "/p", False, 2, given=given
        )

    def test_own_options_are_for_those_that_have_them(self) -> None:
        options = options_of(tactic_sources="A,B")
        assert settings_of(options, ["tactic_sources"]).tactic_sources == ("A", "B")
        with pytest.raises(ValueError, match="there is no option 'tactic_sources'; there are"):
            settings_of(options)

    @pytest.mark.parametrize(
        ("given", "reason"),
        [
            ({"typing": ""}, "typing is ''; choices: strong, weak"),
            ({"typing": "Strong"}, "choices: strong, weak"),
            ({"precision": "int8"}, "choices: fp16, bf16, fp32"),
            ({"level": "6"}, "a number from 0 to 5"),
            ({"level": "-1"}, "a number from 0 to 5"),
            ({"level": "three"}, "level is 'three'"),
            ({"workspace_mib": "0"}, "a number from 1 to"),
            ({"cuda_graph": "yes"}, "it is 0 or 1"),
            ({"device": "cuda:0"}, "device is 'cuda:0'"),
            ({"max_shapes": "x=3"}, "can't be read as shapes"),
            ({"speed": "1"}, "there is no option 'speed'"),
        ],
    )
    def test_nonsense_is_refused(self, given: dict[str, str], reason: str) -> None:
        with pytest.raises(ValueError, match=reason):
            settings_of(SessionOptions(engine_options=given))

    def test_threads_are_refused(self) -> None:
        with pytest.raises(ValueError, match="takes no number of threads"):
            settings_of(SessionOptions(threads=1))


class TestSignature:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        text = (
            "g (float[n,8] x, int64[2] ids, float16 s) => (float[n,8] y, int64[2] same)"
            "{ y = Mul(x, w) same = Identity(ids) }"
        )
        proto = model_from_text(text, w=np.ones(8, np.float32))
        value = onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [8])
        proto.graph.input.append(value)  # an input with a default, as older exporters write it
        path = tmp_path / "m.onnx"
        onnx.save(proto, path)
        return path

    def test_tells_the_outside(self, path: Path) -> None:
        signature = read_signature(path)
        assert signature.inputs == (
            InputSpec("x", "float32", ("n", 8)),
            InputSpec("ids", "int64", (2,)),
            InputSpec("s", "float16", ()),
        )
        assert list(signature.outputs.items()) == [("y", "float32"), ("same", "int64")]
        assert signature.dims == {"x": (None, 8), "ids": (2,), "s": ()}
        assert signature.open_inputs == ("x",)
        assert signature.low_types == frozenset()

    @pytest.mark.parametrize(
        ("change", "reason"),
        [
            ({}, ""),
            ({"x": np.zeros((5, 8), np.float32)}, ""),
            ({"x": np.zeros((5, 7), np.float32)}, "has the dims"),
            ({"x": np.zeros(8, np.float32)}, "has the dims"),
            ({"x": np.zeros((5, 8), np.float64)}, "is float32, its feed float64"),
            ({"w": np.zeros(8, np.float32)}, "the inputs are"),
            ({"ids": None}, "the inputs are"),
        ],
    )
    def test_feeds_have_to_fit(
        self, path: Path, change: dict[str, np.ndarray | None], reason: str
    ) -> None:
        feeds = {
            "x": np.zeros((2, 8), np.float32),
            "ids": np.zeros(2, np.int64),
            "s": np.zeros((), np.float16),
            **change,
        }
        feeds = {name: array for name, array in feeds.items() if array is not None}
        if not reason:
            read_signature(path).check_feeds(feeds)
            return
        with pytest.raises(ValueError, match=reason):
            read_signature(path).check_feeds(feeds)

    @pytest.mark.parametrize(
        ("kind", "opset", "wanted"),
        [(np.int8, 17, "int8"), (np.uint8, 17, "uint8"), (None, 17, "int8")],
    )
    def test_tells_what_is_quantized_to(
        self, tmp_path: Path, kind: type | None, opset: int, wanted: str
    ) -> None:
        zero = ", z" if kind else ""
        text = (
            "g (float[2] x) => (float[2] y)"
            f"{{ q = QuantizeLinear(x, s{zero}) y = DequantizeLinear(q, s{zero}) }}"
        )
        constants = {"s": np.array(0.1, np.float32)}
        constants |= {"z": np.array(0, kind)} if kind else {}
        onnx.save(model_from_text(text, opset, **constants), tmp_path / "q.onnx")
        assert read_signature(tmp_path / "q.onnx").low_types == {wanted}

    def test_tells_float8_that_the_output_has(self, tmp_path: Path) -> None:
        kind = onnx.TensorProto.FLOAT8E4M3FN
        text = (
            "g (float[2] x) => (float[2] y)"
            f"{{ q = QuantizeLinear<output_dtype={kind}>(x, s) y = DequantizeLinear(q, s) }}"
        )
        proto = model_from_text(text, 21, s=np.array(0.1, np.float32))
        onnx.save(proto, tmp_path / "q.onnx")
        assert "float8_e4m3fn" in read_signature(tmp_path / "q.onnx").low_types

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"this is no model", "it is not an ONNX model"),
            (b"", "it names no opset"),
            (
                onnx.helper.make_model(onnx.helper.make_graph([], "g", [], [])).SerializeToString(),
                "it has no outputs",
            ),
        ],
    )
    def test_what_is_no_model_is_refused(self, tmp_path: Path, content: bytes, reason: str) -> None:
        path = tmp_path / "m.onnx"
        path.write_bytes(content)
        with pytest.raises(ValueError, match=reason):
            read_signature(path)

    def test_inputs_have_to_be_tensors(self, tmp_path: Path) -> None:
        text = "g (seq(float[2]) x) => (float[2] y) { y = ConcatFromSequence<axis=0>(x) }"
        onnx.save(model_from_text(text), tmp_path / "m.onnx")
        with pytest.raises(ValueError, match="its input 'x' is not a tensor"):
            read_signature(tmp_path / "m.onnx")


@pytest.mark.parametrize(
    ("typing", "precision", "capability", "override", "told"),
    [
        ("strong", "fp16", "sm90", "", "tf32"),
        ("strong", "fp16", "sm90", "0", "float32"),
        ("strong", "fp16", "sm75", "", "float32"),
        ("strong", "fp16", "unknown", "", ""),
        ("weak", "fp16", "unknown", "", "float16"),
        ("weak", "bf16", "sm90", "", "bfloat16"),
        ("weak", "fp32", "sm120", "", "tf32"),
    ],
)
def test_what_float32_is_computed_in(
    monkeypatch: pytest.MonkeyPatch,
    typing: str,
    precision: str,
    capability: str,
    override: str,
    told: str,
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", override)
    assert float_type_of(typing, precision, capability) == told
