"""Native code may crash, hang or raise: the caller lives on."""

from __future__ import annotations

import os
import time

import numpy as np
import onnx_ir as ir
import pytest

from qdqtune.graph import guarded
from qdqtune.graph.guarded import call_guarded
from qdqtune.graph.shapes import infer_shapes
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
    monkeypatch.setattr(guarded, "_LIMIT_S", 0.2)

    def hang() -> bytes:
        time.sleep(60)
        return b""

    start = time.monotonic()
    assert call_guarded(hang) is None
    assert time.monotonic() - start < 30


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
