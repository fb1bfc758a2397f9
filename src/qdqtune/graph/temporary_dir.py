"""Where temporary files go."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_VARIABLES = ("TMPDIR", "TEMP", "TMP")
_USUAL = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108  (names in there are random and private)


def temporary_place() -> Path:
    """The folder that `tempfile` would choose.

    `tempfile` tries folders by writing a file into them, which a kill leaves there for ever.
    """
    if tempfile.tempdir is not None:
        return Path(os.fsdecode(tempfile.tempdir))
    named = filter(None, map(os.environ.get, _VARIABLES))
    for folder in (*named, *_USUAL):
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder).absolute()
    return Path.cwd()
