"""Values as a model takes them: cast where nothing is lost, refused where something would be."""

from __future__ import annotations

import logging
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from qdqtune.calibration.expected_inputs import ExpectedInput
from qdqtune.records.errors import UsageError

Array = npt.NDArray[Any]

# Normalised values are rarely above 10, pixels mostly are above 100.
_PIXEL_LIKE = 100

_logger = logging.getLogger(__name__)


class Remarks:
    """Says a thing once, however many samples it is true for."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def say(self, level: int, message: str) -> None:
        """Log it if it was not said yet."""
        if message not in self._said:
            self._said.add(message)
            _logger.log(level, "%s", message)


def check_dtype(where: str, dtype: np.dtype[Any], expected: ExpectedInput) -> None:
    """Refuse element types that no values could make right.

    Raises:
        UsageError: If it is such a type.
    """
    if _is_text(expected):
        fine = dtype.kind in "UO"
    else:
        fine = _is_float(dtype) or _is_integer(dtype) or _is_raw(dtype, expected)
    if not fine:
        raise UsageError(
            f"{where} holds {dtype}, but the input {expected.name!r} takes {_name(expected)}.",
            f"Convert it first: array.astype({_name(expected)!r}).",
        )


def conform(where: str, array: Array, expected: ExpectedInput, remarks: Remarks) -> Array:
    """Give an array the element type that the model wants.

    Raises:
        UsageError: If values would change, or are not finite.
    """
    check_dtype(where, array.dtype, expected)
    if _is_text(expected):
        return array.astype(np.str_)
    wanted = _wanted(expected)
    if _is_raw(array.dtype, expected):
        array = array.view(wanted)
    _check_finite(where, array, expected)
    if array.dtype == wanted:
        return array
    if expected.dtype.is_floating_point():
        return _to_float(where, array, expected, remarks)
    return _to_integer(where, array, expected)


def look_at(array: Array, expected: ExpectedInput) -> None:
    """Say what is legal, but rarely meant."""
    if not expected.dtype.is_floating_point() or array.size < 2:
        return
    low, high = float(array.min()), float(array.max())
    if low == high:
        _logger.info("%s is %g everywhere in the first sample", expected.name, low)
    elif max(-low, high) > _PIXEL_LIKE:
        _logger.info(
            "%s is between %g and %g in the first sample: does the model want raw pixels?",
            expected.name, low, high,
        )  # fmt: skip


def _check_finite(where: str, array: Array, expected: ExpectedInput) -> None:
    if not _is_float(array.dtype) or np.isfinite(array).all():
        return
    kind = "NaN" if np.isnan(array).any() else "infinite values"
    raise UsageError(
        f"{where} holds {kind} for the input {expected.name!r}.",
        "Leave the sample out; for a mask, take a large number instead of an infinite one.",
    )


def _to_float(where: str, array: Array, expected: ExpectedInput, remarks: Remarks) -> Array:
    if _is_integer(array.dtype) and array.dtype.kind != "b":
        remarks.say(
            logging.WARNING,
            f"{expected.name}: {array.dtype} values are used as they are: were they normalised?",
        )
    with np.errstate(over="ignore"):
        cast = array.astype(_wanted(expected))
    if not np.isfinite(cast).all():
        raise UsageError(
            f"{where} holds {np.abs(array).max():g} for the input {expected.name!r}, which is too "
            f"large for {_name(expected)}.",
            "Scale the data as the model gets it in use.",
        )
    return cast


def _to_integer(where: str, array: Array, expected: ExpectedInput) -> Array:
    with np.errstate(invalid="ignore"):
        cast = array.astype(_wanted(expected))
    # Wrapped numbers survive the way back; their sign doesn't.
    lost = (cast.astype(array.dtype) != array) | ((cast < 0) != (array < 0))
    if lost.any():
        raise UsageError(
            f"{where} holds {array[lost].flat[0]} for the input {expected.name!r}, which is no "
            f"{_name(expected)}.",
            "Feed what the model gets in use: indices are whole numbers within its tables.",
        )
    return cast


def _is_text(expected: ExpectedInput) -> bool:
    return expected.dtype == ir.DataType.STRING


def _is_float(dtype: np.dtype[Any]) -> bool:
    return dtype.kind == "f" or (_is_extension(dtype) and "float" in dtype.name)


def _is_integer(dtype: np.dtype[Any]) -> bool:
    return dtype.kind in "biu" or (_is_extension(dtype) and "float" not in dtype.name)


def _is_extension(dtype: np.dtype[Any]) -> bool:
    """Whether it is a number type that numpy itself doesn't have, such as bfloat16."""
    return hasattr(ml_dtypes, dtype.name) and dtype.isbuiltin == 2


def _is_raw(dtype: np.dtype[Any], expected: ExpectedInput) -> bool:
    """Whether these are the bytes of an extension type: that is what files keep of them."""
    wanted = _wanted(expected)
    return dtype == np.dtype(f"V{wanted.itemsize}") and _is_extension(wanted)


def _wanted(expected: ExpectedInput) -> np.dtype[Any]:
    return np.dtype(expected.dtype.numpy())


def _name(expected: ExpectedInput) -> str:
    return "text" if _is_text(expected) else _wanted(expected).name
