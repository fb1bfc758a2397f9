"""Calibrated ranges of tensors, by minimum and maximum or clipped, and a cache of known ranges."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from qdqtune.calibration._instrumentation import (
    Progress,
    TensorStatistics,
    collect_statistics,
    warn_of,
    watched_tensors,
)
from qdqtune.calibration._random_inputs import Feeds
from qdqtune.calibration._range_fitting import (
    Histogram,
    Range,
    frequent_range,
    least_divergence_range,
    least_error_range,
)
from qdqtune.engines._worker import Worker
from qdqtune.graph._atomic_files import replacing
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.qdq._encoding import TensorFormat
from qdqtune.records._errors import NewerSchemaError, OutputError
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import CalibrationSource, RangeMethod, Ranges
from qdqtune.records._untrusted_files import SCHEMAS, check_schema, parse_json, read_text

RangesByWay = Mapping[RangeMethod, Mapping[str, Range]]

_FITS: dict[RangeMethod, Callable[[Histogram, Range, TensorFormat], Range]] = {
    RangeMethod.ENTROPY: least_divergence_range,
    RangeMethod.PERCENTILE: lambda seen, whole, _layout: frequent_range(seen, whole),
    RangeMethod.MSE: least_error_range,
}

FOLDER = "QDQTUNE_CACHE"
"""The environment variable that names the folder; if it is empty, nothing is cached."""

# Increment this whenever the same values would lead to other ranges.
_SCHEMA = SCHEMAS["calibration"]
_MOST_FILES = 200
_DIGEST_BYTES = 16
_logger = logging.getLogger(__name__)


def collect_ranges(
    base: PreparedModel,
    worker: Worker,
    samples: Iterable[Feeds],
    source: CalibrationSource,
    placement: Placement | None = None,
    progress: Progress | None = None,
) -> Ranges:
    """Run the model on each sample and keep the extremes, in constant memory.

    Args:
        base: The model.
        worker: A worker of the reference engine.
        samples: Input sets, read one at a time.
        source: Where the samples come from.
        placement: Restricts the tensors to those that it quantizes; None means every float tensor.
        progress: Called after every sample.

    Raises:
        EngineError: If the model does not run.
        ModelError: If there are no samples.
    """
    tensors = watched_tensors(base.index, placement)
    seen = collect_statistics(base, worker, samples, tensors, progress=progress)
    warn_of(seen.strange)
    return Ranges(seen.whole, source, seen.samples)


def ranges_by_way(seen: TensorStatistics, layout: TensorFormat) -> RangesByWay:
    """Return the ranges of all tensors: whole and, if there are histograms, clipped by each method.

    Args:
        seen: The observed statistics.
        layout: The format that they are quantized in.
    """
    ways: dict[RangeMethod, Mapping[str, Range]] = {RangeMethod.MAX: seen.whole}
    for way, fit in _FITS.items() if seen.histograms else ():
        ways[way] = {
            name: fit(seen.histograms[name], whole, layout) for name, whole in seen.whole.items()
        }
    return ways


@dataclass(frozen=True)
class Calibrated:
    """The result of a calibration.

    Attributes:
        ways: Ranges by method.
        samples: Number of samples that were run.
        strange: See `qdqtune.calibration._instrumentation.TensorStatistics`.
    """

    ways: RangesByWay
    samples: int
    strange: Mapping[str, int] = field(default_factory=dict)


class SampleDigest:
    """A hash of samples, updated as they are read."""

    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)

    def through(self, samples: Iterable[Feeds]) -> Iterator[Feeds]:
        """Yield the same samples."""
        for feeds in samples:
            self.add(feeds)
            yield feeds

    def add(self, feeds: Feeds) -> None:
        """Add a sample: names, types, shapes and values."""
        for name in sorted(feeds):
            array = feeds[name]
            self._digest.update(repr((name, str(array.dtype), array.shape)).encode())
            if array.dtype.kind in "UO":
                self._digest.update(repr(array.tolist()).encode())
            else:
                flat = np.ascontiguousarray(array).reshape(-1)
                self._digest.update(flat.view(np.uint8).data)
        self._digest.update(b"end of sample")

    def hexdigest(self) -> str:
        """The hash so far."""
        return self._digest.hexdigest()


def key_of(first: Feeds, *conditions: object) -> str:
    """Return the first half of an entry's name.

    Args:
        first: The first sample.
        conditions: Everything else that the ranges depend on; their `repr` counts.
    """
    digest = SampleDigest()
    digest.add(first)
    text = repr((_SCHEMA, digest.hexdigest(), conditions))
    return hashlib.blake2b(text.encode(), digest_size=_DIGEST_BYTES).hexdigest()


class RangeCache:
    """A folder of cached ranges. Its errors are ignored: they must never fail a run.

    Args:
        folder: The folder; None disables the cache.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._newer: set[Path] = set()

    def may_have(self, key: str) -> bool:
        """Whether there is an entry for this model and the first of these samples."""
        try:
            return self._folder is not None and any(self._folder.glob(f"{key}-*.json"))
        except OSError:
            return False

    def load(self, key: str, samples: str, ways: Collection[RangeMethod]) -> Calibrated | None:
        """Return the entry if it has ranges by all these methods."""
        if self._folder is None:
            return None
        path = self._folder / f"{key}-{samples}.json"
        try:
            found = _read(read_text(path), path.stem)
            os.utime(path)
        except NewerSchemaError as error:
            _logger.info("%s It is not used.", error.what)
            self._newer.add(path)
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            _logger.debug("%s is not used: %s", path, error)
            return None
        return found if set(ways) <= set(found.ways) else None

    def store(self, key: str, samples: str, found: Calibrated) -> None:
        """Store an entry; the least recently used ones are removed."""
        if self._folder is None:
            return
        path = self._folder / f"{key}-{samples}.json"
        if path in self._newer:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with replacing(path, durable=False) as file:
                file.write(_text(found, path.stem).encode())
        except (OSError, OutputError) as error:
            _logger.info("ranges are not kept for the next time: %s", error)
            return
        _remove_oldest(self._folder)


def _remove_oldest(folder: Path) -> None:
    dated = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(OSError):  # another process may have removed it
            dated.append((path.stat().st_mtime, path))
    for _, path in sorted(dated)[:-_MOST_FILES]:
        with contextlib.suppress(OSError):
            path.unlink()


def user_cache() -> RangeCache:
    """Return the cache in the folder that `QDQTUNE_CACHE` names, or in the user's cache folder."""
    named = os.environ.get(FOLDER)
    if named is not None:
        return RangeCache(Path(named) / "ranges" if named else None)
    try:
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:  # there is no home folder
        return RangeCache(None)
    return RangeCache(caches / "qdqtune" / "ranges")


def _text(found: Calibrated, name: str) -> str:
    body = {
        "kind": "calibration",
        "schema": _SCHEMA,
        "name": name,
        "samples": found.samples,
        "strange": dict(found.strange),
        "ways": {way.value: dict(ranges) for way, ranges in found.ways.items()},
    }
    return json.dumps(body)


def _read(text: str, name: str) -> Calibrated:
    body: Any = parse_json(text, name)
    if body["kind"] == "calibration":
        check_schema("calibration", body["schema"], name)
    if (body["kind"], body["schema"], body["name"]) != ("calibration", _SCHEMA, name):
        raise ValueError("it is something else")
    ways = {
        RangeMethod(way): {
            str(tensor): (float(low), float(high)) for tensor, (low, high) in ranges.items()
        }
        for way, ranges in body["ways"].items()
    }
    pairs = (pair for ranges in ways.values() for pair in ranges.values())
    if not all(math.isfinite(low) and low <= high < math.inf for low, high in pairs):
        raise ValueError("a range is not finite, or its low end is above its high end")
    strange = {str(tensor): int(sample) for tensor, sample in body["strange"].items()}
    return Calibrated(ways, int(body["samples"]), strange)
