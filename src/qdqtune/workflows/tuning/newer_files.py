"""Files in a run's folder that a newer version wrote: they are found before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from qdqtune.autotune.errors import NewerVersionError
from qdqtune.autotune.patterns.pattern_cache import PatternCache
from qdqtune.autotune.patterns.state_file import read_state
from qdqtune.records.errors import NewerSchemaError, QdqtuneError
from qdqtune.records.schemas import SCHEMAS, check_schema
from qdqtune.records.untrusted_files import parse_json, read_bytes, read_text
from qdqtune.workflows.tuning.journal_format import read_journal

_SCHEMA = re.compile(rb'^schema: *(\d{1,9}) *$|"schema": *(\d{1,9})\b', re.MULTILINE)


def refuse_newer_files(kinds: Mapping[Path, str]) -> None:
    """Refuse files that only a newer version can read.

    What can't be read at all is damaged; that is for those to say who need the file.

    Args:
        kinds: The kind of each file; it need not be there.

    Raises:
        NewerSchemaError: If one is of a schema that this version does not know.
    """
    for path, kind in kinds.items():
        try:
            if _may_be_newer(path, SCHEMAS[kind]):
                _READERS.get(kind, lambda path, kind=kind: _check_json(path, kind))(path)
        except (NewerSchemaError, NewerVersionError):
            raise
        except (OSError, ValueError, QdqtuneError):
            continue


def _may_be_newer(path: Path, newest: int) -> bool:
    """A look that costs little, since most files are of this version."""
    return any(
        int(in_yaml or in_json) > newest for in_yaml, in_json in _SCHEMA.findall(read_bytes(path))
    )


def _check_json(path: Path, kind: str) -> None:
    body = parse_json(read_text(path), path.name)
    if isinstance(body, dict) and body.get("kind") == kind:
        check_schema(kind, body.get("schema"), str(path))


_READERS: Mapping[str, Callable[[Path], object]] = {
    "autotuner_state": read_state,
    "journal": read_journal,
    "pattern_cache": PatternCache.load,
}
