"""What can go wrong in the search, with what to do about it."""

from __future__ import annotations

from qdqtune.records.errors import NewerSchemaError, QdqtuneError


class AutotunerError(QdqtuneError):
    """The base of the search's own errors.

    Args:
        what: What happened and where, one sentence.
        hint: What to do about it.
    """

    def __init__(self, what: str = "", hint: str = "") -> None:
        super().__init__(what, hint)


class NewerVersionError(AutotunerError, NewerSchemaError):
    """A state or pattern cache was written by a newer version of qdqtune."""


class AutotunerNotInitializedError(AutotunerError):
    """A method was called that needs `initialize` first."""


class InvalidSchemeError(AutotunerError, ValueError):
    """A scheme or an insertion point doesn't fit the pattern, or there is no region to tune."""
