"""Derive one input request for several models that take the same inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx_ir as ir

from qdqtune.graph.input_shapes import Inputs, bind_dims, input_dims, model_inputs, symbols_of
from qdqtune.records.errors import UsageError
from qdqtune.records.inputs import InputRequest, shape_text

_Sizes = tuple[int | None, ...]


@dataclass(frozen=True)
class Signature:
    """The inputs of a model.

    Attributes:
        path: The model's name for messages.
        types: Element type of every input.
        dims: Dims of every input.
    """

    path: str
    types: Mapping[str, str]
    dims: Inputs

    def __str__(self) -> str:
        listed = [
            f"{name} {kind} {shape_text(self.dims[name])}"
            for name, kind in sorted(self.types.items())
        ]
        return ", ".join(listed) or "none"


def signature(path: str, model: ir.Model) -> Signature:
    """Read the inputs of a model; `path` is its name in error messages."""
    types = {value.name or "": str(value.dtype) for value in model_inputs(model)}
    return Signature(path, types, input_dims(model))


def common_request(models: Sequence[Signature], request: InputRequest) -> InputRequest:
    """Return the request for the first model, with dims that the others fix added.

    Raises:
        UsageError: If the models don't take the same inputs.
    """
    first = models[0]
    known: dict[str, _Sizes] = {}
    for model in models:
        if model.types != first.types:
            raise _other_inputs(model, first)
        for name, dims in bind_dims(model.dims, _part_for(model, models, request)).items():
            if dims is None:
                continue
            sizes = tuple(dim if isinstance(dim, int) else None for dim in dims)
            both = _merged(known.get(name, sizes), sizes)
            if both is None:
                raise _other_inputs(model, first)
            known[name] = both
    return replace(_part_for(first, models, request), shapes=known)


def _part_for(model: Signature, models: Sequence[Signature], request: InputRequest) -> InputRequest:
    """Return the request without symbols that other models have and this one doesn't."""
    here = set(symbols_of(model.dims))
    elsewhere = {symbol for one in models for symbol in symbols_of(one.dims)} - here
    dims = {symbol: size for symbol, size in request.dims.items() if symbol not in elsewhere}
    return replace(request, dims=dims)


def _merged(one: _Sizes, other: _Sizes) -> _Sizes | None:
    """Merge two dims; None if they conflict."""
    if len(one) != len(other):
        return None
    pairs = list(zip(one, other, strict=True))
    if any(None not in pair and pair[0] != pair[1] for pair in pairs):
        return None
    return tuple(b if a is None else a for a, b in pairs)


def _other_inputs(model: Signature, first: Signature) -> UsageError:
    return UsageError(
        f"{model.path} takes other inputs than {first.path}: {model} against {first}.",
        "Only models with the same inputs can be compared.",
    )
