"""What strangers and disks do to the folder of a run: 200 ways and more, each with a name.

A way is a function of a copy of the folder; chance in it is seeded by its name. What it points to
outside of the folder lies in a tree of canaries, which must stay as it is.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import yaml

from qdqtune.workflows.tuning._journal_format import checksum, whole_lines
from qdqtune.workflows.tuning._run_files import sha256_of_model

REGION, SUBGRAPH, EXTERNAL = "region", "subgraph", "external"
BASES = (REGION, SUBGRAPH, EXTERNAL)
MEASURED = "measured"
"""Like the first, on an engine that really measures."""
CANARY = "canary.sh"
VICTIM = "victim.txt"

_TEXTS = ("placement.json", "ranges.json", "measurements.jsonl", "summary.json")
_STATES = ("autotuner_state.yaml", "autotuner_state_pattern_cache.yaml")
_MODELS = ("baseline.onnx", "optimized_final.onnx", "region_models/c0001.onnx")
_WEIGHTS = ("region_models/weights.bin", "region_models/weights.index")
_EVERYWHERE = (*_TEXTS, *_STATES, *_MODELS, *_WEIGHTS, "region_models/c0000.onnx")
_ONLY = {
    SUBGRAPH: (
        "autotune_cache.json",
        "optimized_raw.onnx",
        "subgraphs/weights.bin",
        "subgraphs/weights.index",
        "subgraphs/subgraph_0000.none.onnx",
    ),
    EXTERNAL: ("model.bin", "optimized_final.onnx.data"),
    REGION: ("report.json", "report.html"),
}
_FOLDERS = {"region_models": REGION, "logs": REGION, "subgraphs": SUBGRAPH}


# What is done to the run on an engine that measures, too.
_REAL = (
    "final-random-weights-only", "final-random-weights-and-hash", "final-one-scale-only",
    "candidate-scales", "weights-random", "summary-speedup-and-interval", "summary-threads-many",
    "summary-kept-float", "obeyed-trtexec-trtexec", "obeyed-plan-cache-tensorrt",
    "journal-all-gains-high", "journal-perfect-accuracy", "handover-wrong-model",
)  # fmt: skip


@dataclass(frozen=True)
class Place:
    """A copy of a run's folder that is being changed.

    Attributes:
        run: The copy.
        other: The folder of another run, to take files from.
        outside: Canaries: nothing in there may change.
        rng: The chance of this way.
    """

    run: Path
    other: Path
    outside: Path
    rng: random.Random

    def __truediv__(self, name: str) -> Path:
        return self.run / name


@dataclass(frozen=True)
class Tampering:
    """One way.

    Attributes:
        name: What it is called.
        base: Which run it is done to.
        do: Does it.
    """

    name: str
    base: str
    do: Callable[[Place], None]

    def apply(self, run: Path, other: Path, outside: Path) -> None:
        """Change a copy of a folder."""
        self.do(Place(run, other, outside, random.Random(self.name)))


def all_tamperings() -> list[Tampering]:
    """Every way, each under a name of its own."""
    makers = (
        _damage, _kinds_of_file, _newer, _summary, _placement, _report, _models, _journal,
        _leftovers,
    )  # fmt: skip
    found = [each for maker in makers for each in maker()]
    found += [Tampering(f"measured-{e.name}", MEASURED, e.do) for e in found if e.name in _REAL]
    names = [each.name for each in found]
    assert len(set(names)) == len(names)
    return found


def _files() -> Iterator[tuple[str, str]]:
    """Every file of importance, and a run that has it; in turns, where all have it."""
    for number, name in enumerate(_EVERYWHERE):
        yield name, BASES[number % len(BASES)]
    for base, names in _ONLY.items():
        for name in names:
            yield name, base


# Bits, ends, absence, and files of another run.


def _damage() -> Iterator[Tampering]:
    for name, base in _files():
        for flips in (1, 1, 64):
            yield Tampering(f"bits-{flips}-{_unique()}-{name}", base, partial(_flip, name, flips))
        for part in (0.0, 0.5, 0.99):
            yield Tampering(f"cut-{part}-{name}", base, partial(_cut, name, part))
        yield Tampering(f"missing-{name}", base, lambda at, n=name: (at / n).unlink())
        yield Tampering(f"garbage-{name}", base, partial(_garbage, name))
        if name in _EVERYWHERE:
            yield Tampering(f"swapped-{name}", base, partial(_swap, name))


_numbers = iter(range(1_000_000))


def _unique() -> int:
    return next(_numbers)


def _flip(name: str, flips: int, at: Place) -> None:
    content = bytearray((at / name).read_bytes())
    for _ in range(flips):
        content[at.rng.randrange(len(content))] ^= 1 << at.rng.randrange(8)
    (at / name).write_bytes(content)


def _cut(name: str, part: float, at: Place) -> None:
    content = (at / name).read_bytes()
    (at / name).write_bytes(content[: int(part * len(content))])


def _garbage(name: str, at: Place) -> None:
    (at / name).write_bytes(at.rng.randbytes(3000))


def _swap(name: str, at: Place) -> None:
    shutil.copyfile(at.other / name, at / name)


# What is no plain file.


def _kinds_of_file() -> Iterator[Tampering]:
    for name, base in _files():
        if name.endswith(("index", "c0000.onnx", "none.onnx")):
            continue
        yield Tampering(f"fifo-{name}", base, partial(_fifo, name))
        yield Tampering(f"folder-{name}", base, partial(_folder, name))
        yield Tampering(f"link-out-{name}", base, partial(_link_out, name))
    for name in ("measurements.jsonl", "summary.json", "region_models/weights.bin"):
        yield Tampering(f"link-to-itself-{name}", REGION, partial(_link, name, Path(name).name))
        yield Tampering(f"hard-link-{name}", REGION, partial(_hard_link, name))
        yield Tampering(f"link-nowhere-{name}", REGION, partial(_link_nowhere, name))
    for name, base in _FOLDERS.items():
        yield Tampering(f"folder-link-{name}", base, partial(_folder_link, name))
        yield Tampering(f"fifo-{name}", base, partial(_fifo, name))
        yield Tampering(f"file-{name}", base, partial(_file, name))


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _fifo(name: str, at: Place) -> None:
    _remove(at / name)
    os.mkfifo(at / name)


def _folder(name: str, at: Place) -> None:
    _remove(at / name)
    (at / name).mkdir()


def _file(name: str, at: Place) -> None:
    _remove(at / name)
    (at / name).write_text("not a folder")


def _link(name: str, target: str, at: Place) -> None:
    _remove(at / name)
    (at / name).symlink_to(target)


def _link_out(name: str, at: Place) -> None:
    """A link to a copy that lies outside: whoever writes through it is seen."""
    target = at.outside / "linked" / Path(name).name
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(at / name, target)
    _link(name, str(target), at)


def _hard_link(name: str, at: Place) -> None:
    target = at.outside / "linked" / Path(name).name
    target.parent.mkdir(exist_ok=True)
    shutil.copyfile(at / name, target)
    _remove(at / name)
    (at / name).hardlink_to(target)


def _link_nowhere(name: str, at: Place) -> None:
    _link(name, str(at.outside / "made-by-following"), at)


def _folder_link(name: str, at: Place) -> None:
    target = at.outside / "linked"
    shutil.copytree(at / name, target)
    _link(name, str(target), at)


# Files of versions that are to come.


def _newer() -> Iterator[Tampering]:
    for name in ("placement.json", "ranges.json", "summary.json"):
        yield Tampering(f"newer-{name}", REGION, partial(_edit, name, {"schema": 99}))
    yield Tampering("newer-cache", SUBGRAPH, partial(_edit, "autotune_cache.json", {"schema": 99}))
    for name in _STATES:
        yield Tampering(f"newer-{name}", EXTERNAL, partial(_edit_yaml, name, {"schema": 99}))
    yield Tampering("newer-journal", REGION, partial(_edit_line, "run", {"schema": 99}))


def _edit(name: str, changes: dict[str, Any], at: Place) -> None:
    """Set fields of a JSON file; a name with dots leads into objects."""
    body = json.loads((at / name).read_text())
    for path, value in changes.items():
        *parents, last = path.split(".")
        holder = body
        for key in parents:
            holder = holder[key]
        holder[last] = value
    (at / name).write_text(json.dumps(body))


def _edit_yaml(name: str, changes: dict[str, Any], at: Place) -> None:
    body = yaml.safe_load((at / name).read_text())
    (at / name).write_text(yaml.safe_dump({**body, **changes}))


# Claims, and what a stranger would like to be obeyed.

_CLAIMS: dict[str, dict[str, Any]] = {
    "speedup": {"speedup": 5.0},
    "speedup-and-interval": {"speedup": 5.0, "speedup_interval": [4.9, 5.1]},
    "interval": {"speedup_interval": [4.9, 5.1]},
    "wide-interval": {"speedup": 5.0, "speedup_interval": [0.0, None]},
    "absurd-interval": {"speedup": 1e308, "speedup_interval": [5e-324, 1e308]},
    "reversed-interval": {"speedup_interval": [9.0, 1.0]},
    "nan": {"speedup": float("nan"), "speedup_interval": [float("nan"), float("nan")]},
    "text": {"speedup": "fast", "speedup_interval": "very"},
    "none": {"speedup": None, "speedup_interval": None},
    "negative": {"speedup": -2.0, "speedup_interval": [-3.0, -1.0]},
    "huge": {"speedup": 10**400},
    "lists": {"speedup": [1.6], "kept_float": []},
    "kept-float": {"kept_float": True},
    "better-sqnr": {"output_sqnr_db": 90.0},
    "sqnr-nan": {"output_sqnr_db": float("nan")},
    "sqnr-text": {"output_sqnr_db": "perfect"},
    "no-sqnr": {"output_sqnr_db": None},
    "other-hash": {"final_sha256": "0" * 64},
    "no-hash": {"final_sha256": ""},
    "hash-list": {"final_sha256": ["x"]},
    "other-device": {"engine.device": "a machine that I never had"},
    "engine-list": {"engine": ["simulated"]},
    "engine-none": {"engine": None},
    "engine-unknown": {"engine.name": "no such engine"},
    "engine-path": {"engine.name": "../../x"},
    "engine-ort": {"engine.name": "onnxruntime", "engine.options": {}},
    "threads-many": {"engine.threads": 100_000},
    "threads-negative": {"engine.threads": -7},
    "threads-text": {"engine.threads": "all"},
    "options-list": {"engine.options": [1]},
    "options-numbers": {"engine.options": {"seed": 7, "noise": None}},
    "options-faster": {"engine.options": {"profile": "cpu-vnni", "noise": "nan", "seed": "7"}},
    "files-list": {"files": ["optimized_final.onnx"]},
    "files-out": {"files": {"optimized_final": "../outside/victim.txt"}},
    "files-none": {"files": None},
    "shapes-text": {"shapes": {"x": "large"}},
    "shapes-huge": {"shapes": {"x": [1, 64, 10**9, 10**9]}},
    "conditions-list": {"conditions": ["x"]},
    "runs-text": {"runs": "many", "total_benchmarks": {}},
    "seconds-list": {"seconds": [1], "total_seconds": "long"},
    "kind": {"kind": "something"},
    "command": {"command": "$(touch executed); `touch executed`"},
    "mode": {"mode": "../../x", "precision": ["float16"]},
    "result-run": {"result_run": 10**30, "runs": 10**30},
}
_OBEYED: dict[str, dict[str, str]] = {
    "trtexec": {"trtexec": CANARY},
    "trtexec-path": {"trtexec_path": CANARY},
    "plan-cache": {"plan_cache": "plans"},
    "timing-cache": {"timing_cache": "timing.cache"},
    "plugins": {"plugin_libraries": CANARY, "plugins": CANARY, "staticPlugins": CANARY},
    "arguments": {"trtexec_args": "--saveEngine=engine", "extra_args": "--saveEngine=engine"},
    "profile-file": {"profile": VICTIM, "enable_profiling": "1", "profile_file": "profile"},
}


def _summary() -> Iterator[Tampering]:
    for number, (name, changes) in enumerate(_CLAIMS.items()):
        base = BASES[number % len(BASES)]
        yield Tampering(f"summary-{name}", base, partial(_edit, "summary.json", changes))
    for name in _OBEYED:
        for engine in ("simulated", "tensorrt", "trtexec", "tensorrt_rtx"):
            yield Tampering(f"obeyed-{name}-{engine}", REGION, partial(_obeyed, name, engine))


def _obeyed(name: str, engine: str, at: Place) -> None:
    """Options of the run, in its summary and header, that name files outside."""
    options = {key: _outside(value, at) for key, value in _OBEYED[name].items()}
    changes = {"engine.name": engine, "engine.options": options}
    _edit("summary.json", changes, at)
    header = next(line["header"] for line in whole_lines(at / "measurements.jsonl"))
    header["engine"].update(name=engine, options=options)
    _edit_line("run", {"header": header}, at)


def _outside(value: str, at: Place) -> str:
    flag, equals, path = value.rpartition("=")
    return f"{flag}{equals}{at.outside / path}" if not value.isdigit() else value


# Placements and ranges.


def _placement() -> Iterator[Tampering]:
    changes: dict[str, dict[str, Any]] = {
        "fewer-edges": {"edges": [["x", "n0", 0]]},
        "no-edges": {"edges": [], "outputs": []},
        "unknown-edge": {"edges": [["nothing", "n0", 0]]},
        "edge-types": {"edges": [[1, 2, "3"]]},
        "edges-dict": {"edges": {"x": "n0"}},
        "edges-deep": {"edges": [[[[["x"]]]]]},
        "huge-position": {"edges": [["x", "n0", 10**30]]},
        "other-model": {"model": "0" * 32},
        "model-list": {"model": [1]},
        "kind": {"kind": "ranges"},
    }
    for number, (name, change) in enumerate(changes.items()):
        base = BASES[number % len(BASES)]
        yield Tampering(f"placement-{name}", base, partial(_edit, "placement.json", change))
    for name, ranges in {
        "wide": {"x": [-1e30, 1e30]}, "nan": {"x": [float("nan"), 1.0]}, "text": {"x": "wide"},
        "reversed": {"x": [5, -5]}, "list": [1, 2],
    }.items():  # fmt: skip
        yield Tampering(f"ranges-{name}", REGION, partial(_edit, "ranges.json", {"ranges": ranges}))


# What reports are made of.


def _report() -> Iterator[Tampering]:
    changes: dict[str, dict[str, Any]] = {
        "newer": {"schema": 99},
        "other-model": {"model": "0" * 32},
        "folder": {"folder": "../../x; touch executed"},
        "graph-number": {"graph": 3},
        "unknown-field": {"script": "x"},
        "edge-to-nothing": {"graph.edges": [[0, 10**6, False, False, []]]},
        "huge-places": {"graph.width": 1e300, "graph.height": -1e300},
        "candidates-out": {"candidates": {"tuned": "../../outside/victim"}},
        "markup": {"missing": ["</script><script src=x></script>"]},
    }
    for name, change in changes.items():
        yield Tampering(f"report-{name}", REGION, partial(_edit, "report.json", change))
    figures: dict[str, dict[str, Any]] = {
        "no-speed": {"speedup_interval": [0.0, 0.0]},
        "slow-seeds": {"seeds": {"rules": 0.0}},
    }
    for name, change in figures.items():
        yield Tampering(f"report-{name}", REGION, partial(_edit, "summary.json", change))


# Models: what they compute is changed, and perhaps what is said of them as well.


def _models() -> Iterator[Tampering]:
    changes: dict[str, Callable[[onnx.ModelProto, Place], None]] = {
        "random-weights": _random_weights,
        "zero-weights": _zero_weights,
        "scales": _scales,
        "one-scale": _one_scale,
        "zero-points": _zero_points,
        "no-relu": _no_relu,
        "scale-nan": _nan_scale,
    }
    for name, change in changes.items():
        for hashes in (False, True):
            what = "and-hash" if hashes else "only"
            yield Tampering(f"final-{name}-{what}", REGION, partial(_change_final, change, hashes))
        yield Tampering(f"candidate-{name}", REGION, partial(_change_candidate, change))
    yield Tampering("weights-random", REGION, partial(_fill, "region_models/weights.bin", None))
    yield Tampering("weights-zero", SUBGRAPH, partial(_fill, "region_models/weights.bin", 0))
    yield Tampering("weights-ff", EXTERNAL, partial(_fill, "region_models/weights.bin", 255))
    yield Tampering(
        "final-data-random", EXTERNAL, partial(_fill, "optimized_final.onnx.data", None)
    )
    yield Tampering("final-is-baseline", REGION, lambda at: _copy(at, "baseline.onnx"))
    yield Tampering("final-is-candidate", REGION, lambda at: _copy(at, "region_models/c0001.onnx"))
    yield Tampering("candidates-exchanged", REGION, _exchange)


def _change_final(
    change: Callable[[onnx.ModelProto, Place], None], hashes: bool, at: Place
) -> None:
    path = at / "optimized_final.onnx"
    model = onnx.load(path)
    change(model, at)
    onnx.save(model, path)
    if hashes:
        _edit("summary.json", {"final_sha256": sha256_of_model(path)}, at)


def _change_candidate(change: Callable[[onnx.ModelProto, Place], None], at: Place) -> None:
    """The candidate with the most Q/DQ, its weights taken into it."""
    files = [*(at / "region_models").glob("c0*.onnx")]
    path = max(files, key=lambda file: (len(onnx.load(file).graph.node), file.name))
    model = onnx.load(path)
    change(model, at)
    onnx.save(model, path)


def _values(model: onnx.ModelProto) -> Iterator[tuple[onnx.TensorProto, np.ndarray]]:
    for tensor in model.graph.initializer:
        yield tensor, onnx.numpy_helper.to_array(tensor)


def _set(tensor: onnx.TensorProto, values: np.ndarray) -> None:
    tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))


def _random_weights(model: onnx.ModelProto, at: Place) -> None:
    rng = np.random.default_rng(at.rng.randrange(1 << 30))
    for tensor, values in _values(model):
        if values.dtype == np.int8 and values.ndim > 1:
            _set(tensor, rng.integers(-127, 128, values.shape, np.int8))


def _zero_weights(model: onnx.ModelProto, at: Place) -> None:
    for tensor, values in _values(model):
        if values.dtype == np.int8 and values.ndim > 1:
            _set(tensor, np.zeros_like(values))


def _scales(model: onnx.ModelProto, at: Place) -> None:
    for tensor, values in _values(model):
        if values.dtype == np.float32 and values.size > 1:
            _set(tensor, values * np.float32(1.7))


def _one_scale(model: onnx.ModelProto, at: Place) -> None:
    scales = [(t, v) for t, v in _values(model) if v.dtype == np.float32 and v.ndim == 0]
    tensor, values = scales[at.rng.randrange(len(scales))]
    _set(tensor, np.asarray(values * np.float32(1.01)))


def _nan_scale(model: onnx.ModelProto, at: Place) -> None:
    for tensor, values in _values(model):
        if values.dtype == np.float32:
            _set(tensor, np.full_like(values, np.nan))


def _zero_points(model: onnx.ModelProto, at: Place) -> None:
    for tensor, values in _values(model):
        if values.dtype == np.uint8 and values.ndim == 0:
            _set(tensor, np.asarray(values ^ np.uint8(4)))


def _no_relu(model: onnx.ModelProto, at: Place) -> None:
    for node in model.graph.node:
        if node.op_type == "Relu":
            node.op_type = "Neg"


def _fill(name: str, value: int | None, at: Place) -> None:
    size = (at / name).stat().st_size
    (at / name).write_bytes(at.rng.randbytes(size) if value is None else bytes([value]) * size)


def _copy(at: Place, source: str) -> None:
    model = onnx.load(at / source)
    onnx.save(model, at / "optimized_final.onnx")


def _exchange(at: Place) -> None:
    one, other = (at / f"region_models/c000{n}.onnx" for n in (0, 1))
    first, second = one.read_bytes(), other.read_bytes()
    one.write_bytes(second)
    other.write_bytes(first)


# Journals whose checksums are sound.

_ODD: tuple[Any, ...] = (
    1e308, 5e-324, -1.0, float("nan"), float("inf"), 1e14, 10**400, "1.0", None, True, [], {},
    [1.0] * 1000, {"x": [1]}, "../../x", "c0000", 0,
)  # fmt: skip


def _journal() -> Iterator[Tampering]:
    fields = {
        "run": ("header", "run", "at_s"),
        "session": ("number", "session"),
        "shares": ("shares",),
        "candidate": ("id", "key"),
        "file": ("id", "key", "digest"),
        "round": ("reference", "candidates", "baseline_ms", "latencies_ms", "log_ratios"),
        "measurement": (
            "reference", "candidate", "effort", "gain", "error", "failure", "latency_ms", "id",
        ),
        "accuracy": ("measure", "placement", "conditions", "value"),
        "end": ("seconds",),
    }  # fmt: skip
    number = 0
    for kind, names in fields.items():
        for name in names:
            value = _ODD[number % len(_ODD)]
            base = BASES[number % len(BASES)] if kind != "shares" else REGION
            number += 1
            yield Tampering(
                f"journal-{kind}-{name}-{number}", base, partial(_edit_line, kind, {name: value})
            )
    many: dict[str, Callable[[Place], None]] = {
        "all-gains-high": partial(_edit_line, "measurement", {"gain": 9.0}),
        "all-gains-low": partial(_edit_line, "measurement", {"gain": -9.0}),
        "all-failed": partial(_edit_line, "measurement", {"failure": "no", "gain": None}),
        "all-rounds-same": partial(_edit_line, "round", {"log_ratios": [9.0]}),
        "perfect-accuracy": partial(_edit_line, "accuracy", {"value": 120.0}),
        "bad-accuracy": partial(_edit_line, "accuracy", {"value": -50.0}),
        "infinite-accuracy": partial(_edit_line, "accuracy", {"value": "inf"}),
        "duplicated": partial(_reorder, lambda lines, _: [*lines, *lines]),
        "reversed": partial(_reorder, lambda lines, _: lines[::-1]),
        "shuffled": partial(_reorder, lambda lines, rng: rng.sample(lines, len(lines))),
        "no-candidates": partial(_without, "candidate"),
        "no-files": partial(_without, "file"),
        "no-header": partial(_without, "run"),
        "unknown-kind": partial(_edit_line, "shares", {"kind": "of-another-time"}),
        "one-digest-for-all": partial(_edit_line, "file", {"digest": "0" * 32}),
        "one-key-for-all": partial(_edit_line, "candidate", {"key": "0" * 32}),
    }
    for name, do in many.items():
        yield Tampering(f"journal-{name}", REGION, do)


def _bodies(at: Place) -> list[dict[str, Any]]:
    return list(whole_lines(at / "measurements.jsonl"))


def _write_bodies(bodies: list[dict[str, Any]], at: Place) -> None:
    texts = [json.dumps({**body, "checksum": checksum(body)}) for body in bodies]
    (at / "measurements.jsonl").write_text("".join(f"{text}\n" for text in texts))


def _edit_line(kind: str, changes: dict[str, Any], at: Place) -> None:
    """Change every line of a kind, with the checksum that it has to have then."""
    _write_bodies(
        [{**body, **changes} if body["kind"] == kind else body for body in _bodies(at)], at
    )


def _reorder(
    order: Callable[[list[dict[str, Any]], random.Random], list[dict[str, Any]]], at: Place
) -> None:
    _write_bodies(order(_bodies(at), at.rng), at)


def _without(kind: str, at: Place) -> None:
    _write_bodies([body for body in _bodies(at) if body["kind"] != kind], at)


# What kills leave, and what looks like it; and the caches.


def _leftovers() -> Iterator[Tampering]:
    manifests: dict[str, str | None] = {
        "empty": None,
        "no-names": "[]",
        "garbage": "\x00{",
        "dict": '{"a": 1}',
        "number": "7",
        "numbers": "[1, null, []]",
        "out": '["../../outside/victim.txt", "/etc/passwd"]',
        "deep": "[" * 5000,
        "all": '["optimized_final.onnx", "placement.json", "ranges.json", "summary.json"]',
    }
    for name, text in manifests.items():
        yield Tampering(f"handover-{name}", REGION, partial(_handover, text))
    yield Tampering("handover-file", REGION, partial(_file, ".handover"))
    yield Tampering("handover-fifo", REGION, partial(_fifo, ".handover"))
    yield Tampering("handover-wrong-model", REGION, _handover_wrong)
    yield Tampering("handover-link", REGION, partial(_link_to_canaries, ".handover"))
    yield Tampering("staged-link", REGION, partial(_link_to_canaries, ".staged"))
    yield Tampering("scratch-link", REGION, partial(_link_to_canaries, ".scratch"))
    yield Tampering("earlier-link", REGION, partial(_link_to_canaries, "earlier"))
    yield Tampering("lock-link", REGION, _lock_link)
    yield Tampering("staged-file", REGION, partial(_file, ".staged"))
    yield Tampering("scratch-file", REGION, partial(_file, ".scratch"))
    yield Tampering("partial-result", REGION, partial(_partial, "earlier/.partial-result"))
    yield Tampering("partial-run", REGION, partial(_partial, "earlier/.partial-run"))
    for phase, values in {
        "phase_1": ([], {"groups": {}}, None), "phase_2": ([], {"pieces": [1]}, "x"),
        "phase_3": ({}, {"batches": [[]], "seen": []}, 3), "build_s": (-1, 1e308, "fast"),
        "header": ([], None, 1), "run": ([], 0, "x"),
    }.items():  # fmt: skip
        for number, value in enumerate(values):
            yield Tampering(
                f"cache-{phase}-{number}",
                SUBGRAPH,
                partial(_edit, "autotune_cache.json", {phase: value}),
            )
    yield Tampering("cache-times", SUBGRAPH, _absurd_times)
    states: dict[str, dict[str, Any]] = {
        "header-list": {"header": [1]},
        "patterns-dict": {"patterns": {"a": 1}},
        "baseline-nan": {"baseline_latency_ms": float("nan")},
        "baseline-huge": {"baseline_latency_ms": 10**400},
        "config-text": {"config": "fast"},
        "measurements-list": {"measurements": [1, 2]},
    }
    for name, change in states.items():
        yield Tampering(f"state-{name}", REGION, partial(_edit_yaml, _STATES[0], change))


def _handover(text: str | None, at: Place) -> None:
    folder = at / ".handover"
    folder.mkdir()
    if text is not None:
        (folder / "names.json").write_text(text)
    if text is not None and "optimized" in text:
        for name in json.loads(text):
            shutil.copyfile(at / name, folder / name)


def _handover_wrong(at: Place) -> None:
    """A result that was never handed over, whose model is wrong."""
    _handover('["optimized_final.onnx", "placement.json", "ranges.json", "summary.json"]', at)
    path = at / ".handover/optimized_final.onnx"
    model = onnx.load(path)
    _random_weights(model, at)
    onnx.save(model, path)


def _link_to_canaries(name: str, at: Place) -> None:
    target = at.outside / "linked"
    target.mkdir(exist_ok=True)
    (target / "names.json").write_text('["victim.txt"]')
    (target / "kept.txt").write_text("kept")
    _remove(at / name)
    (at / name).symlink_to(target)


def _lock_link(at: Place) -> None:
    _remove(at / ".lock")
    (at / ".lock").symlink_to(at.outside / VICTIM)


def _partial(name: str, at: Place) -> None:
    (at / name).mkdir(parents=True)
    shutil.copyfile(at / "summary.json", at / name / "summary.json")


def _absurd_times(at: Place) -> None:
    body = json.loads((at / "autotune_cache.json").read_text())
    for subgraph in body["phase_2"]["pieces"]:
        for form in subgraph["forms"]:
            form.update(total_ms=1e308, inside_ms=5e-324)
    (at / "autotune_cache.json").write_text(json.dumps(body))
