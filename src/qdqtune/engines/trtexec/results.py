"""Files that trtexec writes: the time of each run, and what a run computes."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np

from qdqtune.records.untrusted_files import parse_json

if TYPE_CHECKING:
    from qdqtune.engines.interface import Outputs

# How far single times may be from the summary before they are not trusted.
_NEAR = 0.02
_OUTPUT = re.compile(
    r'\{\s*"name"\s*:\s*"(?P<name>[^\n]*?)"\s*,\s*"dimensions"\s*:\s*"(?P<dims>[^"]*)"'
    r'\s*,\s*"values"\s*:\s*\[(?P<values>[^\]]*)\]'
)


def last_times_ms(text: str, runs: int, median_ms: float) -> list[float] | None:
    """The time that the GPU computed in each of the last runs, from the file of `--exportTimes`.

    Old versions write the runs before the timed ones, too: that is why the last ones count.

    Args:
        text: The file.
        runs: How many.
        median_ms: What trtexec itself says about them.

    Returns:
        None if it is no such file, has fewer runs, or says something else than the summary.
    """
    try:
        entries = parse_json(text, "The file of times")
        times = [float(entry["computeMs"]) for entry in entries][-runs:]
    except (ValueError, KeyError, TypeError):
        return None
    if len(times) < runs or not abs(statistics.median(times) - median_ms) <= _NEAR * median_ms:
        return None
    return times


def parse_outputs(text: str, dtypes: Mapping[str, str]) -> Outputs:
    """Reads the file of `--exportOutput`.

    Args:
        text: The file; names are written as they are, so it need not be JSON.
        dtypes: Names of outputs and of their types; the result is in this order.

    Raises:
        ValueError: If an output is missing or broken.
    """
    found = {match["name"]: match for match in _OUTPUT.finditer(text)}
    outputs: Outputs = {}
    for name, dtype in dtypes.items():
        if name not in found:
            raise ValueError(f"trtexec wrote no output '{name}', but {sorted(found)}")
        outputs[name] = _array(found[name], dtype)
    return outputs


def _array(match: re.Match[str], dtype_name: str) -> Any:
    dims = match["dims"].strip()
    shape = () if dims in ("", "scalar") else tuple(int(size) for size in dims.split("x"))
    words = match["values"].replace(",", " ").split()
    dtype = np.dtype(getattr(ml_dtypes, dtype_name, dtype_name))
    if dtype.kind in "iub":
        values = np.array([int(word) for word in words], dtype=object).astype(dtype)
    else:
        values = np.array([float(word) for word in words]).astype(dtype)
    if values.size != int(np.prod(shape)):
        raise ValueError(f"trtexec wrote {values.size} values of the output '{match['name']}'")
    return values.reshape(shape)
