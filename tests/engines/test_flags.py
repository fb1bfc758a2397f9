"""What is said for some engines, and ranges of shapes, as options of the engine that is used."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from qdqtune.engines._options import EngineFlags, ShapeArguments, range_options, without_ranges
from qdqtune.records._errors import UsageError


@pytest.fixture
def words(tmp_path: Path) -> EngineFlags:
    plugins = [tmp_path / "a.so", tmp_path / "b.so"]
    for plugin in plugins:
        plugin.touch()
    return EngineFlags("t.cache", tuple(map(str, plugins)), ("--fp16", "--a=b c"), "/opt/it")


def test_a_program_takes_all_of_it(words: EngineFlags) -> None:
    assert words.options_of("trtexec", {}) == {
        "timing_cache": "t.cache",
        "plugins": os.pathsep.join(words.plugins),
        "args": "--fp16 '--a=b c'",
        "path": "/opt/it",
    }


def test_options_go_first(words: EngineFlags) -> None:
    assert words.options_of("trtexec", {"timing_cache": "mine"})["timing_cache"] == "mine"


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("tensorrt", ["takes no arguments of trtexec: --fp16"]),
        ("tensorrt_rtx", ["has no timing cache", "takes no arguments"]),
        ("onnxruntime", ["has no timing cache", "takes no plugin libraries", "no arguments"]),
    ],
)
def test_what_is_of_no_use_is_told_or_refused(
    engine: str, told: list[str], words: EngineFlags, caplog: pytest.LogCaptureFixture
) -> None:
    assert not {"args", "path"} & words.options_of(engine, {}).keys()
    assert len(caplog.records) == len(told)
    for text in told:
        assert text in caplog.text
    with pytest.raises(UsageError):
        words.options_of(engine, {}, is_strict=True)


def test_a_missing_library_is_told() -> None:
    with pytest.raises(UsageError, match=r"missing\.so does not exist"):
        EngineFlags(plugins=("missing.so",)).options_of("onnxruntime", {})


def test_ranges_are_options_and_can_be_taken_out() -> None:
    shapes = {"min": {"x": (1, 3)}, "opt": {"x": (2, 3), "a:b": ()}, "max": {}}
    options = range_options(shapes)
    assert options == {"min_shapes": "x:1x3", "opt_shapes": "x:2x3,'a:b':scalar"}
    assert without_ranges({**options, "level": "2"}) == {"level": "2"}


def test_shapes_among_arguments() -> None:
    told = ShapeArguments.found_in(["--optShapes=x:4", "--fp16", "--maxShapes=x:8,y:1"])
    assert told.others == ["--fp16"]
    assert told.as_options() == {"opt_shapes": "x:4", "max_shapes": "x:8,y:1"}
    assert ShapeArguments.found_in(["--shapes=x:4"]).as_options() == {}


@pytest.mark.parametrize(
    ("said", "run", "built_for"),
    [
        ("--optShapes=x:2", "x:2", "x:2"),
        ("--shapes=x:4", "x:4", "x:4"),
        ("--shapes=x:4 --optShapes=x:2", "x:4", "x:2"),
    ],
)
def test_shapes_that_are_run_need_not_be_those_that_are_built_for(
    said: str, run: str, built_for: str
) -> None:
    told = ShapeArguments.found_in([*said.split(), "--maxShapes=x:8"])
    assert told.usual == [run]
    assert told.as_options() == {"opt_shapes": built_for, "max_shapes": "x:8"}
