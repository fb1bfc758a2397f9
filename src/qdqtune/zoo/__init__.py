"""Models for demos, tests and benchmarks, built on the spot with seeded random weights.

Shapes are those of the published architectures; weights are drawn such that activations stay sane
at any depth and channels differ in magnitude, as they do in trained models.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from qdqtune.records._errors import UsageError
from qdqtune.zoo._chain import chain
from qdqtune.zoo._dense_prediction import unet, yolo
from qdqtune.zoo._mobilenet import efficientnet, mobilenet_v2, shufflenet_v2
from qdqtune.zoo._resnet import convnext, resnet18, resnet34, resnet50
from qdqtune.zoo._settings import Setting, check_settings, settings_of
from qdqtune.zoo._transformers import bert, vit

if TYPE_CHECKING:
    import onnx

__all__ = ["ARCHITECTURES", "build", "default_settings", "describe"]

_BUILDERS = {
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
        unet,
        yolo,
        chain,
    )
}

ARCHITECTURES: tuple[str, ...] = tuple(_BUILDERS)
"""The names that `build` knows."""


def build(name: str, *, seed: int = 0, **settings: Any) -> onnx.ModelProto:
    """Builds a model.

    Args:
        name: One of `ARCHITECTURES`.
        seed: The weights' seed; the same seed yields the same bytes.
        **settings: Sizes that differ from the architecture's `default_settings`.

    Raises:
        UsageError: The name, the seed or a setting is not one there is.
    """
    builder = _builder(name)
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise UsageError(f"the seed is {seed!r}", "It is a whole number from 0 on.")
    model: onnx.ModelProto = builder(seed, **check_settings(name, builder, settings))
    return model


def default_settings(name: str) -> dict[str, Setting]:
    """The settings of an architecture, with their defaults."""
    return settings_of(_builder(name))


def describe(name: str) -> str:
    """One line about an architecture."""
    return inspect.getdoc(_builder(name)) or ""


def _builder(name: str) -> Any:
    if name not in _BUILDERS:
        raise UsageError(f"there is no model {name!r}", f"Models: {', '.join(ARCHITECTURES)}.")
    return _BUILDERS[name]
