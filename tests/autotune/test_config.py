"""Settings: the seeds' defaults, and nothing that makes no sense."""

from __future__ import annotations

import math
from typing import Any

import pytest

from qdqtune.records._errors import AutotunerError, QdqtuneError
from qdqtune.search._config import Config

SEEDS_DEFAULTS = {
    "verbose": False,
    "performance_threshold": 1.02,
    "default_q_scale": 0.1,
    "default_q_zero_point": 0,
    "default_quant_type": "int8",
    "default_dq_dtype": "float32",
    "maximum_sequence_region_size": 10,
    "minimum_topdown_search_size": 10,
    "top_percent_to_mutate": 0.1,
    "minimum_schemes_to_mutate": 10,
    "maximum_mutations": 3,
    "maximum_generation_attempts": 100,
    "pattern_cache_minimum_distance": 4,
    "pattern_cache_max_entries_per_pattern": 32,
}


def test_the_seeds_defaults() -> None:
    assert Config().to_dict() == SEEDS_DEFAULTS


def test_there_and_back() -> None:
    config = Config(default_quant_type="fp8", maximum_mutations=7, verbose=True)
    assert Config.from_dict(config.to_dict()) == config
    assert Config.from_dict({"verbose": True}) == Config(verbose=True)


@pytest.mark.parametrize(
    ("quant_type", "zero_point"), [("int8", -128), ("int8", 127), ("uint8", 128), ("fp8", 0)]
)
def test_zero_points_that_fit(quant_type: str, zero_point: int) -> None:
    Config(default_quant_type=quant_type, default_q_zero_point=zero_point)


@pytest.mark.parametrize(
    "setting",
    [
        {"default_q_zero_point": 128},  # B13: an OverflowError at export, otherwise
        {"default_q_zero_point": -129},
        {"default_quant_type": "uint8", "default_q_zero_point": -1},
        {"default_quant_type": "uint8", "default_q_zero_point": 256},
        {"default_quant_type": "fp8", "default_q_zero_point": 1},
        {"default_q_zero_point": 0.5},
        {"default_quant_type": "int4"},
        {"default_dq_dtype": "float64"},
        {"default_q_scale": 0.0},
        {"default_q_scale": -0.1},
        {"default_q_scale": math.nan},
        {"default_q_scale": math.inf},
        {"default_q_scale": "0.1"},
        {"performance_threshold": -0.1},
        {"top_percent_to_mutate": 1.5},
        {"maximum_sequence_region_size": 0},
        {"minimum_topdown_search_size": -3},
        {"top_percent_to_mutate": -0.1},
        {"minimum_schemes_to_mutate": -1},
        {"maximum_mutations": -1},
        {"maximum_mutations": True},
        {"maximum_generation_attempts": 0},
        {"pattern_cache_minimum_distance": -1},
        {"pattern_cache_max_entries_per_pattern": 0},
        {"verbose": "yes"},
    ],
    ids=str,
)
def test_b13_what_makes_no_sense_is_refused_at_once(setting: dict[str, Any]) -> None:
    with pytest.raises(AutotunerError) as caught:
        Config(**setting)
    assert list(setting)[-1] in caught.value.what
    assert caught.value.hint


def test_unknown_settings_are_named() -> None:
    with pytest.raises(QdqtuneError, match="maximum_mutation") as caught:
        Config.from_dict({"maximum_mutation": 3})
    assert "maximum_mutations" in caught.value.hint
    with pytest.raises(AutotunerError):
        Config.from_dict([1])  # type: ignore[arg-type]


def test_a_changed_setting_is_checked_again() -> None:
    config = Config()
    config.default_q_zero_point = 300
    with pytest.raises(AutotunerError):
        config.check()


@pytest.mark.parametrize(
    "name",
    [
        "top_percent_to_mutate",
        "minimum_schemes_to_mutate",
        "maximum_mutations",
        "performance_threshold",
    ],
)
def test_none_at_all_can_be_asked_for(name: str) -> None:
    assert getattr(Config(**{name: 0}), name) == 0
