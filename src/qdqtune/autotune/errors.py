"""What can go wrong in the search, with what to do about it."""

from __future__ import annotations

from qdqtune.records.errors import QdqtuneError


class AutotunerError(QdqtuneError):
    """The base of the search's own errors."""


class AutotunerNotInitializedError(AutotunerError):
    """A method was called that needs `initialize` first."""


class InvalidSchemeError(AutotunerError, ValueError):
    """A scheme or an insertion point doesn't fit the pattern, or there is no region to tune."""
