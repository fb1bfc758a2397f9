"""Record of a quantized model's error against its float model, per output and per layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from qdqtune.records.measurement import EngineInfo
from qdqtune.records.ranges import CalibrationSource
from qdqtune.records.result import Result
from qdqtune.records.tensor_errors import OpError, OutputError

SCHEMA = 1


@dataclass(frozen=True)
class LayerError:
    """The error of one quantized op.

    Attributes:
        own: The error that its own quantization adds, given the float model's values as inputs.
        accumulated: The error of its result in the quantized model; None if it can't be determined.
    """

    own: OpError
    accumulated: OpError | None


@dataclass(frozen=True, repr=False)
class ErrorReport(Result):
    """How far a quantized model is from its float model.

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
    """

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

    @property
    def is_on_random_inputs(self) -> bool:
        """Whether the models ran on random inputs because no data was given."""
        return self.source is CalibrationSource.RANDOM

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

    def to_dict(self) -> dict[str, Any]:
        """The JSON form; layers are in the order in which they run."""
        return {
            "kind": "errors",
            "schema": SCHEMA,
            "float_model": self.float_model,
            "quantized_model": self.quantized_model,
            "engine": self.engine.to_dict(),
            "as_written": self.as_written,
            "samples": self.samples,
            "source": self.source.value,
            "outputs": {
                each.name: {**(each.error.to_dict() if each.error else {}), "equal": each.equal}
                for each in self.outputs
            },
            "layers": [_layer(layer) for layer in self.layers],
            "unpaired": list(self.unpaired),
            "failure": self.failure,
        }


def _layer(layer: LayerError) -> dict[str, Any]:
    own, accumulated = layer.own, layer.accumulated
    return {
        "node": own.node,
        "op_type": own.op_type,
        "tensor": own.tensor,
        "inputs": list(own.inputs),
        "own": own.to_dict(),
        "accumulated": accumulated.to_dict() if accumulated is not None else None,
    }
