"""The newest schema of every kind of file that is read back, and the check for newer ones."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from qdqtune.records.errors import NewerSchemaError

SCHEMAS: Mapping[str, int] = MappingProxyType(
    {
        "autotune_cache": 1,
        "autotuner_state": 1,
        "calibration": 1,
        "journal": 2,
        "pattern_cache": 1,
        "placement": 1,
        "ranges": 1,
        "summary": 1,
    }
)
"""By kind. Files that are only written, such as reports, are not listed."""


def check_schema(kind: str, schema: object, source: str) -> None:
    """Reject a file from a newer version: it is not damaged and must not be replaced.

    Args:
        kind: The kind of file.
        schema: The schema it declares.
        source: The file's name in the message.

    Raises:
        NewerSchemaError: If this version does not know the schema.
    """
    newest = SCHEMAS[kind]
    if type(schema) is int and schema > newest:
        raise NewerSchemaError(
            f"{source} was written by a newer version of qdqtune: its {kind} schema is {schema}, "
            f"and this version reads up to {newest}.",
            "Upgrade qdqtune, or name another file or folder. Nothing was changed.",
        )
