"""Errors that a user can act on.

They are printed without a traceback: what happened, where, and what to do about it.
Any other exception is a bug in qdqtune and keeps its traceback.
"""

from __future__ import annotations


class QdqtuneError(Exception):
    """Base class of all errors that are shown to the user.

    Args:
        what: What happened and where, one sentence.
        hint: What to do about it.
    """

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.what}\n{self.hint}" if self.hint else self.what


class UsageError(QdqtuneError):
    """The request is invalid: an unknown op, engine or option. Exit code 2."""


class LimitError(UsageError, ValueError):
    """A file or text exceeds the limit on size or nesting depth for its kind.

    Also a `ValueError`, so that callers that can do without the file treat it as damaged.
    """


class NewerSchemaError(UsageError):
    """A file was written by a newer version of qdqtune, in a schema that this one can't read."""


class ModelError(QdqtuneError):
    """The model file is missing, broken, or not supported by the command."""


class MissingModelError(ModelError, UsageError):
    """There is no such model file. Exit code 2."""


class OutputError(QdqtuneError):
    """An output can't be written, or would overwrite something."""


class EngineError(QdqtuneError):
    """An engine is not installed, or failed on a model."""


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
