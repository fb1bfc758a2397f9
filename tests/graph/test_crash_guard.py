"""Native code may crash, hang or raise: the caller lives on."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import numpy as np
import onnx_ir as ir
import psutil
import pytest

from qdqtune.graph import _validity as crash_guard
from qdqtune.graph._shapes import infer_shapes
from qdqtune.graph._validity import call_guarded
from qdqtune.resources import resource_limits
from tests.conftest import model_from_text


def test_an_answer_comes_back_whole() -> None:
    answer = os.urandom(3_000_000)
    assert call_guarded(lambda: answer) == answer
    assert call_guarded(lambda: b"") == b""


def test_a_crash_or_an_exception_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    def crash() -> bytes:
        os.abort()

    def fail() -> bytes:
        raise ValueError("no")

    assert call_guarded(crash) is None
    assert call_guarded(fail) is None
    assert capfd.readouterr() == ("", "")


def test_a_hang_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_guard, "_LIMIT_S", 0.2)

    def hang() -> bytes:
        time.sleep(60)
        return b""

    start = time.monotonic()
    assert call_guarded(hang) is None
    assert time.monotonic() - start < 30


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux holds a process to it")
def test_too_much_memory_is_no_answer() -> None:
    assert call_guarded(lambda: bytes(600 << 20)[:1], room_bytes=200 << 20) is None
    assert call_guarded(lambda: bytes(600 << 20)[:1], room_bytes=900 << 20) == b"\0"
    with resource_limits(max_memory="256MiB"):
        assert call_guarded(lambda: bytes(600 << 20)[:1], room_bytes=900 << 20) is None


def test_the_users_timeout_counts() -> None:
    def wait() -> bytes:
        time.sleep(60)
        return b""

    with resource_limits(timeout_s=0.2):
        assert call_guarded(wait) is None


ORPHAN = """
import os, sys, time
from qdqtune.graph._validity import call_guarded

def hang():
    print(os.getpid(), flush=True)
    while True:
        pass

call_guarded(hang)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
def test_nothing_guarded_outlives_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        copy = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    _, alive = psutil.wait_procs([copy], timeout=5)
    for each in alive:
        each.kill()
    assert not alive


def test_sizes_that_shape_inference_aborts_on() -> None:
    # A window of 3 over 1 column leaves less than nothing, and slicing that ends the process.
    model = ir.from_proto(
        model_from_text(
            """
            g (float[1,1,8,1] x) => (float[1,1,A,B] y) {
                c = Conv(x, w)
                y = Slice(c, s, e, a)
            }""",
            w=np.ones((1, 1, 3, 3), np.float32),
            s=np.array([0]),
            e=np.array([4]),
            a=np.array([3]),
        )
    )
    infer_shapes(model)
