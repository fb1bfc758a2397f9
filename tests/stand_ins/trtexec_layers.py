"""What the stand-in trtexec tells about layers: their names and the files, by version."""

from __future__ import annotations

import json
import zlib
from typing import Any

Version = tuple[int, ...]
Layer = dict[str, Any]
Shape = list[int]

_TOKENS = {
    "Relu": "Max", "Sigmoid": "NegExpAddDiv", "Softmax": "MaxrSubExpSum", "Transpose": "Tran",
    "LayerNormalization": "MeanSubMulMeanAddSqrtDivMulAdd", "Concat": "Conc", "Slice": "Slic",
    "Gather": "Gath", "Reshape": "Resh", "ReduceMean": "Mean", "ReduceSum": "Sum",
    "QuantizeLinear": "MulMinMaxRounCast", "DequantizeLinear": "CastMul",
}  # fmt: skip
_CASK = {"conv": "CaskConvolution", "pool": "CaskPooling", "foreign": "Myelin"}
_OLD = {
    "gemm": "CaskGemmConvolution", "pointwise": "PointWiseV2", "norm": "Reduce", "move": "Shuffle",
    "free": "NoOp", "qdq": "Reformat", "reformat": "Reformat", "other": "ElementWise",
}  # fmt: skip
_PARAMETERS = {"conv": "Convolution", "pool": "Pooling", "qdq": "Reformat", "reformat": "Reformat"}
_LOW = ("Int8", "FP8")
_PHRASES = {
    "Float": "Row major linear FP32",
    "Half": "Channel major FP16 format where channel % 8 == 0",
    "Int8": "Thirty-two wide channel vectorized row major Int8 format",
}
_RS, _US = "\x1e", "\x1f"


def layers_of(kernels: list[Layer], version: Version) -> list[Layer]:
    """The layers of an engine, each with a name of its own, from its kernels."""
    has_conv = any(kernel["kind"] == "conv" for kernel in kernels)
    made: list[Layer] = []
    for kernel in kernels:
        native = kernel["kind"] in _CASK or (kernel["kind"] == "qdq" and has_conv)
        if native or version < (9,):
            made.append({**kernel, "native": True, "name": _old_name(kernel)})
        elif kernel["kind"] != "free" or kernel["fixed_ms"]:  # what moves nothing is not told
            made += _compiled(kernel, len(made))
    first = next((n for n, layer in enumerate(made) if layer["kind"] == "conv"), None)
    if first is not None and made[first]["kind_of_math"] == "Half":
        made.insert(first, _copy(made[first]))
    seen: dict[str, int] = {}
    for layer in made:
        count = seen[layer["name"]] = seen.get(layer["name"], 0) + 1
        if count > 1:
            layer["name"] += f"_clone_{count - 1}"
    return made


def layer_info(engine: dict[str, Any], version: Version, *, detailed: bool, run: bool) -> str:
    """What `--exportLayerInfo` writes.

    Args:
        engine: The engine.
        version: The version.
        detailed: Whether it was built with detailed verbosity.
        run: Whether there is a context, which knows all shapes.
    """
    layers = engine["layers"]
    dims = engine["shapes" if run else "dims"]
    if detailed:
        told: list[Any] = [_told(layer, dims, version) for layer in layers]
    else:
        told = [layer["name"] for layer in layers]
    text = "{" + '"Layers": [' + ",".join(json.dumps(each, indent=1) for each in told) + "]"
    names = [value["name"] for value in (*engine["inputs"], *engine["outputs"])]
    if version >= (11,):
        values = [(value, "Input") for value in engine["inputs"]]
        values += [(value, "Output") for value in engine["outputs"]]
        text += ',"I/O Tensors": ' + json.dumps([_io_tensor(*pair) for pair in values])
    elif version >= (8, 4):
        text += ',"Bindings": [' + "\n,".join(map(json.dumps, names)) + "]"
    if version < (9,):  # seen in 8.6: control characters as they are
        text = text.replace("\\u001e", _RS)
    return text + "}\n"


def profile(layers: list[Layer], times_ms: list[list[float]], version: Version) -> str:
    """What `--exportProfile` writes: names as they are, numbers as C++ prints them."""
    runs = len(times_ms[0]) if times_ms else 0
    total = sum(map(sum, times_ms))
    lines = ["[", f'  {{ "count" : {runs} }}']
    for layer, times in zip(layers, times_ms, strict=True):
        share = sum(times) / total * 100 if total else float("nan")
        median = f'"medianMs" : {sorted(times)[runs // 2]:g}, ' if version >= (8, 4) else ""
        lines.append(
            f', {{ "name" : "{layer["name"]}", "timeMs" : {sum(times):g}, '
            f'"averageMs" : {sum(times) / runs:g}, {median}"percentage" : {share:g} }}'
        )
    return "\n".join([*lines, "]"]) + "\n"


def _old_name(kernel: Layer) -> str:
    terms = kernel["terms"]
    if kernel["kind"] == "foreign":
        return "{ForeignNode[" + f"{terms[0]}...{terms[1]}" + "]}"
    if kernel["kind"] == "pointwise":
        name = terms[0]
        for term in terms[1:]:
            name = f"PWN({name}), {term}"
        return f"PWN({name})"
    return " + ".join(terms).replace(" + || + ", " || ")


def _compiled(kernel: Layer, number: int) -> list[Layer]:
    end = f"_myl0_{number}"
    if kernel["kind"] == "gemm":
        name = "+".join(term for term in kernel["terms"] if term != "||") + end
        return [{**kernel, "native": False, "name": name, "type": "gemm"}]
    tokens = "".join(_TOKENS.get(op, op[:4].capitalize()) for op in kernel["ops"])
    if kernel["kind"] != "qdq":
        low_in = any(kind in _LOW for _, kind in kernel["inputs"])
        low_out = any(kind in _LOW for _, kind in kernel["outputs"])
        tokens = "CastMul" * low_in + tokens + "MulMinMaxRounCast" * low_out
    layer = {**kernel, "native": False, "name": f"__myl_{tokens}{end}", "type": "kgen"}
    if kernel["kind"] != "norm":
        return [layer]
    # A reduction and what is done with it: two kernels of the same nodes.
    half = {key: kernel[key] / 2 for key in ("fixed_ms", "work_ms")}
    between = [(f"__myln_k_arg__bb1_{number}_myl0", kernel["kind_of_math"])]
    last = f"__myl_Mul{'MulMinMaxRounCast' if layer['outputs'][0][1] in _LOW else ''}"
    first = {**layer, **half, "outputs": between, "name": f"__myl_{tokens[:4]}{end}"}
    inputs = [*kernel["inputs"], *between]
    return [first, {**layer, **half, "inputs": inputs, "name": f"{last}_myl0_{number + 1}"}]


def _copy(layer: Layer) -> Layer:
    name, kind = layer["inputs"][0]
    where = f"Input Tensor 0 to {layer['name']}"
    outputs = [(f"Reformatted {where}", layer["kind_of_math"])]
    layer["inputs"] = [*outputs, *layer["inputs"][1:]]
    return {
        **layer, "kind": "reformat", "name": f"Reformatting CopyNode for {where}", "nodes": [],
        "inputs": [(name, kind)], "outputs": outputs, "fixed_ms": 0.001, "work_ms": 0.0,
        "native": True,
    }  # fmt: skip


def _told(layer: Layer, dims: dict[str, Shape], version: Version) -> dict[str, Any]:
    native, kind = layer["native"], layer["kind"]
    told: dict[str, Any] = {"Name": layer["name"]}
    told["LayerType"] = (_CASK | _OLD)[kind] if native else layer["type"]
    for key in ("inputs", "outputs"):
        told[key.capitalize()] = [
            _tensor(name, kind, dims, native, version) for name, kind in layer[key]
        ]
    if version >= (11,):
        told["Constants"] = []
    if native:
        told["ParameterType"] = _PARAMETERS.get(kind, "Unknown")
        if kind in ("qdq", "reformat"):
            told["Origin"] = "QDQ" if kind == "qdq" else "REFORMAT"
        if kind == "conv":
            math = layer["kind_of_math"]
            told["Weights"] = {"Type": math, "Count": layer["weight"]}
            told["HasReLU"] = int("Relu" in layer["ops"])
            told["Activation"] = "RELU" if "Relu" in layer["ops"] else "NONE"
    token = zlib.crc32(layer["name"].encode())
    told["TacticName"] = f"stand_in_{layer['kind_of_math'].lower()}_{kind}_{token:08x}"
    if native:
        told["TacticValue"] = f"0x{token:016x}"
    if version >= (8, 6):
        told["StreamId"] = 0
        told["Metadata"] = _metadata(layer, _RS if native else _US)
    return told


def _metadata(layer: Layer, separator: str) -> str:
    if layer["kind"] == "foreign":
        return ""
    text = separator.join(f"[ONNX Layer: {name}]" for name in dict.fromkeys(layer["nodes"]))
    return text if len(text) <= 4000 else f"{text[:1990]} ... {text[-1990:]}"


def _tensor(
    name: str, kind: str, dims: dict[str, Shape], native: bool, version: Version
) -> dict[str, Any]:
    told: dict[str, Any] = {"Name": name}
    if native:
        told["Location"] = "Device"
    shape = dims.get(name, [])
    told["Dimensions"] = shape
    if version < (11,):
        told["Format/Datatype"] = _PHRASES.get(kind, kind) if native else kind
        return told
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(size, 1))
    told["Strides"] = strides[: len(shape)]
    told["StrideOrder"] = list(range(len(shape)))[::-1]
    return {**told, "Datatype": kind, "Format": "(Linear) Row major linear format"}


def _io_tensor(value: dict[str, Any], mode: str) -> dict[str, Any]:
    told = {"Format": "Row major linear FP32 format (kLINEAR)"}
    if mode == "Input":
        ranges = {f"{end.capitalize()}Shape": value[end] for end in ("min", "opt", "max")}
        told = {**ranges, **told}
    return {
        "Name": value["name"], "IOMode": mode, "DataType": value["kind"],
        "Dimensions": value["dims"], "Location": "Device", "IsShapeInferenceIO": False,
        "ProfileInfo": [told],
    }  # fmt: skip
