"""Errors layer by layer, against numbers worked out by hand and against the tensors themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from qdqtune import zoo
from qdqtune._command_configs import InsertConfig
from qdqtune.calibration._layer_errors import Wiring, op_errors, own_errors
from qdqtune.calibration._layer_errors_pairs import Pairing
from qdqtune.calibration._random_inputs import random_inputs
from qdqtune.calibration._ranges import collect_ranges
from qdqtune.engines._worker import OpenModel, Worker
from qdqtune.graph._files import load_model, save_model
from qdqtune.graph._folding import fold
from qdqtune.graph._opset import raise_opset
from qdqtune.graph._precision import convert_precision
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.records._accuracy import OpError, TensorError
from qdqtune.records._errors import EngineError, ModelError
from qdqtune.records._precision import Precision
from qdqtune.records._ranges import CalibrationSource, Ranges
from qdqtune.workflows._insert import select
from tests.conftest import model_from_text

Feeds = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker() as started:
        yield started


def saved(folder: Path, *models: onnx.ModelProto) -> list[Path]:
    paths = [folder / f"{number}.onnx" for number in range(len(models))]
    for model, path in zip(models, paths, strict=True):
        onnx.save(model, path)
    return paths


def accumulated_errors(
    worker: Worker, original: Path, quantized: Path, samples: list[Feeds]
) -> dict[str, OpError]:
    pairing = Pairing(load_model(original), load_model(quantized))
    return op_errors(worker, pairing, Wiring.ACCUMULATED, samples, original.parent)


def scalars(**values: object) -> dict[str, np.ndarray]:
    return {name: np.array(value) for name, value in values.items()}


TWO_OPS = "g (float[4] x) => (float[4] y) { a = Add(x, c) y = Mul(a, k) }"
TWO_OPS_QUANTIZED = """
g (float[4] x) => (float[4] y) {
    xq = QuantizeLinear(x, one, zero)
    xd = DequantizeLinear(xq, one, zero)
    a = Add(xd, c)
    aq = QuantizeLinear(a, four, zero)
    ad = DequantizeLinear(aq, four, zero)
    y = Mul(ad, k)
}"""
CONSTANTS = scalars(c=np.float32(10), k=np.float32(3))
STEPS = scalars(one=np.float32(1), four=np.float32(4), zero=np.int8(0))
X = np.array([0.4, 1.6, -0.4, 3], np.float32)


def two_ops() -> tuple[onnx.ModelProto, onnx.ModelProto]:
    quantized = model_from_text(TWO_OPS_QUANTIZED, **CONSTANTS, **STEPS)
    names = {"a": "n0", "y": "n1"}
    for node in quantized.graph.node:
        node.name = names.get(node.output[0], node.output[0])
    return model_from_text(TWO_OPS, **CONSTANTS), quantized


def test_two_ops_by_hand(worker: Worker, tmp_path: Path) -> None:
    original, quantized = saved(tmp_path, *two_ops())
    own = own_errors(worker, original, quantized, [{"x": X}] * 2)
    accumulated = accumulated_errors(worker, original, quantized, [{"x": X}])
    # x becomes 0, 2, 0, 3, so a is 10, 12, 10, 13 instead of 10.4, 11.6, 9.6, 13.
    assert own["n0"].noise == pytest.approx(2 * 0.48, rel=1e-4)
    assert own["n0"].signal == pytest.approx(2 * 503.88)
    assert own["n0"].max_error == pytest.approx(0.4, rel=1e-4)
    assert own["n0"].max_value == pytest.approx(13)
    assert accumulated["n0"].noise == pytest.approx(0.48, rel=1e-4)
    # Steps of 4 make 12, 12, 8, 12 of the float a, and 8, 12, 8, 12 of the other one.
    assert own["n1"].noise == pytest.approx(2 * 9 * 6.28, rel=1e-4)
    assert accumulated["n1"].noise == pytest.approx(9 * 9.48, rel=1e-4)
    assert accumulated["n1"].max_error == pytest.approx(7.2, rel=1e-4)
    floats, off = 3 * (X + 10), 3 * np.array([8, 12, 8, 12])
    cosine = floats @ off / np.linalg.norm(floats) / np.linalg.norm(off)
    assert accumulated["n1"].cosine == pytest.approx(cosine, abs=1e-6)
    assert (own["n1"].op_type, own["n1"].tensor, own["n1"].inputs) == ("Mul", "y", ("int8",))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.onnx", "1.onnx"]


@pytest.mark.parametrize(
    ("error", "sqnr_db", "cosine"),
    [
        (TensorError(signal=4, power=4), np.inf, 1),
        (TensorError(), np.inf, 1),
        (TensorError(signal=4, noise=4), 0, 0),
        (TensorError(noise=1, power=1), -np.inf, 0),
        (TensorError(signal=1, noise=4, power=1), -6.0206, -1),
        (TensorError(signal=1, noise=np.nan, power=np.nan), -np.inf, np.nan),
    ],
)
def test_what_follows_from_the_sums(error: TensorError, sqnr_db: float, cosine: float) -> None:
    assert error.sqnr_db == pytest.approx(sqnr_db)
    assert error.cosine == pytest.approx(cosine, nan_ok=True)
    assert set(error.to_dict()) == {"sqnr_db", "cosine", "max_error", "max_value"}


@dataclass(frozen=True)
class Prepared:
    """A model that can be quantized in many ways, and its float form as a file."""

    base: PreparedModel
    ranges: Ranges
    samples: list[Feeds]
    original: Path

    def quantized(
        self, dialect: str, quant_type: str = "int8", nodes: tuple[str, ...] = ()
    ) -> Path:
        index, dialect_choice = self.base.index, DIALECTS[dialect]
        ops = () if nodes else ("Conv", "Gemm", "Add")
        config = InsertConfig(ops=ops, nodes=nodes, quant_type=quant_type)
        placement = select(index, dialect_choice, config).placement
        inserter = Inserter(self.base, dialect_choice, quant_type, self.ranges)
        return inserter.write(placement, f"{dialect}-{quant_type}-{len(nodes)}")


@pytest.fixture(scope="module")
def resnet(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    model = ir.from_proto(zoo.build("resnet18", width=8, image=32))
    fold(model)
    raise_opset(model, 19)
    base = PreparedModel(model, tmp_path_factory.mktemp("errors"))
    samples = list(random_inputs(base.index, 2))
    ranges = collect_ranges(base, worker, samples, CalibrationSource.RANDOM)
    return Prepared(base, ranges, samples, base.write(base.whole(), "float"))


FORMATS = [
    (name, kind)
    for name, dialect in DIALECTS.items()
    if not name.endswith("-novnni")
    for kind in dialect.formats
]


@pytest.mark.parametrize(("dialect", "quant_type"), FORMATS)
def test_one_quantized_op_has_its_own_error_only(
    dialect: str, quant_type: str, worker: Worker, resnet: Prepared
) -> None:
    quantized = resnet.quantized(dialect, quant_type, ("layer2.0.conv2",))
    (own, *rest) = own_errors(worker, resnet.original, quantized, resnet.samples).values()
    accumulated = accumulated_errors(worker, resnet.original, quantized, resnet.samples)
    assert own.node == "layer2.0.conv2"
    assert own.op_type == "Conv"
    assert 20 < own.sqnr_db < 60
    assert accumulated[own.node].sqnr_db == pytest.approx(own.sqnr_db, abs=0.01)
    assert all(each.op_type != "Conv" for each in rest)


def test_accumulated_errors_are_those_of_the_tensors(worker: Worker, resnet: Prepared) -> None:
    quantized = resnet.quantized("tensorrt")
    found = accumulated_errors(worker, resnet.original, quantized, resnet.samples)
    names = [error.tensor for error in found.values()]
    expected, actual = (
        everything(path, names, resnet.samples) for path in (resnet.original, quantized)
    )
    assert len(found) > 25
    for error in found.values():
        signal, off = expected[error.tensor], actual[error.tensor] - expected[error.tensor]
        sqnr_db = 10 * np.log10((signal**2).sum() / (off**2).sum())
        assert error.sqnr_db == pytest.approx(sqnr_db, abs=0.01)
        assert error.max_error == pytest.approx(abs(off).max(), rel=1e-4)
        assert error.max_value == pytest.approx(abs(signal).max(), rel=1e-4)


def everything(path: Path, tensors: list[str], samples: list[Feeds]) -> dict[str, np.ndarray]:
    """The tensors of a model, of all samples."""
    model = onnx.load(path)
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in tensors)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    runs = [session.run(tensors, feeds) for feeds in samples]
    return {name: np.stack(each) for name, *each in zip(tensors, *runs, strict=True)}


def test_only_the_layer_that_is_bad_has_a_bad_error_of_its_own(
    worker: Worker, resnet: Prepared
) -> None:
    quantized = resnet.quantized("openvino")
    model = onnx.load(quantized, load_external_data=False)
    (scale,) = (
        each for each in model.graph.initializer if each.name == "layer2.0.relu1_output_scale"
    )
    wide = 50 * onnx.numpy_helper.to_array(scale)
    scale.CopyFrom(onnx.numpy_helper.from_array(wide, scale.name))
    onnx.save(model, quantized)
    own = own_errors(worker, resnet.original, quantized, resnet.samples)
    accumulated = accumulated_errors(worker, resnet.original, quantized, resnet.samples)
    assert [node for node, error in own.items() if error.sqnr_db < 20] == ["layer2.0.conv2"]
    off = [node for node, error in accumulated.items() if error.sqnr_db < 15]
    assert off[0] == "layer2.0.conv2"
    assert accumulated["layer2.0.add"].sqnr_db < own["layer2.0.add"].sqnr_db - 10


def test_weights_in_a_file_beside_the_models_are_not_copied(
    worker: Worker, resnet: Prepared, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    release = Worker.release

    def note(worker: Worker, opened: OpenModel) -> None:
        beside = resnet.original.parent.glob("errors-*.data")
        written.extend(file.stat().st_size for file in beside)
        release(worker, opened)

    monkeypatch.setattr(Worker, "release", note)
    own_errors(worker, resnet.original, resnet.quantized("onnxruntime"), resnet.samples)
    assert written == [0]
    assert not list(resnet.original.parent.glob("errors-*"))


# Masks: the largest of numbers, and infinity.


@pytest.mark.parametrize("mask", [-np.inf, np.finfo(np.float32).min])
def test_masks_are_left_out(mask: float, worker: Worker, tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[4] y) { y = Add(x, m) }"
    quantized = """
    g (float[4] x) => (float[4] y) {
        xq = QuantizeLinear(x, one, zero)
        xd = DequantizeLinear(xq, one, zero)
        y = Add(xd, m)
    }"""
    masks = np.array([0, mask, 0, 0], np.float32)
    models = [model_from_text(text, m=masks), model_from_text(quantized, m=masks, **STEPS)]
    (error,) = own_errors(worker, *saved(tmp_path, *models), [{"x": X}] * 2).values()
    assert error.noise == pytest.approx(2 * 0.32, rel=1e-4)
    assert error.signal == pytest.approx(2 * (0.16 + 0.16 + 9), rel=1e-4)
    assert error.max_value == pytest.approx(3)


def test_what_is_no_number_in_the_quantized_model_only_is_lost(
    worker: Worker, tmp_path: Path
) -> None:
    text = "g (float[4] x) => (float[4] y) { y = Log(x) }"
    quantized = """
    g (float[4] x) => (float[4] y) {
        xq = QuantizeLinear(x, one, zero)
        xd = DequantizeLinear(xq, one, zero)
        y = Log(xd)
    }"""
    models = [model_from_text(text), model_from_text(quantized, **STEPS)]
    (error,) = own_errors(worker, *saved(tmp_path, *models), [{"x": abs(X)}]).values()
    assert error.sqnr_db == -np.inf
    assert error.max_error == np.inf


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.BF16])
def test_half_precision(precision: Precision, worker: Worker, tmp_path: Path) -> None:
    original, quantized = (ir.from_proto(model) for model in two_ops())
    both = []
    for name, model in (("float", original), ("quantized", quantized)):
        convert_precision(model, precision)
        both.append(save_model(model, tmp_path / f"{name}.onnx"))
    errors = own_errors(worker, *both, [{"x": X}])
    assert errors["n0"].noise == pytest.approx(0.48, rel=0.02)
    assert errors["n1"].noise == pytest.approx(9 * 6.28, rel=0.02)


def test_a_quantized_model_in_another_float_type(worker: Worker, tmp_path: Path) -> None:
    original, quantized = two_ops()
    half = ir.from_proto(quantized)
    convert_precision(half, Precision.FP16)
    paths = [*saved(tmp_path, original), save_model(half, tmp_path / "half.onnx")]
    assert own_errors(worker, *paths, [{"x": X}])["n1"].noise == pytest.approx(9 * 6.28, rel=0.02)


def test_an_older_opset_is_raised(worker: Worker, tmp_path: Path) -> None:
    original, quantized = two_ops()
    original.opset_import[0].version = 11
    errors = own_errors(worker, *saved(tmp_path, original, quantized), [{"x": X}])
    assert errors["n1"].noise == pytest.approx(9 * 6.28, rel=1e-4)


# How other tools name things.

CONV = "g (float[1,2,3,3] x) => (float[1,2,3,3] y) {"
WEIGHTS = {"w": np.array([[1, 2], [-3, 1]], np.float32).reshape(2, 2, 1, 1)}
BATCH_NORM = {
    name: np.array(values, np.float32)
    for name, values in {"g": [2, 3], "b": [0.1, -0.1], "m": [0.05, 0], "v": [1, 1]}.items()
}
PAIR = """
    q{0} = QuantizeLinear({0}, {1}, {2})
    d{0} = DequantizeLinear(q{0}, {1}, {2})
"""
X_PAIR = PAIR.format("x", "step", "zero")
FINE = scalars(step=np.float32(1 / 100), zero=np.int8(0), unsigned=np.uint8(0))

FOREIGN = {
    "the graph output's own name is behind the pair": (
        "y = Conv(x, w) }",
        X_PAIR
        + """
        y_input = Conv(dx, w)
        qy = QuantizeLinear(y_input, step, zero)
        y = DequantizeLinear(qy, step, zero) }""",
    ),
    "a Relu is left to a Q, and the Conv keeps its name": (
        "c = Conv(x, w) r = Relu(c) y = Neg(r) }",
        X_PAIR + "c = Conv(dx, w)" + PAIR.format("c", "step", "unsigned") + "y = Neg(dc) }",
    ),
    "a Relu is left to a Q, and the Conv has the Relu's name": (
        "c = Conv(x, w) r = Relu(c) y = Neg(r) }",
        X_PAIR + "r = Conv(dx, w)" + PAIR.format("r", "step", "unsigned") + "y = Neg(dr) }",
    ),
    "a Conv that took a BatchNormalization in has its name": (
        "c = Conv(x, w) r = BatchNormalization<epsilon=0.>(c, g, b, m, v) y = Neg(r) }",
        X_PAIR + "r = Conv(dx, folded, bias)" + PAIR.format("r", "step", "zero") + "y = Neg(dr) }",
    ),
    "a Conv that took a BatchNormalization in keeps its own name": (
        "c = Conv(x, w) r = BatchNormalization<epsilon=0.>(c, g, b, m, v) y = Neg(r) }",
        X_PAIR + "c = Conv(dx, folded, bias)" + PAIR.format("c", "step", "zero") + "y = Neg(dc) }",
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_names_that_other_tools_give(case: str, worker: Worker, tmp_path: Path) -> None:
    folded = WEIGHTS["w"] * BATCH_NORM["g"].reshape(2, 1, 1, 1)
    bias = BATCH_NORM["b"] - BATCH_NORM["m"] * BATCH_NORM["g"]
    constants = {**WEIGHTS, **BATCH_NORM, **FINE, "folded": folded, "bias": bias}
    models = [model_from_text(CONV + body, **constants) for body in FOREIGN[case]]
    x = np.random.default_rng(0).uniform(-0.1, 0.1, (1, 2, 3, 3)).astype(np.float32)
    paths = saved(tmp_path, *models)
    own = own_errors(worker, *paths, [{"x": x}])
    accumulated = accumulated_errors(worker, *paths, [{"x": x}])
    assert [error.op_type for error in own.values()] in (["Conv"], ["Conv", "Neg"])
    for errors in (own, accumulated):
        assert all(20 < error.sqnr_db < 60 for error in errors.values())


def test_equal_names_of_different_things_are_no_pair(worker: Worker, tmp_path: Path) -> None:
    original = model_from_text("g (float[4] x) => (float[4] y) { t = Neg(x) y = Abs(t) }")
    quantized = model_from_text(
        """
        g (float[4] x) => (float[4] y) {
            xq = QuantizeLinear(x, one, zero)
            xd = DequantizeLinear(xq, one, zero)
            t = Exp(xd)
            y = Abs(t)
        }""",
        **STEPS,
    )
    pairing = Pairing(*(load_model(path) for path in saved(tmp_path, original, quantized)))
    assert [op.tensor for op in pairing.ops] == ["y"]
    assert [node.op_type for node in pairing.unpaired] == ["Exp"]


def test_bodies_that_read_what_is_quantized(worker: Worker, tmp_path: Path) -> None:
    body = """
        y = If (yes) <
            then_branch = then_graph () => (float[4] t) { t = Mul({0}, k) },
            else_branch = else_graph () => (float[4] e) { e = Neg({0}) }
        >"""
    head = "g (float[4] x, bool yes) => (float[4] y, float[4] z) {"
    original = head + body.replace("{0}", "x") + " z = Neg(x) }"
    quantized = head + """
        xq = QuantizeLinear(x, one, zero)
        xd = DequantizeLinear(xq, one, zero)
        z = Neg(xd)
    """ + body.replace("{0}", "xd") + "}"  # fmt: skip
    models = [model_from_text(text, **CONSTANTS, **STEPS) for text in (original, quantized)]
    paths = saved(tmp_path, *models)
    feeds = {"x": X, "yes": np.array(True)}
    own = {error.op_type: error for error in own_errors(worker, *paths, [feeds]).values()}
    assert own["If"].noise == pytest.approx(9 * 0.48, rel=1e-4)
    assert own["Neg"].noise == pytest.approx(0.48, rel=1e-4)
    accumulated = accumulated_errors(worker, *paths, [feeds])
    assert [error.op_type for error in accumulated.values()] == ["Neg"]


def test_results_of_no_fixed_length_are_compared_alone_only(worker: Worker, tmp_path: Path) -> None:
    text = "g (float[4] x) => (float[?] y) { p = Cast<to=9>({0}) c = Compress(x, p) y = Neg({1}) }"
    quantized = text.replace("{ p", "{ " + PAIR.format("x", "one", "zero") + " p").replace(
        " y =", PAIR.format("c", "one", "zero") + " y ="
    )
    models = [
        model_from_text(text.replace("{0}", "x").replace("{1}", "c")),
        model_from_text(quantized.replace("{0}", "dx").replace("{1}", "dc"), **STEPS),
    ]
    paths = saved(tmp_path, *models)
    (error,) = own_errors(worker, *paths, [{"x": X}]).values()
    assert error.noise == pytest.approx(0.48, rel=1e-4)
    assert accumulated_errors(worker, *paths, [{"x": X}]) == {}


def test_nothing_quantized_nothing_to_run(worker: Worker, tmp_path: Path) -> None:
    original, _ = two_ops()
    assert own_errors(worker, *saved(tmp_path, original, original), []) == {}


def test_no_samples(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="nothing to run"):
        own_errors(worker, *saved(tmp_path, *two_ops()), [])


def test_a_model_that_does_not_run(worker: Worker, tmp_path: Path) -> None:
    paths = saved(tmp_path, *two_ops())
    with pytest.raises(EngineError, match="side by side"):
        own_errors(worker, *paths, [{"x": np.zeros(3, np.float32)}])
    assert sorted(file.name for file in tmp_path.iterdir()) == ["0.onnx", "1.onnx"]
