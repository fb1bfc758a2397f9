"""The class that a dialect's author inherits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import pytest

from qdqtune import zoo
from qdqtune.graph._files import load_model
from qdqtune.graph._fingerprint import fingerprint
from qdqtune.graph._folding import fold
from qdqtune.graph._index import name_nodes
from qdqtune.graph._op_classes import DEQUANTIZE, QUANTIZE, is_op
from qdqtune.graph._opset import raise_opset
from qdqtune.graph._prepared_model import PreparedModel
from qdqtune.graph._shapes import infer_shapes
from qdqtune.qdq._dialect import Dialect, Output, QuantFormat
from qdqtune.qdq._dynamic import FORMS
from qdqtune.qdq._dynamic_product import INTEGER_PRODUCT
from qdqtune.qdq._encoding import TensorFormat
from qdqtune.qdq._insert import Inserter
from qdqtune.qdq._op_units import role_rule
from qdqtune.qdq._quantization_planner import QuantizationPlanner
from qdqtune.qdq._read_back import read, strip
from qdqtune.records._placement import Placement
from qdqtune.records._ranges import Ranges
from qdqtune.testing._bench import SMALL

# The first opset in which QuantizeLinear writes a type.
_FIRST_OPSETS = {
    ir.DataType.INT8: 10, ir.DataType.UINT8: 10, ir.DataType.FLOAT8E4M3FN: 19,
    ir.DataType.FLOAT8E5M2: 19, ir.DataType.INT4: 21, ir.DataType.UINT4: 21,
    ir.DataType.INT16: 21, ir.DataType.UINT16: 21,
}  # fmt: skip
_NEWEST = 21
# Per-channel scales came with opset 13.
_FIRST_PER_CHANNEL = 13
_MODELS = ("resnet18", "bert")
# What MatMulInteger can stand for.


@dataclass(frozen=True)
class _Written:
    """A zoo model with everything quantized that the dialect can quantize.

    Attributes:
        planner: Knows the ops that can be quantized.
        inserter: Writes them.
        placement: The placement of all of them.
        path: The file.
        quant_type: The quant type.
    """

    planner: QuantizationPlanner
    inserter: Inserter
    placement: Placement
    path: Path
    quant_type: str


class DialectConformance:
    """Every requirement on a dialect.

    Inherit it, and override the fixture `dialect`::

        class TestMyDialect(DialectConformance):
            @pytest.fixture
            def dialect(self) -> Dialect:
                return MY_DIALECT

    The tests cover every quant type of the dialect, on zoo models.
    """

    _written: ClassVar[dict[tuple[str, str, str], list[_Written]]] = {}

    @pytest.fixture
    def dialect(self) -> Dialect:
        """The dialect; must be overridden."""
        raise NotImplementedError(
            f"{type(self).__name__} has no fixture `dialect`: define one that returns a Dialect"
        )

    @pytest.fixture(params=_MODELS)
    def written(
        self,
        request: pytest.FixtureRequest,
        dialect: Dialect,
        tmp_path_factory: pytest.TempPathFactory,
    ) -> list[_Written]:
        """A model in every quant type, written once for all tests of a class."""
        key = type(self).__name__, request.param, dialect.name
        if key not in self._written:
            folder = tmp_path_factory.mktemp("dialect")
            self._written[key] = [
                _write(request.param, dialect, quant_type, folder / quant_type)
                for quant_type in dialect.formats
            ]
        return self._written[key]

    def test_its_formats_are_inside_their_types(self, dialect: Dialect) -> None:
        """The values in use fit the type and include zero; symmetric formats are symmetric."""
        assert dialect.formats, "it has no quant type"
        for quant_type, formats in dialect.formats.items():
            for each in _formats(formats):
                least, most = _limits(each.dtype)
                assert least <= each.low < each.high <= most, f"{quant_type}: {each}"
                assert each.low <= each.center <= each.high, f"{quant_type}: {each}"
                if each.symmetric:
                    apart = abs((each.high - each.center) - (each.center - each.low))
                    assert apart <= 1, f"{quant_type} is not symmetric: {each}"

    def test_its_opset_can_express_its_types(self, dialect: Dialect) -> None:
        """`least_opset` is not below the first opset that can express what is written."""
        for quant_type, formats in dialect.formats.items():
            first = _first_opset(formats, dialect.per_channel)
            assert formats.least_opset >= first, f"{quant_type} needs opset {first}"

    def test_its_rules_fit_their_ops(self, dialect: Dialect) -> None:
        """Rules name ops that exist, and inputs that these ops have."""
        for op_type, rule in dialect.rules.items():
            assert onnx.defs.has(op_type), f"ONNX has no op {op_type}"
            if rule.inputs is None:
                continue
            most = onnx.defs.get_schema(op_type).max_input
            assert all(0 <= each < most for each in rule.inputs), f"{op_type}: {rule}"
            is_whole = rule.weight is None or rule.weight in rule.inputs
            assert is_whole, f"{op_type}: the weight stays float"
            assert rule.bias not in rule.inputs, f"{op_type}: the bias is among the inputs"

    def test_its_dynamic_ops_can_be_written(self, dialect: Dialect) -> None:
        """Only products and LSTMs can be dynamic ops."""
        others = sorted(dialect.dynamic - FORMS.keys())
        able = ", ".join(sorted(FORMS))
        assert not others, f"{', '.join(others)} can't be quantized at run time, only {able} can"

    def test_it_quantizes_something(self, written: list[_Written]) -> None:
        """Some op of a common model has an integer kernel."""
        for each in written:
            assert each.planner.compute, each.planner.left_float

    def test_what_is_written_is_a_model(self, written: list[_Written]) -> None:
        """The checker accepts the file, and its opset can express it."""
        for each in written:
            onnx.checker.check_model(str(each.path), full_check=True)

    def test_reading_gives_the_placement(self, written: list[_Written]) -> None:
        """Reading the file gives the inserted placement."""
        for each in written:
            assert read(load_model(each.path)).placement == each.placement

    def test_stripping_gives_the_float_model(self, written: list[_Written]) -> None:
        """Without its Q/DQ, the file is the float model again."""
        for each in written:
            candidate, original = load_model(each.path), each.inserter.index.model
            strip(candidate, weights_from=original)
            assert fingerprint(candidate) == fingerprint(original)

    def test_other_forms_are_written_and_read(self, written: list[_Written]) -> None:
        """Dynamic and unfused ops, all that the dialect offers, are read back and stripped."""
        for each in written:
            planner, inserter = each.planner, each.inserter
            if not planner.dynamic and not planner.unfused:
                pytest.skip(f"the dialect {planner.dialect.name} offers none in this model")
            placement = planner.placement((), dynamic=planner.dynamic, unfused=planner.unfused)
            path = inserter.write(placement, "other forms")
            onnx.checker.check_model(str(path), full_check=True)
            candidate, original = load_model(path), inserter.index.model
            assert read(candidate).placement == placement
            limits = planner.dialect.formats[each.quant_type].weight
            for tensor, _, values in _stored(path):
                assert limits.low <= values.min() <= values.max() <= limits.high, tensor
            strip(candidate, weights_from=original)
            assert fingerprint(candidate) == fingerprint(original)

    def test_encodings_are_in_range(self, written: list[_Written]) -> None:
        """Scales are positive and finite, zero points and stored values fit the format."""
        for each in written:
            for tensor, encoding in read(load_model(each.path)).encodings.items():
                assert np.all(np.isfinite(encoding.scale)), tensor
                assert np.all(encoding.scale > 0), tensor
            formats = _formats(each.planner.dialect.formats[each.quant_type])
            for tensor, dtype, values in _stored(each.path):
                lows = [one.low for one in formats if one.dtype == dtype]
                highs = [one.high for one in formats if one.dtype == dtype]
                if lows and np.any(values):  # biases have a type of their own
                    assert min(lows) <= values.min() <= values.max() <= max(highs), tensor

    def test_a_chosen_op_is_quantized_whole(self, written: list[_Written]) -> None:
        """Each op, quantized with what it needs, is an integer kernel; so are all together."""
        for each in written:
            planner = each.planner
            assert planner.quantized(each.placement) >= planner.compute.keys()
            for name in planner.compute:
                alone = planner.placement([name])
                assert name in planner.quantized(alone), f"{name} is not complete"
                rule = role_rule(planner.dialect, planner.index.node[name])
                if rule.output is Output.REQUIRED:
                    assert alone.outputs, f"{name} needs a Q on its output"


def _write(model_name: str, dialect: Dialect, quant_type: str, folder: Path) -> _Written:
    model = ir.from_proto(zoo.build(model_name, **SMALL[model_name]))
    name_nodes(model)
    raise_opset(model, dialect.format_of(quant_type).least_opset)
    fold(model)
    infer_shapes(model)
    folder.mkdir()
    base = PreparedModel(model, folder)
    planner = QuantizationPlanner(base.index, dialect, quant_type)
    ranges = Ranges(dict.fromkeys(base.index.value, (-2.0, 3.0)))
    inserter = Inserter(base, dialect, quant_type, ranges)
    placement = planner.placement(planner.units)
    path = inserter.write(placement, "quantized")
    return _Written(planner, inserter, placement, path, quant_type)


def _formats(quant_format: QuantFormat) -> list[TensorFormat]:
    all_of_them = (quant_format.activation, quant_format.weight, quant_format.operand)
    return [each for each in all_of_them if each is not None]


def _limits(dtype: ir.DataType) -> tuple[float, float]:
    """Return the smallest and the largest value of a type."""
    limits = (ml_dtypes.finfo if dtype.is_floating_point() else ml_dtypes.iinfo)(dtype.numpy())
    return float(limits.min), float(limits.max)


def _stored(path: Path) -> Iterator[tuple[str, ir.DataType, npt.NDArray[Any]]]:
    """Yield the zero points and the stored values of a file, by the name of the tensor."""
    graph = load_model(path).graph
    for node in graph:
        is_product = is_op(node, INTEGER_PRODUCT)
        if is_product or is_op(node, QUANTIZE, DEQUANTIZE):
            for value in (node.inputs[int(is_product)], *node.inputs[2:]):
                tensor = graph.initializers.get(value.name or "") if value is not None else None
                if tensor is not None and tensor.const_value is not None:
                    array = tensor.const_value.numpy().astype(np.float32)
                    yield tensor.name or "", ir.DataType(tensor.const_value.dtype), array


def _first_opset(formats: QuantFormat, per_channel: bool) -> int:
    firsts = [_FIRST_OPSETS.get(each.dtype, _NEWEST) for each in _formats(formats)]
    return max([*firsts, _FIRST_PER_CHANNEL] if per_channel else firsts)
