"""Errors of the search, each with a hint on what to do."""

from __future__ import annotations

from qdqtune.records._errors import NewerSchemaError, QdqtuneError


class AutotunerError(QdqtuneError):
    """Base class of the search's errors.

    Args:
        what: What happened and where, in one sentence.
        hint: What to do about it.
    """

    def __init__(self, what: str = "", hint: str = "") -> None:
        super().__init__(what, hint)


class NewerVersionError(AutotunerError, NewerSchemaError):
    """A state or pattern cache was written by a newer version of qdqtune."""


class AutotunerNotInitializedError(AutotunerError):
    """A method that requires `initialize` was called before it."""


class InvalidSchemeError(AutotunerError, ValueError):
    """A scheme or an insertion point doesn't fit the pattern, or there is no region to tune."""
