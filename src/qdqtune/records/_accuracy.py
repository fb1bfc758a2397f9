"""Accuracy limits, errors of tensors, and a quantized model's error against its float model."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from qdqtune.records._errors import UsageError
from qdqtune.records._json_form import Record
from qdqtune.records._measurement import EngineInfo
from qdqtune.records._ranges import CalibrationSource
from qdqtune.records._results import Result

SQNR, APPROXIMATE_SQNR, METRIC = "sqnr_db", "approximate_sqnr_db", "metric"
"""The quantity that is measured for a placement."""
_NEAR_DB = 1.0
RANDOM_WARNING = "Run on random inputs: what is lost on real data is unknown."


def is_near_limit(sqnr_db: float | None, min_sqnr_db: float | None) -> bool:
    """Whether a result meets the SQNR limit by less than 1 dB.

    Args:
        sqnr_db: SQNR of its worst output; None if unknown.
        min_sqnr_db: The requested minimum; None if there is none.
    """
    if sqnr_db is None or min_sqnr_db is None:
        return False
    return 0.0 <= sqnr_db - min_sqnr_db < _NEAR_DB


def allowed_sqnr_db(min_sqnr_db: float, float_sqnr_db: float | None) -> float:
    """Return the SQNR limit against float32, if an engine computes float models in another type.

    The noise of the engine's own float type is not caused by quantization, so it is allowed on top
    of the requested limit, but at most as much noise again (3 dB): the result must stay near the
    model as written.

    Args:
        min_sqnr_db: The requested minimum.
        float_sqnr_db: SQNR of the float model as the engine computes it; None for float32.
    """
    if float_sqnr_db is None:
        return min_sqnr_db
    excused = 10.0 ** (-max(float_sqnr_db - min_sqnr_db, 0.0) / 10.0)
    return min_sqnr_db - 10.0 * math.log10(1.0 + excused)


@dataclass(frozen=True)
class Rejected(Record):
    """A candidate that was fast but not accurate enough.

    Attributes:
        name: Its name.
        qdq_pairs: Number of tensors quantized in it.
        sqnr_db: SQNR of its worst output; None if unknown, or if the engine can't run it.
        metric: The value of the user's metric; None if the metric was not called.
        reason: The limit that it missed.
    """

    name: str
    qdq_pairs: int
    sqnr_db: float | None
    metric: float | None
    reason: str


def checked_metric(value: object, name: str) -> float:
    """Convert the return value of a user's metric to a float.

    Raises:
        UsageError: If it is not a number.
    """
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(
            f"{name} returned {value!r}, which is not a number, or not a finite one.",
            "It takes the path of a model and returns a metric: more is better.",
        )
    return number


@dataclass(frozen=True, kw_only=True)
class TensorError(Record):
    """One tensor of both models, over all samples.

    Attributes:
        signal: Sum of the squares of its float values.
        noise: Sum of the squares of the quantized model's errors.
        power: Sum of the squares of the quantized model's values.
        max_error: Largest absolute error.
        max_value: Largest float value, in magnitude.
    """

    JSON: ClassVar[str] = "sqnr_db cosine max_error max_value"

    signal: float = 0.0
    noise: float = 0.0
    power: float = 0.0
    max_error: float = 0.0
    max_value: float = 0.0

    def __add__(self, other: TensorError) -> TensorError:
        return TensorError(
            signal=self.signal + other.signal,
            noise=self.noise + other.noise,
            power=self.power + other.power,
            max_error=max(self.max_error, other.max_error),
            max_value=max(self.max_value, other.max_value),
        )

    @property
    def sqnr_db(self) -> float:
        """Signal over noise in dB: infinite if the tensors are equal, minus infinite for NaN."""
        if not math.isfinite(self.noise):
            return -math.inf
        if self.noise == 0.0:
            return math.inf
        if not 0.0 < self.signal < math.inf:
            return -math.inf
        return 10.0 * (math.log10(self.signal) - math.log10(self.noise))

    @property
    def cosine(self) -> float:
        """Cosine similarity of both tensors: 1 if both are zero, 0 if only one is."""
        if not math.isfinite(self.noise + self.power):
            return math.nan
        if not self.signal or not self.power:
            return 1.0 if self.signal == self.power else 0.0
        product = (self.signal + self.power - self.noise) / 2
        return max(-1.0, min(1.0, product / math.sqrt(self.signal) / math.sqrt(self.power)))


@dataclass(frozen=True, kw_only=True)
class OpError(TensorError):
    """The error of one quantized op's result.

    Attributes:
        node: The op's node.
        op_type: Its type.
        tensor: The output that was compared.
        inputs: Types of its quantized inputs.
    """

    node: str
    op_type: str
    tensor: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class OutputError:
    """The error of one model output.

    Attributes:
        name: Its name.
        error: Its error; None if it does not hold floats.
        equal: Share of its elements that are equal in both models.
    """

    name: str
    error: TensorError | None
    equal: float


@dataclass(frozen=True)
class LayerError(Record):
    """The error of one quantized op.

    Attributes:
        own: The error that its own quantization adds, given the float model's values as inputs.
        accumulated: The error of its result in the quantized model; None if it can't be determined.
    """

    JSON: ClassVar[str] = (
        "node=own.node op_type=own.op_type tensor=own.tensor inputs=own.inputs own accumulated"
    )

    own: OpError
    accumulated: OpError | None


@dataclass(frozen=True, repr=False)
class ErrorReport(Result):
    """The errors of a quantized model against its float model.

    Attributes:
        float_model: The float model, as the user named it.
        quantized_model: The quantized one.
        engine: The engine that computed the outputs.
        as_written: Whether the engine ran every op as written, without fusion.
        source: Whether the models ran on data or on random inputs.
        samples: Description of the samples.
        outputs: The outputs.
        layers: The quantized ops in the order in which they run.
        unpaired: Quantized ops without a counterpart in the float model.
        failure: Why there are no layers; empty if nothing failed.
        corrected_biases: Number of biases that qdqtune took mean errors off when it quantized the
            model.
        smoothed_inputs: Number of products whose input it smoothed.
    """

    KIND: ClassVar[str] = "errors"
    JSON: ClassVar[str] = (
        "float_model quantized_model engine as_written samples source outputs=by_output layers "
        "unpaired failure corrected_biases smoothed_inputs"
    )

    float_model: str
    quantized_model: str
    engine: EngineInfo
    as_written: bool
    source: CalibrationSource
    samples: str
    outputs: tuple[OutputError, ...]
    layers: tuple[LayerError, ...]
    unpaired: tuple[str, ...] = ()
    failure: str = ""
    corrected_biases: int = 0
    smoothed_inputs: int = 0

    @property
    def warning(self) -> str:
        """The warning that real data was not used; empty if it was."""
        return RANDOM_WARNING if self.source is CalibrationSource.RANDOM else ""

    @property
    def worst_first(self) -> tuple[LayerError, ...]:
        """The layers, sorted by their own error, largest first."""
        return tuple(sorted(self.layers, key=lambda layer: layer.own.sqnr_db))

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        known = [each for each in self.outputs if each.error is not None]
        outputs = [
            f"output {each.name} {each.error.sqnr_db:.1f} dB" for each in known if each.error
        ]
        worst = [
            f"worst layer {layer.own.node} {layer.own.sqnr_db:.1f} dB of {len(self.layers)}"
            for layer in self.worst_first[:1]
        ]
        return ", ".join([*outputs, *worst, f"on {self.samples}"])

    @property
    def by_output(self) -> dict[str, Any]:
        """The JSON form of the outputs: the error of each by its name."""
        return {
            each.name: {**(each.error.to_dict() if each.error else {}), "equal": each.equal}
            for each in self.outputs
        }
