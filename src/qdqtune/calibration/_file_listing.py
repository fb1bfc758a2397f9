"""The files in a folder of calibration data, in the order in which they are read."""

from __future__ import annotations

import itertools
import re
from pathlib import Path


def listed(folder: Path, *suffixes: str) -> list[Path]:
    """Return the files in a folder with these suffixes, except hidden ones, in natural order."""
    if not folder.is_dir():
        return []
    files = (file for file in folder.iterdir() if file.suffix in suffixes and file.is_file())
    return sorted((file for file in files if not file.name.startswith(".")), key=natural)


def listed_in_turns(folder: Path, *suffixes: str) -> list[Path]:
    """Return the files in a folder, or else one from each of its subfolders in turn.

    The subfolders of data for classification are the classes, which the first files must not all
    be of.
    """
    found = listed(folder, *suffixes)
    if found:
        return found
    subfolders = sorted((each for each in folder.iterdir() if each.is_dir()), key=natural)
    turns = itertools.zip_longest(*(listed(each, *suffixes) for each in subfolders))
    return [file for turn in turns for file in turn if file is not None]


def natural(path: Path) -> list[tuple[int, str]]:
    """A sort key that puts sample2 before sample10."""
    parts = re.split(r"(\d+)", path.name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts]
