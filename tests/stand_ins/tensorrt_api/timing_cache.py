"""Timing caches, as bytes that tell what they are for."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.stand_ins.tensorrt_api.bindings import HostMemory
from tests.stand_ins.tensorrt_api.device import NAME
from tests.stand_ins.tensorrt_api.situation import VERSION_TEXT

_MAGIC = "stand-in of a timing cache"


class TimingCache:
    """What is known of kernels; `stand_in_entries` is for tests alone."""

    __slots__ = ("_made_for", "stand_in_entries")

    def __init__(self, made_for: list[str], entries: Iterable[str]) -> None:
        self._made_for = made_for
        self.stand_in_entries = set(entries)

    @classmethod
    def read(cls, content: bytes) -> TimingCache | None:
        """A cache from its bytes, or an empty one; None if they are none."""
        if not content:
            return cls([VERSION_TEXT, NAME], ())
        try:
            told = json.loads(content)
            return cls(told["made_for"], told["entries"]) if told["magic"] == _MAGIC else None
        except (ValueError, KeyError, TypeError):
            return None

    @property
    def fits(self) -> bool:
        """Whether it is of this version and GPU."""
        return self._made_for == [VERSION_TEXT, NAME]

    def combine(self, other: TimingCache, ignore_mismatch: bool) -> bool:
        """Adds what another one knows."""
        if not ignore_mismatch and self._made_for != other._made_for:
            return False
        self.stand_in_entries |= other.stand_in_entries
        return True

    def serialize(self) -> HostMemory:
        """Its bytes."""
        return HostMemory(cache_bytes(*self._made_for, entries=self.stand_in_entries))


def cache_bytes(version: str, device: str = NAME, entries: Iterable[str] = ()) -> bytes:
    """The bytes of a cache."""
    told: dict[str, Any] = {"magic": _MAGIC, "made_for": [version, device]}
    return json.dumps({**told, "entries": sorted(entries)}).encode()
