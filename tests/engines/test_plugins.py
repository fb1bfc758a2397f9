"""Engines that other packages bring."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.conftest import matmul_file

from qdqtune.cli.main import main
from qdqtune.engines import _registry as registry
from qdqtune.engines._native_dialect import native_dialect
from qdqtune.records._errors import EngineError, UsageError
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows.tuning._tune import tune

ENTRY = """
from qdqtune.engines._entries import DialectChoice, EngineEntry

ENTRY = EngineEntry(
    "acme", "pip install acme-engine", title="Acme", module="acme_engine",
    distributions=("acme-engine",), worker_class="acme_engine.running:AcmeEngine",
    measures=False, {fields}
)
"""
RUNNING = """
from dataclasses import replace
from qdqtune.testing.simulated import SimulatedEngine

class AcmeEngine(SimulatedEngine):
    def info(self, options):
        return replace(super().info(options), name="acme", version="7.1", device="an anvil")

def dialect_of(options):
    return options.get("speak", "tensorrt")
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Puts a distribution with an entry point where Python looks for them."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(str(site))
    monkeypatch.setenv("PYTHONPATH", str(site), prepend=os.pathsep)
    registry.plugins.cache_clear()

    def add(
        name: str = "acme",
        value: str = "acme_engine:ENTRY",
        package: str = "acme_engine",
        init: str = "",
        fields: str = 'dialects=(DialectChoice("onnxruntime"),)',
    ) -> None:
        info = site / f"{package}-7.1.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 7.1\n")
        (info / "entry_points.txt").write_text(f"[qdqtune.engines]\n{name} = {value}\n")
        (site / package).mkdir()
        (site / package / "__init__.py").write_text(init or ENTRY.format(fields=fields))
        (site / package / "running.py").write_text(RUNNING)

    yield add
    registry.plugins.cache_clear()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return matmul_file(tmp_path)


@pytest.fixture(autouse=True)
def forget_modules() -> Iterator[None]:
    """A module of the last test's package is not this one's."""
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "acme_engine"]:
        del sys.modules[name]


def test_it_is_an_engine_like_any_other(
    install: Install, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install()
    assert registry.resolve("acme") == "acme"
    assert registry.title("acme") == "Acme"
    assert registry.available("acme").version == "7.1"
    assert native_dialect("acme").name == "onnxruntime"
    assert main(["bench", str(model), "--engine", "acme", "--runs", "20", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["engine"]["device"] == "an anvil"
    quick = {"engine_options": QUIET, "preset": "quick", "max_benchmarks": 1}
    tune(model, engine="acme", output_dir=tmp_path / "run", **quick)
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert (summary["engine"]["name"], summary["engine"]["version"]) == ("acme", "7.1")


def test_it_is_never_chosen_unless_it_is_named(install: Install) -> None:
    install(fields="dialects=()")
    assert registry.resolve("auto") == "onnxruntime"


@pytest.mark.parametrize(
    ("fields", "options", "dialect"),
    [
        ("", {}, native_dialect("onnxruntime").name),
        ('dialects=(DialectChoice("tensorrt-8", before_version=8), DialectChoice("tensorrt"))',
         {}, "tensorrt-8"),
        ('dialect_function="acme_engine.running:dialect_of"', {}, "tensorrt"),
        ('dialect_function="acme_engine.running:dialect_of"', {"speak": "openvino"}, "openvino"),
    ],
)  # fmt: skip
def test_it_says_what_it_speaks(
    install: Install, fields: str, options: dict[str, str], dialect: str
) -> None:
    install(fields=fields)
    assert native_dialect("acme", options=options).name == dialect


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ('dialects=(DialectChoice("tensorrt", before_version=2),)', "speaks no dialect"),
        ('dialect_function="acme_engine.running:missing"', "AttributeError"),
        ('dialect_function="acme_engine.gone:dialect_of"', "ModuleNotFoundError"),
    ],
)
def test_if_nobody_can_tell_what_it_speaks_that_is_said(
    install: Install, fields: str, error: str
) -> None:
    install(fields=fields)
    with pytest.raises(EngineError, match=error):
        native_dialect("acme")


BROKEN = {
    "not there": ({"value": "acme_engine.gone:ENTRY"}, "ModuleNotFoundError"),
    "no such attribute": ({"value": "acme_engine:GONE"}, "AttributeError"),
    "raises": ({"init": "raise RuntimeError('out of\\n order')"}, "RuntimeError: out of order"),
    "exits": ({"init": "raise SystemExit(3)"}, "SystemExit: 3"),
    "no entry": ({"init": "ENTRY = 'acme'"}, "is not of type EngineEntry, but str"),
    "other name": ({"name": "nadir"}, "announced as 'nadir', but its entry is called 'acme'"),
    "no dialect": ({"fields": "dialects=(DialectChoice('klingon'),)"}, "no dialect 'klingon'"),
    "no function": ({"fields": "dialect_function='acme'"}, "not like 'module:name'"),
    "ours": ({"name": "openvino"}, "the name belongs to qdqtune"),
    "auto": ({"name": "auto"}, "the name belongs to qdqtune"),
}


@pytest.mark.parametrize(("how", "reason"), BROKEN.values(), ids=BROKEN)
def test_a_broken_one_is_told_and_never_raised(
    install: Install, how: dict[str, str], reason: str
) -> None:
    install(**how)
    name = how.get("name", "acme")
    (broken,) = registry.plugins().broken
    assert (broken.name, broken.package) == (name, "acme_engine 7.1")
    assert reason in broken.reason
    assert registry.engines() == registry.ENGINES
    if name in registry.ENGINES:
        assert registry.worker_class(name) == registry.ENGINES[name].worker_class
    elif name != "auto":
        with pytest.raises(EngineError, match="can't be used") as caught:
            registry.resolve(name)
        assert "acme_engine 7.1" in caught.value.hint


def test_a_second_one_of_the_same_name_is_broken(install: Install) -> None:
    install()
    install(package="nadir_engine")
    assert list(registry.plugins().entries) == ["acme"]
    assert "another package" in registry.plugins().broken[0].reason


def test_doctor_shows_it_or_says_what_is_wrong_with_it(
    install: Install, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = registry.ENGINES["onnxruntime"]
    monkeypatch.setattr(registry, "ENGINES", {kept.name: kept})  # the others take their time
    install()
    install("nadir", "nadir_engine:ENTRY", "nadir_engine", init="import gone_for_good")
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    (row,) = [line for line in out.splitlines() if line.startswith("acme")]
    assert row.split()[:4] == ["acme", "yes", "7.1", "onnxruntime"]
    (warning,) = [line for line in out.splitlines() if line.startswith("warning")]
    assert "the engine nadir of nadir_engine 7.1 can't be used: ModuleNotFoundError" in warning


def test_a_typo_of_its_name_is_corrected(install: Install) -> None:
    install()
    with pytest.raises(UsageError) as caught:
        registry.resolve("akme")
    assert "Did you mean 'acme'?" in caught.value.hint
