"""Files beside a sound model, or in place of its weights, that are no honest files.

`WEIGHTS` has those that lie where a model's weights should, `FILES` those that a flag names. Every
function writes into a folder with a sound model ``m.onnx``; those of `FILES` return what to run.
"""

from __future__ import annotations

import io
import itertools
import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from qdqtune.records._placement import Placement
from qdqtune.records._report import (
    EdgeView,
    GraphView,
    LayerChange,
    NodeView,
    PatternRow,
    ReportDetails,
    SchemeRow,
    TensorRow,
)
from qdqtune.workflows.tuning._journal_format import encode
from tests.promises.models import one_matmul
from tests.report.runs import SUMMARY

WEIGHTS: dict[str, Callable[[Path], None]] = {}
FILES: dict[str, Callable[[Path], list[list[str]]]] = {}

TERA = 1 << 40


def _weights(make: Callable[[Path], None]) -> Callable[[Path], None]:
    WEIGHTS[make.__name__] = make
    return make


def _file(make: Callable[[Path], list[list[str]]]) -> Callable[[Path], list[list[str]]]:
    FILES[make.__name__] = make
    return make


def sound_model(folder: Path) -> Path:
    """A MatMul and a Relu."""
    (folder / "m.onnx").write_bytes(one_matmul().SerializeToString())
    return folder / "m.onnx"


def _field(number: int, content: bytes) -> bytes:
    """A field of a protobuf message; libraries refuse to write what is needed here."""
    size, prefix = len(content), bytes([number << 3 | 2])
    while size > 127:
        prefix += bytes([size & 127 | 128])
        size >>= 7
    return prefix + bytes([size]) + content


def _external(folder: Path, dims: list[int], **place: object) -> None:
    """The sound model, with its weights in ``w.bin``."""
    model = one_matmul()
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.dims[:] = dims
    weight.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": "w.bin", **place}.items():
        weight.external_data.add(key=key, value=str(value))
    (folder / "m.onnx").write_bytes(model.SerializeToString())


# Where weights should lie.


@_weights
def weights_of_a_huge_length(folder: Path) -> None:
    (folder / "w.bin").write_bytes(bytes(1024))
    _external(folder, [16, 16], offset=0, length=(1 << 63) - 1)


@_weights
def weights_at_a_huge_offset(folder: Path) -> None:
    (folder / "w.bin").write_bytes(bytes(1024))
    _external(folder, [16, 16], offset=(1 << 63) - 1, length=1024)


@_weights
def weights_in_a_hole_of_a_terabyte(folder: Path) -> None:
    with (folder / "w.bin").open("wb") as file:
        file.truncate(TERA)
    _external(folder, [16, TERA // 64], offset=0, length=TERA)


@_weights
def weights_of_16_gigabytes_in_a_hole(folder: Path) -> None:
    with (folder / "w.bin").open("wb") as file:
        file.truncate(1 << 34)
    _external(folder, [16, 1 << 28], offset=0, length=1 << 34)


@_weights
def weights_that_link_to_themselves(folder: Path) -> None:
    (folder / "w.bin").symlink_to("w.bin")
    _external(folder, [16, 16])


@_weights
def weights_in_a_circle_of_links(folder: Path) -> None:
    (folder / "w.bin").symlink_to("v.bin")
    (folder / "v.bin").symlink_to("w.bin")
    _external(folder, [16, 16])


@_weights
def weights_in_a_folder(folder: Path) -> None:
    (folder / "w.bin").mkdir()
    _external(folder, [16, 16])


@_weights
def weights_from_a_pipe(folder: Path) -> None:
    os.mkfifo(folder / "w.bin")
    _external(folder, [16, 16])


@_weights
def weights_from_a_device(folder: Path) -> None:
    (folder / "w.bin").symlink_to("/dev/zero")
    _external(folder, [16, 16])


def _nested(folder: Path, depth: int) -> None:
    graph = _field(2, b"innermost") + _field(12, _field(1, b"o"))
    for _ in range(depth):
        body = _field(1, b"then_branch") + b"\xa0\x01\x05" + _field(6, graph)
        graph = _field(1, _field(1, b"c") + _field(2, b"o") + _field(4, b"If") + _field(5, body))
    model = b"\x08\x08" + _field(8, b"\x10\x11") + _field(7, graph)
    (folder / "m.onnx").write_bytes(model)


@_weights
def ifs_nested_500_deep(folder: Path) -> None:
    _nested(folder, 500)


@_weights
def ifs_nested_10_000_deep(folder: Path) -> None:
    _nested(folder, 10_000)


@_weights
def model_from_a_pipe(folder: Path) -> None:
    (folder / "m.onnx").unlink()
    os.mkfifo(folder / "m.onnx")


@_weights
def model_in_a_hole_of_a_terabyte(folder: Path) -> None:
    with (folder / "m.onnx").open("wb") as file:
        file.truncate(TERA)


# What flags name: states, caches, layers, placements.

SIMULATED = ["--engine", "simulated", "--budget", "10"]


def _laughs(levels: int) -> str:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, levels):
        again = ", ".join([f"*a{level - 1}"] * 9)
        lines += [f"a{level}: &a{level} [{again}]"]
    return "\n".join(lines)


def _state_lines(path: Path) -> list[list[str]]:
    own = ["python", "-m", "qdqtune.autotune", "-m", "m.onnx", "-o", "run"]
    return [
        [*own, "--state_file", path.name, *SIMULATED],
        [*own, "--pattern_cache", path.name, *SIMULATED],
        ["tune", "m.onnx", "--pattern_cache", path.name, "-o", "run", *SIMULATED],
    ]


def _state(folder: Path, text: str) -> list[list[str]]:
    (folder / "state.yaml").write_text(text)
    return _state_lines(folder / "state.yaml")


@_file
def yaml_of_a_billion_laughs(folder: Path) -> list[list[str]]:
    return _state(folder, _laughs(40))


@_file
def yaml_of_50_000_brackets(folder: Path) -> list[list[str]]:
    return _state(folder, "a: " + "[" * 50_000 + "]" * 50_000)


@_file
def yaml_of_50_000_levels(folder: Path) -> list[list[str]]:
    return _state(folder, "- " * 50_000 + "a")


@_file
def yaml_of_a_million_keys(folder: Path) -> list[list[str]]:
    return _state(folder, "\n".join(f"k{number}: {number}" for number in range(1_000_000)))


def _json_lines() -> list[list[str]]:
    subgraph = ["--workflow", "subgraph", "--graph_json", "bomb.json"]
    return [
        ["inspect", "m.onnx", "--groups", "--graph_json", "bomb.json"],
        ["tune", "m.onnx", "-o", "run", *subgraph, *SIMULATED],
        ["insert", "m.onnx", "--placement", "bomb.json", "-o", "out.onnx"],
    ]


@_file
def json_of_100_000_brackets(folder: Path) -> list[list[str]]:
    (folder / "bomb.json").write_text("[" * 100_000 + "]" * 100_000)
    return _json_lines()


@_file
def json_of_numbers_with_a_million_digits(folder: Path) -> list[list[str]]:
    (folder / "bomb.json").write_text('{"schema": 1, "Layers": [' + "9" * 1_000_000 + "]}")
    return _json_lines()


@_file
def layers_that_all_read_each_other(folder: Path) -> list[list[str]]:
    """A hundred and fifty kilobytes that describe millions of edges."""
    shared = [{"Name": f"t{number}", "Dimensions": [1]} for number in range(20)]
    layers = [
        {"Name": f"n0+n1_{number}", "LayerType": "x", "Inputs": shared, "Outputs": shared}
        for number in range(100)
    ]
    (folder / "bomb.json").write_text(json.dumps({"Layers": layers, "Bindings": []}))
    return _json_lines()


@_file
def layer_of_a_hundred_thousand_names(folder: Path) -> list[list[str]]:
    layer = {"Name": " + ".join(["n0", "n1"] * 50_000), "LayerType": "fusion"}
    (folder / "bomb.json").write_text(json.dumps({"Layers": [layer] * 3, "Bindings": []}))
    return _json_lines()


@_file
def summary_of_100_000_brackets(folder: Path) -> list[list[str]]:
    run = folder / "run"
    run.mkdir()
    for name in ("baseline.onnx", "optimized_final.onnx"):
        (run / name).write_bytes(one_matmul().SerializeToString())
    for name in ("summary.json", "placement.json", "ranges.json", "measurements.jsonl"):
        (run / name).write_text("[" * 100_000 + "]" * 100_000)
    return [
        ["verify", "run/optimized_final.onnx", "--engine", "simulated", "--runs", "2"],
        ["export", "run", "--list"],
        ["export", "run", "--exclusion_list", "onnxruntime"],
        ["report", "run"],
        ["tune", "m.onnx", "-o", "run", *SIMULATED],
    ]


# What a report is made of, in the folder of a run that somebody sent.


def _received(folder: Path, name: str, content: str) -> list[list[str]]:
    """Write the folder of a run with one hostile file; returns what to run on it."""
    run = folder / "run"
    run.mkdir()
    (run / "summary.json").write_text(json.dumps(SUMMARY.to_dict()))
    (run / name).write_text(content)
    return [["report", "run"], ["report", "run", "run", "-o", "both.html"]]


def _details(folder: Path, details: ReportDetails) -> list[list[str]]:
    return _received(folder, "report.json", json.dumps(details.to_dict()))


@_file
def report_of_100_000_brackets(folder: Path) -> list[list[str]]:
    return _received(folder, "report.json", "[" * 100_000 + "]" * 100_000)


@_file
def report_of_a_graph_of_120_000_nodes(folder: Path) -> list[list[str]]:
    places = [(1e300, -1e300), (0.0, 5e-324)]
    nodes = tuple(NodeView(f"n{n}", "Conv", places[n % 2]) for n in range(120_000))
    edges = tuple(EdgeView(n, n + 1, border=True) for n in range(119_999))
    return _details(folder, ReportDetails(graph=GraphView(nodes, edges, width=1e300)))


@_file
def report_of_an_edge_of_a_million_bends(folder: Path) -> list[list[str]]:
    nodes = (NodeView("a", "Conv", (0.0, 0.0)), NodeView("b", "Conv", (0.0, 1.0)))
    edge = EdgeView(0, 1, bends=((1e300, 0.5), (-1e300, 0.5)) * 500_000)
    return _details(folder, ReportDetails(graph=GraphView(nodes, (edge,))))


@_file
def report_of_very_many_rows(folder: Path) -> list[list[str]]:
    """Every list that a page shows, and each far longer than any run makes it."""
    scheme = SchemeRow(("x",) * 10, "c0001", 5e-324, True, "r" * 100)
    details = ReportDetails(
        layers=(LayerChange(("n",) * 5, ("Conv",) * 5, before_ms=1e300),) * 15_000,
        patterns=(PatternRow(("Conv",), 1 << 60, "n", (scheme,) * 10),) * 6_000,
        tensors=(TensorRow("t", "n", "Conv", -1e300, 1e300, 1e300),) * 30_000,
        candidates={f"placement {n}": f"c{n:04d}" for n in range(60_000)},
        missing=("m" * 100,) * 30_000,
    )
    return _details(folder, details)


@_file
def report_of_200_000_measurements(folder: Path) -> list[list[str]]:
    """Each is ten thousand times as fast as the one before."""
    body = {
        "kind": "measurement", "effort": "screen", "gain": 9.2, "error": 9.2, "failure": None,
        "latency_ms": 1.0, "reference_ms": 1.0,
    }  # fmt: skip
    names = [Placement().digest(), *(f"{n:032d}" for n in range(200_000))]
    lines = (
        encode({**body, "reference": one, "candidate": other, "id": f"c{n:04d}"})
        for n, (one, other) in enumerate(itertools.pairwise(names))
    )
    return _received(folder, "measurements.jsonl", "".join(lines))


# Samples.


def _header(shape: tuple[int, ...], *, fortran: bool = False) -> bytes:
    header = io.BytesIO()
    what = {"descr": "<f4", "fortran_order": fortran, "shape": shape}
    np.lib.format.write_array_header_1_0(header, what)
    return header.getvalue()


def _sample_lines(name: str) -> list[list[str]]:
    data = ["--calibration_data", name, "--calibration_samples", "8"]
    return [
        ["insert", "m.onnx", "--ops", "MatMul", *data, "-o", "out.onnx"],
        ["quantize", "m.onnx", *data, "--engine", "onnxruntime", "-o", "quant.onnx"],
        ["compare", "m.onnx", "m.onnx", *data],
        ["tune", "m.onnx", *data, "-o", "run", *SIMULATED],
    ]


def _zeros(path: Path, header: bytes, size: int) -> None:
    with path.open("wb") as file:
        file.write(header)
        file.truncate(len(header) + size)


def _zipped(path: Path, header: bytes, size: int) -> None:
    """An array of zeros in an archive, a thousandth of its size; its checksum is left out."""
    chunk = 1 << 22
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(header) + packer.flush(zlib.Z_FULL_FLUSH)
    again = packer.compress(bytes(chunk)) + packer.flush(zlib.Z_FULL_FLUSH)
    packed = first + again * (size // chunk) + packer.flush()
    name, total = b"x.npy", len(header) + size
    sizes = struct.pack("<QQ", total, len(packed))
    extra = struct.pack("<HH", 1, len(sizes)) + sizes
    common = struct.pack("<HHHHHIII", 45, 0, 8, 0, 0, 0, 0xFFFFFFFF, 0xFFFFFFFF)
    lengths = struct.pack("<HH", len(name), len(extra))
    local = b"PK\3\4" + common + lengths + name + extra
    entry = b"PK\1\2\x2d\3" + common + lengths + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name + extra
    end = b"PK\5\6" + struct.pack("<HHHHIIH", 0, 0, 1, 1, len(entry), len(local) + len(packed), 0)
    path.write_bytes(local + packed + entry + end)


@_file
def npz_of_a_zip_bomb(folder: Path) -> list[list[str]]:
    """Sixteen gigabytes of zeros in sixteen megabytes."""
    _zipped(folder / "x.npz", _header((1 << 26, 4, 16)), 1 << 34)
    return _sample_lines("x.npz")


@_file
def npz_of_a_column_major_array(folder: Path) -> list[list[str]]:
    _zipped(folder / "x.npz", _header((1 << 26, 4, 16), fortran=True), 1 << 34)
    return _sample_lines("x.npz")


@_file
def npy_of_a_column_major_terabyte(folder: Path) -> list[list[str]]:
    _zeros(folder / "x.npy", _header((TERA // 256, 4, 16), fortran=True), TERA)
    return _sample_lines("x.npy")


@_file
def npy_of_one_sample_of_a_terabyte(folder: Path) -> list[list[str]]:
    _zeros(folder / "x.npy", _header((1, TERA // 64, 16)), TERA)
    return _sample_lines("x.npy")


@_file
def npy_with_a_header_of_gigabytes(folder: Path) -> list[list[str]]:
    (folder / "x.npy").write_bytes(b"\x93NUMPY\x02\x00" + struct.pack("<I", 0xFFFFFFF0))
    with (folder / "x.npy").open("r+b") as file:
        file.truncate(1 << 32)
    return _sample_lines("x.npy")


@_file
def npy_of_a_shape_that_overflows(folder: Path) -> list[list[str]]:
    (folder / "x.npy").write_bytes(_header((1 << 62, 1 << 62, 4, 16)) + bytes(4096))
    return _sample_lines("x.npy")


@_file
def shapes_of_flags_that_are_too_large(folder: Path) -> list[list[str]]:
    huge, deep = f"x:{TERA}x16", "x:" + "x".join(["1"] * 100)
    open_model = one_matmul()
    open_model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    (folder / "m.onnx").write_bytes(open_model.SerializeToString())
    lines = [
        ["bench", "m.onnx", "--runs", "2"],
        ["compare", "m.onnx", "m.onnx"],
        ["convert", "m.onnx", "--to", "fp16", "-o", "out.onnx"],
        ["insert", "m.onnx", "--ops", "MatMul", "-o", "out.onnx"],
        ["inspect", "m.onnx", "--layers"],
        ["quantize", "m.onnx", "-o", "out.onnx"],
        ["shapes", "m.onnx", "-o", "out.onnx"],
        ["tune", "m.onnx", "-o", "run", *SIMULATED],
    ]
    return [[*line, "--shapes", shape] for line in lines for shape in (huge, deep)]
