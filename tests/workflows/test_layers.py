from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune.records._errors import ModelError, QdqtuneError, UsageError
from qdqtune.records._inputs import InputRequest
from qdqtune.records._layers import BETWEEN, NAMED, LayersRecord, MappedLayer
from qdqtune.records._measurement import EngineInfo
from qdqtune.report._inspection import layers_text
from qdqtune.workflows._inspect import layers_of
from tests.conftest import model_from_text

ENGINE = EngineInfo("onnxruntime", "1", "a cpu", "avx2", threads=1)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Open in N; n0 Shape and n1 Gather are known once N is."""
    text = """
    g (float[N,4,8,8] x) => (float[N,4,8,8] y) {
        s = Shape(x)
        d = Gather(s, zero)
        c = Conv(x, w)
        y = Relu(c)
    }"""
    weights = {"w": np.ones((4, 4, 1, 1), np.float32), "zero": np.array(0)}
    proto = model_from_text(text, **weights)
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    return path


@pytest.mark.parametrize("engine", ["onnxruntime", "simulated"])
def test_layers_of_a_model(model: Path, engine: str) -> None:
    record = layers_of(model, engine=engine, threads=1, runs=2, inputs=InputRequest(dims={"N": 2}))
    assert record.engine.name == engine
    assert record.engine.threads == 1
    assert record.nodes == 4
    executed = {node for layer in record.layers if layer.executes for node in layer.nodes}
    assert executed >= {"n2", "n3"}
    assert {*executed, *record.unexecuted} == {"n0", "n1", "n2", "n3"}
    assert record.mapped_share == 1.0
    assert record.ms_by_precision["float32"] > 0
    assert sum(record.ms_by_precision.values()) == pytest.approx(record.total_ms)


def test_options_reach_the_engine(model: Path) -> None:
    options = {"graph_optimization_level": "disable_all"}
    record = layers_of(model, engine="onnxruntime", engine_options=options, runs=1)
    assert {layer.op_type for layer in record.layers} >= {"Conv", "Relu"}


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"engine": "nope"}, UsageError, "Unknown engine"),
        ({"runs": 0}, UsageError, "runs must be"),
        ({"engine_options": {"depth": "3"}}, UsageError, "unknown option 'depth'"),
        ({"inputs": InputRequest(dims={"M": 2})}, QdqtuneError, "M"),
    ],
)
def test_mistakes_are_told(
    model: Path, arguments: dict[str, object], error: type[QdqtuneError], text: str
) -> None:
    with pytest.raises(error, match=text):
        layers_of(model, **{"engine": "onnxruntime", **arguments})


def test_a_model_that_is_none_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        layers_of(tmp_path / "nothing.onnx", engine="onnxruntime")


LAYERS = (
    MappedLayer("q", "QuantizeLinear", 0.5, "float32", ("Q",), ("QuantizeLinear",), NAMED, True),
    MappedLayer("r", "Reorder", 0.25, "uint8", ("D", "C"), ("DequantizeLinear", "Conv"), BETWEEN),
    MappedLayer("c", "Conv", 2.0, "uint8", ("D", "C"), ("DequantizeLinear", "Conv"), NAMED),
    MappedLayer("free", "Reshape", 0.0, "uint8", ("R",), ("Reshape",), NAMED),
    MappedLayer("x\x1b[2J", "kernel", 1.25),
)
RECORD = LayersRecord("m.onnx", ENGINE, 5, 6, LAYERS, ("S", "T"))


def test_what_layers_come_to() -> None:
    assert RECORD.total_ms == 4.0
    assert RECORD.mapped_share == pytest.approx(2.75 / 4.0)
    assert RECORD.ms_by_precision == {"uint8": 2.25, "": 1.25, "float32": 0.5}
    assert RECORD.share(RECORD.conversions) == pytest.approx(0.125)
    assert LayersRecord("m", ENGINE, 1, 0, (), ()).mapped_share == 0.0
    value = json.loads(json.dumps(RECORD.to_dict()))
    assert (value["kind"], value["schema"]) == ("layers", 1)
    assert value["conversions"] == {"layers": 1, "share": 0.125}
    assert value["layers"][2]["nodes"] == ["D", "C"]


def rows(text: str) -> list[str]:
    lines = text.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("---"))
    return lines[first + 1 : lines.index("", first)]


def test_the_table_is_in_order_of_execution_or_of_time() -> None:
    text = layers_text(RECORD, by_time=False, max_items=40)
    shown = [line.split()[0] for line in rows(text)]
    assert shown[:3] == ["q", "r", "c"]
    assert shown[4:] == ["and"]  # the one without time is only counted
    assert "\x1b" not in text
    assert "(between) C and 1 more" in text
    assert "68.8 % of the time is mapped to nodes, 6.2 % of it" in text
    assert "uint8 2.250 ms (56.2 %), unknown 1.250 ms (31.2 %), float32" in text
    assert "1 conversion between types, 12.5 % of the time" in text
    assert "2 nodes folded away, run by no layer: S, T" in text
    text = layers_text(RECORD, by_time=True, max_items=2)
    assert [line.split()[0] for line in rows(text)] == ["c", "x\N{REPLACEMENT CHARACTER}[2J", "and"]
    assert len(rows(layers_text(RECORD, by_time=True, max_items=0))) == 5
