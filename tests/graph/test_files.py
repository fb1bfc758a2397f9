"""Loading and saving: what can be wrong with a file, and what the user is told."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune.graph._external_data import is_small
from qdqtune.graph._files import check_targets, load_model, save_model
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from qdqtune.records._errors import ModelError, OutputError
from tests.conftest import model_from_text
from tests.fuzz.seeds import nested


def save_external(model: onnx.ModelProto, path: Path) -> Path:
    onnx.save(
        model, path, save_as_external_data=True, location="weights.bin", size_threshold=0,
        convert_attribute=False,
    )  # fmt: skip
    return path


def relocate(path: Path, **changes: str) -> None:
    """Rewrite where the model says that its weights lie."""
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for entry in tensor.external_data:
            entry.value = changes.get(entry.key, entry.value)
    path.write_bytes(model.SerializeToString())


def test_round_trip_inline_and_external(residual: onnx.ModelProto, tmp_path: Path) -> None:
    inline = tmp_path / "inline.onnx"
    onnx.save(residual, inline)
    external = save_external(residual, tmp_path / "external.onnx")
    assert fingerprint(load_model(inline)) == fingerprint(load_model(external))
    saved = save_model(load_model(external), tmp_path / "saved.onnx")
    assert fingerprint(load_model(saved)) == fingerprint(load_model(inline))


def test_a_small_model_is_small_with_its_weights(residual: onnx.ModelProto, tmp_path: Path) -> None:
    model = save_external(residual, tmp_path / "model.onnx")
    assert is_small(model)
    with (tmp_path / "weights.bin").open("r+b") as file:
        file.truncate(1 << 30)
    assert not is_small(model)
    (tmp_path / "weights.bin").unlink()
    assert not is_small(model)


def test_saving_leaves_the_model_external(residual: onnx.ModelProto, tmp_path: Path) -> None:
    import onnx_ir as ir

    model = load_model(save_external(residual, tmp_path / "external.onnx"))
    save_model(model, tmp_path / "saved.onnx")
    assert isinstance(model.graph.initializers["w1"].const_value, ir.ExternalTensor)


def test_large_models_get_a_data_file(
    residual: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qdqtune.graph._files._EMBED_LIMIT_BYTES", 100)
    path = tmp_path / "in.onnx"
    onnx.save(residual, path)
    before = load_model(path)
    out = tmp_path / "out"
    out.mkdir()
    save_model(before, out / "m.onnx")
    assert sorted(file.name for file in out.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert fingerprint(load_model(out / "m.onnx")) == fingerprint(before)


def test_a_data_file_is_not_overwritten_unasked(
    residual_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qdqtune.graph._files._EMBED_LIMIT_BYTES", 100)
    precious = tmp_path / "m.onnx.data"
    precious.write_text("precious")
    with pytest.raises(OutputError, match=r"m\.onnx\.data exists already"):
        save_model(load_model(residual_path), tmp_path / "m.onnx")
    assert precious.read_text() == "precious"
    assert not (tmp_path / "m.onnx").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"this is not a model at all", "not an ONNX file"),
        (np.random.default_rng(0).bytes(4096), "not an ONNX file"),
    ],
    ids=["empty", "text", "noise"],
)
def test_not_onnx(content: bytes, message: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=message):
        load_model(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not exist"):
        load_model(tmp_path / "no.onnx")
    with pytest.raises(ModelError, match="is a folder"):
        load_model(tmp_path)


def test_empty_graph(tmp_path: Path) -> None:
    model = model_from_text("g (float[1] x) => (float[1] y) { y = Relu(x) }")
    del model.graph.node[:]
    path = tmp_path / "m.onnx"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="empty graph"):
        load_model(path)


def test_checker_failure(residual: onnx.ModelProto, tmp_path: Path) -> None:
    residual.graph.node[0].input[1] = "nothing"
    path = tmp_path / "m.onnx"
    path.write_bytes(residual.SerializeToString())
    with pytest.raises(ModelError, match="not a valid ONNX model"):
        load_model(path)


def test_external_data_missing(residual: onnx.ModelProto, tmp_path: Path) -> None:
    path = save_external(residual, tmp_path / "m.onnx")
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ModelError, match="that file is missing") as caught:
        load_model(path)
    assert str(tmp_path) in caught.value.hint


@pytest.mark.parametrize("location", ["../weights.bin", "/etc/passwd", "a/../../weights.bin"])
def test_external_data_outside(location: str, residual: onnx.ModelProto, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = save_external(residual, folder / "m.onnx")
    (folder / "weights.bin").rename(tmp_path / "weights.bin")
    relocate(path, location=location)
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(path)


def test_external_data_links(residual: onnx.ModelProto, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    path = save_external(residual, folder / "m.onnx")
    outside = tmp_path / "weights.bin"
    (folder / "weights.bin").rename(outside)
    (folder / "weights.bin").symlink_to(outside)
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(path)
    (folder / "weights.bin").unlink()
    os.link(outside, folder / "weights.bin")
    with pytest.raises(ModelError, match="is a link"):
        load_model(path)


def test_links_in_a_circle_are_no_weights_and_no_model(
    residual: onnx.ModelProto, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(residual, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    (tmp_path / "w.bin").symlink_to("v.bin")
    (tmp_path / "v.bin").symlink_to("w.bin")
    check_targets(tmp_path / "out.onnx", tmp_path / "placement.json", path, force=False)
    with pytest.raises(ModelError, match="is a link, not a plain file"):
        load_model(path)
    path.unlink()
    path.symlink_to(path.name)
    check_targets(tmp_path / "out.onnx", None, path, force=False)
    with pytest.raises(ModelError):
        load_model(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"offset": "999999"}, "ends before it"),
        ({"length": "999999"}, "ends before it"),
        ({"offset": "-8"}, "broken type, offset"),
        ({"offset": "x"}, "broken type, offset"),
    ],
)
def test_external_data_range(
    changes: dict[str, str], message: str, residual: onnx.ModelProto, tmp_path: Path
) -> None:
    path = save_external(residual, tmp_path / "m.onnx")
    relocate(path, **changes)
    with pytest.raises(ModelError, match=message):
        load_model(path)


def test_output_is_never_overwritten_unasked(residual_path: Path, tmp_path: Path) -> None:
    model = load_model(residual_path)
    target = tmp_path / "out.onnx"
    target.write_text("precious")
    with pytest.raises(OutputError, match="exists already"):
        save_model(model, target)
    assert target.read_text() == "precious"
    save_model(model, target, force=True)
    assert fingerprint(load_model(target)) == fingerprint(model)


def test_output_folder_problems(residual_path: Path, tmp_path: Path) -> None:
    model = load_model(residual_path)
    with pytest.raises(OutputError, match="does not exist"):
        save_model(model, tmp_path / "no" / "out.onnx")
    with pytest.raises(OutputError, match="is a folder"):
        save_model(model, tmp_path)


def test_a_failed_write_leaves_nothing(
    residual_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import onnx_ir as ir

    def no_room(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    model = load_model(residual_path)
    monkeypatch.setattr(ir, "save", no_room)
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(OutputError, match="No space left"):
        save_model(model, out / "m.onnx")
    assert list(out.iterdir()) == []


def test_every_node_has_a_name_of_its_own(tmp_path: Path) -> None:
    model = model_from_text(
        "g (float[2] x) => (float[2] y) { a = Relu(x) b = Relu(a) c = Neg(b) y = Neg(c) }"
    )
    for node, name in zip(model.graph.node, ["same", "same", "", ""], strict=True):
        node.name = name
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert [node.name for node in load_model(path).graph] == ["same", "same_2", "Neg_c", "Neg_y"]


def test_external_data_without_a_length_must_be_long_enough(
    residual: onnx.ModelProto, tmp_path: Path
) -> None:
    path = save_external(residual, tmp_path / "m.onnx")
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        kept = [entry for entry in tensor.external_data if entry.key != "length"]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
    path.write_bytes(model.SerializeToString())
    load_model(path)
    weights = tmp_path / "weights.bin"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(ModelError, match="ends before it"):
        load_model(path)


def test_devices_are_not_replaced(residual_path: Path) -> None:
    with pytest.raises(OutputError, match="not a plain file"):
        save_model(load_model(residual_path), "/dev/null", force=True)


def test_sparse_weights_are_refused(residual: onnx.ModelProto, tmp_path: Path) -> None:
    values = onnx.helper.make_tensor("s", onnx.TensorProto.FLOAT, [1], [1.0])
    indices = onnx.helper.make_tensor("i", onnx.TensorProto.INT64, [1], [0])
    residual.graph.sparse_initializer.append(onnx.helper.make_sparse_tensor(values, indices, [4]))
    path = tmp_path / "m.onnx"
    onnx.save(residual, path)
    with pytest.raises(ModelError, match="sparse weights"):
        load_model(path)


def external_tensor(location: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(
        name="t", data_type=onnx.TensorProto.FLOAT, dims=[4],
        data_location=onnx.TensorProto.EXTERNAL,
    )  # fmt: skip
    for key, value in (("location", location), ("offset", "0"), ("length", "16")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def in_attribute(model: onnx.ModelProto, tensor: onnx.TensorProto) -> None:
    node = onnx.helper.make_node("Constant", [], ["c"], name="c", value=tensor)
    model.graph.node.insert(0, node)


def in_function(model: onnx.ModelProto, tensor: onnx.TensorProto) -> None:
    node = onnx.helper.make_node("Constant", [], ["c"], value=tensor)
    opsets = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("l", "f", [], ["c"], [node], opsets))
    model.opset_import.add(domain="l", version=1)


def in_body(model: onnx.ModelProto, tensor: onnx.TensorProto) -> None:
    value = onnx.helper.make_tensor_value_info
    copy = onnx.helper.make_node("Identity", ["t"], ["b"])
    body = onnx.helper.make_graph([copy], "b", [], [value("b", 1, [4])], [tensor])
    model.graph.input.append(value("c", onnx.TensorProto.BOOL, []))
    branches = {"then_branch": body, "else_branch": body}
    model.graph.node.append(onnx.helper.make_node("If", ["c"], ["i"], name="if", **branches))


@pytest.mark.parametrize("hide", [in_attribute, in_function, in_body])
def test_external_data_is_found_wherever_it_hides(
    hide: Callable[[onnx.ModelProto, onnx.TensorProto], None],
    residual: onnx.ModelProto,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for outside in (tmp_path / "t.bin", folder / "t.bin"):
        outside.write_bytes(bytes(16))
    hide(residual, external_tensor("../t.bin"))
    path = folder / "m.onnx"
    path.write_bytes(residual.SerializeToString())
    with pytest.raises(ModelError, match="outside the model's folder"):
        load_model(path)
    path.write_bytes(path.read_bytes().replace(b"\x08../t.bin", b"\x08./.t.bin"))
    (folder / ".t.bin").write_bytes(bytes(range(16)))
    model = load_model(path)
    saved = save_model(model, tmp_path / "saved.onnx")
    assert fingerprint(load_model(saved)) == fingerprint(model)


def test_a_folder_in_between_may_not_be_a_link(residual: onnx.ModelProto, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "real").mkdir(parents=True)
    path = save_external(residual, folder / "m.onnx")
    (folder / "weights.bin").rename(folder / "real" / "weights.bin")
    relocate(path, location="real/weights.bin")
    load_model(path)
    (folder / "link").symlink_to("real")
    relocate(path, location="link/weights.bin")
    with pytest.raises(ModelError, match="is a link"):
        load_model(path)


def test_unknown_keys_of_external_data_mean_nothing(
    residual: onnx.ModelProto, tmp_path: Path
) -> None:
    path = save_external(residual, tmp_path / "m.onnx")
    before = fingerprint(load_model(path))
    model = onnx.load(path, load_external_data=False)
    for tensor in model.graph.initializer:
        for key in ("__class__", "base_dir", "prepacked_0"):
            tensor.external_data.add(key=key, value="/")
    path.write_bytes(model.SerializeToString())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fingerprint(load_model(path)) == before


@pytest.mark.parametrize("depth", [10, 30])
def test_nested_bodies_go_through(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(nested(depth).SerializeToString())
    model = load_model(path)
    fold(model)
    fingerprint(model)
    save_model(model, tmp_path / "out.onnx")
    assert fingerprint(load_model(tmp_path / "out.onnx")) == fingerprint(model)


def test_both_spellings_of_the_standard_domain(residual: onnx.ModelProto, tmp_path: Path) -> None:
    residual.opset_import[0].domain = "ai.onnx"
    path = tmp_path / "m.onnx"
    path.write_bytes(residual.SerializeToString())
    assert load_model(path).opset_imports == {"": 17}


def test_large_weights_are_not_handed_to_the_checker(
    residual: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    check = onnx.checker.check_model
    monkeypatch.setattr(onnx.checker, "check_model", lambda m: (seen.append(m), check(m)))
    weight = np.ones((300, 300), np.float32)
    residual.graph.initializer.append(onnx.numpy_helper.from_array(weight, "large"))
    path = tmp_path / "m.onnx"
    onnx.save(residual, path)
    load_model(path)
    (proto,) = seen
    assert proto.ByteSize() < 2000
