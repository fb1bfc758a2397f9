"""What other tools quantized is found in the model: pairs, scales, and a line on what is not."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from qdqtune import zoo
from qdqtune.autotune import QDQAutotuner
from qdqtune.calibration._random_inputs import Feeds, random_inputs
from qdqtune.graph._index import GraphIndex, values_in
from qdqtune.graph._op_classes import is_op
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq._read_back import read
from qdqtune.qdq.dialects import ONNXRUNTIME
from qdqtune.records._ranges import CalibrationSource, Ranges
from qdqtune.search._space import Space, group_ops
from qdqtune.testing._bench import SMALL
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows._imported_placement import ImportedPlacement, import_placement
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows.tuning._preflight import seeds_of
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text

TYPES = {
    "u8/s8": (QuantType.QUInt8, QuantType.QInt8),
    "s8/s8": (QuantType.QInt8, QuantType.QInt8),
}
FAST = ("resnet18", "mobilenet_v2")
RNG = np.random.default_rng(0)


class Samples(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self, samples: list[Feeds]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> Feeds | None:
        return next(self._samples, None)


def by_quantize_static(model: Path, *, preprocessed: bool, types: str = "u8/s8") -> Path:
    source, target = model, model.with_suffix(".int8.onnx")
    if preprocessed:
        source = model.with_suffix(".pre.onnx")
        quant_pre_process(model, source, skip_symbolic_shape=True)
    activations, weights = TYPES[types]
    quantize_static(
        source, target, Samples(samples(model)), quant_format=QuantFormat.QDQ, per_channel=True,
        activation_type=activations, weight_type=weights,
    )  # fmt: skip
    return target


def samples(model: Path) -> list[Feeds]:
    return list(random_inputs(GraphIndex(ir.from_proto(onnx.load(model))), 2))


def zoo_model(name: str, folder: Path) -> Path:
    path = folder / "model.onnx"
    onnx.save(zoo.build(name, **SMALL[name]), path)
    return path


def imported(model: Path, file: Path) -> ImportedPlacement:
    return import_placement(open_source(model).model, file)


@pytest.mark.parametrize(
    ("name", "types", "preprocessed"),
    [
        pytest.param(*case, marks=() if case[0] in FAST and case[2] else pytest.mark.slow)
        for case in itertools.product(SMALL, TYPES, (False, True))
    ],
)
def test_all_that_quantize_static_quantizes_is_found(
    name: str, types: str, preprocessed: bool, tmp_path: Path
) -> None:
    model = zoo_model(name, tmp_path)
    file = by_quantize_static(model, preprocessed=preprocessed, types=types)
    source = open_source(model)
    found = import_placement(source.model, file)
    assert len(found.unmapped) <= 0.05 * found.pairs
    assert found.pairs > 5
    assert found.placement.tensors <= GraphIndex(source.model).value.keys()


def renamed(file: Path) -> Path:
    """The same model, in which no tensor and no node has its name."""
    model = ir.load(file)
    for number, value in enumerate(list(values_in(model.graph))):
        value.name = f"v{number}"
    for number, node in enumerate(model.graph):
        node.name = f"op{number}"
    target = file.with_name("renamed.onnx")
    ir.save(model, target)
    return target


def test_names_do_not_matter(tmp_path: Path) -> None:
    model = zoo_model("resnet18", tmp_path)
    file = by_quantize_static(model, preprocessed=False)
    by_name, by_structure = imported(model, file), imported(model, renamed(file))
    assert by_name.pairs > 5
    assert not by_structure.unmapped
    assert by_structure.placement == by_name.placement


def test_biases_are_quantized_with_products_that_were_one_gemm(tmp_path: Path) -> None:
    """The file has nothing between a product and its bias, the model has a tensor there."""
    model = zoo_model("vit", tmp_path)
    file = by_quantize_static(model, preprocessed=True)
    source = open_source(model)
    index = GraphIndex(source.model)
    planner = QuantizationPlanner(index, ONNXRUNTIME)
    grouping = group_ops(index, planner)
    space = Space(planner, grouping.groups, {})
    placement = import_placement(source.model, file).placement
    seed = seeds_of(space, {"other tool": placement}, grouping)["other tool"]
    quantized = {name for number in seed for name in space.groups[number].nodes}
    biases = {
        node.name
        for node in index.nodes
        if node.op_type == "Add"
        and index.reads_constant(node)
        and any(is_op(value.producer(), "MatMul") for value in node.inputs if value is not None)
    }
    assert len(biases) >= 4
    assert biases <= quantized


def outputs(file: Path, feeds: Mapping[str, Any]) -> list[Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL  # as written
    session = ort.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(feeds)))


@pytest.mark.parametrize("types", TYPES)
@pytest.mark.parametrize("name", FAST)
def test_with_its_scales_the_model_computes_what_the_file_does(
    name: str, types: str, tmp_path: Path
) -> None:
    model = zoo_model(name, tmp_path)
    file = by_quantize_static(model, preprocessed=True, types=types)
    source = open_source(model, 13)
    found = import_placement(source.model, file)
    base = PreparedModel(source.model, tmp_path)
    ranges = Ranges({}, CalibrationSource.NONE)
    inserter = Inserter(base, ONNXRUNTIME, "int8", ranges, found.encodings)
    written = inserter.write(found.placement, "ours")
    (feeds, *_) = samples(model)
    for theirs, ours in zip(outputs(file, feeds), outputs(written, feeds), strict=True):
        assert np.square(theirs - ours).sum() < 1e-6 * np.square(theirs).sum()  # 60 dB


LINEAR = "g (float[2,4,8] x) => (float[2,4,8] y)"
WEIGHTS = {name: RNG.normal(size=(8, 8)).astype(np.float32) for name in ("w", "v")}


def linear(folder: Path) -> Path:
    """Two products with an activation between them."""
    text = f"{LINEAR} {{ h = MatMul(x, w) r = Relu(h) o = MatMul(r, v) y = Tanh(o) }}"
    path = folder / "model.onnx"
    onnx.save(model_from_text(text, **WEIGHTS), path)
    return path


def test_weights_stored_turned_are_found_with_their_scales(tmp_path: Path) -> None:
    """PyTorch's PT2E export stores a Linear's weight so, with a scale per row."""
    model = linear(tmp_path)
    stored = {}
    for name, weight in WEIGHTS.items():
        stored[f"{name}_scale"] = (np.abs(weight).max(axis=0) / 127).astype(np.float32)
        steps = np.rint(weight / stored[f"{name}_scale"])
        stored[f"{name}_steps"] = np.ascontiguousarray(steps.T.astype(np.int8))
        stored[f"{name}_zero"] = np.zeros(8, np.int8)
    stored |= {"s": np.float32(0.05), "z": np.uint8(128)}  # type: ignore[dict-item]
    text = f"""{LINEAR} {{
        wd = DequantizeLinear<axis=0>(w_steps, w_scale, w_zero) wt = Transpose<perm=[1,0]>(wd)
        vd = DequantizeLinear<axis=0>(v_steps, v_scale, v_zero) vt = Transpose<perm=[1,0]>(vd)
        xq = QuantizeLinear(x, s, z) xd = DequantizeLinear(xq, s, z)
        mm = MatMul(xd, wt) relu = Relu(mm)
        rq = QuantizeLinear(relu, s, z) rd = DequantizeLinear(rq, s, z)
        mm_1 = MatMul(rd, vt) y = Tanh(mm_1) }}"""
    file = tmp_path / "pt2e.onnx"
    onnx.save(model_from_text(text, **stored), file)
    found = imported(model, file)
    assert (found.pairs, found.unmapped) == (2, {})
    assert found.placement.tensors == {"x", "r", "w", "v"}
    assert found.encodings["x"].scale == np.float32(0.05)
    for name in WEIGHTS:
        np.testing.assert_array_equal(found.encodings[name].scale, stored[f"{name}_scale"])
        assert found.encodings[name].axis == 1


def other_form(folder: Path) -> Path:
    """NNCF's form: a scale of channels before a product, and an op that the model doesn't have."""
    constants = {
        **WEIGHTS, "c": np.full(8, 2.0, np.float32), "s": np.float32(0.05), "z": np.uint8(0),
        "w": WEIGHTS["w"] / 2,
    }  # fmt: skip
    text = f"""{LINEAR} {{
        m = Mul(x, c) q_m = QuantizeLinear(m, s, z) dq_m = DequantizeLinear(q_m, s, z)
        h = MatMul(dq_m, w) r = Relu(h) e = Exp(r)
        q_e = QuantizeLinear(e, s, z) dq_e = DequantizeLinear(q_e, s, z)
        l = Log(dq_e) o = MatMul(l, v) y = Tanh(o) }}"""
    file = folder / "nncf.onnx"
    onnx.save(model_from_text(text, **constants), file)  # type: ignore[arg-type]
    return file


def test_what_is_not_in_the_model_is_named_with_the_reason(tmp_path: Path) -> None:
    model, file = linear(tmp_path), other_form(tmp_path)
    found = imported(model, file)
    assert found.unmapped == {"e": "the model has no such Exp"}
    assert found.headline == (
        f"of the 2 activations that are quantized in {file}, 1 are in the model; "
        "not: e (the model has no such Exp)"
    )


def test_values_that_the_model_does_not_have_lend_it_no_scales(tmp_path: Path) -> None:
    """The product reads scaled channels in the file: its input stands for them, as they are not."""
    found = imported(linear(tmp_path), other_form(tmp_path))
    assert "x" in found.placement.tensors
    assert "x" not in found.encodings


def test_the_autotuner_imports_files(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, file = linear(tmp_path), other_form(tmp_path)
    autotuner = QDQAutotuner(model, dialect="tensorrt")
    autotuner.initialize()
    assert autotuner.import_insertion_points(file) == 1
    assert "1 are in the model; not: e (the model has no such Exp)" in caplog.text
    assert autotuner.import_insertion_points(onnx.load(file)) == 1
    assert autotuner.import_insertion_points({"m", "x"}) == 1


@pytest.mark.parametrize("keep_scales", [False, True])
def test_tune_keeps_scales_if_asked_to(keep_scales: bool, tmp_path: Path) -> None:
    text = """g (float[1,64,16,16] x) => (float[1,64,16,16] y) {
        h = Conv<pads=[1,1,1,1]>(x, w) r = Relu(h) y = Conv<pads=[1,1,1,1]>(r, w) }"""
    model = tmp_path / "model.onnx"
    weight = 0.1 * RNG.normal(size=(64, 64, 3, 3)).astype(np.float32)
    onnx.save(model_from_text(text, w=weight), model)
    file = by_quantize_static(model, preprocessed=False)
    kept = imported(model, file).encodings
    result = tune(
        model, engine="simulated", engine_options=QUIET, preset="quick", report=False,
        qdq_baseline=file, keep_scales=keep_scales, output_dir=tmp_path / "run", max_benchmarks=4,
    )  # fmt: skip
    assert not result.summary.kept_float
    written = read(ir.load(result.model)).encodings
    equal = {name for name in ("x", "r") if (kept[name].scale == written[name].scale).all()}
    assert (equal == {"x", "r"}) is keep_scales
    assert result.summary.calibration == ("given" if keep_scales else "random")
