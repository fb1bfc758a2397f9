"""Files and texts of strangers are read within limits, which the error names."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from qdqtune.records._errors import LimitError
from qdqtune.records._untrusted_files import parse_json, read_bytes, read_text


def test_a_file_is_read_up_to_a_limit_and_not_beyond(tmp_path: Path) -> None:
    file = tmp_path / "some.json"
    file.write_bytes(b"x" * 1000)
    assert read_bytes(file, most=1000) == b"x" * 1000
    with pytest.raises(LimitError, match=r"some\.json has 1,000 bytes; .* up to 999 bytes"):
        read_bytes(file, most=999)


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    with file.open("wb") as made:
        made.truncate(1 << 40)  # more than there is memory for
    with pytest.raises(LimitError, match=r"has 1,048,576 MB; .* up to 128 MB"):
        read_text(file)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_plain_file_is_refused_and_not_waited_for(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    path = tmp_path / "odd"
    make(path)
    with pytest.raises(OSError, match=r"plain file|directory"):
        read_bytes(path)


MANY = "[" + "{}," * 4_000_000 + "{}]"
LARGE = '"' + "x" * (129 << 20) + '"'


@pytest.mark.parametrize("as_type", [str, bytes])
@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[" * 50_000, "is nested too deeply"),
        ('{"a":' * 50_000, "is nested too deeply"),
        (MANY, "has about 8,000,002 values; JSON is read up to 8,000,000 of them"),
        (LARGE, "has 129 MB; JSON is read up to 128 MB"),
    ],
    ids=["lists", "objects", "values", "size"],
)
def test_json_has_limits_of_depth_values_and_size(text: str, why: str, as_type: type) -> None:
    given = text.encode() if as_type is bytes else text
    with pytest.raises(LimitError, match=why) as error:
        parse_json(given, "summary.json")
    assert error.value.what.startswith("summary.json ")
    assert error.value.hint


def test_large_layer_information_is_parsed() -> None:
    layer = '{"Name": "conv_%d", "Inputs": [{"Name": "x", "Dimensions": [1, 64, 56, 56]}]}'
    layer = layer.replace('"Name": "x"', f'"Name": "{"x" * 200}"')
    text = "[" + ",".join(layer % number for number in range(180_000)) + "]"
    assert len(text) > 50_000_000
    assert len(parse_json(text, "layers.json")) == 180_000
