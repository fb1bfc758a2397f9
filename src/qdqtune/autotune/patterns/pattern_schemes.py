"""All schemes that were tried for one pattern."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qdqtune.autotune.errors import InvalidSchemeError
from qdqtune.autotune.patterns.region_pattern import RegionPattern
from qdqtune.autotune.patterns.scheme import InsertionScheme


@dataclass
class PatternSchemes:
    """A pattern and its schemes.

    Attributes:
        pattern: The pattern.
        schemes: The schemes, in the order in which they were made.
    """

    pattern: RegionPattern | None = None
    schemes: list[InsertionScheme] = field(default_factory=list)

    @property
    def pattern_signature(self) -> str:
        """The pattern's signature; empty if there is no pattern."""
        return self.pattern.signature if self.pattern is not None else ""

    @property
    def pattern_size(self) -> int:
        """Number of nodes in the pattern."""
        return self.pattern.size if self.pattern is not None else 0

    @property
    def num_schemes(self) -> int:
        """Number of schemes."""
        return len(self.schemes)

    @property
    def best_scheme(self) -> InsertionScheme | None:
        """The fastest scheme that was measured without an error; None if there is none."""
        measured = [
            scheme
            for scheme in self.schemes
            if not scheme.error and math.isfinite(scheme.latency_ms)
        ]
        return min(measured, key=lambda scheme: scheme.latency_ms, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the serialized form."""
        return {
            "pattern_signature": self.pattern_signature,
            "pattern_size": self.pattern_size,
            "schemes": [scheme.to_dict() for scheme in self.schemes],
        }

    @classmethod
    def from_dict(
        cls, body: Mapping[str, Any], pattern: RegionPattern | None = None
    ) -> PatternSchemes:
        """Parse the serialized form.

        Args:
            body: The serialized form.
            pattern: The pattern that they are for, if already known; it overrides the one in the
                serialized form.

        Raises:
            InvalidSchemeError: If it is invalid.
        """
        signature = body.get("pattern_signature", "") if isinstance(body, Mapping) else None
        size = body.get("pattern_size", 0) if isinstance(body, Mapping) else None
        schemes = body.get("schemes", []) if isinstance(body, Mapping) else None
        if not (isinstance(signature, str) and type(size) is int and isinstance(schemes, list)):
            raise InvalidSchemeError(
                "That is no list of schemes for a pattern.",
                "It has pattern_signature, pattern_size and schemes.",
            )
        if pattern is None and signature:
            pattern = RegionPattern(signature, size)
        return cls(pattern, [InsertionScheme.from_dict(scheme) for scheme in schemes])
