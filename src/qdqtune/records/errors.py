"""Errors that a user can act on.

They are printed as they are, without a traceback: what happened, where, and what to do about it.
Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class QdqtuneError(Exception):
    """The base of every error meant for the user's eyes.

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
    """The request itself makes no sense: an unknown op, engine or option. Exit code 2."""


class LimitError(UsageError, ValueError):
    """A file or text is larger, or nested deeper, than what is read of its kind.

    Also a `ValueError`: whoever can do without a file takes it for a damaged one.
    """


class NewerSchemaError(UsageError):
    """A file was written by a version of qdqtune that knows more than this one."""


class ModelError(QdqtuneError):
    """The model file is missing, broken or not what the command can work with."""


class OutputError(QdqtuneError):
    """An output can't be written, or would overwrite something."""


class EngineError(QdqtuneError):
    """An engine is not installed, or failed on a model."""
