"""The arithmetic of a convolution: output sizes, weights of the right size, output moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from qdqtune.records.errors import UsageError
from qdqtune.zoo.marginals import Marginal

if TYPE_CHECKING:
    from qdqtune.zoo.builder import Value
    from qdqtune.zoo.weights import Float32s, Float64s, SeededWeights


@dataclass(frozen=True)
class Window:
    """A square window that slides over a map.

    Attributes:
        kernel: Its side.
        stride: Its step.
        groups: The groups of channels (of a Conv).
        padded: Whether `kernel // 2` zeros are put around the map.
    """

    kernel: int = 1
    stride: int = 1
    groups: int = 1
    padded: bool = True

    @property
    def pad(self) -> int:
        """The zeros on each side."""
        return self.kernel // 2 if self.padded else 0

    def output_size(self, size: int) -> int:
        """The side of the map that comes out.

        Raises:
            UsageError: Nothing would come out.
        """
        room = size + 2 * self.pad - self.kernel
        if room < 0:
            raise UsageError(
                f"a map of side {size} is too small for a window of side {self.kernel}",
                "Choose a larger image.",
            )
        return room // self.stride + 1

    def presence(self, size: int) -> Float64s:
        """How often each tap of the kernel reads the map, not the zeros around it."""
        starts = np.arange(self.output_size(size)) * self.stride - self.pad
        reads = starts[:, None] + np.arange(self.kernel)
        inside: Float64s = ((reads >= 0) & (reads < size)).mean(axis=0)
        return inside


POINTWISE = Window()


@dataclass(frozen=True)
class DrawnConvolution:
    """A weight, and what a convolution with it yields.

    Attributes:
        weight: Output channels x input channels per group x kernel x kernel.
        marginal: The distribution of the outputs.
    """

    weight: Float32s
    marginal: Marginal

    def biased(self, bias: Float32s) -> Marginal:
        """The distribution of the outputs with a bias added."""
        mean, var = self.marginal.moments
        return Marginal.normal(mean + bias, var)


def draw_convolution(
    weights: SeededWeights,
    x: Value,
    name: str,
    channels: int,
    window: Window,
    *,
    gain: float = 1.0,
) -> DrawnConvolution:
    """Draws a weight such that the outputs have a spread of about `gain`."""
    _, in_channels, height, width = x.shape
    groups = window.groups
    presence = np.outer(window.presence(height), window.presence(width)).ravel()
    fan_in = in_channels // groups * float(presence.sum())
    weight = weights.normal(
        name,
        (channels, in_channels // groups, window.kernel, window.kernel),
        std=gain / float(np.sqrt(fan_in * x.marginal.mean_square)),
        channel_axis=0,
    )
    taps = weight.astype(np.float64).reshape(groups, channels // groups, in_channels // groups, -1)
    mean, var = (
        np.broadcast_to(moment, in_channels).reshape(groups, -1) for moment in x.marginal.moments
    )
    squares = taps**2
    out_mean = np.einsum("goi,gi->go", taps @ presence, mean)
    # A tap that falls on padding now and then adds the variance of its being there.
    out_var = np.einsum("goi,gi->go", squares @ presence, var)
    out_var += np.einsum("goi,gi->go", squares @ (presence * (1 - presence)), mean**2)
    return DrawnConvolution(weight, Marginal.normal(out_mean.ravel(), out_var.ravel()))
