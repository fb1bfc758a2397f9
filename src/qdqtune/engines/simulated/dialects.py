"""The dialect of a simulated machine."""

from __future__ import annotations

from collections.abc import Mapping

from qdqtune.engines.simulated.profiles import DEFAULT_PROFILE, profile_named
from qdqtune.records.errors import UsageError


def dialect_of(options: Mapping[str, str]) -> str:
    """Return the name of the dialect of the machine that options select.

    Raises:
        UsageError: If there is no such machine.
    """
    try:
        return profile_named(options.get("profile", DEFAULT_PROFILE.name)).dialect
    except ValueError as error:
        raise UsageError(f"The simulated engine: {error}.", "See docs/simulated.md.") from None
