"""Graphs that are wired wrongly, named badly, or that call themselves."""

from __future__ import annotations

import random
from collections.abc import Callable

import onnx
from onnx import helper

from tests.fuzz.seeds import function_chain, nested

_NAMES = (
    "", " ", "../../x", "/etc/passwd", "[red]x[/red]", "\x1b[31mred", "a\nb", "a\0b", "\u202eabc",
    "a" * 10_000, "NOT_UTF8_HERE", "<script>", "{0}", "%s", "--force", "x_scale", "x_quantized",
    "w_dequantized", "..", ".", "\U0001f600", "C:\\x",
)  # fmt: skip


def _bodies(model: onnx.ModelProto) -> list[onnx.GraphProto]:
    found = [model.graph]
    for graph in found:
        for node in graph.node:
            found += (each.g for each in node.attribute if each.HasField("g"))
    return found


def _graph(rng: random.Random, model: onnx.ModelProto) -> onnx.GraphProto:
    """The main graph mostly, else one of its bodies."""
    return model.graph if rng.random() < 0.7 else rng.choice(_bodies(model))


def drop_node(rng: random.Random, model: onnx.ModelProto) -> None:
    """Leave a node out: its readers dangle."""
    nodes = _graph(rng, model).node
    if nodes:
        del nodes[rng.randrange(len(nodes))]


def duplicate_node(rng: random.Random, model: onnx.ModelProto) -> None:
    """A node twice, with the same results or with new ones."""
    nodes = _graph(rng, model).node
    if nodes:
        copy = nodes.add()
        copy.CopyFrom(rng.choice(nodes[:-1]) if len(nodes) > 1 else copy)
        if rng.random() < 0.5:
            copy.output[:] = [f"{name}_copy" for name in copy.output]


def reverse_nodes(rng: random.Random, model: onnx.ModelProto) -> None:
    """Nodes before what they read."""
    nodes = _graph(rng, model).node
    turned = list(nodes)[::-1]
    del nodes[:]
    nodes.extend(turned)


def cycle(rng: random.Random, model: onnx.ModelProto) -> None:
    """A node that reads what comes of it."""
    nodes = _graph(rng, model).node
    if nodes and nodes[0].input and nodes[-1].output:
        nodes[0].input[0] = nodes[-1].output[0]


def rewire(rng: random.Random, model: onnx.ModelProto) -> None:
    """An input that is something else: of another type, empty, or nowhere defined."""
    graph = _graph(rng, model)
    nodes = [node for node in graph.node if node.input]
    if nodes:
        node = rng.choice(nodes)
        names = [name for other in graph.node for name in (*other.input, *other.output)]
        node.input[rng.randrange(len(node.input))] = rng.choice((*names, "", "nowhere"))


def more_inputs(rng: random.Random, model: onnx.ModelProto) -> None:
    """Too few or too many inputs or outputs."""
    nodes = _graph(rng, model).node
    if nodes:
        field = rng.choice((rng.choice(nodes).input, rng.choice(nodes).output))
        if field and rng.random() < 0.5:
            del field[rng.randrange(len(field))]
        else:
            field.extend(rng.choice((["more"], [""], ["x"] * 100)))


def rename(rng: random.Random, model: onnx.ModelProto) -> None:
    """Call a tensor by a name that somebody might print, open or parse; wiring stays right."""
    graph = model.graph
    old = rng.choice([name for node in graph.node for name in (*node.input, *node.output)] or ["x"])
    new = rng.choice(_NAMES)
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    for value in (*graph.input, *graph.output, *graph.initializer):
        value.name = new if value.name == old else value.name


def odd_node_name(rng: random.Random, model: onnx.ModelProto) -> None:
    """A node of a name that somebody might print, or of another node's name."""
    nodes = _graph(rng, model).node
    if nodes:
        rng.choice(nodes).name = rng.choice((*_NAMES, nodes[0].name))


def odd_op(rng: random.Random, model: onnx.ModelProto) -> None:
    """Another op, known or not, in another domain or not."""
    nodes = _graph(rng, model).node
    if nodes:
        node = rng.choice(nodes)
        ops = ("Strange", "", "Conv", "Gemm", "Loop", "If", "Constant", "QuantizeLinear",
               "DequantizeLinear", "Identity", "Range", "ConstantOfShape", "Tile", "local",
               "\x1b[31mOp")  # fmt: skip
        node.op_type = rng.choice(ops)
        if rng.random() < 0.3:
            node.domain = rng.choice(("nowhere", "ai.onnx", "ai.onnx.ml", "com.microsoft"))


def duplicate_name(rng: random.Random, model: onnx.ModelProto) -> None:
    """One name for two values: initializers, inputs, results, values of a body."""
    graph = model.graph
    names = [value.name for value in (*graph.input, *graph.initializer)]
    names += [name for node in graph.node for name in node.output]
    target = _graph(rng, model)
    how = rng.randrange(4)
    if how == 0 and graph.initializer:
        copy = target.initializer.add()
        copy.CopyFrom(rng.choice(graph.initializer))
    elif how == 1:
        target.input.append(helper.make_tensor_value_info(rng.choice(names), 1, [1]))
    elif how == 2 and target.node and target.node[-1].output:
        target.node[-1].output[0] = rng.choice(names)
    else:
        target.output.append(helper.make_tensor_value_info(rng.choice(names), 1, [1]))


def drop_end(rng: random.Random, model: onnx.ModelProto) -> None:
    """Lose an input, an output or an initializer."""
    graph = _graph(rng, model)
    field = rng.choice((graph.input, graph.output, graph.initializer))
    if field:
        del field[rng.randrange(len(field))]


def opsets(rng: random.Random, model: onnx.ModelProto) -> None:
    """Opset imports that are missing, double, zero or from the future."""
    how = rng.randrange(4)
    if how == 0:
        del model.opset_import[:]
    elif how == 1:
        model.opset_import.add(domain=rng.choice(("", "ai.onnx")), version=rng.choice((1, 13, 17)))
    elif how == 2 and model.opset_import:
        model.opset_import[0].version = rng.choice((0, -1, 1, 6, 9, 12, 99, 2**31, 2**62))
    else:
        model.opset_import.add(domain=rng.choice(_NAMES), version=1)


def ir_version(rng: random.Random, model: onnx.ModelProto) -> None:
    """A format version that doesn't exist or doesn't fit."""
    model.ir_version = rng.choice((0, 1, 2, 3, 4, 99, -1, 2**31, 2**62))


def metadata(rng: random.Random, model: onnx.ModelProto) -> None:
    """Metadata twice, without a key, or pretending to be ours."""
    for key in ("a", rng.choice(("", "a", "b")), "qdqtune.version", rng.choice(_NAMES)):
        model.metadata_props.add(key=key, value=rng.choice(_NAMES))
    model.producer_name = model.doc_string = rng.choice(_NAMES)


def functions(rng: random.Random, model: onnx.ModelProto) -> None:
    """Functions that call themselves, each other, or one another a thousand deep."""
    other = rng.choice(
        (function_chain(1, cyclic=True), function_chain(3, cyclic=True), function_chain(1000))
    )
    if rng.random() < 0.3 and other.functions:
        other.functions.add().CopyFrom(other.functions[0])
    model.functions.extend(other.functions)
    model.opset_import.add(domain="local", version=1)
    if rng.random() < 0.5 and model.graph.node:
        source = model.graph.node[0].output[:1] or [""]
        model.graph.node.append(helper.make_node("f0", source, ["called"], domain="local"))


def deep(rng: random.Random, model: onnx.ModelProto) -> None:
    """Control flow as deep as protobuf takes it."""
    body = nested(rng.choice((10, 25, 30)), prefix="deep_").graph
    model.graph.node.extend(body.node)
    model.graph.input.extend(body.input)


def constant_bomb(rng: random.Random, model: onnx.ModelProto) -> None:
    """A few bytes that fold into terabytes, or run for ever."""
    size = rng.choice((2**20, 2**31, 2**62))
    shape = helper.make_tensor("bomb_shape", onnx.TensorProto.INT64, [2], [size, size])
    one = helper.make_tensor("bomb_one", onnx.TensorProto.INT64, [], [1])
    many = helper.make_tensor("bomb_many", onnx.TensorProto.INT64, [], [size])
    row = helper.make_tensor("bomb_row", onnx.TensorProto.FLOAT, [1, 1], [1.0])
    model.graph.initializer.extend([shape, one, many, row])
    inputs, op_type = rng.choice(
        (
            (["bomb_shape"], "ConstantOfShape"),
            (["bomb_one", "bomb_many", "bomb_one"], "Range"),
            (["bomb_row", "bomb_shape"], "Expand"),
            (["bomb_row", "bomb_shape"], "Tile"),
            (["bomb_row", "bomb_shape"], "Reshape"),
        )
    )
    model.graph.node.insert(0, helper.make_node(op_type, inputs, ["bomb"], name="bomb"))
    if rng.random() < 0.5:
        model.graph.output.append(helper.make_tensor_value_info("bomb", 1, None))


GRAPH_MUTATIONS: tuple[Callable[[random.Random, onnx.ModelProto], None], ...] = (
    drop_node, duplicate_node, reverse_nodes, cycle, rewire, more_inputs, rename, rename,
    odd_node_name, odd_op, duplicate_name, drop_end, opsets, ir_version, metadata, functions, deep,
    constant_bomb,
)  # fmt: skip
