"""The kit for dialects on the built-in ones and on a plugin, and what it refuses."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
import pytest

from qdqtune.engines import _registry as registry
from qdqtune.qdq import Dialect, OpRule, TensorFormat, dialect_named
from qdqtune.qdq.dialects import DIALECTS, dialects, plugins
from qdqtune.records._errors import UsageError
from qdqtune.testing import DialectConformance
from qdqtune.workflows._insert import insert
from qdqtune.workflows._quantize import quantize
from tests.conftest import matmul_file

PAGE = Path(__file__).parents[2] / "docs" / "extend" / "dialect.md"
TOY = re.search(r"^```python\n(# my_dialect.py\n.*?)^```", PAGE.read_text(), re.M | re.S)[1]


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder on the path, with a package that announces the dialect in the docs."""
    site = tmp_path / "site"
    info = site / "toys-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toys\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[qdqtune.dialects]\nmy_dialect = toys:MY_DIALECT\n")
    (site / "toys.py").write_text(TOY)
    monkeypatch.syspath_prepend(str(site))
    plugins.cache_clear()
    registry.plugins.cache_clear()
    yield site
    plugins.cache_clear()
    registry.plugins.cache_clear()
    sys.modules.pop("toys", None)


class TestBuiltinDialects(DialectConformance):
    @pytest.fixture(params=DIALECTS.values(), ids=DIALECTS)
    def dialect(self, request: pytest.FixtureRequest) -> Dialect:
        return request.param


class TestDialectInTheDocs(DialectConformance):
    @pytest.fixture
    def dialect(self, site: Path) -> Dialect:
        return dialect_named("my_dialect")


def test_a_plugin_is_a_dialect_like_any_other(site: Path, tmp_path: Path) -> None:
    assert [*dialects()] == [*DIALECTS, "my_dialect"]
    result = insert(
        matmul_file(tmp_path), tmp_path / "q.onnx", ops=["MatMul"], dialect="my_dialect"
    )
    assert result.dialect == "my_dialect"
    with pytest.raises(UsageError, match="no quant type 'fp8'"):
        dialect_named("my_dialect").format_of("fp8")
    with pytest.raises(UsageError, match="Did you mean my_dialect"):
        dialect_named("my_dialekt")


def test_rules_apply_in_the_dialect_of_a_plugin(site: Path, tmp_path: Path) -> None:
    result = quantize(matmul_file(tmp_path), engine="tensorrt", dialect="my_dialect")
    assert result.placement.edges


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("MY_DIALECT = 3", "is not of type Dialect, but int"),
        ("import gone_for_good", "ModuleNotFoundError"),
        (TOY.replace('name="my_', 'name="your_'), "but is called 'your_dialect'"),
        (re.sub("rules={.*}", "rules={}", TOY), "quantizes no op"),
    ],
)
def test_a_broken_one_is_an_error_only_if_it_is_named(site: Path, text: str, reason: str) -> None:
    (site / "toys.py").write_text(text)
    assert dialects() == DIALECTS
    with pytest.raises(UsageError, match="The dialect my_dialect can't be used") as caught:
        dialect_named("my_dialect")
    assert reason in caught.value.what
    assert "toys 1.2" in caught.value.hint


def with_formats(**changes: Any) -> Dialect:
    """TensorRT's dialect, but for its int8."""
    known = DIALECTS["tensorrt"]
    return replace(known, formats={"int8": replace(known.formats["int8"], **changes)})


def test_the_kit_refuses_what_can_not_be() -> None:
    kit = DialectConformance()
    kit.test_its_formats_are_inside_their_types(with_formats())
    kit.test_its_opset_can_express_its_types(with_formats())
    for low, high in ((-200, 200), (-127, 10), (5, 127)):
        wrong = TensorFormat(ir.DataType.INT8, low, high, symmetric=True)
        with pytest.raises(AssertionError):
            kit.test_its_formats_are_inside_their_types(with_formats(activation=wrong))
    with pytest.raises(AssertionError, match="needs opset 13"):
        kit.test_its_opset_can_express_its_types(with_formats(least_opset=11))


def test_the_kit_refuses_dynamic_ops_that_are_no_products() -> None:
    kit = DialectConformance()
    kit.test_its_dynamic_ops_can_be_written(DIALECTS["onnxruntime"])
    wrong = replace(DIALECTS["onnxruntime"], dynamic=frozenset({"Conv", "MatMul"}))
    with pytest.raises(AssertionError, match="Conv can't be quantized at run time"):
        kit.test_its_dynamic_ops_can_be_written(wrong)


@pytest.mark.parametrize(
    ("op_type", "rule", "fault"),
    [
        ("Convolution", OpRule((0, 1), weight=1), "no op Convolution"),
        ("Conv", OpRule((0, 7), weight=1), "Conv"),
        ("Conv", OpRule((0,), weight=1), "the weight stays float"),
        ("Conv", OpRule((0, 1), weight=1, bias=1), "the bias is among the inputs"),
    ],
)
def test_the_kit_refuses_rules_that_fit_no_op(op_type: str, rule: OpRule, fault: str) -> None:
    dialect = replace(DIALECTS["tensorrt"], rules={op_type: rule})
    with pytest.raises(AssertionError, match=fault):
        DialectConformance().test_its_rules_fit_their_ops(dialect)
