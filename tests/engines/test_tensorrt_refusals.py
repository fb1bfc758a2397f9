"""Which ops a message is about that says that no kernel was found; and tried on the stand-in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from tests.conftest import model_from_text
from tests.cutting import cut
from tests.stand_ins.tensorrt_api.fixtures import StandInWorkers

from qdqtune import zoo
from qdqtune.engines import _registry as registry
from qdqtune.engines._worker import Worker, WorkerFailure
from qdqtune.workflows._insert import insert

DATA = Path(__file__).parents[1] / "data" / "tensorrt"
RESNET = DATA / "trt860_h200" / "resnet18.onnx"
ENCODER = DATA / "trt860_h200" / "encoder.onnx"
WITH_QDQ = DATA / "rtx171" / "r_q_skip.onnx"

# How versions put it.
FORMS = (
    "10: [optimizer.cpp::computeCosts::3869] Error Code 10: Internal Error (Could not find any "
    "implementation for node {}.)",
    "10: Could not find any implementation for node {}.; 2: Assertion engine != nullptr failed.",
    "Error[10]: IBuilder::buildSerializedNetwork: Error Code 10: Internal Error (Could not find "
    "any implementation for node {} due to insufficient workspace. See verbose log for sizes.)",
    "c0003.onnx: Could not find any implementation for node {}.",
)
BLOCK = "/layers/layers.0/layers.0.0/"
LAYERS = (
    (RESNET, "/stem/stem.0/Conv + /stem/stem.2/Relu", ("/stem/stem.0/Conv", "/stem/stem.2/Relu")),
    (
        RESNET,
        f"onnx::Conv_200 + {BLOCK}c2/Conv + {BLOCK}Add + {BLOCK}r_1/Relu",
        tuple(f"{BLOCK}{name}" for name in ("c2/Conv", "Add", "r_1/Relu")),
    ),
    (WITH_QDQ, "w1 + w1q_Q + conv1 + add0 + PWN(relu1)", ("conv1", "add0", "relu1")),
    (WITH_QDQ, "yq_Q", ("conv2",)),
    (WITH_QDQ, "xq_Q", ("conv0", "add0")),
    (RESNET, "something.else + of.another.model", ()),
)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("model", "layer", "ops"), LAYERS)
def test_the_message_names_the_ops(
    form: str, model: Path, layer: str, ops: tuple[str, ...]
) -> None:
    assert registry.refused_nodes("tensorrt", model, form.format(layer)) == ops


def test_a_part_that_is_compiled_as_a_whole_is_named_by_its_ends() -> None:
    first, last = "/layers.0/n1/LayerNormalization", "/layers.0/Add"
    layer = f"{{ForeignNode[{first}...{last}]}}"
    found = registry.refused_nodes("trtexec", ENCODER, FORMS[0].format(layer))
    names = [node.name for node in onnx.load(ENCODER, load_external_data=False).graph.node]
    assert {first, last, "/layers.0/q/MatMul", "/layers.0/v/MatMul"} <= set(found)
    assert list(found) == [name for name in names if name in found]
    assert not any(name.startswith("/layers.1/") for name in found)


def test_a_part_without_a_named_end_goes_as_far_as_the_model() -> None:
    layer = "{ForeignNode[layers.0.n1.weight...(Unnamed Layer* 460) [Normalization]]}"
    found = registry.refused_nodes("tensorrt", ENCODER, FORMS[0].format(layer))
    assert {"/layers.0/q/MatMul", "/layers.5/q/MatMul"} <= set(found)


@pytest.mark.parametrize("dialect", ["tensorrt-8", "tensorrt"])
def test_a_part_that_begins_with_a_weight_begins_where_it_is_used(
    tmp_path: Path, dialect: str
) -> None:
    # The words of TensorRT 8.6.0 on an H200, about such a model of two layers, 768 wide.
    model = zoo.build("bert", layers=1, width=32, head_width=16, sequence=8, vocabulary=50)
    path = tmp_path / "everything.onnx"
    insert(model, path, ops=["Gemm", "MatMul", "Add"], dialect=dialect)
    weights = onnx.load(path).graph.initializer
    first = next(each.name for each in weights if each.name.startswith("pooler.dense.weight"))
    layer = f"{{ForeignNode[{first}...pooler.tanh]}}"
    found = registry.refused_nodes("tensorrt", path, FORMS[1].format(layer))
    assert found == ("pooler.dense", "pooler.tanh")


@pytest.mark.parametrize(
    "message", ["out of memory", "Could not find any implementation for node", ""]
)
def test_other_messages_name_none(message: str) -> None:
    assert registry.refused_nodes("tensorrt", RESNET, message) == ()
    assert registry.refused_nodes("onnxruntime", RESNET, FORMS[0].format("a")) == ()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandInWorkers]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAND_IN_TRT_NO_INT8", "n2")
        workers = StandInWorkers(tmp_path_factory.mktemp("refusals"))
        yield workers
        workers.close()


@pytest.mark.parametrize("version", ["8.6.1", "10.16.1"])
def test_the_stand_in_refuses_a_layer_and_takes_the_rest(
    workers: StandInWorkers, tmp_path: Path, version: str
) -> None:
    """What the engine's own message leads to can be built once it stays float."""
    text = "g (float[2,8,8,8] x) => (float[2,8,8,8] y) { a = Conv(x, w) b = Relu(a) c = Conv(b, w)"
    proto = model_from_text(f"{text} y = Erf(c) }}", w=np.ones((8, 8, 1, 1), np.float32))
    made = cut(proto, tmp_path, "tensorrt-8" if version < "9" else "tensorrt")
    worker = workers.worker(version)
    whole = made.inserter.write(made.planner.placement({"n0", "n2"}), "whole")
    with pytest.raises(WorkerFailure) as refused:
        opened(worker, whole)
    assert registry.refused_nodes("tensorrt", whole, str(refused.value)) == ("n2", "n3")
    opened(worker, made.inserter.write(made.planner.placement({"n0"}), "rest"))


def opened(worker: Worker, path: Path) -> None:
    with worker.opened(path):
        pass
