from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import onnx
import pytest

from qdqtune.zoo import ARCHITECTURES, build
from tests.zoo.runs import SMALL, activations, count, parameters, random_inputs, run

WITH_BATCH_NORM = [
    "resnet18",
    "resnet50",
    "mobilenet_v2",
    "efficientnet",
    "shufflenet_v2",
    "unet",
    "yolo",
]


def test_every_architecture_has_a_small_size() -> None:
    assert set(SMALL) == set(ARCHITECTURES)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_model_is_valid_plain_onnx(name: str) -> None:
    model = build(name, **SMALL[name])

    onnx.checker.check_model(model, full_check=True)
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", 17)]
    assert 8 <= model.ir_version <= 10
    names = [node.name for node in model.graph.node]
    assert all(names)
    assert len(set(names)) == len(names)
    assert all(tensor.HasField("raw_data") for tensor in model.graph.initializer)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_every_initializer_is_used(name: str) -> None:
    graph = build(name, **SMALL[name]).graph

    read = {name for node in graph.node for name in node.input}
    # The chain's blocks share a pool of weights; a short chain may not touch all of it.
    unused = {tensor.name for tensor in graph.initializer} - read
    assert not unused or name == "chain"


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_outputs_are_finite_and_depend_on_the_input(name: str) -> None:
    model = build(name, **SMALL[name])

    first, second = run(model, seed=0), run(model, seed=1)

    for output in first:
        assert np.isfinite(first[output]).all()
        assert np.abs(first[output] - second[output]).mean() > 0.01 * first[output].std()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_declared_shapes_are_those_computed(name: str) -> None:
    settings = SMALL[name] if name == "chain" else {**SMALL[name], "batch": 2}
    model = build(name, **settings)

    outputs = run(model)

    for value in model.graph.output:
        declared = tuple(dim.dim_value for dim in value.type.tensor_type.shape.dim)
        assert outputs[value.name].shape == declared


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_weights_follow_the_seed(name: str) -> None:
    settings = SMALL[name]

    model = build(name, seed=3, **settings).SerializeToString()

    assert build(name, seed=3, **settings).SerializeToString() == model
    assert build(name, seed=4, **settings).SerializeToString() != model


def test_weights_are_the_same_on_every_machine() -> None:
    digest = hashlib.sha256()
    for tensor in build("efficientnet", **SMALL["efficientnet"]).graph.initializer:
        digest.update(tensor.name.encode() + tensor.raw_data)

    assert digest.hexdigest() == "5c422f3ec46023698fb1a127991e0287ae3f908e85b0915ef8c57b07271ba3d8"


@pytest.mark.parametrize("name", WITH_BATCH_NORM)
def test_folded_model_computes_the_same(name: str) -> None:
    kept, folded = (build(name, folded=folded, **SMALL[name]) for folded in (False, True))

    assert count(kept, "BatchNormalization") > 0
    assert count(folded, "BatchNormalization") == 0
    computed = run(folded)
    for output, expected in run(kept).items():
        tolerance = 2e-3 * expected.std()
        np.testing.assert_allclose(computed[output], expected, rtol=0, atol=tolerance)


def test_batch_norm_statistics_fit_what_flows_in() -> None:
    model = build("resnet18", image=64)
    values = activations(model)
    constants = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}

    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            seen = values[node.input[0]]
            mean, var = constants[node.input[3]], constants[node.input[4]]
            assert 0.5 < np.mean(seen.var(axis=(0, 2, 3)) / var) < 2
            error = seen.mean(axis=(0, 2, 3)) - mean
            assert np.sqrt(np.mean(error**2 / var)) < 0.8


@pytest.mark.parametrize(
    ("name", "settings", "weight"),
    [
        ("resnet18", {"blocks": (1,)}, "layer1.0.conv1.weight"),
        ("mobilenet_v2", {}, "stage1.0.depthwise.weight"),
        ("vit", {"layers": 1}, "blocks.0.mlp.fc1.weight"),
    ],
)
def test_channels_differ_in_magnitude(name: str, settings: dict[str, Any], weight: str) -> None:
    model = build(name, **settings)
    tensor = next(t for t in model.graph.initializer if t.name == weight)
    array = onnx.numpy_helper.to_array(tensor)

    channels = array.T if array.ndim == 2 else array.reshape(len(array), -1)
    assert 0.2 < np.log(channels.std(axis=1)).std() < 0.5


# name, settings, parameters and operators of the published models
PUBLISHED = [
    ("resnet18", {}, 11_689_512, {"Conv": 20, "Gemm": 1}),
    ("resnet34", {}, 21_797_672, {"Conv": 36, "Gemm": 1}),
    ("resnet50", {}, 25_557_032, {"Conv": 53, "Gemm": 1}),
    ("mobilenet_v2", {}, 3_504_872, {"Conv": 52, "Clip": 35, "Add": 10}),
    ("efficientnet", {}, 5_288_548, {"Conv": 81, "GlobalAveragePool": 17, "Add": 9}),
    ("shufflenet_v2", {}, 1_366_792, {"Conv": 56, "Split": 13, "Concat": 16}),
    ("shufflenet_v2", {"width": 1.0}, 2_278_604, {"Conv": 56}),
    (
        "convnext",
        {"depths": (3, 3, 9, 3), "dims": (96, 192, 384, 768)},
        28_589_128,
        {"Conv": 22, "LayerNormalization": 23, "MatMul": 36},
    ),
    ("vit", {}, 22_050_664, {"Conv": 1, "MatMul": 72, "Softmax": 12, "LayerNormalization": 25}),
    ("unet", {"width": 64}, 31_037_698, {"ConvTranspose": 4, "Conv": 19, "Concat": 4}),
    ("yolo", {}, 3_157_200, {"Conv": 64, "MaxPool": 3, "Resize": 2}),
]


@pytest.mark.parametrize(("name", "settings", "size", "operators"), PUBLISHED)
def test_sizes_are_the_published_ones(
    name: str, settings: dict[str, Any], size: int, operators: dict[str, int]
) -> None:
    model = build(name, **settings)

    assert parameters(model) == size
    assert {op_type: count(model, op_type) for op_type in operators} == operators


def test_gpt_looks_only_back() -> None:
    model = build("gpt", **SMALL["gpt"])
    inputs = random_inputs(model)
    before = run(model, inputs=inputs)["logits"]

    inputs["input_ids"][0, 10] += 1
    after = run(model, inputs=inputs)["logits"]

    moved = np.abs(after - before).max(axis=(0, 2))
    assert moved[:10].max() < 1e-4
    assert moved[10:].min() > 1e-3


def test_gpt_has_the_parameters_of_gpt_2() -> None:
    settings = {"width": 768, "vocabulary": 1000}
    one, two = (parameters(build("gpt", layers=layers, **settings)) for layers in (1, 2))

    # GPT-2 has 124,439,808: twelve layers, and 50,257 words in the table that the head shares.
    assert one + 11 * (two - one) + (50_257 - 1000) * 768 == 124_439_808


@pytest.mark.parametrize("nodes", [1, 7, 1000, 20_000])
def test_chain_has_the_number_of_nodes_asked_for(nodes: int) -> None:
    model = build("chain", nodes=nodes)

    assert len(model.graph.node) == nodes
    assert model.ByteSize() < 50_000 + 200 * nodes
