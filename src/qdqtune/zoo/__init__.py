"""Models for demos, tests and benchmarks, built on demand with seeded random weights.

Shapes are those of the published architectures; weights are drawn so that activations stay in a
reasonable range at any depth and channels differ in magnitude, as they do in trained models.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from qdqtune.records._errors import UsageError
from qdqtune.zoo._chain import chain
from qdqtune.zoo._classifiers import (
    convnext,
    efficientnet,
    mobilenet_v2,
    resnet18,
    resnet34,
    resnet50,
    shufflenet_v2,
)
from qdqtune.zoo._dense_prediction import unet, yolo
from qdqtune.zoo._transformers import bert, gpt, vit

if TYPE_CHECKING:
    from collections.abc import Callable

    import onnx

__all__ = ["ARCHITECTURES", "build", "default_settings", "describe"]

Setting = bool | int | float | tuple[int, ...]

_BUILDERS: dict[str, Callable[..., onnx.ModelProto]] = {
    builder.__name__: builder
    for builder in (
        resnet18,
        resnet34,
        resnet50,
        mobilenet_v2,
        efficientnet,
        shufflenet_v2,
        convnext,
        vit,
        bert,
        gpt,
        unet,
        yolo,
        chain,
    )
}

ARCHITECTURES: tuple[str, ...] = tuple(_BUILDERS)
"""The names that `build` accepts."""


def build(name: str, *, seed: int = 0, **settings: Any) -> onnx.ModelProto:
    """Builds a model.

    Args:
        name: One of `ARCHITECTURES`.
        seed: The weights' seed; the same seed yields the same bytes.
        **settings: Sizes that differ from the architecture's `default_settings`.

    Raises:
        UsageError: If the name, the seed or a setting is invalid.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError(f"the seed is {seed!r}", "It must be a whole number of at least 0.")
    defaults = default_settings(name)
    for key, value in settings.items():
        if key not in defaults:
            raise UsageError(f"{name} has no setting {key!r}", f"Settings: {', '.join(defaults)}.")
        settings[key] = _checked(f"{name}: {key}", defaults[key], value)
    model: onnx.ModelProto = _BUILDERS[name](seed, **settings)
    return model


def default_settings(name: str) -> dict[str, Setting]:
    """Return the settings of an architecture, with their defaults."""
    parameters = inspect.signature(_builder(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def describe(name: str) -> str:
    """Return a one-line description of an architecture."""
    return inspect.getdoc(_builder(name)) or ""


def _builder(name: str) -> Callable[..., onnx.ModelProto]:
    if name not in _BUILDERS:
        raise UsageError(f"there is no model {name!r}", f"Models: {', '.join(ARCHITECTURES)}.")
    return _BUILDERS[name]


def _checked(what: str, default: Setting, value: Any) -> Setting:
    """Return a setting's value if it has the type of the default."""
    if isinstance(default, bool):
        fits, kind = isinstance(value, bool), "true or false"
    elif isinstance(default, tuple):
        fits = isinstance(value, (tuple, list)) and bool(value) and all(map(_is_count, value))
        kind = "a list of whole numbers of at least 1"
    elif isinstance(default, int):
        fits, kind = _is_count(value), "a whole number of at least 1"
    else:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        fits, kind = is_number and value > 0, "a number above 0"
    if not fits:
        raise UsageError(f"{what} is {value!r}", f"It is {kind}.")
    return type(default)(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
