"""Memory that a model of gigabytes takes: `python -m benchmarks.large --gigabytes 3 --folder DIR`.

Writes a stack of Gemm and MatMul blocks with external data, runs commands on it, and prints the
most memory they had, as a ratio to the model's size. Resident memory counts pages of mapped files,
which the system may drop at any time; the anonymous part is what it can't.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

_EVERY_S = 0.02
_MODEL, _QUANTIZED = "large.onnx", "large_int8.onnx"
_TOKENS, _SEED = 4, 0


@dataclass
class Peak:
    """The most memory that a command and its children had.

    Attributes:
        largest: Resident bytes of its largest process.
        together: Resident bytes of all its processes at one moment.
        anonymous: The same without pages of mapped files.
        seconds: How long the command ran.
        code: Its exit code.
    """

    largest: int = 0
    together: int = 0
    anonymous: int = 0
    seconds: float = 0.0
    code: int = 0

    def see(self, processes: list[psutil.Process]) -> None:
        """Look at the processes now."""
        found = [memory for process in processes if (memory := _memory(process.pid))]
        self.largest = max([self.largest, *(resident for resident, _ in found)])
        self.together = max(self.together, sum(resident for resident, _ in found))
        self.anonymous = max(self.anonymous, sum(anonymous for _, anonymous in found))


def write_model(path: Path, size: int, width: int = 2048, inner: int = 8192) -> int:
    """Stream a model of about `size` bytes to disk, one block of weights at a time.

    Returns:
        The bytes of weights.
    """
    data = path.with_name(path.name + ".data")
    blocks = max(1, round(size / (2 * width * inner * 4)))
    rng = np.random.default_rng(_SEED)
    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []
    with data.open("wb") as file:

        def constant(name: str, shape: list[int], deviation: float, mean: float = 0.0) -> str:
            offset = -(-file.tell() // 4096) * 4096
            file.seek(offset)
            rows = shape[0] if len(shape) > 1 else 1
            for _ in range(rows):
                row = rng.standard_normal(shape[-1], np.float32) * np.float32(deviation)
                file.write((row + np.float32(mean)).tobytes())
            tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
            tensor.data_location = TensorProto.EXTERNAL
            facts = {"location": data.name, "offset": offset, "length": file.tell() - offset}
            for key, value in facts.items():
                tensor.external_data.add(key=key, value=str(value))
            constants.append(tensor)
            return name

        def node(op: str, name: str, inputs: list[str], **attributes: Any) -> str:
            nodes.append(helper.make_node(op, inputs, [f"{name}_out"], name, **attributes))
            return f"{name}_out"

        x = "tokens"
        for block in range(blocks):
            part = f"block{block}"
            scale = constant(f"{part}.norm.scale", [width], 0.1, 1.0)
            shift = constant(f"{part}.norm.shift", [width], 0.1)
            y = node("LayerNormalization", f"{part}.norm", [x, scale, shift])
            weight = constant(f"{part}.up.weight", [inner, width], width**-0.5)
            bias = constant(f"{part}.up.bias", [inner], 0.1)
            y = node("Gemm", f"{part}.up", [y, weight, bias], transB=1)
            y = node("Relu", f"{part}.relu", [y])
            weight = constant(f"{part}.down.weight", [inner, width], inner**-0.5)
            y = node("MatMul", f"{part}.down", [y, weight])
            x = node("Add", f"{part}.add", [x, y])
        weights = file.tell()
    shape = [_TOKENS, width]
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("tokens", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, shape)],
        constants,
    )
    opset = helper.make_opsetid("", 19)
    path.write_bytes(
        helper.make_model(graph, opset_imports=[opset], ir_version=9).SerializeToString()
    )
    return weights


def collect_statistics(command: list[str]) -> Peak:
    """Run a command and look at its memory until it ends."""
    peak = Peak()
    start = time.monotonic()
    root = psutil.Process(subprocess.Popen(command).pid)
    while root.is_running() and root.status() != psutil.STATUS_ZOMBIE:
        peak.see([root, *_children(root)])
        time.sleep(_EVERY_S)
    _, status, usage = os.wait4(root.pid, 0)
    peak.largest = max(peak.largest, usage.ru_maxrss * 1024)
    peak.seconds = time.monotonic() - start
    peak.code = os.waitstatus_to_exitcode(status)
    return peak


def commands(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """What is measured, in order: each uses what those before it wrote."""
    qdqtune = [sys.executable, "-m", "qdqtune"]
    model, quantized = str(folder / _MODEL), str(folder / _QUANTIZED)
    bench = ["--runs", "10", "--threads", "1"]
    yield "bench", [*qdqtune, "bench", model, *bench]
    yield "insert", [*qdqtune, "insert", model, "--ops", "Gemm,MatMul", "-o", quantized, "--force"]
    yield "bench float int8", [*qdqtune, "bench", model, quantized, *bench]
    yield "strip", [*qdqtune, "strip", quantized, "-o", str(folder / "stripped.onnx"), "--force"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    parser.add_argument("--folder", type=Path, help="on a disk with three times the room")
    parser.add_argument("--only", help="one of the commands, such as insert")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="large-", dir=options.folder) as name:
        folder = Path(name)
        size = write_model(folder / _MODEL, int(options.gigabytes * 1e9))
        print(f"model: {size / 1e9:.2f} GB of weights")
        for what, command in commands(folder):
            if options.only not in (None, what):
                continue
            peak = collect_statistics(command)
            shown = (peak.largest, peak.together, peak.anonymous)
            largest, together, anonymous = (f"{number / size:.2f}x" for number in shown)
            print(
                f"{what}: largest process {largest}, all {together}, of that anonymous "
                f"{anonymous}; {peak.seconds:.0f} s, exit code {peak.code}",
                flush=True,
            )


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        children: list[psutil.Process] = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return children


def _memory(pid: int) -> tuple[int, int] | None:
    """Resident bytes of a process, and how many of them are not pages of a file."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    facts = dict(line.split(":", 1) for line in lines if line.startswith(("VmRSS", "RssAnon")))
    if len(facts) < 2:
        return None
    return int(facts["VmRSS"].split()[0]) * 1024, int(facts["RssAnon"].split()[0]) * 1024


if __name__ == "__main__":
    main()
