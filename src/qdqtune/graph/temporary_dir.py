"""The folder for temporary files."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

_VARIABLES = ("TMPDIR", "TEMP", "TMP")
_USUAL = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108  (names in there are random and private)


def temporary_place() -> Path:
    """Return the folder that `tempfile` would choose.

    `tempfile` tests folders by writing a file into them, which remains if the process is killed.
    """
    if tempfile.tempdir is not None:
        return Path(os.fsdecode(tempfile.tempdir))
    named = filter(None, map(os.environ.get, _VARIABLES))
    for folder in (*named, *_USUAL):
        if os.path.isdir(folder) and os.access(folder, os.W_OK | os.X_OK):
            return Path(folder).absolute()
    return Path.cwd()
