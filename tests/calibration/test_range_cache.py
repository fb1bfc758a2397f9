"""Ranges that were found before."""

from __future__ import annotations

import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from qdqtune.calibration import _ranges as range_cache
from qdqtune.calibration._ranges import Calibrated, RangeCache, SampleDigest, key_of, user_cache
from qdqtune.records._ranges import RangeMethod

SAMPLE = {"x": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array([1])}
WHOLE = {RangeMethod.MAX: {"x": (-0.1, 1 / 3)}}
FOUND = Calibrated({**WHOLE, RangeMethod.MSE: {"x": (0.0, 0.25)}}, 7, {"y": 3})


def digest(*samples: dict[str, np.ndarray]) -> str:
    made = SampleDigest()
    assert len(list(made.through(samples))) == len(samples)
    return made.hexdigest()


@pytest.mark.parametrize(
    "other",
    [
        {**SAMPLE, "x": SAMPLE["x"] + 1},
        {**SAMPLE, "x": SAMPLE["x"].reshape(3, 2)},
        {**SAMPLE, "x": SAMPLE["x"].view(np.int32)},
        {"z": SAMPLE["x"], "n": SAMPLE["n"]},
        {"x": SAMPLE["x"]},
    ],
    ids=["values", "shape", "type", "name", "missing"],
)
def test_other_samples_have_another_digest(other: dict[str, np.ndarray]) -> None:
    assert digest(SAMPLE) != digest(other)
    assert key_of(SAMPLE, "a") != key_of(other, "a")


def test_a_digest_is_of_the_content() -> None:
    turned = {"n": SAMPLE["n"].copy(), "x": np.asfortranarray(SAMPLE["x"])}
    assert digest(SAMPLE, SAMPLE) == digest(turned, SAMPLE)
    assert len({digest(*[SAMPLE] * times) for times in range(4)}) == 4
    assert digest({"t": np.array(["a"])}) != digest({"t": np.array(["b"])})
    assert digest({"h": np.ones(2, ml_dtypes.bfloat16)}) != digest({"h": np.ones(2, np.float16)})
    assert key_of(SAMPLE, "a", 1) != key_of(SAMPLE, "a", 2)


def test_what_was_stored_is_loaded(tmp_path: Path) -> None:
    cache = RangeCache(tmp_path / "new" / "folder")
    assert not cache.may_have("key")
    cache.store("key", "samples", FOUND)
    assert cache.may_have("key")
    assert not cache.may_have("other")
    assert cache.load("key", "samples", RangeMethod) is None
    assert cache.load("key", "samples", [RangeMethod.MSE]) == FOUND
    assert cache.load("key", "others", [RangeMethod.MSE]) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "[" * 100_000,
        json.dumps({"kind": "calibration", "schema": 1, "name": "another", "ways": {}}),
        '{"kind": "calibration", "schema": 1, "name": "key-samples", "samples": 1, "strange": {},'
        ' "ways": {"max": {"x": [1, 0]}}}',
        '{"kind": "calibration", "schema": 1, "name": "key-samples", "samples": 1, "strange": {},'
        ' "ways": {"max": {"x": [NaN, 1]}}}',
        '{"kind": "calibration", "schema": 1, "name": "key-samples", "samples": 1, "strange": {},'
        ' "ways": {"new": {}}}',
    ],
    ids=range(8),
)
def test_damaged_and_foreign_files_are_left_aside(text: str, tmp_path: Path) -> None:
    cache = RangeCache(tmp_path)
    (tmp_path / "key-samples.json").write_text(text)
    assert cache.load("key", "samples", []) is None
    cache.store("key", "samples", FOUND)
    assert cache.load("key", "samples", []) == FOUND


def test_those_used_last_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_cache, "_MOST_FILES", 3)
    cache = RangeCache(tmp_path)
    for number in range(3):
        cache.store(f"k{number}", "s", FOUND)
        os.utime(tmp_path / f"k{number}-s.json", (number, number))
    assert cache.load("k0", "s", []) == FOUND
    cache.store("k3", "s", FOUND)
    assert {path.stem for path in tmp_path.iterdir()} == {"k0-s", "k2-s", "k3-s"}


def test_a_folder_that_can_not_be_is_no_reason_to_fail(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    for cache in (RangeCache(tmp_path / "file" / "folder"), RangeCache(None)):
        cache.store("k", "s", FOUND)
        assert not cache.may_have("k")
        assert cache.load("k", "s", []) is None


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"QDQTUNE_CACHE": "own", "XDG_CACHE_HOME": "xdg"}, "own/ranges"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/qdqtune/ranges"),
        ({"HOME": "home"}, "home/.cache/qdqtune/ranges"),
        ({"QDQTUNE_CACHE": "", "HOME": "home"}, None),
    ],
)
def test_where_entries_are(
    variables: dict[str, str],
    folder: str | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("QDQTUNE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value and str(tmp_path / value))
    user_cache().store("k", "s", FOUND)
    found = [str(path.parent.relative_to(tmp_path)) for path in tmp_path.rglob("k-s.json")]
    assert found == ([] if folder is None else [folder])
