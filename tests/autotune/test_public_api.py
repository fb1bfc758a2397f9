"""What `qdqtune.autotune` offers: what it says, and all that the seeds import from it."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import qdqtune.autotune as autotune

IN_WORKFLOWS = {"TensorRTPyBenchmark", "TrtExecBenchmark"}
SEEDS = {
    "MODE_PRESETS", "StoreWithExplicitFlag", "get_node_filter_list", "QDQAutotuner",
    "TensorRTPyBenchmark", "TrtExecBenchmark", "AutotunerError", "AutotunerNotInitializedError",
    "InvalidSchemeError", "Config", "InsertionScheme", "PatternCache", "PatternSchemes", "Region",
    "RegionType", "NodeInputInsertionPoint", "ChildRegionInputInsertionPoint",
    "ChildRegionOutputInsertionPoint", "ResolvedInsertionPoint", "RegionPattern",
    "CombinedRegionSearch", "QDQAutotunerBase", "RegionOutputInsertionPoint",
}  # fmt: skip


def test_everything_that_the_seeds_import_is_declared() -> None:
    assert set(autotune.__all__) >= SEEDS
    assert len(set(autotune.__all__)) == len(autotune.__all__)


@pytest.mark.parametrize("name", sorted(SEEDS))
def test_what_is_declared_can_be_imported(name: str) -> None:
    value = getattr(autotune, name)
    assert name in dir(autotune)
    if isinstance(value, type) and name != "ChildRegionOutputInsertionPoint":
        assert value.__name__ == name


def test_what_is_declared_for_type_checkers_is_what_is_offered() -> None:
    tree = ast.parse(Path(autotune.__file__).read_text())
    imported = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(
            ("qdqtune.autotune.", "qdqtune.records.", "qdqtune.search.")
        )
        for alias in node.names
        if not (alias.asname or "").startswith("_")
    }
    assert imported | IN_WORKFLOWS == set(autotune.__all__)
    assert set(autotune.__all__) <= set(" ".join(autotune._HOMES.values()).split())


def test_both_names_of_the_output_point() -> None:
    assert autotune.ChildRegionOutputInsertionPoint is autotune.RegionOutputInsertionPoint


def test_nothing_else_is_there() -> None:
    with pytest.raises(AttributeError, match="nonsense"):
        autotune.nonsense  # noqa: B018


def test_importing_it_is_light() -> None:
    code = (
        "import sys, qdqtune.autotune\n"
        "assert not {'onnx', 'onnx_ir', 'numpy', 'yaml'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", sorted(autotune._MODULES))
def test_modules_of_other_tools(name: str) -> None:
    path = f"qdqtune.autotune.{name}"
    module = importlib.import_module(path)
    assert getattr(autotune, name) is module
    assert importlib.util.find_spec(path) is not None
    offered = autotune._MODULES[name]
    assert set(offered) <= set(dir(module))
    for each in offered:
        value = getattr(module, each)
        if each in autotune.__all__:
            assert value is getattr(autotune, each)
    with pytest.raises(AttributeError, match="nonsense"):
        module.nonsense  # noqa: B018


def test_modules_of_other_tools_are_importable_in_every_way_and_light() -> None:
    code = (
        "import sys\n"
        "import qdqtune.autotune.common\n"
        "import qdqtune.autotune.utils as utils\n"
        "from qdqtune.autotune import region_search\n"
        "from qdqtune.autotune.utils import MODE_PRESETS\n"
        "assert utils.MODE_PRESETS is MODE_PRESETS\n"
        "assert not {'onnx', 'onnx_ir', 'numpy', 'yaml'} & set(sys.modules)\n"
        "from qdqtune.autotune.insertion_points import *\n"
        "assert ChildRegionOutputInsertionPoint is RegionOutputInsertionPoint\n"
        "assert qdqtune.autotune.common.Region is qdqtune.autotune.Region\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    "kind",
    [
        autotune.AutotunerError,
        autotune.AutotunerNotInitializedError,
        autotune.InvalidSchemeError,
    ],
)
def test_errors_need_no_text(kind: type[autotune.AutotunerError]) -> None:
    assert str(kind()) == ""
    assert str(kind("what", "hint")) == "what\nhint"
