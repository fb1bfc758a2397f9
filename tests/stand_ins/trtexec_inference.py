"""What the stand-in trtexec says about runs: simulated times, and real outputs."""

from __future__ import annotations

import math
import os
import random
import zlib
from typing import Any

Engine = dict[str, Any]
Version = tuple[int, ...]

BYTES = {"Float": 4, "Half": 2, "BFloat16": 2, "Int32": 4, "Int64": 8}
_NUMPY = {"Float": "float32", "Half": "float16", "Int32": "int32", "Int64": "int64",
          "Bool": "bool", "Int8": "int8", "UInt8": "uint8"}  # fmt: skip
# A real run fills its duration; nobody reads more than these.
_MOST_TIMED_BY_DURATION = 2000
_MOST_PROFILED = 20
_NOISE, _DRIFT = 0.004, 0.0005


class InferenceError(Exception):
    """What goes wrong in a run."""


class Times:
    """Simulated times of the runs of an engine.

    Args:
        engine: The engine.
        shapes: Of the inputs in these runs.
        seed: What the noise depends on.
    """

    def __init__(self, engine: Engine, shapes: dict[str, list[int]], seed: str) -> None:
        usual = sum(math.prod(value["opt"]) for value in engine["inputs"])
        found = sum(math.prod(shapes[value["name"]]) for value in engine["inputs"])
        ratio = found / max(usual, 1)
        self.layers_ms = [
            layer["fixed_ms"] + layer["work_ms"] * ratio for layer in engine["layers"]
        ]
        self.ms = max(sum(self.layers_ms), 0.001)
        self._random = random.Random(seed)

    def runs_ms(self, iterations: int, duration_s: float) -> list[float]:
        """Milliseconds of each run."""
        wanted = min(math.ceil(duration_s * 1000.0 / self.ms), _MOST_TIMED_BY_DURATION)
        gauss = self._random.gauss
        typical = self.ms * (1.0 + _DRIFT * gauss(0.0, 1.0))
        return [typical * (1.0 + _NOISE * gauss(0.0, 1.0)) for _ in range(max(iterations, wanted))]

    def profile_ms(self, runs: int) -> list[list[float]]:
        """Milliseconds of each layer in each run."""
        gauss = self._random.gauss
        return [
            [ms * abs(1.0 + _NOISE * gauss(0.0, 1.0)) for _ in range(min(runs, _MOST_PROFILED))]
            for ms in self.layers_ms
        ]


def summary(runs_ms: list[float], version: Version, averaged: int) -> list[str]:
    """The lines of the performance summary."""
    total_s = sum(runs_ms) / 1000.0
    lines = ["", "=== Trace details ===", f"Trace averages of {averaged} runs:"]
    blocks = [runs_ms[at : at + averaged] for at in range(0, len(runs_ms), averaged)]
    for block in blocks[:10]:
        mean = sum(block) / len(block)
        lines.append(
            f"Average on {averaged} runs - GPU latency: {mean:g} ms - Host latency: {mean:g} ms "
            f"(enqueue {mean / 20:g} ms)"
        )
    if len(blocks) > 10 and version >= (10,):
        lines.append(f"... Omitting {len(blocks) - 10} lines")
    enqueue = [ms / 20 for ms in runs_ms]
    nothing = [0.0] * len(runs_ms)
    return [
        *lines,
        "",
        "=== Performance summary ===",
        f"Throughput: {len(runs_ms) / total_s if total_s else math.inf:g} qps",
        f"Latency: {_fields(runs_ms, version)}",
        f"Enqueue Time: {_fields(enqueue, version)}",
        f"H2D Latency: {_fields(nothing, version)}",
        f"GPU Compute Time: {_fields(runs_ms, version)}",
        f"D2H Latency: {_fields(nothing, version)}",
        f"Total Host Walltime: {total_s * 1.02:g} s",
        f"Total GPU Compute Time: {total_s:g} s",
        "Explanations of the performance metrics are printed in the verbose logs.",
        "",
    ]


def times_file(runs_ms: list[float]) -> str:
    """What `--exportTimes` writes."""
    lines = []
    now = 0.0
    for ms in runs_ms:
        end = now + ms
        pairs = (
            ("startEnqMs", now), ("endEnqMs", now + ms / 20), ("startH2dMs", now),
            ("endH2dMs", now), ("startComputeMs", now), ("endComputeMs", end),
            ("startD2hMs", end), ("endD2hMs", end), ("h2dMs", 0.0), ("computeMs", ms),
            ("d2hMs", 0.0), ("latencyMs", ms),
        )  # fmt: skip
        lines.append("{ " + ", ".join(f'"{key}" : {value:g}' for key, value in pairs) + " }")
        now = end
    return "[\n  " + "\n, ".join(lines) + "\n]\n"


def check_inputs(engine: Engine, shapes: dict[str, list[int]], files: dict[str, str]) -> None:
    """Make sure that files with inputs are as large as the inputs.

    Raises:
        InferenceError: If not.
    """
    for value in engine["inputs"]:
        path = files.get(value["name"])
        if path is None:
            continue
        size = math.prod(shapes[value["name"]]) * BYTES.get(value["kind"], 1)
        try:
            found = os.path.getsize(path)
        except OSError:
            raise InferenceError(f"Cannot open file {path}!") from None
        if found not in (size, 2 * size):
            raise InferenceError(
                f"Unexpected file size for input file: {path}. Note: Input binding size is: {size} "
                f"bytes but the file size is {found} bytes. Double check the size and datatype of "
                "the provided data."
            )


def outputs_file(
    engine: Engine, model: bytes, shapes: dict[str, list[int]], files: dict[str, str], seed: str
) -> str:
    """What `--exportOutput` writes; ONNX Runtime computes it, op by op.

    Raises:
        InferenceError: If it can't be run.
    """
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # else numpy starts threads
    import numpy as np
    import onnxruntime as ort

    rng = np.random.default_rng(zlib.crc32(seed.encode()))
    feeds = {}
    for value in engine["inputs"]:
        kind, shape = _NUMPY.get(value["kind"], "float32"), shapes[value["name"]]
        if value["name"] in files:
            loaded = np.fromfile(files[value["name"]], kind, count=math.prod(shape))
            array = loaded.reshape(shape)
        else:
            array = rng.uniform(-1.0, 1.0, shape).astype(kind)
        feeds[value["name"]] = array.astype(_NUMPY.get(value["model_kind"], kind))
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    folder = "session.model_external_initializers_file_folder_path"
    options.add_session_config_entry(folder, engine["folder"])
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        found = session.run(None, feeds)
    except Exception as error:
        raise InferenceError(" ".join(str(error).split())) from None
    named = dict(zip((value["name"] for value in engine["outputs"]), found, strict=True))
    text, sep = "[\n", "  "
    for name in sorted(named, key=lambda name: zlib.crc32(name.encode())):
        array = np.asarray(named[name])
        values = (f"{v:g}" if array.dtype.kind == "f" else f"{int(v)}" for v in array.ravel())
        sizes = "x".join(map(str, array.shape))
        text += f'{sep}{{ "name" : "{name}"\n  , "dimensions" : "{sizes}"\n  , "values" : [ '
        text += ", ".join(values) + " ]\n  }\n"
        sep = ", "
    return text + "]\n"


def _fields(values: list[float], version: Version) -> str:
    ordered = sorted(values)
    count = len(ordered)
    middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
    told = {"min": ordered[0], "max": ordered[-1], "mean": sum(values) / count, "median": middle}
    for percent in (99,) if version < (8, 5) else (90, 95, 99):
        told[f"percentile({percent}%)"] = ordered[min(count - 1, count * percent // 100)]
    return ", ".join(f"{key} = {value:g} ms" for key, value in told.items())
