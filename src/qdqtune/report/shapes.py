"""The output of `shapes`."""

from __future__ import annotations

from qdqtune.records.inputs import shape_text
from qdqtune.records.shapes import Proof, ShapesReport
from qdqtune.report.tables import printable, text_table

_PROOFS = {
    Proof.COMPARED: "it gives for a batch what the model gave for its samples",
    Proof.RUN: "it was run once",
    Proof.INFERENCE: "shape inference finds no fault; it was not run",
    Proof.NONE: "it could not be tried here",
}

_MOST_NAMES = 3


def shapes_text(report: ShapesReport) -> str:
    """Format a table of inputs and outputs, the symbols, and the file written."""
    rows = [
        [kind, tensor.name, tensor.dtype or "-", shape_text(tensor.dims)]
        for kind, tensors in (("input", report.inputs), ("output", report.outputs))
        for tensor in tensors
    ]
    lines = [text_table(["", "name", "type", "shape"], rows)]
    if report.symbols:
        lines += ["", f"Open dims with a name: {printable(', '.join(report.symbols))}"]
    if report.rewritten:
        names = printable(", ".join(report.rewritten[:_MOST_NAMES]))
        more = ", …" if len(report.rewritten) > _MOST_NAMES else ""
        count = len(report.rewritten)
        lines += ["", f"The batch was written into {count} Reshape node(s): {names}{more}"]
    if report.output is not None:
        lines += ["", f"{printable(report.output)}: {_PROOFS[report.proof]}"]
    return "\n".join(lines)
