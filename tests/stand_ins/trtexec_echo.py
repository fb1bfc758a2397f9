"""What the stand-in trtexec says before it begins."""

from __future__ import annotations

from tests.stand_ins.trtexec_console import Console
from tests.stand_ins.trtexec_options import NO_OPS_11, Options, Version

_DEVICE = "Stand-in for an NVIDIA GPU"


def echo(console: Console, options: Options, version: Version) -> None:
    """Repeats what was asked for, and names the device."""
    given = options.given
    for name in NO_OPS_11.keys() & given.keys() if version >= (11,) else ():
        console.warning(NO_OPS_11[name])
    weak = [name for name in ("fp16", "bf16", "int8", "fp8", "best") if name in given]
    if weak and version >= (10, 14):
        console.warning(
            "Weakly-typed networks have been deprecated in TensorRT. You can use the AutoCast "
            "tool to convert the network to be strongly typed."
        )
    precision = "+".join(["FP32", *(name.upper() for name in weak)])
    if "stronglyTyped" in given or version >= (11,):
        precision = "Strongly Typed"
        for name in weak:
            console.warning(
                f"Invalid usage, setting {name} mode is not allowed if graph is strongly "
                f"typed. Disabling BuilderFlag::k{name.upper()}."
            )
    sections = {
        "Model": {"Format": "ONNX" if "onnx" in given else "*", "Model": given.get("onnx", "")},
        "Build": {"Precision": precision, "Save engine": given.get("saveEngine", "")},
        "System": {"Device": given.get("device", "0")},
        "Inference": {"Iterations": given.get("iterations", "10")},
        "Reporting": {"Averages": f"{given.get('avgRuns', '10')} inferences"},
    }
    for title, lines in sections.items():
        console.info(f"=== {title} Options ===")
        for key, value in lines.items():
            console.info(f"{key}: {value}")
    console.info("=== Device Information ===")
    console.info(f"Selected Device: {_DEVICE}")
    console.info("Compute Capability: 9.0")
    console.info(f"TensorRT version: {'.'.join(map(str, version))}")
