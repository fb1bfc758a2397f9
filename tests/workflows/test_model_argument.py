"""What goes in wherever a model goes in, and what users get back."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import qdqtune
from qdqtune import zoo
from qdqtune.cli.main import main
from qdqtune.graph import _files as files
from qdqtune.records._errors import ModelError, QdqtuneError, UsageError
from qdqtune.records._results import Result
from qdqtune.workflows._arguments import as_file
from qdqtune.workflows.tuning._time_budget import PRESETS
from tests.conftest import model_from_text

HOSTILE = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def proto() -> onnx.ModelProto:
    weights = np.random.default_rng(0).normal(size=(16, 16)).astype(np.float32)
    return model_from_text(
        "g (float[N, 16] x) => (float[N, 16] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }",
        w=weights,
        v=weights.T.copy(),
    )


@pytest.fixture(scope="module")
def quantized(proto: onnx.ModelProto) -> onnx.ModelProto:
    report = qdqtune.insert(proto, ops=["MatMul"], dialect="onnxruntime")
    assert isinstance(report.model, onnx.ModelProto)
    return report.model


FORMS: dict[str, Callable[[onnx.ModelProto, Path], Any]] = {
    "str": lambda proto, folder: str(_saved(proto, folder)),
    "path": lambda proto, folder: _saved(proto, folder),
    "proto": lambda proto, _: proto,
    "ir": lambda proto, _: ir.from_proto(proto),
}


def _saved(proto: onnx.ModelProto, folder: Path) -> Path:
    onnx.save(proto, folder / "model.onnx")
    return folder / "model.onnx"


def _with_output(function: Callable[..., Any], given: Any, folder: Path, **more: Any) -> Any:
    is_path = isinstance(given, str | Path)
    return function(given, folder / "out.onnx" if is_path else None, **more)


CALLS: dict[str, Callable[[Any, onnx.ModelProto, Path], Any]] = {
    "inspect": lambda given, _, __: qdqtune.inspect(given, dialect="onnxruntime"),
    "bench": lambda given, _, __: qdqtune.bench([given, given], engine="simulated", runs=2),
    "compare": lambda given, quantized, _: qdqtune.compare(given, quantized, samples=1),
    "layers_of": lambda given, _, __: qdqtune.layers_of(given, engine="simulated"),
    "groups_of": lambda given, _, __: qdqtune.groups_of(given, engine="simulated"),
    "verify": lambda given, quantized, _: qdqtune.verify(
        quantized, against=given, engine="simulated", runs=2
    ),
    "insert": lambda given, _, folder: _with_output(
        qdqtune.insert, given, folder, ops=["MatMul"], dialect="onnxruntime"
    ),
    "optimize": lambda given, _, folder: _with_output(qdqtune.optimize, given, folder),
    "quantize": lambda given, _, folder: _with_output(
        qdqtune.quantize, given, folder, engine="tensorrt", min_sqnr_db=None
    ),
    "strip": lambda given, quantized, _: qdqtune.strip(quantized, weights_from=given),
}


@pytest.mark.parametrize(
    ("name", "form"),
    [("inspect", "str"), *((name, form) for name in CALLS for form in ("path", "proto", "ir"))],
)
def test_every_form_goes_in_everywhere(
    name: str, form: str, proto: onnx.ModelProto, quantized: onnx.ModelProto, tmp_path: Path
) -> None:
    given = FORMS[form](proto, tmp_path)
    before = proto.SerializeToString(deterministic=True)
    result = CALLS[name](given, quantized, tmp_path)
    if name in ("insert", "quantize", "optimize"):
        model = result if name == "optimize" else result.model
        assert isinstance(model, Path if form in ("str", "path") else type(given))
    if name != "optimize":
        assert isinstance(result, Result)
        line = repr(result)
        assert "\n" not in line
        assert len(line) < 300
        assert result._repr_html_().startswith("<table><caption>")
        json.dumps(result.to_dict(), allow_nan=False)
    assert proto.SerializeToString(deterministic=True) == before
    if form == "ir":
        assert ir.to_proto(given).SerializeToString(deterministic=True) == (
            ir.to_proto(ir.from_proto(proto)).SerializeToString(deterministic=True)
        )


def test_a_model_in_memory_is_tuned(
    proto: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = replace(PRESETS["quick"].with_runs(1), final_s=0.1)
    monkeypatch.setitem(PRESETS, "quick", short)
    result = qdqtune.tune(
        proto, engine="simulated", preset="quick", max_benchmarks=1, output_dir=tmp_path / "run"
    )
    assert result.model == tmp_path / "run" / "optimized_final.onnx"
    assert onnx.load(tmp_path / "run" / "baseline.onnx").graph.node[0].op_type == "MatMul"
    assert result.to_dict() == result.summary.to_dict()
    assert "\n" not in repr(result)
    assert result._repr_html_().count("<tr>") >= 3
    (first, *_) = qdqtune.list_candidates(tmp_path / "run")
    written = qdqtune.export(tmp_path / "run", first.id, tmp_path / "first.onnx")
    assert written.to_dict()["id"] == first.id
    assert written.output.is_file()


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "m.onnx", "--dialect", "onnxruntime"],
        ["insert", "m.onnx", "--ops", "MatMul", "--dialect", "onnxruntime", "-o", "i.onnx"],
        ["strip", "q.onnx", "-o", "s.onnx"],
        ["compare", "m.onnx", "q.onnx", "--samples", "1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_a_dict_is_what_the_command_prints(
    arguments: list[str],
    proto: onnx.ModelProto,
    quantized: onnx.ModelProto,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(proto, "m.onnx")
    onnx.save(quantized, "q.onnx")
    calls: dict[str, Callable[[], Result]] = {
        "inspect": lambda: qdqtune.inspect("m.onnx", dialect="onnxruntime"),
        "insert": lambda: qdqtune.insert(
            "m.onnx", "i.onnx", ops=["MatMul"], dialect="onnxruntime", force=True
        ),
        "strip": lambda: qdqtune.strip("q.onnx", "s.onnx", force=True),
        "compare": lambda: qdqtune.compare("m.onnx", "q.onnx", samples=1),
    }
    assert main([*arguments, "--format", "json", "-q"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(calls[arguments[0]]().to_dict())) == printed


def test_what_was_written_for_a_while_is_gone(
    proto: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with as_file(proto) as path:
        assert path.is_file()
        assert tmp_path in path.parents
    with pytest.raises(QdqtuneError, match=r"^model has no Q/DQ pairs"):
        qdqtune.strip(proto)
    assert not list(tmp_path.rglob("*.onnx"))


def test_large_weights_go_beside_the_model(
    proto: onnx.ModelProto, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "_EMBED_LIMIT_BYTES", 100)
    with as_file(proto) as path:
        assert path.with_name("model.onnx.data").stat().st_size >= 2 * 16 * 16 * 4
        assert path.stat().st_size < 1000
    result = qdqtune.optimize(proto)
    assert all(
        tensor.data_location == onnx.TensorProto.DEFAULT for tensor in result.graph.initializer
    )


def test_a_model_that_protobuf_cannot_copy_whole_is_copied_in_parts() -> None:
    proto = zoo.build("resnet18", image=32, width=8, blocks=(1,))
    onnx.helper.set_model_props(proto, {"key": "value"})
    proto.functions.append(onnx.FunctionProto(name="f", domain="d"))
    assert files._copied(proto, "model") == proto


def test_a_model_without_its_weights_is_refused(proto: onnx.ModelProto, tmp_path: Path) -> None:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)  # `onnx.save` takes the weights out of what it saves
    onnx.save(copy, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0)
    bare = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    with pytest.raises(ModelError, match="float_model has weights in files"):
        qdqtune.compare(bare, proto)


@pytest.mark.parametrize("wrong", [None, 5, b"model.onnx", ["model.onnx"], {"a": 1}], ids=repr)
@pytest.mark.parametrize(
    ("argument", "call"),
    [
        ("model", lambda wrong: qdqtune.inspect(wrong)),
        ("models[0]", lambda wrong: qdqtune.bench([wrong])),
        ("float_model", lambda wrong: qdqtune.compare(wrong, wrong)),
        ("model", lambda wrong: qdqtune.insert(wrong)),
        ("model", lambda wrong: qdqtune.strip(wrong)),
        ("model", lambda wrong: qdqtune.optimize(wrong)),
        ("model", lambda wrong: qdqtune.quantize(wrong)),
        ("model", lambda wrong: qdqtune.tune(wrong)),
        ("model", lambda wrong: qdqtune.verify(wrong)),
        ("folder", lambda wrong: qdqtune.export(wrong, "c0000", "out.onnx")),
    ],
)
def test_what_is_no_model_is_named(argument: str, call: Callable[[Any], Any], wrong: Any) -> None:
    with pytest.raises(UsageError) as raised:
        call(wrong)
    assert raised.value.what.startswith(f"{argument} must be a path")
    assert type(wrong).__name__ in raised.value.what or repr(wrong) in raised.value.what


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("threads", 0),
        ("threads", -1),
        ("threads", 1.5),
        ("threads", True),
        ("threads", "2"),
        ("runs", 0),
        ("engine", 3),
        ("engine_options", "a=b"),
        ("engine_options", [("a", "b")]),
        ("callbacks", 1),
        ("callbacks", [1]),
        ("inputs", [1, 3]),
        ("inputs", "x:1x3"),
        ("inputs", {"x": "1x3"}),
        ("inputs", {"x": 3}),
        ("inputs", {"x": (1, 2.5)}),
        ("inputs", {1: (1, 2)}),
        ("inputs", {"x": (0, 16)}),
        ("inputs", {"y": (1, 16)}),
        ("min_shapes", 7),
    ],
)
def test_what_is_wrong_with_an_argument_is_told(
    name: str, wrong: object, proto: onnx.ModelProto
) -> None:
    with pytest.raises(UsageError):
        qdqtune.bench([proto], **{"engine": "simulated", name: wrong})


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("threads", 0), ("engine", 3), ("engine_options", "a"), ("inputs", [1]), ("min_sqnr_db", "x")],
)
@pytest.mark.parametrize("function", [qdqtune.tune, qdqtune.quantize])
def test_tune_and_quantize_tell_as_well(
    function: Callable[..., Any], name: str, wrong: object, proto: onnx.ModelProto
) -> None:
    with pytest.raises(UsageError, match=name):
        function(proto, **{"engine": "simulated", name: wrong})


def test_shapes_are_given_by_input(proto: onnx.ModelProto) -> None:
    record = qdqtune.bench([proto], engine="simulated", runs=2, inputs={"x": (4, 16)})
    assert record.inputs == {"x": "float32[4, 16]"}
    sized = qdqtune.layers_of(proto, engine="simulated", inputs={"x": np.zeros((4, 16)).shape})
    assert sized.nodes == 3
    with pytest.raises(UsageError, match="below 1"):
        qdqtune.InputRequest({"x": (0, 16)})
    with pytest.raises(UsageError, match="seed"):
        qdqtune.InputRequest(seed=-1)


def test_names_of_a_stranger_are_escaped_and_kept_in_one_line(proto: onnx.ModelProto) -> None:
    named = onnx.ModelProto()
    named.CopyFrom(proto)
    named.graph.node[0].name = f"{HOSTILE}\n\x1b[2J"
    report = qdqtune.compare(named, qdqtune.insert(named, ops=["MatMul"]).model, samples=1)
    shown = report._repr_html_()
    assert "script" in shown
    assert "<script" not in shown
    assert "\x1b" not in shown
    assert "\x1b" not in repr(report)
    assert "\n" not in repr(report)
