"""The folder with the subgraphs of subgraph mode: what in it a run has written, and what not."""

from __future__ import annotations

from pathlib import Path

from qdqtune.graph.weights import WEIGHTS_FILE, WEIGHTS_INDEX

_FILES = "subgraph_*.onnx"
_WRITTEN = (
    _FILES,
    "conversion_*.onnx",
    WEIGHTS_FILE,
    WEIGHTS_INDEX,
)


def holds_subgraphs(folder: Path) -> bool:
    """Whether a run has written subgraphs there."""
    return any(folder.glob(_FILES))


def is_empty(folder: Path) -> bool:
    """Whether there is nothing: no such folder, or none with anything in it."""
    return not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))


def remove_subgraphs(folder: Path) -> None:
    """Remove what runs write there, and the folder if nothing else is in it."""
    if not folder.is_dir():
        return
    for file in (file for pattern in _WRITTEN for file in folder.glob(pattern)):
        file.unlink(missing_ok=True)
    if is_empty(folder) and not folder.is_symlink():
        folder.rmdir()
