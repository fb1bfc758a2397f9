"""Every message: what happened, where, what to do; docs/troubleshooting.md lists what is here."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from qdqtune import zoo
from qdqtune.cli.main import main
from qdqtune.graph._protobuf import field_part
from qdqtune.workflows._insert import insert
from qdqtune.workflows.tuning._folder import BASELINE, CANDIDATES, FINAL, JOURNAL, LOGS
from qdqtune.workflows.tuning._journal import Journal
from tests.conftest import model_from_text
from tests.fuzz.seeds import function_chain
from tests.graph.test_endless_loops import loop_of
from tests.graph.test_function_calls import doubling
from tests.silence import without_progress

ROOT = Path(__file__).parent.parent
ERRORS = {"QdqtuneError", "UsageError", "ModelError", "OutputError", "EngineError"}

Change = Callable[[onnx.ModelProto], None]
Make = Callable[[Path], None]


def raised_in(source: Path) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ERRORS
    ]


def test_every_error_says_what_to_do() -> None:
    bare, count = [], 0
    for source in sorted((ROOT / "src" / "qdqtune").rglob("*.py")):
        for call in raised_in(source):
            count += 1
            given = len(call.args) + sum(keyword.arg == "hint" for keyword in call.keywords)
            if given < 2 or any(isinstance(a, ast.Constant) and not a.value for a in call.args):
                bare.append(f"{source.relative_to(ROOT)}:{call.lineno} {ast.unparse(call)[:80]}")
    assert count > 100
    assert bare == []


# How the file of a model can be wrong, by the words of the message.


def sound() -> onnx.ModelProto:
    return model_from_text(
        "g (float[2,4] x) => (float[2,4] y) { h = MatMul(x, w) y = Relu(h) }",
        w=np.arange(16, dtype=np.float32).reshape(4, 4),
    )


def changed(change: Change) -> Make:
    def make(path: Path) -> None:
        model = sound()
        change(model)
        path.write_bytes(model.SerializeToString())

    return make


def external(**entries: str) -> Make:
    """Weights beside the model, with these changes to where they are said to lie."""

    def make(path: Path) -> None:
        onnx.save(sound(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
        model = onnx.load(path, load_external_data=False)
        for entry in model.graph.initializer[0].external_data:
            entry.value = entries.get(entry.key, entry.value)
        if "twice" in entries:
            model.graph.initializer[0].external_data.add(key="location", value="v.bin")
        if "shape" in entries:
            model.graph.initializer[0].dims[0] = 99
        path.write_bytes(model.SerializeToString())

    return make


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n"


def pointed(path: Path) -> None:
    external()(path)
    (path.parent / "w.bin").write_bytes(POINTER[:60])


def large(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 31)


def linked(path: Path) -> None:
    external()(path)
    os.link(path.parent / "w.bin", path.parent / "v.bin")


def nested(path: Path) -> None:
    """A thousand bodies inside each other: no library writes that, so it is written by hand."""
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    content: bytes = graph.SerializeToString()
    for _ in range(1000):
        attribute = onnx.AttributeProto(name="body", type=onnx.AttributeProto.GRAPH)
        content = attribute.SerializeToString() + field_part(onnx.AttributeProto, "g", content)
        node = onnx.NodeProto(op_type="If", input=["c"], output=["y"])
        content = node.SerializeToString() + field_part(onnx.NodeProto, "attribute", content)
        content = field_part(onnx.GraphProto, "node", content)
    frame = onnx.ModelProto(ir_version=8)
    path.write_bytes(frame.SerializeToString() + field_part(onnx.ModelProto, "graph", content))


def not_text(path: Path) -> None:
    model = sound()
    model.graph.node[0].name = "PLACEHOLDER"
    path.write_bytes(model.SerializeToString().replace(b"PLACEHOLDER", b"\xff\xfe" + b"\x80" * 9))


def sparse(model: onnx.ModelProto) -> None:
    values = helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("i", TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))


def referring(model: onnx.ModelProto) -> None:
    attribute = model.graph.node[1].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT)
    attribute.ref_attr_name = "alpha"


FILES: dict[str, Make] = {
    "does not exist": lambda path: None,
    "is a folder.": lambda path: path.mkdir(),
    "is not a plain file": lambda path: os.mkfifo(path),
    "is larger than 2 GiB": large,
    "is not an ONNX file.": lambda path: path.write_text("this is a text"),
    "it holds no graph": lambda path: path.write_bytes(
        onnx.ModelProto(ir_version=8).SerializeToString()
    ),
    "has no outputs": changed(lambda model: model.graph.ClearField("output")),
    "has an empty graph": changed(lambda model: model.graph.ClearField("node")),
    "is nested too deeply": nested,
    "functions nested too deeply": lambda path: path.write_bytes(
        function_chain(1000).SerializeToString()
    ),
    "functions that call themselves": lambda path: path.write_bytes(
        function_chain(3, cyclic=True).SerializeToString()
    ),
    "functions that call each other so often": lambda path: path.write_bytes(
        doubling(40).SerializeToString()
    ),
    "a name in it that is not UTF-8": not_text,
    "of the ONNX format": changed(lambda model: setattr(model, "ir_version", 99)),
    "imports two versions of the opset": changed(
        lambda model: model.opset_import.add(domain="", version=13)
    ),
    "of the ONNX opset": changed(lambda model: setattr(model.opset_import[0], "version", 99)),
    "has a weight without a name": changed(
        lambda model: model.graph.initializer.add(data_type=1, dims=[0])
    ),
    "has two weights named": changed(
        lambda model: model.graph.initializer.add().CopyFrom(model.graph.initializer[0])
    ),
    "has sparse weights": changed(sparse),
    "is broken": changed(lambda model: model.graph.initializer[0].dims.append(2)),
    "stand for those of a function": changed(referring),
    "is empty": lambda path: path.write_bytes(b""),
    "is cut off": lambda path: path.write_bytes(sound().SerializeToString()[:90]),
    "is a Git LFS pointer, not the model": lambda path: path.write_bytes(POINTER),
    "is not a valid ONNX model": changed(
        lambda model: model.graph.node[0].input.__setitem__(1, "nothing")
    ),
    "which is not a file name": external(location=""),
    "which is outside the model's folder": external(location="../w.bin"),
    "that file is missing": external(location="v.bin"),
    "which is not a file": external(location="."),
    "which is a link": linked,
    "with a broken type, offset or length": external(offset="-4"),
    "does not fit that": external(shape="99"),
    "is a Git LFS pointer, not the weights": pointed,
    "that file ends before it": external(offset="4096"),
    "lies in more than one place": external(twice="yes"),
}


def complaint(
    words: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Run a command that must fail: exit code, what it said, and what to do."""
    before = sorted(folder.rglob("*"))
    code = main(words)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert sorted(folder.rglob("*")) == before, "something was written"
    what, *hint = without_progress(captured.err).rstrip("\n").split("\n")
    assert what.startswith("error: "), captured.err
    assert hint, f"nothing to do about it: {what}"
    assert all(line.startswith("       ") for line in hint), captured.err
    return code, what, "\n".join(hint)


@pytest.mark.parametrize("words", FILES)
@pytest.mark.parametrize("command", ["strip", "bench"])
def test_files(
    command: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "model.onnx"
    FILES[words](path)
    output = ["-o", str(tmp_path / "out.onnx")] if command == "strip" else []
    code, what, _ = complaint([command, str(path), *output], tmp_path, capsys)
    assert code == (2 if words == "does not exist" else 1)
    assert words in what
    assert "model.onnx" in what


# How a model can be sound and still not be worked with.

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "too old to be raised": lambda: model_from_text(
        "g (float[2,4] x) => (float[2,4] y) { y = MatMul(x, x) }", 6
    ),
    "can't be raised from opset": lambda: model_from_text(
        "g (float[1,2,3,3] x) => (float[1,2,3,3] y)"
        "{ y = BatchNormalization<spatial=0>(x, s, s, s, s) }",
        8,
        s=np.ones((2, 3, 3), np.float32),
    ),
    "a Hardmax over several axes": lambda: model_from_text(
        "g (float[2,3,4] x) => (float[2,3,4] y) { y = Hardmax(x) }", 11
    ),
    "constants can't be folded": lambda: model_from_text(
        "g (float[1,3,4,4] x) => (float[1,4,4,4] y) "
        "{ c = Conv(x, w) y = BatchNormalization(c, s, s, s, s) }",
        w=np.ones((4, 3, 1, 1), np.float32),
        s=np.ones(3, np.float32),
    ),
    "of memory that a process may have": lambda: model_from_text(
        "g (float[2,4] x) => (float[A,B,C] y) { h = MatMul(x, w) y = Expand(h, s) }",
        w=np.eye(4, dtype="f"),
        s=np.array([1 << 40, 2, 4]),
    ),
    "nothing in it ends it before": lambda: loop_of(1 << 40),
    "types or shapes contradict each other": lambda: model_from_text(
        "g (float[2,4] x) => (float[7,7] y) { h = MatMul(x, w) y = Relu(h) }",
        w=np.eye(4, dtype="f"),
    ),
}


@pytest.mark.parametrize("words", MODELS)
def test_models(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.onnx"
    model = MODELS[words]()
    path.write_bytes(model.SerializeToString())
    ops = ",".join(sorted({node.op_type for node in model.graph.node}))
    arguments = ["insert", str(path), "--ops", ops, "--dialect", "onnxruntime", "-q"]
    code, what, _ = complaint([*arguments, "-o", str(tmp_path / "out.onnx")], tmp_path, capsys)
    assert code == 1
    assert words in what


# How a request can be wrong: command line, exit code. {model} is a sound one.

INSERT = "insert {model} -o {out} "
REQUESTS: dict[str, tuple[str, int]] = {
    "Nothing was chosen": (INSERT, 2),
    "has no op type": (INSERT + "--ops Cnv", 2),
    "has no node": (INSERT + "--nodes nothing", 2),
    "has no tensor": (INSERT + "--tensors nothing", 2),
    "Nothing that was chosen can be quantized": (INSERT + "--ops Relu", 2),
    "is named by --dynamic": (INSERT + "--ops MatMul --dynamic MatMul", 2),
    "quantizes no inputs at run time": (INSERT + "--dynamic MatMul --dialect tensorrt", 2),
    "can't be quantized at run time": (INSERT + "--dynamic n1 --dialect onnxruntime", 2),
    "no dialect": (INSERT + "--ops MatMul --dialect klingon", 2),
    "has no quant type": (INSERT + "--ops MatMul --dialect onnxruntime --quant_type fp8", 2),
    "is not a regular expression": ("quantize {model} -o {out} --nodes_to_exclude n(", 2),
    "looks at data, but none was given": (
        "quantize {model} -o {out} --calibration_method mse",
        2,
    ),
    "A search tunes the model as it is": (
        "quantize {model} -o {out} --autotune --no_per_channel",
        2,
    ),
    "Unknown engine": ("bench {model} --engine tensorrrt", 2),
    "is not installed": ("bench {model} --engine trtexec --engine_option path={folder}/no", 1),
    "does not take these options": ("bench {model} --engine simulated --engine_option foo=1", 2),
    "does not take ranges of shapes": ("bench {model} --engine simulated --max_shapes x:1", 2),
    "does not name a module and a function": ("tune {model} -o {folder}/new --evaluate ev", 2),
    "has no timing cache": ("bench {model} --engine simulated --timing_cache t.cache", 2),
    "can't time models here": ("bench {model} --engine tensorrt_rtx", 1),
    "is not a placement file": (INSERT + "--placement {text}", 2),
    "can't be read": (INSERT + "--placement {folder}/no.json", 2),
    "over a model": (INSERT + "--ops MatMul --save_placement {out}", 2),
    "exists already": ("insert {model} -o {model} --ops MatMul", 1),
    "is a folder, not a file": ("insert {model} -o {folder} --ops MatMul", 1),
    "is not a plain file.": ("insert {model} -o /dev/null --ops MatMul --force", 1),
    "The folder": ("insert {model} -o {folder}/no/out.onnx --ops MatMul", 1),
    "has no Q/DQ pairs": ("strip {model} -o {out}", 1),
    "every node of it stays float": ("export {model} --exclusion_list nncf", 1),
    "has no DequantizeLinear": ("compare {alien} {model}", 2),
    "have no output and no quantized op in common": ("compare {model} {alien}", 2),
    "has no kernels that could compute": ("compare {model} {alien} --engine simulated", 1),
    "takes other inputs": ("bench {model} {other}", 2),
    "leaves no room for any engine": ("bench {model} --max_memory 1MiB", 2),
    "Random values can't be generated": ("bench {words}", 1),
    "leaves the sizes of its inputs open": ("bench {open}", 2),
    "lies in the output folder": ("tune {run}/baseline.onnx -o {run}", 1),
    "exists already, but no": ("tune {model} -o {bare}", 1),
    "the name of a file that the run": ("tune {beside} -o {folder}/new", 1),
    "is not the folder of a tuning run": ("export {folder} --list", 2),
    "No candidate was given": ("export {run}", 2),
    "has no candidate": ("export {run} --candidate c9", 2),
    "No output file was given": ("export {run} --candidate c0000", 2),
    "The file of the candidate": ("export {run} --candidate c0000 -o {out}", 1),
    "is not what was measured": ("export {run} --candidate c0001 -o {out}", 1),
    "checked against what was measured": ("export {run} --candidate c0002 -o {out}", 1),
    "among the candidates of the run": (
        "export {run} --candidate c0001 -o {run}/region_models/x.onnx",
        1,
    ),
    "There is nothing to compare": ("verify {model}", 2),
}


def unfinished_run(folder: Path) -> Path:
    """The folder of a run over another model; one candidate has no file, others are another's."""
    (folder / CANDIDATES).mkdir(parents=True)
    (folder / LOGS).mkdir()
    onnx.save(sound(), folder / BASELINE)
    for name in ("c0001", "c0002"):
        onnx.save(sound(), folder / CANDIDATES / f"{name}.onnx")
    journal = Journal(folder / JOURNAL, {"model": "another"})
    journal.name_of("first")
    journal.name_of("second")
    journal.keep_file("second", "as it was")
    journal.name_of("third")
    journal.close()
    return folder


@pytest.mark.parametrize("words", REQUESTS)
def test_requests(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = {
        name: tmp_path / f"{name}.onnx"
        for name in ("model", "out", "other", "words", "beside", "alien", "open")
    }
    onnx.save(
        model_from_text(
            "g (float[2,4] x) => (float[2,4] z) "
            "{ q = QuantizeLinear(x, s) d = DequantizeLinear(q, s) z = Neg(d) }",
            s=np.array(1, np.float32),
        ),
        files["alien"],
    )
    onnx.save(sound(), files["model"])
    onnx.save(model_from_text("g (float[9] x) => (float[9] y) { y = Relu(x) }"), files["other"])
    onnx.save(model_from_text("g (float[N,W] x) => (float[N,W] y) { y = Neg(x) }"), files["open"])
    onnx.save(
        model_from_text("g (string[9] x) => (string[9] y) { y = Identity(x) }"), files["words"]
    )
    onnx.save(
        sound(), files["beside"], save_as_external_data=True, size_threshold=0,
        location="optimized_final.onnx.data",
    )  # fmt: skip
    text = tmp_path / "text.json"
    text.write_text("no JSON")
    bare = tmp_path / "bare"
    (bare / CANDIDATES).mkdir(parents=True)
    run = unfinished_run(tmp_path / "run")
    line, expected = REQUESTS[words]
    arguments = line.format(folder=tmp_path, text=text, bare=bare, run=run, **files).split()
    code, what, _ = complaint(arguments, tmp_path, capsys)
    assert code == expected
    assert words in what


# What a tuning run finds out when it has begun, and its folder is there: command line.

TUNE = "tune {model} --engine simulated --preset quick --max_benchmarks 2 -q "
RUNS: dict[str, str] = {
    "holds a run with another": TUNE + "-o {run}",
    "a quantized form of another model": TUNE + "-o {fresh} --qdq_baseline {foreign}",
    "has no Q/DQ to begin with": TUNE + "-o {fresh} --qdq_baseline {model}",
    "matches the node filter": TUNE + "-o {fresh} --node_filter nothing*",
    "which is not a number": TUNE + "-o {fresh} --evaluate {code}:text",
}


@pytest.mark.parametrize("words", RUNS)
def test_runs(words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, code, run = tmp_path / "model.onnx", tmp_path / "code.py", tmp_path / "run"
    onnx.save(zoo.build("resnet18", width=32, image=64), model)
    code.write_text("def text(path): return 'good'")
    before = (unfinished_run(run) / JOURNAL).read_bytes()
    fresh, foreign = tmp_path / "fresh", tmp_path / "foreign.onnx"
    onnx.save(sound(), tmp_path / "sound.onnx")
    insert(tmp_path / "sound.onnx", foreign, ops=["MatMul"], engine="onnxruntime")
    line = RUNS[words].format(model=model, code=code, run=run, fresh=fresh, foreign=foreign)
    assert main(line.split()) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    what, *hint = without_progress(captured.err).rstrip("\n").split("\n")
    assert what.startswith("error: ")
    assert words in what
    assert hint
    assert all(line.startswith("       ") for line in hint)
    assert (run / JOURNAL).read_bytes() == before
    assert not (fresh / FINAL).exists()


def test_the_page_lists_what_is_tested() -> None:
    page = (ROOT / "docs" / "troubleshooting.md").read_text()
    listed = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == {*FILES, *MODELS, *REQUESTS, *RUNS}
