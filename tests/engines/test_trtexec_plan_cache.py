from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qdqtune.engines.tensorrt._files import LAYERS, PlanCache, plan_key, plan_secret
from qdqtune.records._errors import ModelError

TEXT = '<ir_version: 9, opset_import: ["" : 17]> g (float[4] x) => (float[4] y) { y = Mul(x, w) }'


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose weights lie in the middle of a file."""
    proto = onnx.parser.parse_model(TEXT)
    weights = onnx.numpy_helper.from_array(np.ones(4, np.float32), "w")
    proto.graph.initializer.append(weights)
    path = tmp_path / "model" / "m.onnx"
    path.parent.mkdir()
    onnx.save(proto, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    data = path.with_name("w.bin")
    data.write_bytes(data.read_bytes() + b"more")
    return path


class TestKeys:
    def test_are_equal_wherever_the_model_lies(self, model: Path, tmp_path: Path) -> None:
        copy = tmp_path / "elsewhere"
        shutil.copytree(model.parent, copy)
        (copy / "m.onnx").rename(copy / "other name.onnx")
        assert plan_key(copy / "other name.onnx", ["10.3"]) == plan_key(model, ["10.3"])

    def test_do_not_depend_on_where_weights_are_stored(self, model: Path, tmp_path: Path) -> None:
        inside = tmp_path / "inside.onnx"
        proto = onnx.load(model)
        proto.producer_name, proto.graph.name = "another tool", "another name"
        onnx.save(proto, inside)
        assert plan_key(inside, []) == plan_key(model, [])

    def test_depend_on_weights_but_not_on_what_is_beside_them(self, model: Path) -> None:
        data = model.with_name("w.bin")
        content = data.read_bytes()
        key = plan_key(model, [])
        data.write_bytes(content + b"appended for another candidate")
        assert plan_key(model, []) == key
        data.write_bytes(b"\x01" + content[1:])
        assert plan_key(model, []) != key

    def test_depend_on_the_model(self, model: Path) -> None:
        key = plan_key(model, [])
        proto = onnx.load(model, load_external_data=False)
        proto.graph.node[0].name = "another"
        onnx.save(proto, model)
        assert plan_key(model, []) != key

    @settings(max_examples=30, deadline=None)
    @given(st.lists(st.text(max_size=4), max_size=3), st.lists(st.text(max_size=4), max_size=3))
    def test_depend_on_parts(self, ours: list[str], others: list[str]) -> None:
        path = Path(__file__).parents[1] / "data" / "tensorrt" / "rtx171" / "dw_int8.onnx"
        assert (plan_key(path, ours) == plan_key(path, others)) == (ours == others)

    def test_of_weights_that_are_missing_or_too_short(self, model: Path) -> None:
        data = model.with_name("w.bin")
        data.write_bytes(b"\0" * 7)
        with pytest.raises(ModelError, match=r"w\.bin"):
            plan_key(model, [])
        data.unlink()
        os.mkfifo(data)  # to open it would wait for its other end
        with pytest.raises(ModelError, match=r"w\.bin"):
            plan_key(model, [])
        data.unlink()
        with pytest.raises(ModelError, match=r"w\.bin"):
            plan_key(model, [])


class TestSecret:
    def test_only_who_knows_it_finds_what_was_kept(self, tmp_path: Path) -> None:
        ours, others = (PlanCache(tmp_path, secret=secret * 32) for secret in (b"a", b"b"))
        kept = ours.keep("key", b"engine")
        assert ours.find("key") == kept
        assert others.find("key") is None
        assert PlanCache(tmp_path).find("key") is None
        kept.write_bytes(b"changed")
        assert ours.find("key") is None

    def test_is_made_once_and_readable_by_its_owner_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        found = set()
        for _ in range(2):
            plan_secret.cache_clear()
            found.add(plan_secret())
        assert len(found) == 1
        file = tmp_path / "qdqtune" / "plans.key"
        assert file.stat().st_mode & 0o077 == 0
        assert file.read_bytes() in found
        plan_secret.cache_clear()

    def test_without_a_place_for_it_nothing_is_found(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "file").touch()
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        found = set()
        for _ in range(2):
            plan_secret.cache_clear()
            found.add(plan_secret())
        assert len(found) == 2
        plan_secret.cache_clear()


class TestCache:
    def test_keeps_bytes_and_files(self, tmp_path: Path) -> None:
        cache = PlanCache(tmp_path / "plans")
        assert cache.find("a") is None
        cache.keep("a", b"engine")
        source = tmp_path / "source"
        source.write_bytes(b"layers")
        cache.keep("a", source, LAYERS)
        source.unlink()
        for ending, content in ((".plan", b"engine"), (LAYERS, b"layers")):
            found = cache.find("a", ending)
            assert found == cache.path_for("a", ending)
            assert found is not None
            assert found.read_bytes() == content
        assert sorted(os.listdir(cache.folder)) == ["a.layers.json", "a.plan"]

    def test_an_empty_engine_is_none(self, tmp_path: Path) -> None:
        cache = PlanCache(tmp_path)
        cache.keep("a", b"")
        assert cache.find("a") is None
        assert not cache.take("a", tmp_path / "taken")

    def test_what_nobody_asked_for_goes_first(self, tmp_path: Path) -> None:
        cache = PlanCache(tmp_path, most_bytes=25)
        for number, key in enumerate("abc"):
            os.utime(cache.keep(key, b"x" * 8), ns=(number, number))
        assert cache.find("a") is not None  # now b is the oldest
        cache.keep("d", b"x" * 8)
        assert [key for key in "abcd" if cache.find(key)] == ["a", "c", "d"]

    def test_one_that_is_too_large_alone_is_kept(self, tmp_path: Path) -> None:
        cache = PlanCache(tmp_path, most_bytes=10)
        cache.keep("a", b"x" * 8)
        cache.keep("b", b"x" * 100)
        assert [key for key in "ab" if cache.find(key)] == ["b"]

    def test_what_was_taken_stays(self, tmp_path: Path) -> None:
        cache = PlanCache(tmp_path / "plans", most_bytes=10)
        cache.keep("a", b"first")
        taken = tmp_path / "taken"
        assert cache.take("a", taken)
        cache.keep("a", b"second")
        cache.keep("b", b"x" * 20)
        assert cache.find("a") is None
        assert taken.read_bytes() == b"first"

    def test_a_writer_that_fails_leaves_nothing(self, tmp_path: Path) -> None:
        cache = PlanCache(tmp_path / "plans")
        with pytest.raises(OSError):
            cache.keep("a", tmp_path / "missing")
        assert os.listdir(cache.folder) == []

    def test_processes_find_whole_engines_or_none(self, tmp_path: Path) -> None:
        script = """
import sys
from pathlib import Path
from qdqtune.engines.tensorrt._files import PlanCache
cache = PlanCache(sys.argv[1], most_bytes=3 << 16)
target = Path(sys.argv[2])
for number in range(40):
    key = "abcde"[number % 5]
    cache.keep(key, sys.argv[3].encode() * (1 << 16))
    for other in "abcde":
        if cache.take(other, target):
            content = target.read_bytes()
            assert content in (b"x" * (1 << 16), b"y" * (1 << 16)), len(content)
"""
        children = [
            subprocess.Popen(
                [sys.executable, "-c", script, str(tmp_path / "plans"), str(tmp_path / who), who]
            )
            for who in "xy"
        ]
        assert [child.wait(60) for child in children] == [0, 0]
