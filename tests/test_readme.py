"""What the README shows is what was measured, and it looks the same on PyPI."""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from benchmarks.readme import (
    README,
    cross_table,
    examples,
    records,
    repository,
    results_table,
    shortened,
    with_tables,
)
from benchmarks.readme_picture import PICTURE
from benchmarks.rivals import DYNAMIC, NNCF, RULES, STATIC, TUNED

MOST_LINES = 120
LARGEST_PICTURE = 150_000
PAGE = README.read_text("utf-8")


def turn(ratio: float | None, sqnr_db: float | None = 30.0, kept: bool = False) -> dict[str, Any]:
    return {"ratio": ratio, "sqnr_db": sqnr_db, "kept_float": kept, "form": "1.2.3"}


def record(engine: str, elsewhere: dict[str, Any], **turns: Any) -> dict[str, Any]:
    return {
        "model": "bert:layers=4", "engine": engine, "version": "9.8.7", "device": "a CPU",
        "isa": "avx2", "time": "2026-01-02T03:04:05Z", "float_ms": 1.5, "over_float": 2.0,
        "elsewhere": elsewhere, "turns": turns,
    }  # fmt: skip


def test_it_is_short() -> None:
    assert len(PAGE.splitlines()) <= MOST_LINES


def test_the_picture_is_there_and_small() -> None:
    data = PICTURE.read_bytes()
    width, height = struct.unpack(">II", data[16:24])

    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    assert len(data) <= LARGEST_PICTURE
    assert width > 600
    assert height > 300
    assert f"({repository()}/raw/main/docs/images/{PICTURE.name})" in PAGE


def test_links_are_absolute() -> None:
    assert all(link.startswith("https://") for link in re.findall(r"\]\(([^)]+)\)", PAGE))


def test_the_tables_are_those_of_the_results() -> None:
    assert with_tables(PAGE, records()) == PAGE


def test_the_fastest_accurate_file_is_bold() -> None:
    turns = {
        STATIC: turn(3.0, 9.0), DYNAMIC: turn(None), RULES: turn(1.0, None, kept=True),
        TUNED: turn(2.0),
    }  # fmt: skip

    title, _, row, _, caption = results_table([record("onnxruntime", {}, **turns)]).splitlines()

    assert "NNCF" not in title
    cells = row.strip("| ").split(" | ")
    assert cells[:3] == ["`bert:layers=4`", "ONNX Runtime", "1.5 ms"]
    assert cells[3:] == ["3.00× 9 dB", "–", "float kept", "**2.00×** 30 dB"]
    assert "a CPU (avx2); ONNX Runtime 9.8.7; 2026-01-02." in caption
    assert '"--models bert:layers=4"' in caption


def test_nncf_has_a_column_where_it_was_measured() -> None:
    found = [
        record("onnxruntime", {}, **{TUNED: turn(2.0)}),
        record("openvino", {}, **{TUNED: turn(2.0), NNCF: turn(2.5)}),
    ]

    title, _, without, with_it, _, caption = results_table(found).splitlines()

    assert "| NNCF |" in title
    assert "| – | **2.00×** 30 dB |" in without
    assert "| **2.50×** 30 dB | 2.00× 30 dB |" in with_it
    assert "NNCF 1.2.3" in caption


def test_the_cross_table_has_every_engine_on_every_engine() -> None:
    here = record("onnxruntime", {"openvino": 1.25}, **{TUNED: turn(2.0)})
    there = record("openvino", {"onnxruntime": "it crashed"}, **{TUNED: turn(2.0)})

    _, _, *rows = cross_table([here, there]).splitlines()

    assert rows == [
        "| ONNX Runtime | ONNX Runtime | 2.00× |",
        "| ONNX Runtime | OpenVINO | 1.25× |",
        "| OpenVINO | ONNX Runtime | – |",
        "| OpenVINO | OpenVINO | 2.00× |",
    ]
    assert cross_table([here]) == ""


def test_outputs_keep_the_lines_that_are_shown() -> None:
    output = "file 1.0 ms\n\n-----  ----\ntuned 0.51 ms  2.1x\nmore\nWritten: b.onnx\n"
    shown = "…\ntuned 0.49 ms  2.0x\n…\nWritten: a.onnx\n"

    assert shortened(output, shown) == "…\ntuned 0.51 ms  2.1x\n…\nWritten: b.onnx\n"
    with pytest.raises(ValueError, match="no line begins"):
        shortened("float 1.0 ms\n", shown)


def test_commands_are_shown_with_their_output() -> None:
    ((commands, shown),) = examples(PAGE)

    assert [line.split()[1] for line in commands.splitlines() if line.startswith("qdqtune")] == [
        "tune", "quantize", "bench",
    ]  # fmt: skip
    assert re.search(r"^tuned +\d+\.\d+ +\d+\.\d+x", shown, re.MULTILINE)
