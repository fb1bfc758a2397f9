"""The type in which OpenVINO computes floats: it chooses by the CPU, so it is queried."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import openvino as ov

from qdqtune.engines.openvino_layers import PRECISIONS, layer_times_of
from qdqtune.engines.openvino_settings import PRECISION_HINT, PRECISION_OPTION, Settings

_PRODUCT = "product"
# Large enough to be worth converting its operands.
_SIZE = 64
_FLOATS = ("float32", "bfloat16", "float16")


def with_float_kernels(core: Any, settings: Settings) -> Settings:
    """Return the settings, with float32 where an ISA limit leaves no faster float kernels.

    OpenVINO chooses bfloat16 by the CPU's capabilities, ignoring the limit in `max_cpu_isa`: it is
    then slower than in float32, or refuses the model.
    """
    if settings.leaves_bfloat16 or PRECISION_HINT in settings.properties:
        return settings
    if _type_name(core.get_property("CPU", PRECISION_HINT)) not in ("bfloat16", "float16"):
        return settings
    return replace(
        settings,
        properties={**settings.properties, PRECISION_HINT: "f32"},
        in_effect={**settings.in_effect, PRECISION_OPTION: "f32"},
    )


def float_type_in_effect(core: Any, settings: Settings) -> str:
    """Return the type in which float32 models are computed with these settings; empty if unknown.

    A hint is not binding: where a CPU has no kernels of the type, OpenVINO uses another. So a small
    model is compiled and inspected.

    Raises:
        ValueError: If the requested type can't be used for computation.
    """
    try:
        compiled = core.compile_model(_product(), settings.device, settings.properties)
    except RuntimeError as error:
        asked = settings.properties.get(PRECISION_HINT)
        if asked is None:
            return ""
        why = str(error).strip().splitlines()[-1]
        if not settings.leaves_bfloat16:
            why = f"max_cpu_isa={settings.max_cpu_isa} leaves no kernels for it"
        raise ValueError(f"{PRECISION_OPTION}={asked} can't be had: {why}") from None
    try:
        layers = layer_times_of(compiled.get_runtime_model(), ())
    except RuntimeError:  # composite devices may have no runtime model
        layers = []
    found = [layer.precision for layer in layers if _PRODUCT in layer.origins]
    told = [precision for precision in found if precision in _FLOATS]
    return told[0] if told else _hinted(compiled)


def _product() -> Any:
    weights = np.random.default_rng(0).standard_normal((_SIZE, _SIZE), np.float32)
    x = ov.opset8.parameter([_SIZE, _SIZE], np.float32)
    product = ov.opset8.matmul(x, ov.opset8.constant(weights), False, False)
    product.set_friendly_name(_PRODUCT)
    return ov.Model([product], [x])


def _hinted(compiled: Any) -> str:
    """Return the type that a device reports; `dynamic` and `undefined` mean float32."""
    try:
        hint = _type_name(compiled.get_property(PRECISION_HINT))
    except RuntimeError:
        return ""
    return "float32" if hint in ("dynamic", "undefined") else hint


def _type_name(kind: Any) -> str:
    name = str(kind.get_type_name())
    return PRECISIONS.get(name, name)
