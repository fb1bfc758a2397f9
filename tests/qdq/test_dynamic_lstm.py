"""Dynamic LSTMs: written, read back, stripped, and computed as ONNX Runtime computes them."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from qdqtune.engines._native_dialect import native_dialect
from qdqtune.graph._files import load_model
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._index import GraphIndex
from qdqtune.qdq._at_run_time import why_not_dynamic
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import canonical
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq._read_back import read, strip
from qdqtune.qdq.dialects import DIALECTS
from qdqtune.records._errors import UsageError
from qdqtune.records._placement import Placement
from qdqtune.testing._bench import model_of, nearness_db
from tests.conftest import SEVEN_BITS, model_from_text
from tests.qdq.test_round_trip import inserter_for

EXACT = sorted({native_dialect("onnxruntime").name, "onnxruntime-novnni"})
STEPS, INPUT, HIDDEN = 7, 12, 8
REFERENCE_DB, OPTIMIZED_DB, LEAST_DB = 60.0, 40.0, 25.0
LSTM = Placement.of(dynamic=["n0"])

# What an LSTM is told, and what it reads behind its weights.
CASES = {
    "forward": ("", ""),
    "reverse": ('direction="reverse",', ", b"),
    "bidirectional": ('direction="bidirectional",', ", b"),
    "initial states": ("", ", b, , h0, c0"),
    "both": ('direction="bidirectional", layout=0,', ", b, , h0, c0"),
    "lengths": ("", ", b, lengths"),
    "peepholes": ("", ", b, , h0, c0, p"),
    "coupled gates and a clip": ("input_forget=1, clip=0.7,", ", b"),
    "activations": ('activations=["HardSigmoid","Relu","Tanh"],', ", b"),
}


def lstm(case: str) -> onnx.ModelProto:
    return lstm_of(*CASES[case])


def lstm_of(
    attributes: str, operands: str, *, batch: int = 1, outputs: str = "yhc", opset: int = 17
) -> onnx.ModelProto:
    directions = 2 if "bidirectional" in attributes else 1
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return (0.4 * rng.standard_normal((directions, *shape))).astype(np.float32)

    constants = {
        "w": normal(4 * HIDDEN, INPUT), "r": normal(4 * HIDDEN, HIDDEN), "b": normal(8 * HIDDEN),
        "h0": normal(batch, HIDDEN), "c0": normal(batch, HIDDEN), "p": normal(3 * HIDDEN),
        "lengths": np.arange(STEPS - 2, STEPS - 2 + batch, dtype=np.int32) % STEPS,
    }  # fmt: skip
    read_by_it = {"w", "r", *operands.replace(" ", "").split(",")}
    state = f"float[{directions},{batch},{HIDDEN}]"
    types = {"y": f"float[{STEPS},{directions},{batch},{HIDDEN}]", "h": state, "c": state}
    results = ", ".join(f"{types[name]} {name}" for name in outputs)
    named = ", ".join(name if name in outputs else "" for name in types).rstrip(", ")
    text = (
        f"g (float[{STEPS},{batch},{INPUT}] x) => ({results}) {{"
        f" {named} = LSTM<{attributes} hidden_size={HIDDEN}>(x, w, r{operands}) }}"
    )
    used = {name: each for name, each in constants.items() if name in read_by_it}
    return model_from_text(text, opset, **used)


def feeds(batch: int = 1) -> dict[str, np.ndarray]:
    values = np.random.default_rng(9).standard_normal((STEPS, batch, INPUT))
    return {"x": values.astype(np.float32)}


def run(model: Path | bytes, inputs: dict[str, np.ndarray], *, optimized: bool = True) -> list:
    options = ort.SessionOptions()
    levels = ort.GraphOptimizationLevel
    options.graph_optimization_level = (
        levels.ORT_ENABLE_ALL if optimized else levels.ORT_DISABLE_ALL
    )
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return session.run(None, inputs)


def at_run_time(values: np.ndarray) -> np.ndarray:
    """The numbers that are left of values after DynamicQuantizeLinear."""
    low, high = np.float32(min(values.min(), 0)), np.float32(max(values.max(), 0))
    scale = (high - low) / np.float32(255) or np.float32(1)
    zero_point = np.clip(np.rint(-low / scale), 0, 255)
    steps = np.clip(np.rint(values / scale) + zero_point, 0, 255)
    return ((steps - zero_point) * scale).astype(np.float32)


def expected_of(quantized: ir.Model, case: str) -> list[np.ndarray]:
    """The outputs, by a float LSTM with the stored weights that runs one step at a time.

    Its input and its hidden states are what is left of them in eight bits.
    """
    strip(quantized)
    proto = ir.to_proto(ir.external_data.load_to_model(quantized))
    weights = {each.name: numpy_helper.to_array(each) for each in proto.graph.initializer}
    (node,) = proto.graph.node
    directions, length = len(weights["w"]), int(weights.get("lengths", [STEPS])[0])
    x = at_run_time(feeds()["x"])
    outputs = np.zeros((STEPS, directions, 1, HIDDEN), np.float32)
    states = [weights.get(name, np.zeros((directions, 1, HIDDEN), np.float32)).copy()
              for name in ("h0", "c0")]  # fmt: skip
    told = [each for each in node.attribute if each.name not in ("direction", "layout")]
    for number in range(directions):
        own = {name: each[number : number + 1] for name, each in weights.items()
               if name in ("w", "r", "b", "p")}  # fmt: skip
        step = model_from_text(
            f"g (float[1,1,{INPUT}] x, float[1,1,{HIDDEN}] h0, float[1,1,{HIDDEN}] c0) =>"
            f" (float[1,1,1,{HIDDEN}] y, float[1,1,{HIDDEN}] h, float[1,1,{HIDDEN}] c)"
            f" {{ y, h, c = LSTM(x, w, r, {'b' if 'b' in own else ''}, , h0, c0"
            f"{', p' if 'p' in own else ''}) }}",
            **own,
        )
        step.graph.node[0].attribute.extend(told)
        session = ort.InferenceSession(step.SerializeToString(), providers=["CPUExecutionProvider"])
        hidden, cell = (each[number : number + 1] for each in states)
        is_reverse = number == 1 or case == "reverse"
        order = range(length)[::-1] if is_reverse else range(length)
        for position in order:
            inputs = {"x": x[position : position + 1], "h0": at_run_time(hidden), "c0": cell}
            y, hidden, cell = session.run(None, inputs)
            outputs[position, number] = y[0, 0]
        states[0][number], states[1][number] = hidden[0], cell[0]
    return [outputs, *states]


def write(case: str, dialect: str, quant_type: str, folder: Path) -> tuple[Inserter, Path]:
    inserter = inserter_for(lstm(case), DIALECTS[dialect], quant_type, str(folder))
    return inserter, inserter.write(LSTM, "candidate")


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("quant_type", ["int8", "uint8"])
@pytest.mark.parametrize("dialect", EXACT)
def test_the_kernel_computes_what_is_written(
    dialect: str, quant_type: str, case: str, tmp_path: Path
) -> None:
    _, path = write(case, dialect, quant_type, tmp_path)
    plain, optimized = (run(path, feeds(), optimized=each) for each in (False, True))
    for expected, found, other in zip(
        expected_of(load_model(path), case), plain, optimized, strict=True
    ):
        assert nearness_db(expected, found) >= REFERENCE_DB
        assert nearness_db(found, other) >= OPTIMIZED_DB


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("quant_type", ["int8", "uint8"])
def test_round_trip(quant_type: str, case: str, tmp_path: Path) -> None:
    inserter, path = write(case, "onnxruntime", quant_type, tmp_path)
    onnx.checker.check_model(str(path), full_check=True)
    candidate = load_model(path)
    assert candidate.opset_imports["com.microsoft"] == 1
    reading = read(candidate)
    assert reading.placement == canonical(inserter.index, LSTM)
    assert reading.left == 0
    assert strip(candidate, weights_from=inserter.index.model).rounded == 0
    assert fingerprint(candidate) == fingerprint(inserter.index.model)


@given(
    direction=st.sampled_from(["forward", "reverse", "bidirectional"]),
    operands=st.sampled_from(
        ["", ", b", ", b, lengths", ", b, , h0, c0", ", , lengths, h0, c0, p"]
    ),
    outputs=st.sampled_from(["y", "h", "c", "hc", "yc", "yhc"]),
    batch=st.integers(1, 3),
    opset=st.sampled_from([7, 13, 14, 17, 22]),
    quant_type=st.sampled_from(["int8", "uint8"]),
)
def test_any_lstm_is_written_and_read_back(
    direction: str, operands: str, outputs: str, batch: int, opset: int, quant_type: str
) -> None:
    model = lstm_of(
        f'direction="{direction}",', operands, batch=batch, outputs=outputs, opset=opset
    )
    with tempfile.TemporaryDirectory() as folder:
        inserter = inserter_for(model, DIALECTS[EXACT[0]], quant_type, folder)
        path = inserter.write(LSTM, "candidate")
        onnx.checker.check_model(str(path), full_check=True)
        plain, optimized = (run(path, feeds(batch), optimized=each) for each in (False, True))
        original = run(model.SerializeToString(), feeds(batch))
        for expected, found, other in zip(original, plain, optimized, strict=True):
            assert nearness_db(found, other) >= OPTIMIZED_DB
            assert nearness_db(expected, found) >= LEAST_DB
        candidate = load_model(path)
        assert read(candidate).placement == canonical(inserter.index, LSTM)
        assert strip(candidate, weights_from=inserter.index.model).rounded == 0
        assert fingerprint(candidate) == fingerprint(inserter.index.model)


def test_it_loses_what_eight_bits_lose(tmp_path: Path) -> None:
    inserter, path = write("both", EXACT[0], "int8", tmp_path)
    original = run(inserter.base.write(inserter.base.whole(), "float"), feeds())
    assert 30.0 < nearness_db(original[0], run(path, feeds())[0]) < 60.0


def test_only_a_model_that_needs_it_imports_the_domain(tmp_path: Path) -> None:
    inserter, _ = write("forward", "onnxruntime", "int8", tmp_path)
    assert [each.domain for each in inserter.proto(Placement()).opset_import] == [""]


def test_no_float_weight_stays(tmp_path: Path) -> None:
    _, path = write("both", "onnxruntime", "int8", tmp_path)
    names = load_model(path).graph.initializers
    assert {"w", "r"}.isdisjoint(names)
    assert {"b", "h0", "c0"}.issubset(names)


@pytest.mark.parametrize(("dialect", "most"), [("onnxruntime", 127), ("onnxruntime-novnni", 64)])
def test_weights_have_seven_bits_without_vnni(dialect: str, most: int, tmp_path: Path) -> None:
    """Its products are those of MatMul, which saturate."""
    _, path = write("forward", dialect, "int8", tmp_path)
    stored = [each.const_value for each in load_model(path).graph.initializers.values()]
    peaks = [np.abs(each.numpy().astype(int)).max() for each in stored
             if each is not None and each.dtype == ir.DataType.INT8 and each.size > 2]  # fmt: skip
    assert peaks == [most, most]


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("case", ["forward", "both"])
def test_files_of_quantize_dynamic(case: str, per_channel: bool, tmp_path: Path) -> None:
    model = lstm(case)
    del model.graph.node[0].attribute[:]
    model.graph.node[0].attribute.extend(
        each for each in lstm(case).graph.node[0].attribute if each.name != "layout"
    )  # ONNX Runtime's quantizer writes it, and ONNX Runtime refuses it
    onnx.save(model, tmp_path / "float.onnx")
    quantize_dynamic(
        tmp_path / "float.onnx", tmp_path / "dynamic.onnx", per_channel=per_channel,
        weight_type=QuantType.QInt8, reduce_range=SEVEN_BITS,
    )  # fmt: skip
    given, original = load_model(tmp_path / "dynamic.onnx"), load_model(tmp_path / "float.onnx")
    expected = run(tmp_path / "dynamic.onnx", feeds())
    for wanted, found in zip(expected_of(given.clone(), case), expected, strict=True):
        assert nearness_db(wanted, found) >= REFERENCE_DB
    reading = strip(given, weights_from=original)
    assert (reading.placement.dynamic, reading.left, reading.rounded) == ({"n0"}, 0, 0)
    assert fingerprint(given) == fingerprint(original)


def broken(change: str) -> ir.Model:
    """A dynamic LSTM that some tool wrote wrongly."""
    model = model_of(
        '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>'
        "g (float[2,1,3] x) => (float[2,1,1,2] y) { y = com.microsoft.DynamicQuantizeLSTM"
        "<hidden_size=2>(x, w, r, , , , , , ws, wz, rs, rz) }",
    )
    arrays = {"w": np.ones((1, 3, 8), np.int8), "r": np.ones((1, 2, 8), np.int8)}
    for name in "wr":
        arrays |= {f"{name}s": np.ones(1, np.float32), f"{name}z": np.zeros(1, np.int8)}
    if change == "scales":
        arrays["ws"] = np.ones(3, np.float32)
    elif change == "type":
        arrays["rz"] = np.zeros(1, np.uint8)
    elif change == "rank":
        arrays["w"] = np.ones((3, 8), np.int8)
    elif change == "weight":
        del arrays["w"]
        model.graph.input.add().CopyFrom(
            onnx.helper.make_tensor_value_info("w", onnx.TensorProto.INT8, [1, 3, 8])
        )
    elif change == "label":
        model.graph.node[0].doc_string = 'multiplies by {"weights": 3}'
    model.graph.initializer.extend(numpy_helper.from_array(v, n) for n, v in arrays.items())
    return ir.from_proto(model)


@pytest.mark.parametrize("change", ["scales", "type", "rank", "weight"])
def test_what_is_no_lstm_stays(change: str) -> None:
    model = broken(change)
    assert not strip(model).placement
    assert model.graph[0].op_type == "DynamicQuantizeLSTM"


def test_a_label_that_others_set_counts_for_nothing() -> None:
    model = broken("label")
    assert strip(model).placement.dynamic == {"n0"}
    assert model.graph[0].op_type == "LSTM"


def why_not(model: onnx.ModelProto, dialect: str = "onnxruntime") -> str:
    index = GraphIndex(ir.from_proto(model))
    return why_not_dynamic(index, DIALECTS[dialect], index.node["n0"])


def test_why_an_lstm_is_not_dynamic() -> None:
    assert not why_not(lstm("peepholes"))
    assert "does not quantize the input of LSTM" in why_not(lstm("forward"), "openvino")
    gru = lstm("forward")
    gru.graph.node[0].op_type = "GRU"
    assert "does not quantize the input of GRU" in why_not(gru)
    first = lstm("both")
    next(each for each in first.graph.node[0].attribute if each.name == "layout").i = 1
    assert "layout 1" in why_not(first)
    half = lstm("forward")
    for each in half.graph.initializer:
        each.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(each).astype("f2"), each.name))
    half.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    assert "it reads float16 tensors" in why_not(half)
    open_weights = lstm("forward")
    del open_weights.graph.initializer[0]
    open_weights.graph.input.add().CopyFrom(
        onnx.helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [1, 4 * HIDDEN, INPUT])
    )
    assert why_not(open_weights) == "its weights are not constants"
    infinite = lstm("forward")
    values = numpy_helper.to_array(infinite.graph.initializer[1]).copy()
    values[0, 0, 0] = np.inf
    infinite.graph.initializer[1].CopyFrom(numpy_helper.from_array(values, "r"))
    assert "'r' holds infinite" in why_not(infinite)


@pytest.mark.parametrize(
    ("op_type", "attribute", "dialect", "reason"),
    [
        ("LSTM", {}, "onnxruntime", "onnxruntime quantizes LSTM only at run time"),
        ("LSTM", {"layout": 1}, "onnxruntime", "no kernel takes the batch first (layout 1)"),
        ("LSTM", {}, "openvino", "openvino has no integer kernel for LSTM"),
        ("GRU", {}, "onnxruntime", "onnxruntime has no integer kernel for GRU"),
    ],
)
def test_why_it_stays_float_without_dynamic_ops(
    op_type: str, attribute: dict[str, int], dialect: str, reason: str
) -> None:
    model = lstm("forward")
    model.graph.node[0].op_type = op_type
    model.graph.node[0].attribute.extend(
        onnx.helper.make_attribute(*each) for each in attribute.items()
    )
    index = GraphIndex(ir.from_proto(model))
    planner = QuantizationPlanner(index, DIALECTS[dialect], "int8")
    assert planner.left_float == {"n0": reason}


def test_a_weight_is_quantized_once(tmp_path: Path) -> None:
    inserter = inserter_for(lstm("forward"), DIALECTS["onnxruntime"], "int8", str(tmp_path))
    with pytest.raises(UsageError, match="quantizes 'r' for 'n0', which is dynamic"):
        inserter.serialized(Placement.of([("r", "n0", 2)], dynamic=["n0"]))
