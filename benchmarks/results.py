"""The results file: every run appends, every table is printed from it."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from qdqtune.report._formatting import text_table

RESULTS = Path(__file__).parent / "results.jsonl"


def commit() -> str:
    """The commit that is measured, marked if the tree has changes."""
    try:
        shown = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--exclude", "*"],
            cwd=Path(__file__).parent, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return shown.stdout.strip()


def append(record: dict[str, Any], path: Path = RESULTS) -> dict[str, Any]:
    """Add one record with the commit and the time; returns it."""
    stamped = {
        "commit": commit(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        **record,
    }
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(stamped) + "\n")
    return stamped


def keep(kind: str, part: str, record: dict[str, Any]) -> dict[str, Any]:
    """Append and print one record of a part of a benchmark; returns it with its stamp."""
    stamped = append({"kind": kind, "part": part, **record})
    print(
        f"{part}:", ", ".join(f"{key} {_brief(value)}" for key, value in record.items()), flush=True
    )
    return stamped


def show(kind: str, part: str, columns: dict[str, str], *keys: str) -> None:
    """Print a table of the newest records of a part of a benchmark; see `newest`."""
    records = [record for record in read(kind) if record["part"] == part]
    print()
    print(table(newest(records, *keys), columns))


def _brief(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def read(kind: str, path: Path = RESULTS) -> list[dict[str, Any]]:
    """All records of a kind, oldest first."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [record for record in map(json.loads, lines) if record["kind"] == kind]


def newest(records: Iterable[dict[str, Any]], *keys: str) -> list[dict[str, Any]]:
    """The last record for each combination of keys, in order of first appearance."""
    last = {tuple(record[key] for key in keys): record for record in records}
    return list(last.values())


def table(records: list[dict[str, Any]], columns: dict[str, str]) -> str:
    """A table of records; columns map a title to a key."""
    rows = [[_cell(record.get(key, "")) for key in columns.values()] for record in records]
    return text_table(list(columns), rows)


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, list):
        return " to ".join(_cell(part) for part in value)
    return str(value)
