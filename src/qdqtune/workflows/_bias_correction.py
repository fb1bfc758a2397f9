"""Take the mean errors of quantized ops off their biases."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable

from qdqtune.calibration._mean_errors import mean_errors
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.engines._worker import Worker
from qdqtune.graph._op_classes import WEIGHTED_OPS, is_op, weight_axis
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import own_bias
from qdqtune.records._errors import EngineError
from qdqtune.records._placement import Placement

_logger = logging.getLogger(__name__)

COMFORTABLE_DB = 20.0
"""Below this, more is tried even if the outputs are accurate enough."""
NEARLY_DB = 3.0
"""Ranges that are this much worse than the best may be the best with corrected biases."""

# How far above its limit an SQNR is comfortable.
_NEAR_DB = 5.0
# Samples that mean errors are taken from.
_MOST_SAMPLES = 32
# Parts of the mean errors that are tried. An op's own error is not all that counts: where ranges
# clip, an activation behind the op may hide it. Seen on a MobileNetV2 with three calibration sets
# and two kinds of ranges: all of it gave from -1.1 to 2.9 dB, half of it from 0.6 to 2.4.
_PARTS = (1.0, 0.5)


def is_worth_trying(sqnr_db: float, least_db: float | None) -> bool:
    """Whether outputs are so far from float that biases should be corrected.

    Args:
        sqnr_db: SQNR of the worst output.
        least_db: Its limit, if there is one.
    """
    return sqnr_db < max(COMFORTABLE_DB, (least_db or 0.0) + _NEAR_DB)


def with_corrected_biases(
    inserter: Inserter, placement: Placement, worker: Worker, samples: Iterable[Feeds]
) -> list[Inserter]:
    """Return writers of candidates that take mean errors of ops off biases: all of it, and less.

    The errors are those of this placement; an op has the same in any part of it.

    Args:
        inserter: The writer.
        placement: What is quantized.
        worker: A worker of the reference engine.
        samples: Inputs.

    Returns:
        Them; empty if no quantized op has a bias of its own, or the errors can't be measured here.
    """
    index, edges = inserter.index, inserter.index.effective(placement)
    read = {edge.node for edge in edges}
    channels = {}
    for node in index.nodes:
        if node.name in read and is_op(node, *WEIGHTED_OPS) and own_bias(index, node):
            channels[node.name or ""] = (index.shape_read(node, 1) or ())[weight_axis(node)] or 0
    if not channels:
        return []
    base, plain = inserter.base, inserter.with_shifts({})
    float_model = base.write(base.whole(), "means_float")
    try:
        means = mean_errors(
            worker, float_model, plain.write(placement, "means_quantized"), channels,
            itertools.islice(samples, _MOST_SAMPLES),
        )  # fmt: skip
    except EngineError as error:
        _logger.warning("mean errors of ops can't be measured here: %s", error)
        return []
    parts = _PARTS if means else ()
    return [plain.with_shifts({op: part * mean for op, mean in means.items()}) for part in parts]
