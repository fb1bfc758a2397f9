"""Files that are given to begin with: those of another model are refused, and matches are told."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from qdqtune import zoo
from qdqtune.autotune import PatternCache, QDQAutotuner
from qdqtune.qdq_utils import get_quantized_tensors
from qdqtune.records._errors import UsageError
from qdqtune.records._tuning import TuneEvent, TuneResult
from qdqtune.testing.simulated import QUIET
from qdqtune.workflows._imported_placement import import_placement
from qdqtune.workflows._insert import insert
from qdqtune.workflows._source_model import open_source
from qdqtune.workflows.tuning._tune import tune
from tests.conftest import model_from_text

RESNET = {"width": 8, "image": 32, "blocks": (1, 1, 1, 1)}
MODELS = {
    "resnet18": RESNET,
    "mobilenet_v2": {"image": 32},
    "convnext": {"depths": (1, 1), "dims": (16, 32), "image": 32, "classes": 16},
    "vit": {"layers": 1, "width": 64, "image": 32, "classes": 16},
}


class _OneSample(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        image = rng.normal(size=(1, 3, 32, 32)).astype(np.float32)
        self._samples = iter([{"image": image}])

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._samples, None)


def saved(folder: Path, name: str, **settings: object) -> Path:
    path = folder / f"{name}.onnx"
    onnx.save(zoo.build(name, **settings), path)
    return path


def quantized(model: Path, *, preprocessed: bool = False) -> Path:
    """By ONNX Runtime's own quantizer, which leaves activations out and fuses if asked to."""
    target = model.with_suffix(".int8.onnx")
    source = model
    if preprocessed:
        source = model.with_suffix(".pre.onnx")
        quant_pre_process(model, source, skip_symbolic_shape=True)
    quantize_static(
        source, target, _OneSample(), quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8,
    )  # fmt: skip
    return target


@pytest.mark.parametrize("preprocessed", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_what_a_quantizer_makes_of_a_model_is_a_form_of_it(
    name: str, preprocessed: bool, tmp_path: Path
) -> None:
    path = saved(tmp_path, name, **MODELS[name])
    file = quantized(path, preprocessed=preprocessed)
    found = import_placement(open_source(path).model, file)
    assert found.pairs > 5
    assert not found.unmapped


@pytest.mark.parametrize(
    ("settings", "difference"),
    [
        ({"blocks": (1, 1, 2, 1)}, "only FILE has a Conv with weights 32x32x3x3 and 1 more"),
        ({"width": 16}, "only the model has a Conv with weights 8x8x3x3 and"),
        ({"classes": 10}, "12 are in both; only FILE has a MatMul with weights 10x64, and only"),
    ],
)
def test_a_file_of_another_model_is_refused(
    settings: dict[str, object], difference: str, tmp_path: Path
) -> None:
    """Though names of tensors are the same."""
    model = saved(tmp_path, "resnet18", **RESNET)
    (tmp_path / "other").mkdir()
    other = saved(tmp_path / "other", "resnet18", **{**RESNET, **settings})
    file = tmp_path / "other.int8.onnx"
    insert(other, file, ops=["Conv"], engine="onnxruntime")
    with pytest.raises(UsageError, match="a quantized form of another model") as caught:
        simulated(model, tmp_path / "run", qdq_baseline=file)
    assert difference in caught.value.what.replace(str(file), "FILE")


def simulated(model: Path, folder: Path, **options: object) -> TuneResult:
    settings = {"engine": "simulated", "engine_options": QUIET, "preset": "quick"}
    given = {**settings, "max_benchmarks": 1, "output_dir": folder, **options}
    return tune(model, **given)  # type: ignore[arg-type]


def small(path: Path, op: str) -> Path:
    text = f"g (float[1,16,8,8] x) => (float[] y) {{ h = Conv<pads=[1,1,1,1]>(x, w) y = {op}(h) }}"
    onnx.save(model_from_text(text, w=np.ones((16, 16, 3, 3), np.float32)), path)
    return path


def test_how_much_of_a_baseline_is_in_the_model(tmp_path: Path) -> None:
    model = small(tmp_path / "m.onnx", "Relu")
    file = tmp_path / "int8.onnx"
    insert(model, file, ops=["Conv"], engine="onnxruntime")
    events: list[TuneEvent] = []
    simulated(model, tmp_path / "run", qdq_baseline=file, callbacks=[events.append])
    (said,) = [event.message for event in events if event.stage == "Q/DQ baseline"]
    assert said == f"of the 2 activations that are quantized in {file}, 2 are in the model"


def test_how_much_of_a_pattern_cache_is_in_the_model(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = small(tmp_path / "m.onnx", "Relu")
    cache = simulated(model, tmp_path / "run").output_dir / "autotuner_state_pattern_cache.yaml"
    assert PatternCache.load(cache).num_patterns == 1
    events: list[TuneEvent] = []
    simulated(model, tmp_path / "again", pattern_cache=cache, callbacks=[events.append])
    (said,) = [event.message for event in events if event.stage == "pattern cache"]
    assert said == f"1 of the 1 patterns in {cache} occur in this model"
    assert "occur" not in caplog.text

    other = small(tmp_path / "other.onnx", "Softmax")
    simulated(other, tmp_path / "other", pattern_cache=cache)
    assert f"none of the 1 patterns in {cache} occur in this model" in caplog.text
    caplog.clear()

    with caplog.at_level(logging.INFO, "qdqtune.autotune"):
        for path, said in ((model, "1 of the 1 patterns"), (other, "none of the 1 patterns")):
            QDQAutotuner(path, dialect="tensorrt").initialize(
                pattern_cache=PatternCache.load(cache)
            )
            assert f"{said} in the cache occur in this model" in caplog.text


def test_imported_tensors_are_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = saved(tmp_path, "resnet18", **RESNET)
    names = get_quantized_tensors(quantized(path, preprocessed=True))
    autotuner = QDQAutotuner(path, dialect="tensorrt")
    autotuner.initialize()
    other = {f"other_{name}" for name in names}
    assert autotuner.import_insertion_points({*other, "image"}) == 1
    assert f"1 of the {len(names) + 1} quantized tensors are in the model" in caplog.text
    caplog.clear()
    assert autotuner.import_insertion_points(names) >= 21
    assert not caplog.records
