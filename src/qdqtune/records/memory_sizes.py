"""Memory sizes as text, such as `4GiB`."""

from __future__ import annotations

import re

_UNITS = {
    "": 1, "B": 1,
    "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40,
}  # fmt: skip
_SHOWN = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_LARGEST = 1 << 62


def parse_size(text: str) -> int:
    """Return the number of bytes in a text such as `4GiB`, `512M` or `6e9`.

    Raises:
        ValueError: If the text is not a size.
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:[eE]\d{1,2})?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(found[2].upper()) if found is not None else None
    if found is None or unit is None:
        raise ValueError(f"{text!r} is no size of memory; write 4GiB, 512MiB or 6GB")
    size = int(min(float(found[1]) * unit, _LARGEST))
    if size <= 0:
        raise ValueError(f"{text!r} is no memory at all; write 4GiB, 512MiB or 6GB")
    return size


def size_text(size: int) -> str:
    """Format a number of bytes, such as `3.5 GiB`."""
    if size > _LARGEST:
        return "more than 4 million TiB"
    for unit, scale in _SHOWN:
        if size >= scale:
            number = size / scale
            return f"{number:.0f} {unit}" if number == int(number) else f"{number:,.1f} {unit}"
    return f"{size} bytes"
