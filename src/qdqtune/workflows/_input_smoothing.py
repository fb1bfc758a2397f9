"""Smooth the inputs of products, so that one scale does for all channels."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

import numpy as np

from qdqtune.calibration._channel_ranges import channel_ranges
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._worker import Worker
from qdqtune.graph._index import GraphIndex
from qdqtune.graph._weights import values_of
from qdqtune.qdq._encoding import Array
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._smoothing import Smoothing, input_axis, smoothable
from qdqtune.records._errors import EngineError
from qdqtune.records._placement import Edge, Placement

_logger = logging.getLogger(__name__)

# Samples that the ranges of channels are taken from.
_MOST_SAMPLES = 32
# How much of the differences between channels the weight takes over. Seen on a trained sentence
# encoder: a half gave 14 dB, 0.7 gave 21, all of it 12; without smoothing it had 16.
STRENGTHS = (0.5, 0.7, 0.9)
LEAST_GAIN_DB = 1.0
"""How much nearer to float outputs must be with smoothed inputs."""
# Differences between channels that are worth taking over.
_LARGEST_FACTOR = 1e4


def with_smoothed_inputs(
    inserter: Inserter, placement: Placement, worker: Worker, samples: Iterable[Feeds]
) -> list[Inserter]:
    """Return writers of candidates in which the inputs of products are smoothed, ever more.

    Args:
        inserter: The writer; biases that it corrects are not corrected in the others.
        placement: What is quantized; ranges of channels are observed for the products in it.
        worker: A worker of the reference engine.
        samples: Inputs.

    Returns:
        Them; empty if there are no such products, or their inputs can't be observed here.
    """
    index, given = inserter.index, inserter.encoder.given
    edges = index.effective(placement)
    products: dict[str, list[str]] = {}
    for data, names in smoothable(index).items():
        quantized = [
            name for name in names if name in placement.dynamic or _reads(index, name) <= edges
        ]
        if quantized and data not in given:
            products[data] = quantized
    channels = {data: _channels(index, names[0]) for data, names in products.items()}
    if not channels:
        return []
    try:
        ranges = channel_ranges(
            inserter.base, worker, itertools.islice(samples, _MOST_SAMPLES), channels
        )
    except EngineError as error:
        _logger.warning("inputs can't be smoothed here: %s", error)
        return []
    largest = {
        data: np.max([_largest_weights(index, name) for name in products[data]], axis=0)
        for data in ranges
    }
    return [
        inserter.with_smoothings(
            {
                name: smoothing
                for data, (low, high) in ranges.items()
                for smoothing in [_smoothing(low, high, largest[data], strength)]
                for name in products[data]
            }
        )
        for strength in STRENGTHS
    ]


def _smoothing(low: Array, high: Array, weights: Array, strength: float) -> Smoothing:
    """Divide channels so that the weight takes over a part of the differences between them.

    Args:
        low: The smallest value in each channel.
        high: The largest.
        weights: The largest weight that each is multiplied by.
        strength: The part.
    """
    values, weights = np.maximum(-low, high).astype(np.float64), weights.astype(np.float64)
    is_used = (values > 0.0) & (weights > 0.0)
    factors = np.ones(len(values))
    factors[is_used] = values[is_used] ** strength / weights[is_used] ** (1.0 - strength)
    if is_used.any():
        factors[is_used] /= np.exp(np.log(factors[is_used]).mean())
    factors = np.clip(factors, 1.0 / _LARGEST_FACTOR, _LARGEST_FACTOR)
    return Smoothing(factors, float((low / factors).min()), float((high / factors).max()))


def _reads(index: GraphIndex, name: str) -> set[Edge]:
    """Return the edges of a product's input and weight."""
    reads = index.reads(index.node[name])[:2]
    return {Edge(tensor, name, position) for position, tensor in enumerate(reads)}


def _channels(index: GraphIndex, name: str) -> int:
    node = index.node[name]
    size = (index.shape_read(node, 1) or ())[input_axis(node)]
    assert isinstance(size, int)
    return size


def _largest_weights(index: GraphIndex, name: str) -> Array:
    """Return the largest absolute weight of each input channel of a product."""
    node = index.node[name]
    constant = index.value[index.reads(node)[1]].const_value
    assert constant is not None
    largest: Array = np.abs(values_of(constant)).max(axis=1 - input_axis(node))
    return largest
