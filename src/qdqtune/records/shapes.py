"""The inputs and outputs of a model, and the report of changing their shapes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from qdqtune.records.inputs import shape_text
from qdqtune.records.result import Result

SCHEMA = 1


class Proof(str, Enum):
    """How a model with new shapes was shown to work."""

    COMPARED = "compared"
    RUN = "run"
    INFERENCE = "inference"
    NONE = "none"


@dataclass(frozen=True)
class TensorDims:
    """One input or output.

    Attributes:
        name: Its name.
        dtype: Its element type; empty if it is not a tensor.
        dims: Sizes, symbols, and None for dims that have neither; None if the rank is unknown.
    """

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None


@dataclass(frozen=True, repr=False)
class ShapesReport(Result):
    """The shapes of a model.

    Attributes:
        model: The file that was read.
        inputs: The inputs that must be fed.
        outputs: The outputs.
        symbols: Names of open input dims.
        output: The file written; None if none was.
        rewritten: Reshape nodes that got the new batch size.
        proof: How the written file was tested.
    """

    model: str
    inputs: tuple[TensorDims, ...]
    outputs: tuple[TensorDims, ...]
    symbols: tuple[str, ...]
    output: str | None = None
    rewritten: tuple[str, ...] = ()
    proof: Proof = Proof.NONE

    @property
    def headline(self) -> str:
        """The essentials, in one line."""
        shown = ", ".join(f"{each.name} {shape_text(each.dims)}" for each in self.inputs)
        return f"{self.model}: {shown}" + (f", output {self.output}" if self.output else "")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"kind": "shapes", "schema": SCHEMA, **asdict(self), "proof": self.proof.value}
