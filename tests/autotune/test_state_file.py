"""The readable snapshot of a run."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from qdqtune.records._errors import AutotunerError, OutputError
from qdqtune.search._config import Config
from qdqtune.search.patterns._region_pattern import PatternSchemes
from qdqtune.search.patterns._state_file import pattern_cache_path, read_state, write_state
from tests.autotune.strategies import patterns

FEW = settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FEW
@given(
    st.lists(patterns, max_size=4),
    st.one_of(st.none(), st.floats(1e-9, 1e9)),
    st.one_of(st.none(), st.text(min_size=1)),
    st.dictionaries(st.text(), st.one_of(st.text(), st.integers(), st.none()), max_size=3),
)
def test_there_and_back(
    tmp_path: Path,
    listed: list[PatternSchemes],
    baseline_ms: float | None,
    current: str | None,
    header: dict[str, object],
) -> None:
    path = tmp_path / "state.yaml"
    config = Config(maximum_mutations=5)
    write_state(
        path,
        baseline_latency_ms=baseline_ms,
        config=config,
        patterns=listed,
        current_signature=current,
        header=header,
    )
    state = read_state(path)
    assert state.baseline_latency_ms == baseline_ms
    assert state.config == config
    assert list(state.patterns) == listed
    assert state.current_signature == current
    assert state.header == header
    assert [each.name for each in tmp_path.iterdir()] == ["state.yaml"]


def test_the_file_has_the_seeds_keys_and_ours(tmp_path: Path) -> None:
    path = tmp_path / "state.yaml"
    write_state(path, baseline_latency_ms=None, config=Config(), patterns=[])
    body = yaml.safe_load(path.read_text())
    assert set(body) == {
        "kind", "schema", "header", "baseline_latency_ms",
        "current_profile_pattern_schemes_signature", "config", "patterns",
    }  # fmt: skip
    assert (body["kind"], body["schema"]) == ("autotuner_state", 1)


def test_a_file_of_another_tool_loads(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "peer.yaml"
    path.write_text(
        """
baseline_latency_ms: 12.5
current_profile_pattern_schemes_signature: null
config: {default_quant_type: int8, something_new: 3}
patterns:
- pattern_signature: Conv->Relu
  pattern_size: 2
  schemes:
  - {latency_ms: .inf, error: true, profile_timestamp: null, nodes_insertion_points: [],
     child_region_inputs: [], region_outputs: [], hash: x}
"""
    )
    with caplog.at_level(logging.WARNING):
        state = read_state(path)
    assert state.baseline_latency_ms == 12.5
    assert state.header == {}
    assert math.isinf(state.patterns[0].schemes[0].latency_ms)
    assert "something_new" in caplog.text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("patterns:\n  - a: }\n", "line 2"),
        ("baseline_latency_ms: 1.0", "patterns"),
        ("patterns: []\nbaseline_latency_ms: soon", "line 2"),
        ("patterns: []\nbaseline_latency_ms: .inf", "line 2"),
        ("patterns: []\nbaseline_latency_ms: -1", "line 2"),
        ("patterns: []\nconfig: {default_quant_type: int3}", "line 2"),
        ("patterns: []\nconfig: 3", "line 2"),
        ("patterns: []\nheader: [1]", "line 2"),
        ("patterns: []\ncurrent_profile_pattern_schemes_signature: 4", "line 2"),
        ("patterns:\n- {pattern_signature: a, pattern_size: 1, schemes: []}\n- 7", "line 3"),
        ("kind: pattern_cache\npatterns: []", "kind"),
        ("schema: 99\npatterns: []", "written by a newer version"),
    ],
    ids=range(12),
)
def test_damage_is_named_by_file_and_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "state.yaml"
    path.write_text(text)
    with pytest.raises(AutotunerError) as caught:
        read_state(path)
    assert str(path) in caught.value.what
    assert words in caught.value.what
    assert caught.value.hint


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path / "none.yaml")


def test_b14_a_write_that_fails_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "state.yaml"
    write_state(path, baseline_latency_ms=3.0, config=Config(), patterns=[])
    with pytest.raises(yaml.YAMLError):
        write_state(
            path, baseline_latency_ms=4.0, config=Config(), patterns=[], header={"a": object()}
        )
    assert read_state(path).baseline_latency_ms == 3.0
    with pytest.raises(OutputError):
        write_state(
            tmp_path / "none" / "state.yaml", baseline_latency_ms=1.0, config=Config(), patterns=[]
        )


@pytest.mark.parametrize(
    ("state", "cache"),
    [
        ("autotuner_state.yaml", "autotuner_state_pattern_cache.yaml"),
        ("a.b/run.1.yml", "a.b/run.1_pattern_cache.yml"),
        ("state", "state_pattern_cache"),
    ],
)
def test_the_cache_lies_beside_the_state(state: str, cache: str) -> None:
    assert pattern_cache_path(state) == Path(cache.replace("/", os.sep))
