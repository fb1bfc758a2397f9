"""The output of `compare`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from qdqtune.records._accuracy import ErrorReport, LayerError, OutputError
from qdqtune.records._printable import printable
from qdqtune.report._bench import engine_line
from qdqtune.report._formatting import Table, shortened, text_table

_OUTPUTS = ("output", "SQNR dB", "cosine", "max error", "max value", "equal")
_LAYERS = (
    "own dB", "", "accumulated dB", "cosine", "max error", "max value", "op", "node", "inputs",
)  # fmt: skip
# A bar is full at 0 dB, where noise is as strong as the signal, and empty at this level.
_QUIET_DB = 60.0
_BAR_WIDTH = 12
_STEPS = "▁▂▃▄▅▆▇█"
_LINE_WIDTH = 60
_LONGEST_NAME = 44


def error_text(report: ErrorReport, top: int) -> str:
    """Format the errors of the outputs, then of the layers, worst first.

    Args:
        report: The errors.
        top: The maximum number of layers to show; 0 shows all.
    """
    how = ", every op as it is written"
    if not report.as_written:
        how = "; layers are run op by op, as they are written"
    lines = [
        engine_line(report.engine) + how,
        printable(f"{report.quantized_model} against {report.float_model}, {report.samples}"),
        "",
    ]
    if report.outputs:
        lines += [text_table(*outputs_table(report)), ""]
    else:
        lines += ["The models have no output in common.", ""]
    lines += _layer_lines(report, top)
    return "\n".join([*lines, *filter(None, [report.warning])])


def outputs_table(report: ErrorReport) -> Table:
    """Build the table of the outputs that both models have."""
    rows = [_output_row(output) for output in report.outputs]
    width = len(_OUTPUTS) - all(output.error is not None for output in report.outputs)
    return Table(_OUTPUTS, rows, right=(1, 2, 3, 4, 5)).only(range(width))


def layers_table(report: ErrorReport, top: int) -> Table:
    """Build the table of the layers, worst first.

    Args:
        report: The errors.
        top: The maximum number to show; 0 shows all.
    """
    rows = [_layer_row(each) for each in report.worst_first[: top or None]]
    return Table(_LAYERS, rows, right=(0, 2, 3, 4, 5))


def _output_row(output: OutputError) -> list[str]:
    error = output.error
    if error is None:
        return [output.name, "", "", "", "", f"{100 * output.equal:.4g} %"]
    return [
        output.name,
        _db(error.sqnr_db),
        f"{error.cosine:.5f}",
        f"{error.max_error:.3g}",
        f"{error.max_value:.3g}",
        "",
    ]


def _layer_lines(report: ErrorReport, top: int) -> list[str]:
    if report.failure:
        return [printable(f"Layers could not be compared: {report.failure}")]
    missing = len(report.unpaired)
    lines = []
    if report.layers:
        table = layers_table(report, top)
        lines.append(text_table(*table))
        more = len(report.layers) - len(table.rows)
        if more:
            lines.append(f"and {more} more layer{'s' * (more != 1)}: --top 0 shows all")
        lines += [
            "",
            "own: what the layer's own quantization adds; accumulated: what it is off in the model",
            *_courses(report.layers),
        ]
    if missing:
        what = "quantized op has a result" if missing == 1 else "quantized ops have results"
        lines.append(f"{missing} {what} that the float model does not have, by name")
    return lines


def _layer_row(layer: LayerError) -> list[str]:
    own, accumulated = layer.own, layer.accumulated
    return [
        _db(own.sqnr_db),
        _bar(own.sqnr_db),
        _db(accumulated.sqnr_db) if accumulated is not None else "",
        f"{own.cosine:.5f}",
        f"{own.max_error:.3g}",
        f"{own.max_value:.3g}",
        own.op_type,
        shortened(own.node, _LONGEST_NAME),
        " x ".join(own.inputs).replace(" per ", "/"),
    ]


def _courses(layers: Sequence[LayerError]) -> list[str]:
    """Plot the noise of the layers from first to last, one line each."""
    own = [_noise(layer.own.sqnr_db) for layer in layers]
    lines = [f"own, first layer to last:         {_course(own)}"]
    accumulated = [_noise(each.accumulated.sqnr_db) for each in layers if each.accumulated]
    if accumulated:
        lines.append(f"accumulated, first layer to last: {_course(accumulated)}")
    return lines


def _course(levels: Sequence[float]) -> str:
    """Plot levels as a line of steps; each step is the highest of the levels that it covers."""
    width = min(len(levels), _LINE_WIDTH)
    bounds = [position * len(levels) // width for position in range(width + 1)]
    peaks = [max(levels[low:high]) for low, high in itertools.pairwise(bounds)]
    return "".join(_STEPS[round(peak * (len(_STEPS) - 1))] for peak in peaks)


def _bar(db: float) -> str:
    return "█" * round(_noise(db) * _BAR_WIDTH)


def _noise(db: float) -> float:
    """Return the noise from 0 (none) to 1 (as strong as the signal)."""
    return min(1.0, max(0.0, 1.0 - db / _QUIET_DB))


def _db(db: float) -> str:
    return f"{db:.1f}" if math.isfinite(db) else "exact" if db > 0 else "lost"
