from __future__ import annotations

import itertools
import json
import time

import pytest

from qdqtune.engines.clock import thread_clock_is_fine
from qdqtune.engines.onnxruntime_profile import layer_times_of
from qdqtune.records.measurement import LayerTime


def event(name, start_us, duration_us, **details):
    return {"name": name, "ts": start_us, "dur": duration_us, "args": details}


def kernel(name, start_us, duration_us):
    details = {"op_name": "Conv", "provider": "CPUExecutionProvider"}
    return event(f"{name}_kernel_time", start_us, duration_us, **details)


# The engine writes the event of a run after those of its kernels.
PROFILE = [
    event("session_initialization", 0, 50),
    kernel("a", 110, 900),
    event("model_run", 100, 1000),
    kernel("b", 2040, 10),
    kernel("a", 2010, 20),
    kernel("a", 2060, 20),
    event("model_run", 2000, 100),
    event("a_fence_before", 3005, 7),
    kernel("a", 3010, 60),
    kernel("b", 3080, 30),
    event("model_run", 3000, 110),
]


def test_kernel_times_are_means_over_the_runs_that_count():
    layers = layer_times_of(json.dumps(PROFILE), skip_runs=1)
    assert layers == [
        LayerTime("a", "Conv", 0.05, "CPUExecutionProvider"),
        LayerTime("b", "Conv", 0.02, "CPUExecutionProvider"),
    ]


def test_a_profile_without_runs_is_refused():
    with pytest.raises(ValueError, match="no run"):
        layer_times_of(json.dumps(PROFILE), skip_runs=3)


def test_a_coarse_thread_clock_is_not_used(monkeypatch):
    thread_clock_is_fine.cache_clear()
    calls = itertools.count()
    monkeypatch.setattr(time, "thread_time_ns", lambda: next(calls) // 1000 * 10_000_000)
    assert not thread_clock_is_fine()
    thread_clock_is_fine.cache_clear()


def test_a_clock_that_stands_still_is_not_used(monkeypatch):
    thread_clock_is_fine.cache_clear()
    monkeypatch.setattr(time, "thread_time_ns", lambda: 5)
    assert not thread_clock_is_fine()
    thread_clock_is_fine.cache_clear()
