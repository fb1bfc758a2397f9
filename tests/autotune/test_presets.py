"""What command lines of the autotuner share."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from qdqtune.records._errors import UsageError
from qdqtune.search._config import (
    MODE_PRESETS,
    StoreWithExplicitFlag,
    apply_mode_presets,
    get_node_filter_list,
    validate_file_path,
)


def parse(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", default="default")
    for flag, dest, default in [
        ("--schemes_per_region", "num_schemes", 50),
        ("--warmup_runs", "warmup_runs", 50),
        ("--timing_runs", "timing_runs", 100),
    ]:
        parser.add_argument(
            flag,
            dest=dest,
            type=int,
            default=default,
            action=StoreWithExplicitFlag,
            explicit_attr=f"_explicit_{dest}",
        )
    args = parser.parse_args(words)
    apply_mode_presets(args)
    return args


def test_the_seeds_numbers() -> None:
    assert {mode: tuple(preset.values()) for mode, preset in MODE_PRESETS.items()} == {
        "quick": (30, 10, 50),
        "default": (50, 50, 100),
        "extensive": (200, 50, 200),
    }
    assert all(
        list(preset) == ["schemes_per_region", "warmup_runs", "timing_runs"]
        for preset in MODE_PRESETS.values()
    )


@pytest.mark.parametrize("mode", ["quick", "default", "extensive"])
def test_a_mode_sets_what_no_flag_did(mode: str) -> None:
    args = parse("--mode", mode)
    found = (args.num_schemes, args.warmup_runs, args.timing_runs)
    assert found == tuple(MODE_PRESETS[mode].values())


def test_a_flag_goes_before_the_mode_even_if_it_says_the_default() -> None:
    args = parse("--mode", "quick", "--schemes_per_region", "50", "--timing_runs", "7")
    assert (args.num_schemes, args.warmup_runs, args.timing_runs) == (50, 10, 7)


def test_unknown_modes() -> None:
    with pytest.raises(UsageError, match="slow"):
        parse("--mode", "slow")


def test_files_that_are_not_there_end_the_program(tmp_path: Path) -> None:
    assert validate_file_path(None, "The model") is None
    file = tmp_path / "model.onnx"
    with pytest.raises(SystemExit) as caught:
        validate_file_path(str(file), "The model")
    assert caught.value.code == 1
    file.touch()
    assert validate_file_path(str(file), "The model") == file


def test_node_filter_lists(tmp_path: Path) -> None:
    file = tmp_path / "filter.txt"
    file.write_text("# convolutions\n  layer1.*  \n\n\t\n*conv2\n  # no\n")
    assert get_node_filter_list(file) == ["layer1.*", "*conv2"]
    assert get_node_filter_list(None) is None
    with pytest.raises(UsageError, match=r"none\.txt"):
        get_node_filter_list(tmp_path / "none.txt")
    file.write_text("# only this\n\n")
    with pytest.raises(UsageError, match="holds no pattern"):
        get_node_filter_list(file)


@pytest.mark.parametrize("mode", ["region", "subgraph"])
def test_modes_that_the_parser_knows_have_the_numbers_of_the_default(mode: str) -> None:
    args = argparse.Namespace(mode=mode)
    apply_mode_presets(args)
    assert (args.num_schemes, args.warmup_runs, args.timing_runs) == (50, 50, 100)
