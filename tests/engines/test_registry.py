from __future__ import annotations

import subprocess
import sys

import pytest

from qdqtune.engines import registry
from qdqtune.records.errors import EngineError, UsageError


@pytest.fixture
def nothing_installed(monkeypatch):
    monkeypatch.setattr(registry.importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(registry.shutil, "which", lambda name: None)


def test_onnxruntime_is_usable():
    status = registry.available("onnxruntime")
    assert status.usable
    assert status.version
    assert status.reason == ""


def test_auto_is_onnxruntime_here():
    assert registry.resolve("auto") == "onnxruntime"


def test_a_typo_gets_its_correction():
    with pytest.raises(UsageError) as caught:
        registry.resolve("onxruntime")
    assert "Unknown engine 'onxruntime'" in str(caught.value)
    assert "Did you mean 'onnxruntime'?" in caught.value.hint
    assert "tensorrt_rtx" in caught.value.hint


def test_an_unknown_engine_gets_the_choices():
    with pytest.raises(UsageError) as caught:
        registry.available("zzz")
    assert "Did you mean" not in caught.value.hint
    assert "Choices: auto, onnxruntime, openvino" in caught.value.hint


@pytest.mark.usefixtures("nothing_installed")
def test_a_missing_engine_names_its_extra():
    with pytest.raises(EngineError) as caught:
        registry.resolve("onnxruntime")
    assert "pip install 'qdqtune[onnxruntime]'" in caught.value.hint
    assert "pip install" in registry.available("onnxruntime").reason


@pytest.mark.usefixtures("nothing_installed")
def test_auto_with_nothing_installed_says_what_to_install():
    with pytest.raises(EngineError) as caught:
        registry.resolve("auto")
    assert "qdqtune[onnxruntime]" in caught.value.hint


@pytest.mark.parametrize("name", ["openvino", "tensorrt", "trtexec", "tensorrt_rtx"])
def test_engines_this_version_cannot_measure_with(name):
    with pytest.raises(EngineError, match=f"does not measure with {name}") as caught:
        registry.worker_class(name)
    assert "onnxruntime" in caught.value.hint
    assert not registry.available(name).usable
    assert registry.available(name).reason


def test_looking_around_imports_no_engine():
    code = (
        "import sys\n"
        "from qdqtune.engines import registry\n"
        "[registry.available(name) for name in registry.ENGINES]\n"
        "heavy = {'onnxruntime', 'openvino', 'tensorrt', 'tensorrt_rtx'}\n"
        "assert not heavy & set(sys.modules), sys.modules\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
