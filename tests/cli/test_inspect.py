"""`qdqtune inspect`, and what stands behind it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from qdqtune import zoo
from qdqtune.autotune.region_inspect import inspect_region_search
from qdqtune.autotune.region_inspect import main as region_inspect
from qdqtune.cli.main import main
from qdqtune.search.regions._region import Region, walk
from tests.autotune.scoped import encoder
from tests.conftest import model_from_text

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(0)
    protos = {
        "resnet": zoo.build("resnet18", width=16, image=64),
        "vit": zoo.build("vit", width=64, head_width=32, layers=2, image=64),
        "mixed": model_from_text(
            """
            g (float[1,4,8,8] x) => (float[1,4,8,8] y, float[1,4,8,8] e) {
                c = Conv(x, w, b)
                r = Relu(c)
                e = Erf(r)
                z = Conv(r, w, b)
                y = Add(z, r)
            }""",
            w=rng.normal(size=(4, 4, 1, 1)).astype(np.float32),
            b=rng.normal(size=4).astype(np.float32),
        ),
        "open": model_from_text(
            "g (float[N,64] x) => (float[N,64] y) { h = MatMul(x, w) y = Relu(h) }",
            w=np.eye(64, dtype=np.float32),
        ),
    }
    for name, proto in protos.items():
        onnx.save(proto, folder / f"{name}.onnx")
    return {name: str(folder / f"{name}.onnx") for name in protos}


def record(capsys: Capture, *arguments: str) -> dict[str, object]:
    assert main(["inspect", *arguments, "--format", "json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["kind"], value["schema"]) == ("inspection", 1)
    return value


def test_regions_cover_the_model_once(models: dict[str, str], capsys: Capture) -> None:
    found = record(capsys, models["vit"], "--dialect", "onnxruntime")
    named = [node for region in found["regions"] for node in region["nodes"]]
    assert len(named) == len(set(named)) == found["nodes"]
    leaves = [region for region in found["regions"] if not region["children"]]
    counts = {pattern["number"]: pattern["regions"] for pattern in found["patterns"]}
    assert sum(counts.values()) == len(leaves)
    assert all(
        counts[number] == sum(leaf["pattern"] == number for leaf in leaves) for number in counts
    )


def test_every_op_is_accounted_for(models: dict[str, str], capsys: Capture) -> None:
    found = record(capsys, models["mixed"], "--dialect", "onnxruntime")
    can = sum(kind["can"] for kind in found["quantizable"].values())
    floats = [name for names in found["left_float"].values() for name in names]
    assert can + len(floats) + found["fused"] == found["nodes"] == 5
    assert list(found["left_float"]) == ["onnxruntime has no integer kernel for Erf"]
    assert found["quantizable"]["Conv"] == {"can": 2, "all": 2}


@pytest.mark.parametrize(
    ("dialect", "converted_from"), [("onnxruntime", "float16"), ("tensorrt", "")]
)
def test_a_float16_model_is_shown_as_it_is_tuned(
    dialect: str, converted_from: str, tmp_path: Path, capsys: Capture
) -> None:
    text = "g (float16[1,64] x) => (float16[1,64] y) { y = MatMul(x, w) }"
    path = str(tmp_path / "half.onnx")
    onnx.save(model_from_text(text, w=np.eye(64, dtype=np.float16)), path)
    found = record(capsys, path, "--dialect", dialect)
    assert found["quantizable"]["MatMul"] == {"can": 1, "all": 1}
    assert found["converted_from"] == converted_from
    assert main(["inspect", path, "--dialect", dialect]) == 0
    shown = capsys.readouterr().out
    assert ("tune and quantize convert it to float32" in shown) is bool(converted_from)


def test_the_dialect_decides(models: dict[str, str], capsys: Capture) -> None:
    ours = record(capsys, models["vit"], "--dialect", "onnxruntime")
    theirs = record(capsys, models["vit"], "--engine", "tensorrt", "--quant_type", "fp8")
    assert theirs["dialect"] == "tensorrt"
    assert "Softmax" in ours["quantizable"]
    assert any("Softmax" in reason for reason in theirs["left_float"])


def test_shapes_divide_patterns(models: dict[str, str], capsys: Capture) -> None:
    plain = record(capsys, models["resnet"])
    shaped = record(capsys, models["resnet"], "--by-shape")
    assert len(shaped["patterns"]) == sum(pattern["variants"] for pattern in plain["patterns"])
    assert len(shaped["patterns"]) > len(plain["patterns"])


def test_a_smaller_sequence_gives_more_regions(models: dict[str, str], capsys: Capture) -> None:
    few = record(capsys, models["vit"], "--regions", "structure")
    many = record(capsys, models["vit"], "--regions", "structure", "--max_sequence_size", "1")
    assert len(many["regions"]) > len(few["regions"])


def test_the_text(models: dict[str, str], capsys: Capture) -> None:
    assert main(["inspect", models["resnet"], "--max_items", "2", "--regions", "structure"]) == 0
    out = capsys.readouterr().out
    for words in (
        "49 ops after folding",
        "32 ops can be quantized: Conv 20, Add 8",
        "10 regions by structure (10 LEAF, 0 COMPOSITE), 49 of 49 ops in them (100.0 %)",
        "4 patterns of leaves; 9 if types and shapes count",
        "and 2 more patterns",
        "and 8 more regions: --max_items 0 shows all",
    ):
        assert words in out
    assert main(["inspect", models["resnet"], "--max_items", "0"]) == 0
    assert "more regions" not in capsys.readouterr().out


def test_regions_without_points_are_counted(models: dict[str, str], capsys: Capture) -> None:
    arguments = ["inspect", models["vit"], "--max_sequence_size", "1"]
    assert main(arguments) == 0
    few = capsys.readouterr().out
    assert main([*arguments, "--all_regions", "--max_items", "0"]) == 0
    every = capsys.readouterr().out
    assert "in which nothing can be quantized: --all_regions" in few
    assert "in which nothing can be quantized" not in every


def test_a_quantized_model_is_taken_apart(
    models: dict[str, str], tmp_path: Path, capsys: Capture
) -> None:
    out = tmp_path / "q.onnx"
    assert main(["insert", models["resnet"], "--ops", "Conv", "-o", str(out), "-q"]) == 0
    capsys.readouterr()
    plain = record(capsys, models["resnet"])
    taken = record(capsys, str(out))
    assert taken["pairs"] > 0
    assert taken["nodes"] == plain["nodes"]
    assert len(taken["patterns"]) == len(plain["patterns"])


def test_why(models: dict[str, str], capsys: Capture) -> None:
    why = record(capsys, models["mixed"], "--why", "r", "--dialect", "onnxruntime")["why"]
    readers = {reader["node"]: reader for reader in why["readers"]}
    assert readers["n3"]["reason"] == ""
    assert readers["n3"]["with_op"]
    assert "no engine has an integer kernel for Erf" in readers["n2"]["reason"]
    assert readers["n2"]["dialect_reason"] == "onnxruntime has no integer kernel for Erf"
    assert why["maker"]["op_type"] == "Relu"
    bias = record(capsys, models["mixed"], "--why", "b")["why"]
    assert bias["constant"]
    assert all("a bias becomes an integer" in reader["reason"] for reader in bias["readers"])
    assert main(["inspect", models["mixed"], "--why", "y"]) == 0
    assert "the graph hands it out as it is" in capsys.readouterr().out


def test_why_of_a_node(models: dict[str, str], capsys: Capture) -> None:
    why = record(capsys, models["mixed"], "--why", "n3", "--dialect", "onnxruntime")["why"]
    assert (why["node"], why["quantizable"], why["reason"]) == ("n3", True, "")
    assert why["inputs"][0]["tensor"] == "r"
    assert why["inputs"][0]["place"]["with_op"]
    for model, node, words in (
        ("mixed", "n2", "node n2 (Erf): stays float: onnxruntime has no integer kernel for Erf"),
        ("mixed", "n3", "can be int8 in onnxruntime"),
        ("resnet", "relu1", "runs as part of the op before it in onnxruntime"),
    ):
        assert main(["inspect", models[model], "--why", node, "--dialect", "onnxruntime"]) == 0
        assert words in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["{mixed}", "--why", "rr"], 2, ["no tensor or node 'rr'", "Did you mean"]),
        (["{resnet}", "--why", "layer1.0.conv1_output"], 2, ["folded into others"]),
        (["{resnet}", "--why", "bn1"], 2, ["The node 'bn1'", "folded into others"]),
        (["{mixed}", "--dialect", "tensort"], 2, ["no dialect", "Did you mean tensorrt?"]),
        (["{mixed}", "--dialect", "onnxruntime", "--quant_type", "fp8"], 2, ["no quant type"]),
        (["{mixed}", "--engine", "tensrt"], 2, ["Unknown engine"]),
        (["{mixed}", "--max_sequence_size", "0"], 2, ["from 1 up"]),
        (["{open}", "--dim", "M=3"], 2, ["called 'M'"]),
        (["missing.onnx"], 2, ["does not exist"]),
    ],
)
def test_mistakes(
    arguments: list[str], code: int, words: list[str], models: dict[str, str], capsys: Capture
) -> None:
    assert main(["inspect", *(argument.format(**models) for argument in arguments)]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    for word in words:
        assert word in captured.err


def test_names_do_nothing(tmp_path: Path, capsys: Capture) -> None:
    model = model_from_text(
        "g (float[4,64] x) => (float[4,64] y) { h = MatMul(x, w) y = Erf(h) }",
        w=np.eye(64, dtype=np.float32),
    )
    evil = "\x1b[31m[red]" + "a" * 9000
    model.graph.node[0].name = evil
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = evil
    path = tmp_path / "evil.onnx"
    onnx.save(model, path)
    assert main(["inspect", str(path), "--why", evil]) == 0
    assert main(["inspect", str(path)]) == 0
    assert region_inspect(["--model", str(path), "--verbose"]) == 0
    captured = capsys.readouterr()
    assert all(c.isprintable() or c in "\n\ufffd" for c in captured.out)
    assert max(map(len, captured.out.splitlines())) < 2100


def test_region_inspect_as_the_guides_have_it(models: dict[str, str], capsys: Capture) -> None:
    assert region_inspect(["--model", models["vit"], "--max-sequence-size", "20"]) == 0
    lines = capsys.readouterr().out.splitlines()
    nodes = lines[0].split()[-3]
    assert lines[0].startswith("Phase 1 complete: ")
    assert lines[1].startswith("Phase 2 complete: refined ")
    assert lines[2].startswith("Summary: ")
    assert lines[2].endswith(f"COMPOSITE), {nodes} nodes (100.0%)")
    assert lines[3].startswith("LEAF region sizes: min=")
    assert "├─ Region 0 (Level 0, Type: LEAF)" in lines
    assert any(line.endswith("├─ Children: 3") for line in lines)


def test_region_inspect_exit_codes(models: dict[str, str], capsys: Capture) -> None:
    assert region_inspect(["-m", "missing.onnx"]) == 1
    assert region_inspect([]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_inspect_region_search(models: dict[str, str], capsys: Capture) -> None:
    every = inspect_region_search(models["vit"], 1, include_all_regions=True)
    some = inspect_region_search(models["vit"], max_sequence_size=1)
    assert "Region" in capsys.readouterr().out
    assert all(isinstance(region, Region) for region in every)
    kept = {region.id for region in walk(some)}
    assert kept < {region.id for region in walk(every)}


@pytest.mark.parametrize(
    ("engine", "dialect"), [("tensorrt8", "tensorrt-8"), ("tensorrt10", "tensorrt")]
)
def test_an_engine_may_be_named_with_its_version(
    models: dict[str, str], capsys: Capture, engine: str, dialect: str
) -> None:
    assert main(["inspect", models["mixed"], "--engine", engine, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["dialect"] == dialect


def test_modules_are_named(tmp_path: Path, capsys: Capture) -> None:
    path = str(tmp_path / "encoder.onnx")
    onnx.save(encoder("dynamo"), path)
    assert main(["inspect", path, "--max_items", "0"]) == 0
    out = capsys.readouterr().out
    assert "regions by scope" in out
    assert "encoder.layer.*.attn.*_proj" in out
    assert " LEAF encoder.layer.1.mlp.fc1 5 ops" in out
    found = record(capsys, path)
    assert found["divided_by"] == "scope"
    assert "encoder.layer.0.attn" in {region["scope"] for region in found["regions"]}
    assert record(capsys, path, "--regions", "structure")["divided_by"] == "structure"


def test_region_inspect_names_modules_too(tmp_path: Path, capsys: Capture) -> None:
    path = str(tmp_path / "encoder.onnx")
    onnx.save(encoder("legacy"), path)
    assert region_inspect(["--model", path]) == 0
    assert "Scope: encoder.layer.0.attn.k_proj" in capsys.readouterr().out
    assert region_inspect(["--model", path, "--regions", "structure"]) == 0
    assert "Scope: encoder.layer.0.attn.k_proj" not in capsys.readouterr().out
